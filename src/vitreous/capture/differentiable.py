"""Maps that a loss can be put on: probes whose layers are differentiable functions of parameters and images.

The model, or the parts of a `ViT`, run under `DifferentiableForward`. One linearised backward pass per target is recorded by
autograd, so that gradients of the map reach parameters and images by ordinary differentiation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.differentiable_operations import DifferentiableForward
from vitreous.capture.forward import (
    Reading,
    Step,
    attention_pool,
    classified,
    pooling_weights,
    present,
    rows_on,
    run_block,
)
from vitreous.capture.layer import Gradients, Layer, presence_grad, weave
from vitreous.capture.linearise import PLAIN, Linearisation, Phase, ResidualSum
from vitreous.capture.network_probe import NetworkLayer, NetworkProbe, needs_vit
from vitreous.capture.probe import Probe
from vitreous.capture.trace import Trace, trace
from vitreous.core.errors import ModelError, SpecError
from vitreous.models.eval_mode import evaluating
from vitreous.models.model import BlackBox, Network
from vitreous.models.tensor_types import Tokens
from vitreous.models.vit import LinearPool, ViT


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


class TrackedLayer(Layer):
    """A layer whose states keep their graph."""

    __slots__ = ()

    @property
    def hidden(self) -> Float[Tensor, "r n d"]:
        return self.rows(self.step.hidden)

    @property
    def normed(self) -> Float[Tensor, "r n d"]:
        assert self.step.normed is not None
        return self.rows(self.step.normed)

    @property
    def mid(self) -> Float[Tensor, "r n d"]:
        return self.rows(self.step.mid)

    @property
    def output(self) -> Float[Tensor, "r n d"]:
        return self.rows(self.step.output)

    @property
    def value(self) -> Float[Tensor, "r h n e"]:
        return self.rows(self.step.value)

    @property
    def attention(self) -> Float[Tensor, "r h n n"]:
        assert self.step.attention is not None
        return self.rows(self.step.attention)

    def positive_attention(self, weight: Float[Tensor, "r h n"] | None = None) -> Float[Tensor, "r n n"]:
        product = self.attention * self.attention_grad.clamp(min=0)
        return (product if weight is None else product * weight[:, :, None]).mean(1)


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
    normed
        Tokens after the last norm.
    presence
        Logarithms of the weights of tokens in a linear pooling: zeros, whose gradient is read.
    pooling
        Attention of the pooling and the number of tokens that it leaves out; None if pooling is linear.
    logits, readout
        Output of the head.
    """

    mode: DifferentiableForward
    steps: list[Step]
    first: int
    presence: Float[Tensor, "b n"] | None
    pooling: tuple[Tensor, int] | None
    logits: Tensor
    readout: Float[Tensor, "b n"]

    @property
    def states(self) -> dict[str, list[Tensor]]:
        """Tensors whose gradients are read, by kind."""
        steps = self.steps
        states = {"hidden": [step.hidden for step in steps], "output": [step.output for step in steps]}
        states["attention"] = [step.attention for step in steps if step.attention is not None]
        states["normed"] = [step.normed for step in steps if step.normed is not None]
        return states


