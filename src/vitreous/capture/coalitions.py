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
from vitreous.models.shapes import Keep
from vitreous.models.vit import Place


def among(probe: Probe, index: Int[Tensor, "m n"], owner: Int[Tensor, " m"]) -> Probe:
    """What is asked of picture `owner[i]`, when only the tokens in `index[i]` enter."""
    part = owned(probe, probe.images[owner], owner)
    part.tokens, part.place = probe.tokens[owner[:, None], index], Place(probe.layout, index)
    return part


def in_coalitions(
    probe: Probe, keep: Keep, scores: Callable[[Probe], Float[Tensor, "m n"]], tally: Tally | None = None
) -> Float[Tensor, "r s p"]:
    """`scores` of the tokens of every coalition, brought to the patches that they are; 0 for those that left.

    Coalitions of equal size run together, as many as fit.
    """
    (pictures, several, patches), k = keep.shape, probe.targets_per_image
    flat, counts = keep.flatten(0, 1), keep.sum(-1).flatten().cpu()
    found = torch.zeros(len(flat), k, patches, dtype=probe.tokens.dtype, device=keep.device)
    tally = tally or Tally(len(flat))
    for count in counts.unique().tolist():
        same = (counts == count).nonzero()[:, 0].to(keep.device)
        walk = partial(walked, probe, flat, several, same, count, scores)
        for piece, part in pieces(walk, len(same), at_once(probe, count), tally):
            rows = same[piece]
            place = flat[rows].nonzero()[:, 1].view(len(rows), 1, count).expand(-1, k, -1)
            found[rows] = found[rows].scatter(2, place, part.view(len(rows), k, count).to(found))
    return found.view(pictures, several, k, patches).transpose(1, 2).flatten(0, 1)


def walked(
    probe: Probe,
    keep: Bool[Tensor, "all p"],
    several: int,
    same: Int[Tensor, " same"],
    count: int,
    scores: Callable[[Probe], Float[Tensor, "m n"]],
    piece: slice,
) -> Float[Tensor, "rows count"]:
    rows, prefix = same[piece], probe.layout.prefix
    kept = keep[rows].nonzero()[:, 1].view(len(rows), count) + prefix
    front = torch.arange(prefix, device=kept.device).expand(len(rows), -1)
    return scores(among(probe, torch.cat([front, kept], 1), rows // several))[:, prefix:]


def at_once(probe: Probe, count: int) -> int:
    """Coalitions whose graph is held together: on a GPU, a share of what is free."""
    tokens = probe.tokens
    room = rows_that_fit(
        probe.layout.prefix + count, tokens.shape[-1], tokens.element_size() * probe.vit.depth, tokens.device
    )
    return max(1, max(room, AT_ONCE) // probe.targets_per_image)
