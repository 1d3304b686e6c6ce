"""Maps that a loss can be put on: probes whose layers are differentiable functions of parameters and images.

The model, or the parts of a `ViT`, run under `DifferentiableForward`. One linearised backward pass per target is recorded by
autograd, so that gradients of the map reach parameters and images by ordinary differentiation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.backward_functions import Phase, ResidualSum
from vitreous.capture.differentiable_operations import DifferentiableForward
from vitreous.capture.forward import (
    BlockStates,
    HeadOutput,
    attention_pool,
    classify_pooled,
    pooling_rows,
    pooling_weights,
    run_block,
    scale_by_presence,
)
from vitreous.capture.fused_attention import presence_grad
from vitreous.capture.layer import Gradients, Layer, interleave_targets
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.network_probe import LayerPass, NetworkProbe
from vitreous.capture.probe import Probe
from vitreous.capture.trace import Trace
from vitreous.core.errors import ModelError, SpecError
from vitreous.models.eval_mode import evaluating
from vitreous.models.model import BlackBox, Network
from vitreous.models.tensor_types import Logits, Tokens
from vitreous.models.vit import AttentionPool, LinearPool, ViT


def keeps_graph(scores: Tensor | None) -> bool:
    """Whether scores have a graph to parameters or images."""
    return scores is not None and scores.requires_grad


def check_trainable(model: BlackBox, images: Tensor) -> None:
    """Raise `ModelError` if there is nothing that a loss on the map could change."""
    if not images.requires_grad and not any(parameter.requires_grad for parameter in model.module.parameters()):
        raise ModelError(
            f"no parameter of {model.name!r} and no image requires gradients; requires_grad_() on what a loss should change "
            "would work"
        )


def differentiable_probe(model: BlackBox, images: Tensor, *arguments: Any) -> Probe | NetworkProbe:
    """The probe whose layers keep a graph; a `ModelError` for a black box, whose layers are not known."""
    if not isinstance(model, Network):
        raise ModelError(
            f"{model.name!r} is a black box, and differentiable=True records the backward pass through its blocks; a network or "
            "a ViT would work"
        )
    if isinstance(model, ViT):
        return DifferentiableProbe(model, images, *arguments)
    return DifferentiableNetworkProbe(model, images, *arguments)


class GraphKeeping(NetworkProbe):
    """A probe whose images and layers keep their graph; parameters as for `Probe`."""

    keeps_graph = True
    accounts_biases = False

    def __init__(self, model: Network, images: Tensor, *arguments: Any) -> None:
        super().__init__(model, images, *arguments)
        self.images = images.to(model.device, model.dtype)  # with the graph of the images
        check_trainable(model, images)


def refuse_biases(biases: bool) -> None:
    if biases:
        raise SpecError(
            "shares of biases are not differentiable here; a method of tokens alone, such as 'decompx', would work"
        )


# ── ViTs ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class HeldResidual(Linearisation):
    """Only the rule for skip connections; operations have the others."""

    phase: Phase | None = None

    def add(self, stream: Tensor, update: Tensor) -> Tensor:
        if self.residual == 0:
            return stream + update
        return ResidualSum.apply(stream, update, self.residual, self.phase)

    def add_and_normalise(self, norm: Any, stream: Tensor, update: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total = stream if update is None else self.add(stream, update)
        return total, norm(total)


@dataclass(frozen=True, slots=True, eq=False)
class TrackedForward:
    """States of the blocks and of the head, with their graph.

    Attributes
    ----------
    mode
        The rules of the linearised backward pass.
    steps
        States of the blocks from `first` on.
    first
        Number of the first block.
    pooling
        Attention of the pooling, or for a linear pooling zeros, the logarithms of the weights of tokens in it.
    logits, readout
        Output of the head.
    """

    mode: DifferentiableForward
    steps: list[BlockStates]
    first: int
    pooling: Tensor
    logits: Tensor
    readout: Float[Tensor, "b n"]


class DifferentiableProbe(GraphKeeping, Probe):
    """A probe of a `ViT` whose layers are differentiable functions of the model's parameters and of the images.

    It takes one forward pass and one recorded backward pass per target, and holds the whole graph. Parameters as for
    `Probe`.

    Raises
    ------
    ModelError
        If neither a parameter nor the images require gradients.
    """

    @property
    def states(self) -> list[Tokens]:
        steps = self._plain_forward.steps
        return [step.hidden for step in steps] + [steps[-1].output]

    @property
    def head_output(self) -> HeadOutput:
        forward = self._plain_forward
        return HeadOutput(forward.logits, forward.readout)

    @cached_property
    def _plain_forward(self) -> TrackedForward:
        return self._track(PLAIN, 0)

    def _track(self, lin: Linearisation, first: int) -> TrackedForward:
        """Run the model by its parts; rules apply from block `first` on."""
        vit = self.vit
        mode = DifferentiableForward(replace(lin, residual=0))
        skip_rule = HeldResidual(residual=lin.residual, phase=mode.phase)
        steps: list[BlockStates] = []
        with torch.enable_grad(), evaluating(vit.module), mode.marking(vit.module):
            x = vit.embed(self.images)
            for block in vit.blocks[:first]:
                x = run_block(block, x, self.place, attention=True).output
            for block in vit.blocks[first:]:
                entered = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
                with mode:
                    steps.append(run_block(block, entered, self.place, skip_rule, attention=True))
                x = steps[-1].output
            return TrackedForward(mode, steps, first, *self._head(mode, x))

    def _head(self, mode: DifferentiableForward, tokens: Tokens) -> tuple[Tensor, Logits, Float[Tensor, "b n"]]:
        """Run the head; return the last three fields of `TrackedForward`."""
        vit, pool = self.vit, self.vit.pool
        with mode:
            normed = vit.norm(tokens)
        if isinstance(pool, LinearPool):
            rows = pooling_rows(pool, normed)
            pooling = torch.zeros_like(normed[..., 0]).requires_grad_()
            pooled, readout = scale_by_presence(rows, pooling) @ normed, rows.mean(0).expand(len(normed), -1)
        else:
            with mode:
                key, value = pool.key_value(normed[:, pool.skip :])
                pooled, pooling = attention_pool(pool, pool.query(), key, value, PLAIN, None)
            readout = pooling_weights(pool, pooling)
        with mode:
            logits = classify_pooled(vit, vit.pooled_norm(pooled))
        return pooling, logits, readout.detach()

    def _iterate_layers(self, layer_pass: LayerPass, down_to: int) -> Iterator[Layer]:
        refuse_biases(layer_pass.biases)
        forward = (
            self._plain_forward if layer_pass.lin == PLAIN and down_to == 0 else self._track(layer_pass.lin, down_to)
        )
        readout = forward.readout.repeat_interleave(self.targets_per_image, 0)
        gradients = [{} for _ in forward.steps]
        if layer_pass.gradients:
            gradients, at_pooling = self._gradients(forward)
            if layer_pass.presence:
                for step, own in zip(forward.steps, gradients, strict=True):
                    own["presence"] = presence_grad(self._per_row(step.attention), own["attention"])
                gradients[-1]["presence"] = gradients[-1]["presence"] + at_pooling
        for offset in reversed(range(len(forward.steps))):
            index = forward.first + offset
            yield Layer(
                index,
                self.vit.depth,
                self.layout,
                self.place,
                self.vit.blocks[index],
                forward.steps[offset],
                self.targets_per_image,
                readout,
                Gradients(**gradients[offset]),
                has_graph=True,
            )

    def _per_row(self, per_image: Tensor | None) -> Tensor:
        assert per_image is not None
        return per_image.repeat_interleave(self.targets_per_image, 0)

    def _gradients(self, forward: TrackedForward) -> tuple[list[dict[str, Tensor]], Float[Tensor, "r n"]]:
        """Gradients of every block by kind, rows ordered as in `Layer`, and those in the presence of tokens at the pooling."""
        kinds = ("hidden", "output", "attention", "normed")
        tensors = {(i, kind): getattr(step, kind) for i, step in enumerate(forward.steps) for kind in kinds}
        with torch.enable_grad():
            columns = [
                forward.mode.gradients(score.sum(), [*tensors.values(), forward.pooling])
                for score in self.target_scores(forward.logits)
            ]
            *woven, at_pooling = (interleave_targets(list(column)) for column in zip(*columns, strict=True))
            if isinstance(self.vit.pool, AttentionPool):
                slope = presence_grad(self._per_row(forward.pooling), at_pooling)
                at_pooling = F.pad(slope, (self.vit.pool.skip, 0))
        gradients: list[dict[str, Tensor]] = [{} for _ in forward.steps]
        for (i, kind), gradient in zip(tensors, woven, strict=True):
            gradients[i][kind] = gradient
        return gradients, at_pooling


# ── networks ─────────────────────────────────────────────────────────────────────────────────────


class DifferentiableNetworkProbe(GraphKeeping, NetworkProbe):
    """A probe of a network whose layers are differentiable functions of its parameters and of the images.

    Parameters as for `NetworkProbe`.

    Raises
    ------
    ModelError
        If neither a parameter nor the images require gradients.
    """

    def _iterate_layers(self, layer_pass: LayerPass, down_to: int) -> Iterator[Any]:
        self._refuse_attention(layer_pass)
        refuse_biases(layer_pass.biases)
        mode = DifferentiableForward(layer_pass.lin, copy_recorded=self.model.copy, active=False)
        with mode.marking(self.model.module):
            traced = self._trace(mode, down_to)
        scores = self._scores(traced)
        gradients = (
            self._segment_gradients(mode, traced, scores) if layer_pass.gradients else [{}] * len(traced.segments)
        )
        for segment, own in zip(reversed(traced.segments), reversed(gradients), strict=True):
            yield self._layer(segment, Gradients(**own))

    def _segment_gradients(
        self, mode: DifferentiableForward, traced: Trace, scores: list[Tensor]
    ) -> list[dict[str, Tensor]]:
        """Gradients of every block call by kind, rows ordered as in `Layer`."""
        grids = [self.model.blocks[segment.index].tokens for segment in traced.segments]
        tensors: dict[tuple[int, str], Tensor] = {}
        for i, segment in enumerate(traced.segments):
            tensors[i, "hidden"] = segment.leaf
            if segment.output is not None and grids[i].holds(segment.output.shape):
                tensors[i, "output"] = segment.output
        columns = [mode.gradients(score.sum(), list(tensors.values())) for score in scores]
        gradients: list[dict[str, Tensor]] = [{} for _ in traced.segments]
        for (i, kind), *parts in zip(tensors, *columns, strict=True):
            gradients[i][kind] = interleave_targets([grids[i].tokens(part) for part in parts])
        return gradients
