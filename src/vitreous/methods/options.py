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


PLAIN = {"int": int, "float": (int, float), "bool": bool, "str": str, "None": type(None)}
COUNTS = {"masks", "samples", "steps", "cells", "regions", "clusters", "window", "stride"}  # at least one of them


def types_of(function: Callable[..., Any] | None, skip: int = 1) -> dict[str, str]:
    """Annotations of the parameters behind the first `skip`, as they are written."""
    if function is None:
        return {}
    return {p.name: str(p.annotation) for p in list(inspect.signature(function).parameters.values())[skip:]}


def check_values(owner: str, given: Mapping[str, Any], types: Mapping[str, str]) -> None:
    """Numbers where numbers are meant, whole ones where things are counted; what has another type is not judged here."""
    for key, value in given.items():
        kinds = [kind.strip() for kind in types.get(key, "").split("|")]
        if all(kind in PLAIN for kind in kinds):
            fits = [
                isinstance(value, PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool)) for kind in kinds
            ]
            if not any(fits):
                raise SpecError(f"{owner} cannot take {key}={value!r}; expected {' or '.join(kinds)}")
        if key in COUNTS and isinstance(value, int | float) and value < 1:
            raise SpecError(f"{owner} cannot take {key}={value!r}; expected at least 1")


def choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise SpecError(f"{name}={value!r}; known: {', '.join(map(repr, allowed))}")


def written(options: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else ""
