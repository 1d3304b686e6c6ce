"""Formatting of values in error messages."""

from __future__ import annotations

from typing import Any

LONGEST = 120  # characters


def shorten_repr(value: Any) -> str:
    """Return `repr(value)`, truncated to `LONGEST` characters, or "<type>" if `repr` fails.

    Examples
    --------
    >>> shorten_repr("cls")
    "'cls'"
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - e.g. an int over the digit limit, or infinite recursion
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
