"""Gradients of the score at given points: other images, other input tokens of a block, or subsets of the patches.

Points have shape [b s …], s for every image of the probe. They run in small batches, so that the memory of the backward
pass does not grow with s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import AnyProbe, BlackBoxProbe
from vitreous.capture.forward import classify_pooled, run_block, run_head
from vitreous.capture.layer import Layer, interleave_targets
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.memory import rows_that_fit
from vitreous.capture.packed import Sizes, tokens_of
from vitreous.capture.probe import Probe
from vitreous.capture.progress import pieces
from vitreous.core.errors import ModelError, SpecError
from vitreous.core.progress import Tally
from vitreous.models.tensor_types import Keep
from vitreous.models.vit import LinearPool, TokenPositions

AT_ONCE = 32  # images whose graphs are in memory together


def at_once(probe: BlackBoxProbe) -> int:
    """Number of points per image to pass in one call, so that the results stay small too."""
    return max(1, AT_ONCE // probe.rows)


def check_start(probe: BlackBoxProbe, start: int) -> int:
    """Return `start` if the model has a block of that index; raise a `SpecError` otherwise."""
    if not 0 <= start < probe.vit.depth:
        raise SpecError(f"start={start}, but the model has layers 0 to {probe.vit.depth - 1}")
    return start


def gradients_at(
    probe: BlackBoxProbe,
    points: Float[Tensor, "b s *point"],
    start: int | None = None,
    lin: Linearisation = PLAIN,
    tally: Tally | None = None,
) -> Float[Tensor, "r s *point"]:
    """Gradient of the score at other points: images, or input tokens of block `start`, with the blocks from there on.

    Parameters
    ----------
    probe
        Model, targets and score function. Of a black box, the forward function is differentiated.
    points
        s points for each image of the probe: images [colours H W], or if `start` is given, token sequences [n d].
    start
        Index of the block.
    lin
        Which factors the backward pass of the blocks treats as constants.
    tally
        Progress counter; None counts these points alone.
    """

    def gradient(part: BlackBoxProbe) -> Tensor:
        return part.token_gradient(lin) if isinstance(part, Probe) and start is not None else part.pixel_gradient()

    return at_points(probe, points, gradient, tally, start)


def last_attention_gradients(
    probe: BlackBoxProbe, variants: Float[Tensor, "b s colours H W"], tally: Tally | None = None
) -> Float[Tensor, "r s h n n"]:
    """Gradient of the score in the last block's attention, for other images; no other block is backpropagated."""

    def gradient(part: BlackBoxProbe) -> Tensor:
        return next(part.layers(attention=True, down_to=part.vit.depth - 1)).attention_grad

    return at_points(probe, variants, gradient, tally)


def score_at(probe: BlackBoxProbe, points: Tensor, start: int | None = None) -> Float[Tensor, " r"]:
    """Score at one point per image, without gradient.

    Parameters
    ----------
    probe
        Model, targets and score function.
    points
        Images [b 3 H W], or if `start` is given, input tokens [b n d] of that block.
    start
        Index of the block.
    """
    part = probe_points(probe, points, torch.arange(len(points), device=points.device), start)
    with torch.no_grad():
        return part.compute_scores(part.head_output.logits.repeat_interleave(part.targets_per_image, 0), part.targets)


# ── points in small batches ──────────────────────────────────────────────────────────────────────


def probe_other_images(probe: AnyProbe, images: Float[Tensor, "m colours H W"], owner: Tensor) -> AnyProbe:
    """Return a probe for other images, where image i has the targets of the probe's image `owner[i]`."""
    return type(probe)(probe.model, images, probe.target_table[owner], probe.question, probe.hold)


def probe_from_block(probe: BlackBoxProbe, tokens: Float[Tensor, "m n d"], owner: Tensor, start: int) -> Probe:
    """Return a probe for the sub-network from block `start` on, with these input tokens."""
    if not isinstance(probe, Probe):
        raise ModelError(f"{probe.model.name!r} has no tokens that can be replaced; space='pixels' would work")
    below = replace(probe.vit, blocks=probe.vit.blocks[start:])
    part = probe_other_images(probe, probe.images[owner], owner)
    part.model, part.tokens = below, tokens
    return part


def probe_points(probe: BlackBoxProbe, points: Tensor, owner: Tensor, start: int | None) -> BlackBoxProbe:
    """Return a probe for other images, or if `start` is given for other input tokens of that block."""
    if start is None:
        return probe_other_images(probe, points, owner)
    return probe_from_block(probe, points, owner, start)


