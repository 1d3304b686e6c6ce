"""Subsets of patches: those of one size run together, each with the tokens that stay."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vitreous.models.shapes import Keep


def by_size(keep: Keep) -> Iterator[tuple[int, Int[Tensor, " same"]]]:
    """Every number of patches that some subset keeps, and which subsets do, counted over all pictures."""
    counts = keep.sum(-1).flatten().cpu()  # so that a GPU is waited for once, and not for every size
    for count in counts.unique().tolist():
        yield count, (counts == count).nonzero()[:, 0].to(keep.device)


def tokens_of(keep: Bool[Tensor, "m p"], count: int, prefix: int) -> Int[Tensor, "m n"]:
    """Positions of the tokens that stay where `count` patches do: all of the prefix, then the patches in their order."""
    kept = keep.byte().argsort(dim=-1, descending=True, stable=True)[:, :count] + prefix  # no nonzero: a GPU would wait
    return torch.cat([torch.arange(prefix, device=kept.device).expand(len(kept), -1), kept], 1)
