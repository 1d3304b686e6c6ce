"""The way back through a coalition: some patches enter, the others truly leave, and the score speaks of those that are there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.memory import rows_that_fit
from vitreous.capture.paths import AT_ONCE, owned
from vitreous.capture.probe import Probe
from vitreous.capture.progress import Tally, pieces
from vitreous.capture.subsets import Sizes, tokens_of
from vitreous.models.shapes import Keep
from vitreous.models.vit import Place


def among(probe: Probe, index: Int[Tensor, "m n"], owner: Int[Tensor, " m"]) -> Probe:
    """What is asked of picture `owner[i]`, when only the tokens in `index[i]` enter."""
    part = owned(probe, probe.images[owner], owner)
    part.tokens, part.place = probe.tokens[owner[:, None], index], Place(probe.layout, index)
    return part


def in_coalitions(probe: Probe, keep: Keep, scores: Callable[[Probe], Float[Tensor, "m n"]]) -> Float[Tensor, "r s p"]:
    """`scores` of the tokens of every coalition, brought to the patches that they are; 0 for those that left.

    Coalitions of equal size run together, as many as fit.
    """
    (pictures, several, patches), k = keep.shape, probe.targets_per_image
    flat, tally = keep.flatten(0, 1), Tally(pictures * several)
    found = torch.zeros(len(flat), k, patches, dtype=probe.tokens.dtype, device=keep.device)
    for count, same in Sizes.of(keep):
        walk = partial(walked, probe, flat, several, same, count, scores)
        for piece, part in pieces(walk, len(same), at_once(probe, count), tally):
            found[same[piece]] = part.to(found)
    return found.view(pictures, several, k, patches).transpose(1, 2).flatten(0, 1)


def walked(
    probe: Probe,
    keep: Bool[Tensor, "all p"],
    several: int,
    same: Int[Tensor, " same"],
    count: int,
    scores: Callable[[Probe], Float[Tensor, "m n"]],
    piece: slice,
) -> Float[Tensor, "rows k p"]:
    rows, prefix, k = same[piece], probe.layout.prefix, probe.targets_per_image
    index = tokens_of(keep[rows], prefix)[:, : prefix + count]
    part = scores(among(probe, index, rows // several))[:, prefix:].view(len(rows), k, count)
    place = (index[:, prefix:] - prefix)[:, None].expand(-1, k, -1)
    return part.new_zeros(len(rows), k, keep.shape[1]).scatter(2, place, part)


def at_once(probe: Probe, count: int) -> int:
    """Coalitions whose graph is held together: on a GPU, a share of what is free."""
    tokens = probe.tokens
    room = rows_that_fit(
        probe.layout.prefix + count, tokens.shape[-1], tokens.element_size() * probe.vit.depth, tokens.device
    )
    return max(1, max(room, AT_ONCE) // probe.targets_per_image)
