"""Maps that a loss can be put on: a linearised backward pass that is itself a differentiable function of the model.

A custom backward function cannot be differentiated again: the factors that it holds fixed are constants for autograd, while
a loss on a map has to change them. Here the forward pass keeps the model's own graph, and the backward pass of a
linearisation is written out in tensor operations on the states of that graph. Gradients of the map then reach parameters
and images by ordinary differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.capture.forward import Reading, Step, classified, mix, rows_on
from vitreous.capture.layer import Gradients, Layer, presence_grad, weave
from vitreous.capture.linearise import PLAIN, Linearisation, epsilon, slope_at_zero
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, SpecError
from vitreous.models.eval_mode import evaluating
from vitreous.models.tensor_types import Tokens
from vitreous.models.vit import Block, Feed, LinearPool, Place, ViT


def exact_vjp(function: Callable[[Tensor], Any], x: Tensor, upstream: Any) -> Tensor:
    """Gradient of a function's outputs · upstream in x, as a differentiable function of x, upstream and parameters."""
    with torch.enable_grad():
        x = x if x.requires_grad else x.detach().requires_grad_()
        outputs = function(x)
    (gradient,) = torch.autograd.grad(outputs, x, upstream, create_graph=True, allow_unused=True)
    return torch.zeros_like(x) if gradient is None else gradient


def norm_vjp(lin: Linearisation, norm: nn.Module, x: Tensor, upstream: Tensor) -> Tensor:
    """Backward pass of `Linearisation.normalise`."""
    if isinstance(norm, nn.Identity):
        return upstream
    if lin.norm == "exact":
        return exact_vjp(norm, x, upstream)
    weight: Tensor | None = getattr(norm, "weight", None)
    passed = upstream if weight is None else upstream * weight
    if isinstance(norm, nn.LayerNorm):
        passed = passed * (x.var(-1, correction=0, keepdim=True) + norm.eps).rsqrt()
        return passed - passed.mean(-1, keepdim=True) if lin.norm == "frozen" else passed
    if "rms" in type(norm).__name__.lower() and hasattr(norm, "eps"):
        return passed * (x.square().mean(-1, keepdim=True) + epsilon(norm, x)).rsqrt()
    raise ModelError(f"a norm of type {type(norm).__name__!r} cannot be held fixed; known: LayerNorm, RMSNorm")