class DifferentiableProbe(Probe):
    """A probe of a `ViT` whose layers are differentiable functions of the model's parameters and of the images.

    It takes one forward pass and one recorded backward pass per target, and holds the whole graph. Parameters as for
    `Probe`.

    Raises
    ------
    ModelError
        If neither a parameter nor the images require gradients.
    """

    accounts_biases = False

    def __init__(self, model: ViT, images: Tensor, *arguments: Any) -> None:
        super().__init__(model, images, *arguments)
        self.images = images.to(model.device, model.dtype)  # with the graph of the images
        check_trainable(model, images)

    @property
    def states(self) -> list[Tokens]:
        steps = self._plain_forward.steps
        return [step.hidden for step in steps] + [steps[-1].output]

    @property
    def reading(self) -> Reading:
        forward = self._plain_forward
        return Reading(forward.logits, forward.readout)

    @cached_property
    def _plain_forward(self) -> TrackedForward:
        return self._track(PLAIN, 0)

    @contextmanager
    def _running(self, mode: DifferentiableForward) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(evaluating(self.vit.module))
            stack.enter_context(mode.marking(self.vit.module))
            yield

    def _track(self, lin: Linearisation, first: int) -> TrackedForward:
        """Run the model by its parts; rules apply from block `first` on."""
        vit = self.vit
        mode = DifferentiableForward(replace(lin, residual=0))
        skip_rule = HeldResidual(residual=lin.residual, phase=mode.phase)
        steps: list[Step] = []
        with self._running(mode):
            x = vit.embed(self.images)
            for block in vit.blocks[:first]:
                x = run_block(block, x, self.place, attention=True).output
            for block in vit.blocks[first:]:
                entered = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
                with mode:
                    steps.append(run_block(block, entered, self.place, skip_rule, attention=True))
                x = steps[-1].output
            return self._head(mode, steps, first, x)

    def _head(self, mode: DifferentiableForward, steps: list[Step], first: int, tokens: Tokens) -> TrackedForward:
        vit, pool, presence, pooling = self.vit, self.vit.pool, None, None
        with mode:
            normed = vit.norm(tokens)
        if isinstance(pool, LinearPool):
            rows = rows_on(pool, normed)
            presence = torch.zeros_like(normed[..., 0]).requires_grad_()
            pooled, readout = present(rows, presence) @ normed, rows.mean(0).expand(len(normed), -1)
        else:
            with mode:
                key, value = pool.key_value(normed[:, pool.skip :])
                pooled, weights = attention_pool(pool, pool.query(), key, value, PLAIN, None)
            pooling, readout = (weights, pool.skip), pooling_weights(pool, weights)
        with mode:
            logits = classified(vit, vit.pooled_norm(pooled))
        return TrackedForward(mode, steps, first, presence, pooling, logits, readout.detach())

    def layers(
        self,
        lin: Linearisation = PLAIN,
        attention: bool = True,
        *,
        gradients: bool = True,
        biases: bool = False,
        normed: bool = False,
        presence: bool = False,
        down_to: int = 0,
    ) -> Iterator[Layer]:
        refuse_biases(biases)
        forward = self._plain_forward if lin == PLAIN and down_to == 0 else self._track(lin, down_to)
        readout = forward.readout.repeat_interleave(self.targets_per_image, 0)
        grads = self._gradients(forward) if gradients else {}
        if gradients and presence:
            matrices = [self.rows_of(step.attention) for step in forward.steps]
            grads["presence"] = list(map(presence_grad, matrices, grads["attention"]))
            grads["presence"][-1] = grads["presence"][-1] + grads["pooling"][0]
        for offset in reversed(range(len(forward.steps))):
            index = forward.first + offset
            own = {kind: tensors[offset] for kind, tensors in grads.items() if kind != "pooling"}
            yield TrackedLayer(
                index,
                self.vit.depth,
                self.layout,
                self.place,
                self.vit.blocks[index],
                forward.steps[offset],
                self.targets_per_image,
                readout,
                Gradients(**own),
            )

    def rows_of(self, per_image: Tensor | None) -> Tensor:
        assert per_image is not None
        return per_image.repeat_interleave(self.targets_per_image, 0)

    def _gradients(self, forward: TrackedForward) -> dict[str, list[Tensor]]:
        """Gradients by kind and block, rows ordered as in `Layer`; "pooling" are those in the presence of tokens there."""
        states = forward.states
        kinds = [kind for kind, tensors in states.items() for _ in tensors]
        pooling = forward.presence if forward.pooling is None else forward.pooling[0]
        assert pooling is not None
        inputs = [*(tensor for tensors in states.values() for tensor in tensors), pooling]
        columns: list[list[Tensor]] = []
        with torch.enable_grad():
            for targets in self.targets.view(len(self.images), -1).unbind(1):
                score = self.answer(forward.logits, targets).sum()
                columns.append(forward.mode.gradients(score, inputs))
            woven = [weave(list(column)) for column in zip(*columns, strict=True)]
            by_kind: dict[str, list[Tensor]] = {kind: [] for kind in states}
            for kind, gradient in zip(kinds, woven[:-1], strict=True):
                by_kind[kind].append(gradient)
            at_pooling = woven[-1]
            if forward.pooling is not None:
                weights, skipped = forward.pooling
                at_pooling = F.pad(presence_grad(self.rows_of(weights), at_pooling), (skipped, 0))
        return {**by_kind, "pooling": [at_pooling]}


