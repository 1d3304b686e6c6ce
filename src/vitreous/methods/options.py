"""Options are keyword arguments of the function they belong to; what is not one is refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from vitreous.core.errors import SpecError


def options_of(function: Callable[..., Any] | None, skip: int = 1) -> dict[str, Any]:
    """Parameters behind the first `skip`, with their defaults."""
    if function is None:
        return {}
    return {p.name: p.default for p in list(inspect.signature(function).parameters.values())[skip:]}


def check_options(owner: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known)) or 'none'}"
            raise SpecError(f"{owner} has no option {key!r}; {hint}")


def choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise SpecError(f"{name}={value!r}; known: {', '.join(map(repr, allowed))}")


def written(options: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else ""
