"""Subsets of patches: those of one size run together, each with the tokens that stay."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vitreous.models.shapes import Keep


def by_size(keep: Keep) -> Iterator[tuple[int, Int[Tensor, " same"]]]:
    """Every number of patches that some subset keeps, and which subsets do, counted over all pictures."""
    counts = keep.sum(-1).flatten()
    order = counts.argsort(stable=True)
    sizes, many = counts.cpu().unique(
        return_counts=True
    )  # the only wait for a GPU: one at every size would leave it idle
    yield from zip(sizes.tolist(), order.split(many.tolist()), strict=True)


def tokens_of(keep: Bool[Tensor, "m p"], count: int, prefix: int) -> Int[Tensor, "m n"]:
    """Positions of the tokens that stay where `count` patches do: all of the prefix, then the patches in their order."""
    kept = keep.byte().argsort(dim=-1, descending=True, stable=True)[:, :count] + prefix  # no nonzero: a GPU would wait
    return torch.cat([torch.arange(prefix, device=kept.device).expand(len(kept), -1), kept], 1)
