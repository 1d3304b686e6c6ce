"""Backward passes through coalitions: only a subset of patches enters the model, the others are removed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.memory import rows_that_fit
from vitreous.capture.path_gradients import AT_ONCE, probe_other_images
from vitreous.capture.probe import Probe
from vitreous.capture.progress import Tally, pieces
from vitreous.capture.subsets import Sizes, tokens_of
from vitreous.models.tensor_types import Keep
from vitreous.models.vit import TokenPositions


def probe_with_tokens(probe: Probe, index: Int[Tensor, "m n"], owner: Int[Tensor, " m"]) -> Probe:
    """Return a probe where row i is the probe's image `owner[i]`, with only the tokens at positions `index[i]`."""
    part = probe_other_images(probe, probe.images[owner], owner)
    part.tokens, part.place = probe.tokens[owner[:, None], index], TokenPositions(probe.layout, index)
    return part


def in_coalitions(probe: Probe, keep: Keep, scores: Callable[[Probe], Float[Tensor, "m n"]]) -> Float[Tensor, "r s p"]:
    """Compute token scores in every coalition and return them per patch; 0 for removed patches.

    Coalitions of equal size run together, as many as fit into memory.

    Parameters
    ----------
    probe
        Model, images, targets and score function.
    keep
        Masks of the patches in each coalition, [b s p].
    scores
        Function from a probe of coalitions to a score for each of its tokens, prefix included.
    """
    (images, several, patches), k = keep.shape, probe.targets_per_image
    flat, tally = keep.flatten(0, 1), Tally(images * several)
    patch_scores = torch.zeros(len(flat), k, patches, dtype=probe.tokens.dtype, device=keep.device)
    for count, same in Sizes.of(keep):
        layer_pass = partial(score_piece, probe, flat, several, same, count, scores)
        for piece, part in pieces(layer_pass, len(same), at_once(probe, count), tally):
            patch_scores[same[piece]] = part.to(patch_scores)
    return patch_scores.view(images, several, k, patches).transpose(1, 2).flatten(0, 1)


def score_piece(
    probe: Probe,
    keep: Bool[Tensor, "all p"],
    several: int,
    same: Int[Tensor, " same"],
    count: int,
    scores: Callable[[Probe], Float[Tensor, "m n"]],
    piece: slice,
) -> Float[Tensor, "rows k p"]:
    """Scores per patch of a piece of the coalitions of one size (`count` patches)."""
    rows, prefix, k = same[piece], probe.layout.prefix, probe.targets_per_image
    index = tokens_of(keep[rows], prefix)[:, : prefix + count]
    part = scores(probe_with_tokens(probe, index, rows // several))[:, prefix:].view(len(rows), k, count)
    place = (index[:, prefix:] - prefix)[:, None].expand(-1, k, -1)
    return part.new_zeros(len(rows), k, keep.shape[1]).scatter(2, place, part)


def at_once(probe: Probe, count: int) -> int:
    """Number of coalitions whose graphs are in memory together; on a GPU, from the free memory."""
    tokens = probe.tokens
    room = rows_that_fit(
        probe.layout.prefix + count, tokens.shape[-1], tokens.element_size() * probe.vit.depth, tokens.device
    )
    return max(1, max(room, AT_ONCE) // probe.targets_per_image)
