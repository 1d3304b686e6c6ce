"""A model kept still while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vitreous.core.errors import ModelError


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Every part of `module` in eval mode; each gets its own flag back, also after an exception."""
    training = [part for part in parts(module) if part.training]
    # the flag itself, not `.eval()`: models override `train()`, and it would reach parts that have another flag
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def parts(module: nn.Module) -> set[nn.Module]:
    """`module` and all that is in it. Without the names that `modules()` spells: every answer of a head asks, and a GPU waits."""
    found: set[nn.Module] = set()
    more: list[nn.Module | None] = [module]
    while more:
        part = more.pop()
        if part is not None and part not in found:
            found.add(part)
            more.extend(part._modules.values())
    return found


def settled(module: nn.Module, device: str | torch.device | None) -> nn.Module:
    """A freshly built module in eval mode, on `device`; one that is not there is refused in a sentence."""
    try:
        return module.eval() if device is None else module.eval().to(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ModelError(f"device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from None
