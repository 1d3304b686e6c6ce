"""Group subsets of patches by size, and find the tokens of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, repeat

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vitreous.models.tensor_types import Keep


@dataclass(frozen=True, slots=True)
class Sizes:
    """Subsets of all images, sorted by size."""

    order: Int[Tensor, " all"]  # subset indices, from the smallest subset to the largest
    counts: list[int]  # distinct sizes
    many: list[int]  # number of subsets of each size

    @classmethod
    def of(cls, keep: Keep) -> Sizes:
        counts = keep.sum(-1).flatten()
        order = counts.argsort(stable=True)
        sizes, many = counts.cpu().unique(return_counts=True)  # one GPU synchronisation here instead of one per size
        return cls(order, sizes.tolist(), many.tolist())

    def __iter__(self) -> Iterator[tuple[int, Int[Tensor, " same"]]]:
        """Yield every size and the indices of its subsets."""
        yield from zip(self.counts, self.order.split(self.many), strict=True)

    def within(self, piece: slice) -> Iterator[tuple[int, slice]]:
        """Yield the sizes that occur in a slice of `order`, and where in the slice."""
        first = 0
        for count, many in zip(self.counts, self.many, strict=True):
            start, stop = max(first, piece.start), min(first + many, piece.stop)
            if start < stop:
                yield count, slice(start - piece.start, stop - piece.start)
            first += many

    def that_fit(self, room: int, prefix: int) -> Callable[[int], int]:
        """Return a function from a start in `order` to the number of subsets from there that fit into `room` tokens."""
        lengths = (
            length
            for count, many in zip(self.counts, self.many, strict=True)
            for length in repeat(prefix + count, many)
        )
        ends = list(accumulate(lengths, initial=0))
        return lambda start: bisect_right(ends, ends[start] + room) - 1 - start


def tokens_of(keep: Bool[Tensor, "m p"], prefix: int) -> Int[Tensor, "m all"]:
    """Positions of all tokens: the prefix, then the kept patches in order, then the removed ones."""
    order = keep.byte().argsort(dim=-1, descending=True, stable=True) + prefix  # `nonzero` would synchronise the GPU
    return torch.cat([torch.arange(prefix, device=order.device).expand(len(order), -1), order], 1)
