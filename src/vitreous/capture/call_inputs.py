"""Tensors that a module is called with, also those in lists, tuples and dictionaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def entering_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Distinct floating-point tensors among the arguments of a call, in their order."""
    return list({id(tensor): tensor for tensor in floating_tensors((*args, *kwargs.values()))}.values())


def floating_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif type(value) in (list, tuple):
        for item in value:
            yield from floating_tensors(item)
    elif type(value) is dict:
        yield from floating_tensors(list(value.values()))


def replace_tensors(value: Any, replacements: Mapping[int, Tensor]) -> Any:
    """Arguments with other tensors in place of those whose `id` is a key."""
    if isinstance(value, Tensor):
        return replacements.get(id(value), value)
    if type(value) in (list, tuple):
        return type(value)(replace_tensors(item, replacements) for item in value)
    if type(value) is dict:
        return {key: replace_tensors(item, replacements) for key, item in value.items()}
    return value
