"""`Layer`: states and gradients of one block, and the backward pass through it."""

from __future__ import annotations

from abc import ABCMeta
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.forward import BlockStates
from vitreous.capture.fused import at_least_float32, positive_mean, row_dot
from vitreous.capture.fused_attention import presence_grad
from vitreous.core.deprecation import renamed_attributes
from vitreous.core.errors import SpecError
from vitreous.models.tensor_types import Tokens
from vitreous.models.vit import Block, Layout, TokenPositions


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """Gradients of the score at the tensors of one block; None for those that were not requested.

    Attributes
    ----------
    hidden, output
        At the input and at the output of the block, [r n d].
    normed
        At the output of the first norm, [r n d].
    attention
        At the attention matrix, [r h n n].
    mixed
        At the output of fused attention, [r h n e], from which that of the matrix follows.
    presence
        In the presence of every token, [r n].
    biases
        Share of the block's biases in the score, at the tokens they are added to, [r n].
    """

    hidden: Tensor | None = None
    output: Tensor | None = None
    normed: Tensor | None = None
    attention: Tensor | None = None
    mixed: Tensor | None = None
    presence: Tensor | None = None
    biases: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Relevance:
    """Relevance of a block's input tokens [r n d] and of its attention [r h n n]."""

    tokens: Float[Tensor, "r n d"]
    attention: Float[Tensor, "r h n n"]


@renamed_attributes(step="states")
@dataclass(frozen=True, slots=True, eq=False)
class Layer(metaclass=ABCMeta):
    """Forward states of one block of a `ViT`, and gradients of the score.

    `NetworkLayer` is registered as a `Layer`: it has `hidden`, `output`, their gradients and `biases`.

    Tensors have one row per image and target (r), ordered image by image, then target by target; they are detached
    unless `has_graph`. With n tokens of width d and h heads of width e:

    - `hidden`, `mid`, `output` [r n d]: input, state after the attention branch, and output of the block;
    - `normed` [r n d]: output of the first norm; `value` [r h n e]: values; `attention` [r h n n]: attention matrix;
    - `hidden_grad`, `output_grad`, `normed_grad`, `attention_grad`: gradients of the score at these tensors;
    - `readout` [r n]: weight of every token in the head's pooling;
    - `relevance`: relevance of tokens and attention, of a pass that propagates relevance.

    A `SpecError` is raised on access to an attention matrix or gradient that was not requested (see `Probe.layers`).
    """

    index: int
    depth: int
    layout: Layout
    place: TokenPositions
    block: Block
    states: BlockStates
    targets: int  # per image
    readout: Float[Tensor, "r n"]
    gradients: Gradients = Gradients()
    relevance: Relevance | None = None
    has_graph: bool = False

    @property
    def unplaced(self) -> None:
        """Shares of constants without a place: none in a `ViT`."""
        return None

    def to_grid(self, scores: Tensor) -> Tensor:
        """Scores on the grid of the map, which is that of every layer of a `ViT`."""
        return scores

    def full(self, tensor: Tensor) -> Tensor:
        """The tensor in the precision of the residual stream; with bfloat16 products, others are in half precision."""
        return tensor.to(self.states.hidden.dtype)

    def rows(self, per_image: Tensor) -> Tensor:
        """Repeat a tensor per image to one row per image and target."""
        return per_image if self.targets == 1 else per_image.repeat_interleave(self.targets, 0)

    def state(self, tensor: Tensor) -> Tensor:
        """A state of the forward pass, one row per image and target."""
        return self.rows(self.full(tensor if self.has_graph else tensor.detach()))

    @property
    def hidden(self) -> Float[Tensor, "r n d"]:
        return self.state(self.states.hidden)

    @property
    def normed(self) -> Float[Tensor, "r n d"]:
        normed = self.states.normed
        return self.state(self.block.attention.norm(self.states.hidden.detach()) if normed is None else normed)

    @property
    def mid(self) -> Float[Tensor, "r n d"]:
        return self.state(self.states.mid)

    @property
    def output(self) -> Float[Tensor, "r n d"]:
        return self.state(self.states.output)

    @property
    def value(self) -> Float[Tensor, "r h n e"]:
        return self.state(self.states.value)

    @property
    def attention(self) -> Float[Tensor, "r h n n"]:
        if self.states.attention is not None:
            return self.state(self.states.attention)
        if self.states.fused is not None:
            return self.rows(self.full(self.states.fused.matrix()))
        raise SpecError("this layer holds no attention matrix; register the method with attention=True")

    def positive_attention(self, weight: Float[Tensor, "r h n"] | None = None) -> Float[Tensor, "r n n"]:
        """mean_h A relu(G) w of attention A and its gradient G; `weight` w, of each head and token looked at, is 1 by default."""
        if self.states.fused is not None and self.gradients.mixed is not None:
            return self.full(self.states.fused.positive_mean(self.gradients.mixed, weight))
        gradient = require_gradient("attention", self.gradients.attention, "attention=True and class_specific=True")
        if self.states.attention is None:
            return self.attention  # raises
        if self.has_graph:
            product = self.attention * gradient.clamp(min=0)
            return (product if weight is None else product * weight[:, :, None]).mean(1)
        return self.full(positive_mean(self.rows(self.states.attention.detach()), gradient, weight))

    @property
    def hidden_grad(self) -> Float[Tensor, "r n d"]:
        return self.full(require_gradient("hidden", self.gradients.hidden, "class_specific=True"))

    @property
    def output_grad(self) -> Float[Tensor, "r n d"]:
        return self.full(require_gradient("output", self.gradients.output, "class_specific=True"))

    @property
    def normed_grad(self) -> Float[Tensor, "r n d"]:
        return self.full(require_gradient("normed", self.gradients.normed, "normed=True"))

    @property
    def attention_grad(self) -> Float[Tensor, "r h n n"]:
        if self.states.fused is not None and self.gradients.mixed is not None:
            return self.full(self.states.fused.matrix_grad(self.gradients.mixed))
        gradient = require_gradient("attention", self.gradients.attention, "attention=True and class_specific=True")
        return self.full(gradient)

    @property
    def presence_grad(self) -> Float[Tensor, "r n"]:
        """Loss of the score, to first order, when each token is removed from this block's attention.

        For the last block, removal from the head's pooling is included.
        """
        return self.full(require_gradient("presence", self.gradients.presence, "presence=True"))

    @property
    def biases(self) -> Float[Tensor, "r n"]:
        """Share of the block's biases in the score, at the token they are added to."""
        return self.full(require_gradient("biases", self.gradients.biases, "biases=True"))


