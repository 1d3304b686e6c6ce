"""Subsets of patches, those of one size side by side, and the tokens that stay in each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, repeat

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vitreous.models.shapes import Keep


@dataclass(frozen=True, slots=True)
class Sizes:
    """Subsets of all pictures, from the smallest to the largest."""

    order: Int[Tensor, " all"]  # which subset comes when
    counts: list[int]  # the sizes that there are,
    many: list[int]  # and how many subsets have each

    @classmethod
    def of(cls, keep: Keep) -> Sizes:
        counts = keep.sum(-1).flatten()
        order = counts.argsort(stable=True)
        sizes, many = counts.cpu().unique(return_counts=True)  # the only wait for a GPU: at every size, it would idle
        return cls(order, sizes.tolist(), many.tolist())

    def __iter__(self) -> Iterator[tuple[int, Int[Tensor, " same"]]]:
        """Every size, and which subsets have it."""
        yield from zip(self.counts, self.order.split(self.many), strict=True)

    def within(self, piece: slice) -> Iterator[tuple[int, slice]]:
        """The sizes of some subsets that follow each other in the order, and which of them have it."""
        first = 0
        for count, many in zip(self.counts, self.many, strict=True):
            start, stop = max(first, piece.start), min(first + many, piece.stop)
            if start < stop:
                yield count, slice(start - piece.start, stop - piece.start)
            first += many

    def that_fit(self, room: int, prefix: int) -> Callable[[int], int]:
        """How many subsets, counted from one of the order, hold no more than `room` tokens together."""
        lengths = (
            length
            for count, many in zip(self.counts, self.many, strict=True)
            for length in repeat(prefix + count, many)
        )
        ends = list(accumulate(lengths, initial=0))
        return lambda start: bisect_right(ends, ends[start] + room) - 1 - start


def tokens_of(keep: Bool[Tensor, "m p"], prefix: int) -> Int[Tensor, "m all"]:
    """Positions of all tokens, those that stay in front: all of the prefix, then the kept patches in their order."""
    kept = keep.byte().argsort(dim=-1, descending=True, stable=True) + prefix  # no nonzero: a GPU would wait
    return torch.cat([torch.arange(prefix, device=kept.device).expand(len(kept), -1), kept], 1)