def sum_vjp(lin: Linearisation, stream: Tensor, update: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """Backward pass of `Linearisation.add`: gradients of the residual stream and of the update."""
    if lin.residual == 0:
        return upstream, upstream
    total = stream + update
    weights = [1 + lin.residual * (part.sign() * total.sign() > 0) for part in (stream, update)]
    divisor = weights[0] * stream + weights[1] * update
    nothing = (stream == 0) & (update == 0)
    share = torch.where(total == 0, nothing.to(total), total / torch.where(divisor == 0, 1, divisor))
    return upstream * share * weights[0], upstream * share * weights[1]


@dataclass(frozen=True, slots=True, eq=False)
class FeedStates:
    """States of an MLP branch, with the graph of the forward pass."""

    entered: Tensor
    normed: Tensor
    gate: Tensor
    activated: Tensor
    value: Tensor | None
    hidden: Tensor
    added: Tensor


def run_feed(part: Feed, x: Tensor) -> FeedStates:
    normed = part.norm(x)
    gate, *values = part.expand(normed)
    activated = part.act(gate)
    value = values[0] if values else None
    hidden = activated if value is None else activated * value
    return FeedStates(x, normed, gate, activated, value, hidden, part.contract(part.inner_norm(hidden)))


def feed_vjp(part: Feed, states: FeedStates, lin: Linearisation, upstream: Tensor) -> Tensor:
    """Gradient at the input of an MLP branch."""
    passed = exact_vjp(part.contract, part.inner_norm(states.hidden), upstream)
    passed = norm_vjp(lin, part.inner_norm, states.hidden, passed)
    to_value: Tensor | None = None
    if states.value is not None:
        factor = 0.5 if lin.gate == "halved" else 1.0
        to_value = factor * passed * states.activated
        passed = factor * passed * states.value if lin.gate != "frozen" else torch.zeros_like(passed)
    if lin.activation == "exact":
        passed = exact_vjp(part.act, states.gate, passed)
    else:
        zero = states.gate == 0
        ratio = states.activated / torch.where(zero, 1, states.gate)
        passed = passed * torch.where(zero, slope_at_zero(part.act), ratio)
    gradients = (passed,) if to_value is None else (passed, to_value)
    passed = exact_vjp(part.expand, states.normed, gradients)
    return norm_vjp(lin, part.norm, states.entered, passed)


@dataclass(frozen=True, slots=True, eq=False)
class BlockStates:
    """States of a block, with the graph of the forward pass."""

    entered: Tokens
    normed: Tokens
    raw: tuple[Tensor, Tensor, Tensor]  # queries, keys and values as projected
    query: Tensor
    key: Tensor
    weights: Float[Tensor, "b h n n"]
    mixed: Tensor
    added: Tokens
    mid: Tokens
    feed: FeedStates
    output: Tokens

    @property
    def step(self) -> Step:
        return Step(self.entered, self.normed, self.raw[2], self.weights, self.mid, self.output)


def run_tracked(block: Block, x: Tokens, place: Place) -> BlockStates:
    """Run a block as the model does, keeping the states that the backward pass reads."""
    attend = block.attend
    normed = attend.norm(x)
    raw = attend.qkv(normed)
    query, key = (attend.rotate(norm(part), place) for norm, part in ((attend.q_norm, raw[0]), (attend.k_norm, raw[1])))
    mixed, weights = mix(query, key, raw[2], attend.bias(place), attend.scale, attention=True)
    mixed = mixed.transpose(1, 2).flatten(2)
    added = attend.project(attend.inner_norm(mixed))
    mid = x + added
    feed = run_feed(block.feed, mid)
    return BlockStates(x, normed, raw, query, key, weights, mixed, added, mid, feed, mid + feed.added)


def block_vjp(
    block: Block, states: BlockStates, place: Place, lin: Linearisation, upstream: Tensor
) -> dict[str, Tensor]:
    """Gradients at the input, the attention matrix and the first norm's output of a block."""
    attend = block.attend
    stream, update = sum_vjp(lin, states.mid, states.feed.added, upstream)
    stream = stream + feed_vjp(block.feed, states.feed, lin, update)
    stream, update = sum_vjp(lin, states.entered, states.added, stream)
    passed = exact_vjp(attend.project, attend.inner_norm(states.mixed), update)
    passed = norm_vjp(lin, attend.inner_norm, states.mixed, passed)
    heads, value = states.weights.shape[1], states.raw[2]
    passed = passed.unflatten(2, (heads, -1)).transpose(1, 2)
    to_weights = passed @ value.mT
    to_value = lin.v * (states.weights.mT @ passed)
    to_query, to_key = torch.zeros_like(states.raw[0]), torch.zeros_like(states.raw[1])
    if lin.qk != 0:
        weights = states.weights
        if lin.softmax != 1:
            scores = (states.query * attend.scale) @ states.key.mT
            bias = attend.bias(place)
            weights = ((scores if bias is None else scores + bias) / lin.softmax).softmax(-1)
        to_scores = lin.qk * attend.scale * weights * (to_weights - (weights * to_weights).sum(-1, keepdim=True))
        to_query = turned_vjp(attend.rotate, attend.q_norm, states.raw[0], place, lin, to_scores @ states.key)
        to_key = turned_vjp(attend.rotate, attend.k_norm, states.raw[1], place, lin, to_scores.mT @ states.query)
    to_normed = exact_vjp(attend.qkv, states.normed, (to_query, to_key, to_value))
    hidden = stream + norm_vjp(lin, attend.norm, states.entered, to_normed)
    return {"hidden": hidden, "attention": to_weights, "normed": to_normed, "output": upstream}


def turned_vjp(
    rotate: Callable[[Tensor, Place], Tensor],
    norm: nn.Module,
    x: Tensor,
    place: Place,
    lin: Linearisation,
    upstream: Tensor,
) -> Tensor:
    """Backward pass of the rotation and the norm of queries or keys."""
    passed = exact_vjp(lambda part: rotate(part, place), norm(x), upstream)
    return norm_vjp(lin, norm, x, passed)


def keeps_graph(scores: Tensor | None) -> bool:
    """Whether scores have a graph to parameters or images."""
    return scores is not None and scores.requires_grad


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


class DifferentiableProbe(Probe):
    """A probe whose layers are differentiable functions of the model's parameters and of the images.

    It takes one forward pass and one backward pass, written out, per target, and holds the whole graph. Parameters as for
    `Probe`.

    Raises
    ------
    ModelError
        If the head pools by attention, or neither a parameter nor the images require gradients.
    """

    accounts_biases = False

    def __init__(self, model: ViT, images: Tensor, *arguments: Any) -> None:
        super().__init__(model, images, *arguments)
        self.images = images.to(model.device, model.dtype)  # with the graph of the images
        if not isinstance(model.pool, LinearPool):
            raise ModelError(
                f"{model.name!r} pools by attention, whose backward pass is not written out; differentiable=True needs a head "
                "that reads class tokens or their mean"
            )
        if not images.requires_grad and not any(parameter.requires_grad for parameter in model.module.parameters()):
            raise ModelError(
                f"no parameter of {model.name!r} and no image requires gradients; requires_grad_() on what a loss should change "
                "would work"
            )

    @cached_property
    def tracked(self) -> list[BlockStates]:
        """States of all blocks."""
        with torch.enable_grad(), evaluating(self.vit.module):
            x, blocks = self.vit.embed(self.images), []
            for block in self.vit.blocks:
                blocks.append(run_tracked(block, x, self.place))
                x = blocks[-1].output
        return blocks

    @property
    def states(self) -> list[Tokens]:
        return [block.entered for block in self.tracked] + [self.tracked[-1].output]

    @cached_property
    def head(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Tokens after the last norm, pooling weights, pooled tokens, the vector that the classifier reads, and logits."""
        with torch.enable_grad(), evaluating(self.vit.module):
            assert isinstance(self.vit.pool, LinearPool)
            normed = self.vit.norm(self.tracked[-1].output)
            rows = rows_on(self.vit.pool, normed)
            pooled = rows @ normed
            vector = self.vit.pooled_norm(pooled)
            return normed, rows, pooled, vector, classified(self.vit, vector)

    @property
    def reading(self) -> Reading:
        _, rows, *_, logits = self.head
        return Reading(logits, rows.mean(0).expand(len(logits), -1))

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
        if biases:
            raise SpecError(
                "shares of biases are not differentiable here; a method of tokens alone, such as 'decompx', would work"
            )
        readout = self.reading.readout.detach().repeat_interleave(self.targets_per_image, 0)
        upstream: list[Tensor] = []
        head_presence: list[Tensor] = []
        if gradients:
            with torch.enable_grad(), evaluating(self.vit.module):
                upstream, head_presence = self._upstream(lin)
        for index in reversed(range(down_to, self.vit.depth)):
            states, block = self.tracked[index], self.vit.blocks[index]
            grads: dict[str, Tensor] = {}
            if gradients:
                with torch.enable_grad(), evaluating(self.vit.module):
                    found = [block_vjp(block, states, self.place, lin, g) for g in upstream]
                    grads = {key: weave([part[key] for part in found]) for key in found[0]}
                    if presence:
                        matrix = states.weights.repeat_interleave(len(found), 0)
                        grads["presence"] = presence_grad(matrix, grads["attention"])
                        if index == self.vit.depth - 1:
                            grads["presence"] = grads["presence"] + weave(head_presence)
                upstream = [part["hidden"] for part in found]
            yield TrackedLayer(
                index,
                self.vit.depth,
                self.layout,
                self.place,
                block,
                states.step,
                self.targets_per_image,
                readout,
                Gradients(**grads),
            )

    def _upstream(self, lin: Linearisation) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of the scores at the encoder's output and in the presence of tokens in the pooling, per target."""
        normed, rows, pooled, vector, logits = self.head
        gradients, presences = [], []
        for targets in self.targets.view(len(self.images), -1).unbind(1):
            to_logits = exact_vjp(lambda raw, targets=targets: self.answer(raw, targets).sum(), logits, None)
            if self.vit.length is None or lin.norm == "exact":
                passed = exact_vjp(lambda read: classified(self.vit, read), vector, to_logits)
            else:
                passed = exact_vjp(self.vit.classify, vector, to_logits / self.vit.length(vector))
            passed = norm_vjp(lin, self.vit.pooled_norm, pooled, passed)
            gradients.append(norm_vjp(lin, self.vit.norm, self.tracked[-1].output, rows.mT @ passed))
            taken = rows * (passed @ normed.mT)
            presences.append((taken - rows / rows.sum(-1, keepdim=True) * taken.sum(-1, keepdim=True)).sum(1))
        return gradients, presences
