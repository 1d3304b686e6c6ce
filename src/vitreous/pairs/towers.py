"""Towers: models that turn an image or a text into an embedding, with the tokens that the embedding is explained by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.arguments import as_images, refuse_not_finite
from vitreous.capture.argument_types import ImageInput, ModelInput
from vitreous.capture.forward import adapter_logits
from vitreous.core.errors import ModelError, ShapeError, SpecError, unexpected_errors_as
from vitreous.models.model import BlackBox, Layout, Network, Outputs
from vitreous.models.outputs import transform_outputs, with_reader
from vitreous.models.tensor_types import Images, Logits, Pooled
from vitreous.models.vit import ViT
from vitreous.scores import EMBEDDINGS, output_field
from vitreous.wrapping import as_model, network_of

Embed = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Tower:
    """One side of a pair: a model on one input, whose outputs are the coordinates of an embedding.

    Attributes
    ----------
    model
        The model; its outputs are the coordinates. A text is a network over a grid of one row, a column per token.
    entry
        The input [1 c H W]; for a text, the token indices as floats [1 1 1 n].
    vectors
        The embedding [1 D], or one per output token [1 m D] for late interaction.
    words
        The tokens of a text; None for an image.
    special
        Whether each token of a text is a special token (start, end, padding).
    image
        The original image, for drawing.
    """

    model: BlackBox
    entry: Images
    vectors: Float[Tensor, "1 *m D"]
    words: tuple[str, ...] | None = None
    special: tuple[bool, ...] = ()
    image: Any = None

    @property
    def coordinates(self) -> BlackBox:
        """The model with one output per coordinate of the embedding."""
        output_type = Outputs("classes", self.vectors.shape[-1])
        return replace(self.model, output_type=output_type, classes=None, embedding="")

    def transform(self, change: Callable[[Tensor], Tensor]) -> Tower:
        """The tower whose embeddings are a function of those of this one; the function keeps the first dimension."""
        return replace(self, model=transform_outputs(self.model, change), vectors=change(self.vectors))

    def project(self, directions: Float[Tensor, "k D"]) -> Tower:
        """The tower whose embedding are the coordinates along orthonormal directions."""
        basis = directions.to(self.vectors).mT
        return self.transform(lambda vectors: vectors @ basis)

    @property
    def layout(self) -> Layout:
        return self.model.layout((self.entry.shape[-2], self.entry.shape[-1]))


def embedding_reader(names: Sequence[str], embed: Embed | None, late: bool) -> Embed:
    """A function that reads the embedding [b D] of what a model returns or, for late interaction, all of them [b m D].

    Parameters
    ----------
    names
        Fields that may hold the embedding; that of the last name holds one per output token, of which the first is taken.
    embed
        Function of the caller that is used instead; None for the fields.
    late
        Whether the embeddings of all output tokens are read.
    """

    def read(output: Any) -> Tensor:
        if embed is not None:
            vectors = call_embed(embed, output)
        else:
            vectors = output_field(output, names[-1:] if late else names)
            vectors = vectors[:, 0] if vectors.ndim == 3 and not late else vectors
        if late and vectors.ndim != 3:
            raise ShapeError(
                f"late interaction needs one embedding per output token [inputs, tokens, D], not {list(vectors.shape)}; "
                "similarity='cosine' takes one embedding per input"
            )
        if not late and vectors.ndim != 2:
            raise ShapeError(f"an embedding is [inputs, D], not {list(vectors.shape)}; embed=… may say where it is")
        return vectors

    return read


def call_embed(embed: Embed, output: Any) -> Tensor:
    """The result of the caller's `embed`, which has to be a tensor."""
    kind = type(output).__name__
    with unexpected_errors_as(lambda why: ShapeError(f"embed failed on the model's output {kind!r} ({why})")):
        vectors = embed(output)
    if not isinstance(vectors, Tensor):
        raise ShapeError(f"embed returned {type(vectors).__name__!r}; a tensor [inputs, D] would work")
    return vectors


def without_classifier(vit: ViT) -> ViT:
    """The model whose output is the vector that its classifier reads; one that returns an embedding is left as it is."""
    if vit.embedding:
        return vit

    def classify(pooled: Pooled) -> Logits:
        return pooled.flatten(1)

    def forward(images: Images) -> Logits:
        return adapter_logits(headless, images)

    headless = replace(
        vit, classify=classify, forward=forward, affine=True, length=None, classes=None, embedding="no classifier"
    )
    with torch.no_grad():
        width = headless.forward(torch.zeros(1, 3, *vit.size, device=vit.device, dtype=vit.dtype)).shape[1]
    return replace(headless, output_type=Outputs("classes", width))


def image_tower(model: ModelInput, image: ImageInput, embed: Embed | None, late: bool) -> Tower:
    """The tower of an image.

    Parameters
    ----------
    model
        A `ViT`, a `Network`, a module or a name, whose output is the embedding.
    image
        One image, as for `vitreous.explain`.
    embed
        Function of whatever the module returns; None for the usual fields.
    late
        Whether the module returns one embedding per output token.
    """
    if embed is not None and not callable(embed):
        raise SpecError(f"embed={embed!r}; a function of what the model returns would work")
    vision = as_model(model)
    if embed is not None or late:
        vision = network_of(vision, vision.size, "its embedding is read from its output")
    if not isinstance(vision, Network):
        raise ModelError(
            f"{vision.name!r} is a black box, and a pair needs the model's blocks; a Network or a ViT would work"
        )
    originals, tensor = as_images(vision, image)
    if len(tensor) != 1:
        raise ShapeError(f"a pair has one image on each side, not {len(tensor)}")
    refuse_not_finite(tensor)
    tensor = tensor.to(vision.device, vision.dtype)
    vision.layout((tensor.shape[-2], tensor.shape[-1]))  # fails for a size that the model does not take
    if not isinstance(vision, ViT):
        vision = with_reader(vision, embedding_reader(EMBEDDINGS, embed, late))
    with torch.no_grad():
        vectors = vision.forward(tensor)
    return Tower(vision, tensor, vectors, image=None if originals is None else originals[0])
