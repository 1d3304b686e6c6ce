"""Random numbers of a generator that do not depend on torch's default dtype and device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def uniform_numbers(source: torch.Generator, shape: Sequence[int]) -> Float[Tensor, "*shape"]:
    """Numbers in [0, 1), in float32 on the device of the generator."""
    return torch.rand(shape, generator=source, dtype=torch.float32, device=source.device)


def normal_numbers(source: torch.Generator, shape: Sequence[int]) -> Float[Tensor, "*shape"]:
    """Numbers of the standard normal distribution, in float32 on the device of the generator."""
    return torch.randn(shape, generator=source, dtype=torch.float32, device=source.device)


def random_order(source: torch.Generator, count: int) -> Int[Tensor, " count"]:
    """The numbers from 0 to `count` − 1 in random order, on the device of the generator."""
    return torch.randperm(count, generator=source, device=source.device)