# ── networks ─────────────────────────────────────────────────────────────────────────────────────


class TrackedNetworkLayer(NetworkLayer):
    """A layer of a network whose states keep their graph."""

    __slots__ = ()

    @property
    def hidden(self) -> Float[Tensor, "r n d"]:
        return self.rows(self.tokens.tokens(self.segment.leaf))

    @property
    def output(self) -> Float[Tensor, "r n d"]:
        output = self.segment.output
        if output is None or not self.tokens.holds(output.shape):
            raise SpecError(
                "the output of a block has other tokens than its input in this model; of='input' would work"
            )
        return self.rows(self.tokens.tokens(output))


class DifferentiableNetworkProbe(NetworkProbe):
    """A probe of a network whose layers are differentiable functions of its parameters and of the images.

    Parameters as for `NetworkProbe`.

    Raises
    ------
    ModelError
        If neither a parameter nor the images require gradients.
    """

    def __init__(self, model: Network, images: Tensor, *arguments: Any) -> None:
        super().__init__(model, images, *arguments)
        self.images = images.to(model.device, model.dtype)  # with the graph of the images
        check_trainable(model, images)

    def layers(
        self,
        lin: Linearisation = PLAIN,
        attention: bool = False,
        *,
        gradients: bool = True,
        biases: bool = False,
        normed: bool = False,
        presence: bool = False,
        down_to: int = 0,
    ) -> Iterator[Any]:
        if attention or presence:
            raise ModelError(needs_vit(self.model, "attention matrices"))
        refuse_biases(biases)
        mode = DifferentiableForward(lin, copy_recorded=self.model.copy, active=False)
        traced = self._trace_with(mode, down_to)
        scores = self._scores(traced)
        segments = traced.segments
        grads: list[dict[str, Tensor]] = [{} for _ in segments]
        if gradients:
            grads = self._segment_gradients(mode, traced, scores)
        for segment, own in zip(reversed(segments), reversed(grads), strict=True):
            plain = self._layer(segment, Gradients(**own))
            yield TrackedNetworkLayer(*(getattr(plain, name) for name in plain.__dataclass_fields__))

    def _trace_with(self, mode: DifferentiableForward, down_to: int) -> Trace:
        with mode.marking(self.model.module):
            return trace(
                self.model.module,
                lambda: self.model.call(self.images),
                [block.module for block in self.model.blocks],
                mode.linearisation,
                down_to=down_to,
                copy=self.model.copy,
                cut=False,
                mode=mode,
            )

    def _segment_gradients(
        self, mode: DifferentiableForward, traced: Trace, scores: list[Tensor]
    ) -> list[dict[str, Tensor]]:
        inputs: list[Tensor] = []
        places: list[tuple[int, str]] = []
        for index, segment in enumerate(traced.segments):
            inputs.append(segment.leaf)
            places.append((index, "hidden"))
            tokens = self.model.blocks[segment.index].tokens
            if segment.output is not None and tokens.holds(segment.output.shape):
                inputs.append(segment.output)
                places.append((index, "output"))
        columns = [mode.gradients(score.sum(), inputs) for score in scores]
        grads: list[dict[str, Tensor]] = [{} for _ in traced.segments]
        for (index, kind), *parts in zip(places, *columns, strict=True):
            tokens = self.model.blocks[traced.segments[index].index].tokens
            grads[index][kind] = weave([tokens.tokens(part) for part in parts])
        return grads