def require_gradient(name: str, gradient: Tensor | None, fact: str) -> Tensor:
    """The gradient, or a `SpecError` if the pass did not compute it; `fact` is what a method has to declare to get it."""
    if gradient is None:
        raise SpecError(f"this layer holds no {name} gradient; register the method with {fact}")
    return gradient


def interleave_targets(columns: list[Tensor]) -> Tensor:
    """Join one tensor per target into rows ordered image by image, then target by target."""
    return columns[0] if len(columns) == 1 else torch.stack(columns, 1).flatten(0, 1)


def interleave_gradients(columns: list[Gradients]) -> Gradients:
    """Join the gradients of every target into rows, as `interleave_targets` does."""

    def joined(name: str) -> Tensor | None:
        tensors = [getattr(column, name) for column in columns]
        return None if tensors[0] is None else interleave_targets(tensors)

    return Gradients(**{field.name: joined(field.name) for field in fields(Gradients)})


def backward(states: BlockStates, upstream: Tokens, normed: bool, keep: bool) -> Gradients:
    """Backpropagate from a block's output to its input, attention, first norm and biases; `keep` retains the graph."""
    tensors = {"hidden": states.hidden}
    if states.attention is not None:
        tensors["attention"] = states.attention
    if states.fused is not None:
        tensors["mixed"] = states.fused.mixed
    if normed:
        assert states.normed is not None
        tensors["normed"] = states.normed
    inputs = [*tensors.values(), *(output for output, _ in states.bias_terms)]
    grads = torch.autograd.grad(states.output, inputs, upstream, allow_unused=True, retain_graph=keep)
    gradients = {
        name: torch.zeros_like(tensor) if grad is None else grad
        for (name, tensor), grad in zip(tensors.items(), grads, strict=False)
    }
    shares = bias_map(states.bias_terms, grads[len(tensors) :], states.hidden) if states.bias_terms else None
    return Gradients(**gradients, output=upstream, biases=shares)


def slope_in_presence(states: BlockStates, gradients: Gradients) -> Float[Tensor, "r n"]:
    """Gradient of the score in the presence of each token of a block's attention."""
    if states.fused is not None:
        assert gradients.mixed is not None
        return states.fused.presence_grad(gradients.mixed)
    assert states.attention is not None
    assert gradients.attention is not None
    targets = len(gradients.attention) // len(states.attention)
    return presence_grad(states.attention.detach().repeat_interleave(targets, 0), gradients.attention)


def bias_map(
    bias_terms: tuple[tuple[Tensor, Tensor], ...], grads: tuple[Tensor | None, ...], tokens: Tokens | None
) -> Tensor | None:
    """Contribution of biases to the score: [b n], at the tokens they are added to; in total [b] if `tokens` is None."""
    reached = [(grad, bias) for (_, bias), grad in zip(bias_terms, grads, strict=True) if grad is not None]
    if tokens is None:
        shares = [(at_least_float32(grad) * bias).flatten(1).sum(-1) for grad, bias in reached]
        return sum(shares[1:], shares[0]) if shares else None
    total = tokens.new_zeros(tokens.shape[:2])
    for grad, bias in reached:  # [b n k], or [b h n e] for a norm on queries or keys
        share = row_dot(grad, bias)
        share = share if share.ndim == 2 else share.sum(1)
        total[:, -share.shape[1] :] += share
    return total
