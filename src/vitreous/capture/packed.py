"""Run token sequences of different lengths together: token-wise layers once for all, attention once per length."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.backward_functions import attention_at
from vitreous.capture.forward import attention_pool, classify_pooled, pooling_rows, run, run_mlp_branch
from vitreous.capture.linearise import PLAIN
from vitreous.capture.pixels import LogitReader
from vitreous.capture.precision import in_blocks
from vitreous.capture.progress import run_in_pieces
from vitreous.models.eval_mode import evaluating
from vitreous.models.tensor_types import Keep, Logits, Pooled, Tokens
from vitreous.models.vit import AttentionBranch, AttentionPool, Layout, LinearPool, TokenPositions, ViT

Packed = Float[Tensor, "1 all d"]  # tokens of all sequences, concatenated
Index = Int[Tensor, "_ _"]  # positions of k sequences with n tokens each; shapes differ between lengths


@torch.no_grad()
def outputs_of_subsets(
    vit: ViT, tokens: Tokens, layout: Layout, keep: Bool[Tensor, "rows s p"], room: int, read: LogitReader | None = None
) -> Float[Tensor, "rows s c"]:
    """Return the model's logits when only the kept patches enter, after `read` if given.

    Parameters
    ----------
    vit
        The adapted model.
    tokens
        Embedded images with all patches.
    layout
        Prefix tokens and patch grid.
    keep
        Masks of the patches that stay, s per row. The number of rows is a multiple of the number of images: consecutive
        rows belong to the same image.
    room
        Number of tokens to run at once.
    read
        Reduces the logits of each piece, given the number of each subset, so that not all logits are in memory.
    """
    sizes, flat = Sizes.of(keep), keep.flatten(0, 1)
    several, prefix = len(flat) // len(tokens), layout.prefix

    def run_piece(piece: slice) -> Logits:
        rows, parts = sizes.order[piece], list(sizes.within(piece))
        index, first = tokens_of(flat[rows], prefix), rows // several * tokens.shape[1]
        indices = [index[same, : prefix + count] for count, same in parts]
        at = torch.cat(
            [(first[same, None] + token_index).flatten() for (_, same), token_index in zip(parts, indices, strict=True)]
        )
        return run_packed(vit, tokens.flatten(0, 1)[at][None], layout, indices)

    return run_in_pieces(run_piece, sizes.order, sizes.that_fit(room, prefix), read).unflatten(0, keep.shape[:2])


def run_packed(vit: ViT, tokens: Packed, layout: Layout, indices: Sequence[Index]) -> Logits:
    """Logits of packed sequences; each index [k n] holds the positions of k sequences with n tokens."""
    shapes = [index.shape for index in indices]
    if len(indices) == 1:
        return run(vit, tokens[0].unflatten(0, shapes[0]), TokenPositions(layout, indices[0]))
    places = [TokenPositions(layout, index) for index in indices if index.shape[1]]  # empty sequences have no attention
    with in_blocks(tokens.device):
        for block in vit.blocks:
            mid = tokens + run_attention(block.attention, tokens, places)
            tokens = mid + run_mlp_branch(block.mlp, mid, PLAIN)
    rows = vit.norm(tokens)[0].split([index.numel() for index in indices])
    read = torch.cat([pooled(vit.pool, part.unflatten(0, shape)) for part, shape in zip(rows, shapes, strict=True)])
    with evaluating(vit.module):
        return classify_pooled(vit, vit.pooled_norm(read))


def run_attention(attention_part: AttentionBranch, x: Packed, places: Sequence[TokenPositions]) -> Packed:
    """Output of the attention branch; every sequence attends to its own tokens only."""
    q, k, v = attention_part.qkv(attention_part.norm(x))
    parts = (split_by_length(heads, places) for heads in (attention_part.q_norm(q), attention_part.k_norm(k), v))
    mixed = []
    for place, queries, keys, values in zip(places, *parts, strict=True):
        queries, keys = attention_part.rotate(queries, place), attention_part.rotate(keys, place)
        mixed_heads = attention_at(1, queries, keys, values, attention_part.bias(place), attention_part.scale)
        mixed.append(mixed_heads.transpose(1, 2).flatten(0, 1))
    return attention_part.project(attention_part.inner_norm(torch.cat(mixed).flatten(1)[None]))


def pooled(pool: LinearPool | AttentionPool, x: Tokens) -> Pooled:
    """Pooled tokens, given the output of the final norm."""
    if isinstance(pool, LinearPool):
        return pooling_rows(pool, x) @ x
    return attention_pool(pool, pool.q_norm(pool.query()), *pool.key_value(x[:, pool.skip :]), PLAIN)[0]


def split_by_length(
    heads: Float[Tensor, "1 h all e"], places: Sequence[TokenPositions]
) -> list[Float[Tensor, "_ h _ e"]]:
    """Split packed heads into one tensor [k h n e] per length."""
    shapes = [place.index.shape for place in places if place.index is not None]
    parts = heads[0].split([k * n for k, n in shapes], dim=1)
    return [part.unflatten(1, shape).transpose(0, 1) for part, shape in zip(parts, shapes, strict=True)]


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
