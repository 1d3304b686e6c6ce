"""Evaluation mode and hooks for the time of a forward, and an early end of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Context manager: all submodules of `module` are in eval mode; their flags are restored on exit."""
    training = [part for part in parts(module) if part.training]
    # Set the flag directly: some models override `train()`, and it would overwrite flags of submodules that differ.
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def removing_hooks(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Context manager: hooks that were registered are removed on exit."""
    handles = list(handles)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class StopForward(Exception):  # noqa: N818 - not an error
    """Raised by a hook to end a forward whose rest is not needed."""


def parts(module: nn.Module) -> set[nn.Module]:
    """`module` and all its submodules. Cheaper than `module.modules()`; called on every head forward."""
    visited: set[nn.Module] = set()
    more: list[nn.Module | None] = [module]
    while more:
        part = more.pop()
        if part is not None and part not in visited:
            visited.add(part)
            more.extend(part._modules.values())
    return visited
