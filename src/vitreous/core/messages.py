"""Values as error messages repeat them."""

from __future__ import annotations

from typing import Any

LONGEST = 120  # characters


def shown(value: Any) -> str:
    """The value's repr, cut to a readable length; its type where it has no repr.

    Examples
    --------
    >>> shown("cls")
    "'cls'"
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an int with more digits than Python prints, or nesting without end
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