def at_points(
    probe: BlackBoxProbe,
    points: Tensor,
    gradient: Callable[[BlackBoxProbe], Tensor],
    tally: Tally | None,
    start: int | None = None,
) -> Tensor:
    """Apply `gradient` to probes of the points; results for every point and target, [r s …]. `start` as for `score_at`."""
    (b, s), k = points.shape[:2], probe.targets_per_image
    flat, owner = points.flatten(0, 1), torch.arange(b, device=points.device).repeat_interleave(s)

    def work(piece: slice) -> Tensor:
        return gradient(probe_points(probe, flat[piece], owner[piece], start))

    whole = torch.cat([part for _, part in pieces(work, b * s, max(1, AT_ONCE // k), tally)])  # [b·s·k …]
    return whole.view(b, s, k, *whole.shape[1:]).transpose(1, 2).flatten(0, 1)


# ── early exits ──────────────────────────────────────────────────────────────────────────────────


def early_attention_gradient(
    probe: BlackBoxProbe, layer: Layer, lin: Linearisation, pool: Literal["head", "mean"] = "head"
) -> Float[Tensor, "r h n n"]:
    """Gradient of the score in a block's attention, as if the head followed that block directly.

    Parameters
    ----------
    probe
        Model, images, targets and score function.
    layer
        The layer of the block.
    lin
        Which factors the backward pass treats as constants.
    pool
        "head": the model's own pooling; "mean": the mean of all tokens, prefix included.
    """
    with torch.enable_grad():
        x = layer.states.hidden.detach().requires_grad_()
        step = run_block(layer.block, x, layer.place, lin, attention=True)
        logits = (
            run_head(probe.vit, step.output, lin).logits
            if pool == "head"
            else logits_of_mean_token(probe, step.output, lin)
        )
        scores = [score.sum() for score in probe.target_scores(logits)]
    assert step.attention is not None
    gradients = [
        torch.autograd.grad(score, step.attention, retain_graph=score is not scores[-1])[0] for score in scores
    ]
    return layer.full(interleave_targets(gradients))


def logits_of_mean_token(
    probe: BlackBoxProbe, tokens: Float[Tensor, "b n d"], lin: Linearisation
) -> Float[Tensor, "b c"]:
    """Logits when every input of the head is the mean of all tokens, prefix included."""
    vit = probe.vit
    if not isinstance(vit.pool, LinearPool):
        raise ModelError("pool='mean' is not defined for a model with attention pooling; use pool='head'")
    mean = lin.normalise(vit.norm, tokens.mean(1, keepdim=True))
    reads = len(vit.pool.rows(tokens.shape[1]))
    return classify_pooled(vit, lin.normalise(vit.pooled_norm, mean).expand(-1, reads, -1), lin)


# ── coalitions: only a subset of the patches enters ──────────────────────────────────────────────


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
    (images, several, patches), k, prefix = keep.shape, probe.targets_per_image, probe.layout.prefix
    flat, tally = keep.flatten(0, 1), Tally(images * several)
    patch_scores = torch.zeros(len(flat), k, patches, dtype=probe.tokens.dtype, device=keep.device)
    for count, same in Sizes.of(keep):

        def score_piece(piece: slice, count: int = count, same: Int[Tensor, " same"] = same) -> Tensor:
            """Scores per patch [rows k p] of a piece of the coalitions of one size."""
            rows = same[piece]
            index = tokens_of(flat[rows], prefix)[:, : prefix + count]
            part = scores(probe_with_tokens(probe, index, rows // several))[:, prefix:].view(len(rows), k, count)
            place = (index[:, prefix:] - prefix)[:, None].expand(-1, k, -1)
            return part.new_zeros(len(rows), k, patches).scatter(2, place, part)

        for piece, part in pieces(score_piece, len(same), coalitions_at_once(probe, count), tally):
            patch_scores[same[piece]] = part.to(patch_scores)
    return patch_scores.view(images, several, k, patches).transpose(1, 2).flatten(0, 1)


def coalitions_at_once(probe: Probe, count: int) -> int:
    """Number of coalitions whose graphs are in memory together; on a GPU, from the free memory."""
    tokens = probe.tokens
    room = rows_that_fit(
        probe.layout.prefix + count, tokens.shape[-1], tokens.element_size() * probe.vit.depth, tokens.device
    )
    return max(1, max(room, AT_ONCE) // probe.targets_per_image)
