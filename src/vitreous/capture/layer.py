"""`Layer`: states and gradients of one block, and the backward pass through it."""

from __future__ import annotations

from abc import ABCMeta
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.forward import BlockStates
from vitreous.capture.fused import positive_mean, presence_grad
from vitreous.core.errors import SpecError
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BlockLayer:
    """What the layers of all models have; `Layer` and `NetworkLayer` say how they are read."""

    index: int
    depth: int
    layout: Layout
    targets: int  # per image
    readout: Float[Tensor, "r n"]
    gradients: Gradients = Gradients()
    has_graph: bool = False

    def rows(self, per_image: Tensor) -> Tensor:
        """Repeat a tensor per image to one row per image and target."""
        return per_image if self.targets == 1 else per_image.repeat_interleave(self.targets, 0)

    def full(self, tensor: Tensor) -> Tensor:
        """The tensor in the precision of the residual stream."""
        return tensor

    def require_gradient(self, name: str, fact: str) -> Tensor:
        """A gradient, or a `SpecError` if the pass did not compute it; `fact` is what a method has to declare to get it."""
        gradient = getattr(self.gradients, name)
        if gradient is None:
            raise SpecError(self.describe_missing(name, fact))
        return gradient

    def describe_missing(self, name: str, fact: str) -> str:
        return f"this layer holds no {name} gradient; register the method with {fact}"

    @property
    def hidden_grad(self) -> Float[Tensor, "r n d"]:
        """Gradient of the score at `hidden`."""
        return self.full(self.require_gradient("hidden", "class_specific=True"))

    @property
    def output_grad(self) -> Float[Tensor, "r n d"]:
        """Gradient of the score at `output`."""
        return self.full(self.require_gradient("output", "class_specific=True"))

    @property
    def biases(self) -> Float[Tensor, "r n"]:
        """Share of the block's biases in the score, at the token they are added to."""
        return self.full(self.require_gradient("biases", "biases=True"))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layer(BlockLayer, metaclass=ABCMeta):
    """Forward states of one block of a `ViT`, and gradients of the score: what the function of a method with a fold is given.

    `NetworkLayer` is registered as a `Layer`: it has `hidden`, `output`, their gradients and `biases`.

    Tensors have one row per image and target (r), ordered image by image, then target by target; they are detached
    unless `has_graph`. There are n tokens of width d and h heads of width e. A `SpecError` is raised on access to an
    attention matrix or gradient that was not requested (see `Probe.layers`).

    Attributes
    ----------
    index, depth
        Index of the block, from 0, and number of blocks.
    layout
        Grid of the patches, and number of prefix tokens.
    targets
        Number of targets per image.
    readout
        Weight of every token in the head's pooling, [r n].
    gradients
        Gradients of the score as they were computed; `hidden_grad` and the like return them in full precision.
    has_graph
        Whether tensors keep their autograd graph.
    place
        Positions of the tokens.
    block
        Parts of the module.
    states
        States of the forward pass, one row per image.
    relevance
        Relevance of tokens and attention, of a pass that propagates relevance.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> layer = next(vitreous.Probe(vit, images).layers(attention=True))
    >>> layer.index, layer.hidden.shape, layer.attention.shape
    (11, torch.Size([1, 197, 144]), torch.Size([1, 3, 197, 197]))
    >>> layer.state(layer.states.hidden).equal(layer.hidden)
    True
    >>> layer.positive_attention().shape  # of GenAtt
    torch.Size([1, 197, 197])
    >>> layer.to_grid(layer.hidden_grad.norm(dim=-1)).shape
    torch.Size([1, 197])
    """

    place: TokenPositions
    block: Block
    states: BlockStates
    relevance: Relevance | None = None

    @property
    def unplaced(self) -> None:
        """Shares of constants without a place: none in a `ViT`."""
        return None

    @property
    def trunk(self) -> int:
        """Number of its chain of blocks; a `ViT` has one."""
        return 0

    @property
    def beside(self) -> tuple[()]:
        """Tensors that the score depends on besides the input of this block: none in a `ViT`."""
        return ()

    def to_grid(self, scores: Tensor) -> Tensor:
        """Scores on the grid of the map, which is that of every layer of a `ViT`.

        Parameters
        ----------
        scores
            Scores of the tokens, [r n].

        Returns
        -------
        Tensor
        """
        return scores

    def full(self, tensor: Tensor) -> Tensor:
        """The tensor in the precision of the residual stream; with bfloat16 products, others are in half precision."""
        return tensor.to(self.states.hidden.dtype)

    def state(self, tensor: Tensor) -> Tensor:
        """A state of the forward pass, one row per image and target.

        Parameters
        ----------
        tensor
            A tensor of `states`, one row per image.

        Returns
        -------
        Tensor
        """
        return self.rows(self.full(tensor if self.has_graph else tensor.detach()))

    @property
    def hidden(self) -> Float[Tensor, "r n d"]:
        """Input of the block."""
        return self.state(self.states.hidden)

    @property
    def normed(self) -> Float[Tensor, "r n d"]:
        """Output of the first norm."""
        normed = self.states.normed
        return self.state(self.block.attention.norm(self.states.hidden.detach()) if normed is None else normed)

    @property
    def mid(self) -> Float[Tensor, "r n d"]:
        """State after the attention branch."""
        return self.state(self.states.mid)

    @property
    def output(self) -> Float[Tensor, "r n d"]:
        """Output of the block."""
        return self.state(self.states.output)

    @property
    def value(self) -> Float[Tensor, "r h n e"]:
        """Values of the attention."""
        return self.state(self.states.value)

    @property
    def attention(self) -> Float[Tensor, "r h n n"]:
        """Attention matrix."""
        if self.states.attention is not None:
            return self.state(self.states.attention)
        if self.states.fused is not None:
            return self.rows(self.full(self.states.fused.matrix()))
        raise SpecError("this layer holds no attention matrix; register the method with attention=True")

    def positive_attention(self, weight: Float[Tensor, "r h n"] | None = None) -> Float[Tensor, "r n n"]:
        """mean_h A relu(G) w of attention A and its gradient G, over the heads h.

        Parameters
        ----------
        weight
            Weight w of each head and token looked at; None for 1.

        Returns
        -------
        Tensor
        """
        if self.states.fused is not None and self.gradients.mixed is not None:
            return self.full(self.states.fused.positive_mean(self.gradients.mixed, weight))
        gradient = self.require_gradient("attention", "attention=True and class_specific=True")
        attention = self.states.attention
        if attention is None:
            return self.attention  # raises
        return self.full(
            positive_mean(self.rows(attention if self.has_graph else attention.detach()), gradient, weight)
        )

    @property
    def normed_grad(self) -> Float[Tensor, "r n d"]:
        """Gradient of the score at `normed`."""
        return self.full(self.require_gradient("normed", "normed=True"))

    @property
    def attention_grad(self) -> Float[Tensor, "r h n n"]:
        """Gradient of the score at `attention`."""
        if self.states.fused is not None and self.gradients.mixed is not None:
            return self.full(self.states.fused.matrix_grad(self.gradients.mixed))
        return self.full(self.require_gradient("attention", "attention=True and class_specific=True"))

    @property
    def presence_grad(self) -> Float[Tensor, "r n"]:
        """Loss of the score, to first order, when each token is removed from this block's attention.

        For the last block, removal from the head's pooling is included.
        """
        return self.full(self.require_gradient("presence", "presence=True"))


def or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    """The gradient at a tensor; zeros where the score does not depend on it."""
    return torch.zeros_like(like) if gradient is None else gradient


def interleave_targets(columns: list[Tensor]) -> Tensor:
    """Join one tensor per target into rows ordered image by image, then target by target."""
    return columns[0] if len(columns) == 1 else torch.stack(columns, 1).flatten(0, 1)


def slope_in_presence(states: BlockStates, gradients: Gradients) -> Float[Tensor, "r n"]:
    """Gradient of the score in the presence of each token of a block's attention."""
    if states.fused is not None:
        assert gradients.mixed is not None
        return states.fused.presence_grad(gradients.mixed)
    assert states.attention is not None
    assert gradients.attention is not None
    attention = states.attention if gradients.attention.requires_grad else states.attention.detach()
    return presence_grad(
        attention.repeat_interleave(len(gradients.attention) // len(attention), 0), gradients.attention
    )
