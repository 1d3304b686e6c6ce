"""The score's gradient at points of one's own: other pictures, or other tokens entering some block.

Points come as [b s …], s for every picture; they run a few at a time, so that their number costs time and no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.forward import classified, run_block, run_head
from vitreous.capture.layer import Layer, weave
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.probe import Probe
from vitreous.capture.progress import Tally, pieces
from vitreous.core.errors import ModelError, SpecError
from vitreous.models.vit import LinearPool

AT_ONCE = 32  # pictures whose graph is held together

Look = Callable[..., Iterator[Layer]]


def at_once(probe: Probe) -> int:
    """How many points of every picture to ask for in one call, so that results stay small too."""
    return max(1, AT_ONCE // probe.rows)


def inside(probe: Probe, start: int) -> int:
    if not 0 <= start < probe.vit.depth:
        raise SpecError(f"start={start}, but the model has layers 0 to {probe.vit.depth - 1}")
    return start


def pixel_gradients(
    probe: Probe, pictures: Float[Tensor, "b s 3 H W"], tally: Tally | None = None
) -> Float[Tensor, "r s 3 H W"]:
    """Gradient of the score at other pictures; a black box is differentiated as a whole."""

    def gradient(part: Probe) -> Tensor:
        if part.black_box:
            return whole_gradient(part)
        embedded = part.embedded()
        return part.pixel_grad(first_gradient(part, PLAIN), embedded)

    return at_points(probe, pictures, lambda images, owner: owned(probe, images, owner), gradient, tally)


def token_gradients(
    probe: Probe,
    tokens: Float[Tensor, "b s n d"],
    start: int,
    lin: Linearisation = PLAIN,
    tally: Tally | None = None,
) -> Float[Tensor, "r s n d"]:
    """Gradient of the score at other tokens entering block `start`; only the blocks from there on run."""

    def gradient(part: Probe) -> Tensor:
        return first_gradient(part, lin)

    return at_points(probe, tokens, lambda x, owner: entering(probe, x, owner, start), gradient, tally)


def last_attention_gradients(
    probe: Probe, pictures: Float[Tensor, "b s 3 H W"], tally: Tally | None = None
) -> Float[Tensor, "r s h n n"]:
    """Gradient of the score in the last block's attention, at other pictures; no other block is walked back."""

    def gradient(part: Probe) -> Tensor:
        return next(part.layers(attention=True, down_to=part.vit.depth - 1)).attention_grad

    return at_points(probe, pictures, lambda images, owner: owned(probe, images, owner), gradient, tally)


def score_at(probe: Probe, points: Tensor, start: int | None = None) -> Float[Tensor, " r"]:
    """The score of one other picture, or of other tokens entering block `start`, for every picture."""
    owner = torch.arange(len(points), device=points.device)
    part = owned(probe, points, owner) if start is None else entering(probe, points, owner, start)
    with torch.no_grad():
        return part.answer(part.reading.logits.repeat_interleave(part.targets_per_image, 0), part.targets)


# ── a few points at a time ───────────────────────────────────────────────────────────────────────


def owned(probe: Probe, images: Float[Tensor, "m 3 H W"], owner: Tensor) -> Probe:
    """What is asked of picture `owner[i]`, asked of image i."""
    targets = probe.targets.view(len(probe.images), -1)[owner]
    return type(probe)(probe.vit, images, targets, probe.question, probe.hold)


def entering(probe: Probe, tokens: Float[Tensor, "m n d"], owner: Tensor, start: int) -> Probe:
    """The sub-network from block `start` on, fed with these tokens."""
    below = replace(probe.vit, blocks=probe.vit.blocks[start:])
    part = owned(probe, probe.images[owner], owner)
    part.vit, part.tokens = below, tokens
    return part


def first_gradient(part: Probe, lin: Linearisation) -> Float[Tensor, "r n d"]:
    layer = None
    for layer in part.layers(lin, attention=False):  # noqa: B007 - the first block comes last
        pass
    assert layer is not None
    return layer.hidden_grad


def whole_gradient(part: Probe) -> Float[Tensor, "r 3 H W"]:
    images = part.images.detach().requires_grad_()
    columns = part.targets.view(len(images), -1).unbind(1)
    with torch.enable_grad():
        logits = part.say(images)
        scores = [part.answer(logits, targets).sum() for targets in columns]
    return weave([torch.autograd.grad(s, images, retain_graph=s is not scores[-1])[0] for s in scores])


def at_points(
    probe: Probe,
    points: Tensor,
    fed: Callable[[Tensor, Tensor], Probe],
    found: Callable[[Probe], Tensor],
    tally: Tally | None,
) -> Tensor:
    """`found` for every point and target, [r s …]."""
    (b, s), k = points.shape[:2], probe.targets_per_image
    flat, owner = points.flatten(0, 1), torch.arange(b, device=points.device).repeat_interleave(s)

    def work(piece: slice) -> Tensor:
        return found(fed(flat[piece], owner[piece]))

    whole = torch.cat([part for _, part in pieces(work, b * s, max(1, AT_ONCE // k), tally)])  # [b·s·k …]
    return whole.view(b, s, k, *whole.shape[1:]).transpose(1, 2).flatten(0, 1)


# ── what a block says by itself ──────────────────────────────────────────────────────────────────


def early_answers(
    probe: Probe, look: Look, lin: Linearisation, pool: Literal["head", "mean"] = "head"
) -> Iterator[Layer]:
    """Every block's attention, with the gradient of what the head would say if the block were the last."""
    for layer in look(gradients=False, attention=False):
        columns = probe.targets.view(len(probe.images), -1).unbind(1)
        with torch.enable_grad():
            x = layer.step.hidden.detach().requires_grad_()
            step = run_block(layer.block, x, layer.place, lin, attention=True)
            logits = (
                run_head(probe.vit, step.output, lin).logits if pool == "head" else of_mean(probe, step.output, lin)
            )
            scores = [probe.answer(logits, targets).sum() for targets in columns]
        assert step.attention is not None
        found = [
            torch.autograd.grad(score, step.attention, retain_graph=score is not scores[-1])[0] for score in scores
        ]
        yield replace(layer, step=replace(step, attention=step.attention.detach()), grads={"attention": weave(found)})


def of_mean(probe: Probe, tokens: Float[Tensor, "b n d"], lin: Linearisation) -> Float[Tensor, "b c"]:
    """What the head says of the mean of all tokens, prefix included, each of its inputs being that mean."""
    vit = probe.vit
    if not isinstance(vit.pool, LinearPool):
        raise ModelError("pool='mean' is not defined for a model with attention pooling; use pool='head'")
    mean = lin.normalise(vit.norm, tokens.mean(1, keepdim=True))
    reads = len(vit.pool.rows(tokens.shape[1]))
    return classified(vit, lin.normalise(vit.pooled_norm, mean).expand(-1, reads, -1), lin)
