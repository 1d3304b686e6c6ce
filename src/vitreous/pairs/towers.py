"""Towers: models that turn an image or a text into an embedding, with the tokens that the embedding is explained by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.arguments import as_images, refuse_not_finite
from vitreous.capture.forward import adapter_logits
from vitreous.core.errors import ModelError, ShapeError, SpecError, VitreousError, describe_error
from vitreous.models.model import BlackBox, Layout, Network, Outputs, forward_of
from vitreous.models.tensor_types import Images, Logits, Pooled
from vitreous.models.vit import ViT
from vitreous.scores import EMBEDDINGS
from vitreous.scores import output_field as field_of
from vitreous.wrapping import as_model

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
        The embedding [1 D], or one per output token [m D] for late interaction.
    words
        The tokens of a text; None for an image.
    special
        Whether each token of a text is a special token (start, end, padding).
    image
        The original image, for drawing.
    """

    model: BlackBox
    entry: Images
    vectors: Float[Tensor, "m D"]
    words: tuple[str, ...] | None = None
    special: tuple[bool, ...] = ()
    image: Any = None

    def coordinates(self, rows: Tensor | None = None) -> BlackBox:
        """The model with one output per coordinate of the embedding; of late interaction, of these output tokens."""
        count = self.vectors.shape[1] * (1 if rows is None else len(rows))
        if isinstance(self.model, ViT):
            return replace(self.model, output_type=Outputs("classes", count), classes=None, embedding="")
        read_vectors = self.model.read

        def read(output: Any) -> Tensor:
            vectors = read_vectors(output)
            return vectors if rows is None else vectors[:, rows].flatten(1)

        return replace(
            self.model,
            read=read,
            forward=forward_of(self.model.module, read, self.model.inputs),
            output_type=Outputs("classes", count),
            classes=None,
            embedding="",
        )

    def project(self, directions: Float[Tensor, "k D"]) -> Tower:
        """The tower whose embedding are the coordinates along orthonormal directions."""
        basis = directions.to(self.vectors).mT
        model = self.model
        if isinstance(model, ViT):
            classify, forward = model.classify, model.forward
            projected: BlackBox = replace(
                model,
                classify=lambda pooled: classify(pooled) @ basis,
                forward=lambda images: forward(images) @ basis,
                output_type=Outputs("classes", basis.shape[1]),
            )
        else:
            read_vectors = model.read

            def read(output: Any) -> Tensor:
                return read_vectors(output) @ basis

            projected = replace(model, read=read, forward=forward_of(model.module, read, model.inputs))
        return replace(self, model=projected, vectors=self.vectors @ basis)

    @property
    def layout(self) -> Layout:
        return self.model.layout((self.entry.shape[-2], self.entry.shape[-1]))


def applied(embed: Embed, output: Any) -> Tensor:
    """The result of the caller's `embed`, which has to be a tensor."""
    try:
        vectors = embed(output)
    except VitreousError:
        raise
    except Exception as problem:
        raise ShapeError(
            f"embed failed on the model's output {type(output).__name__!r} ({describe_error(problem)})"
        ) from problem
    if not isinstance(vectors, Tensor):
        raise ShapeError(f"embed returned {type(vectors).__name__!r}; a tensor [inputs, D] would work")
    return vectors


def pooled_vector(names: Sequence[str], embed: Embed | None) -> Embed:
    """Read the embedding [b D] of what a model returns; of a sequence [b n D], the first token."""

    def read(output: Any) -> Tensor:
        vector = field_of(output, names) if embed is None else applied(embed, output)
        vector = vector[:, 0] if embed is None and vector.ndim == 3 else vector
        if vector.ndim != 2:
            raise ShapeError(f"an embedding is [inputs, D], not {list(vector.shape)}; embed=… may say where it is")
        return vector

    return read


def token_vectors(names: Sequence[str], embed: Embed | None) -> Embed:
    """Read the embeddings [b m D] of the output tokens of what a model returns, for late interaction."""

    def read(output: Any) -> Tensor:
        vectors = field_of(output, names) if embed is None else applied(embed, output)
        if vectors.ndim != 3:
            raise ShapeError(
                f"late interaction needs one embedding per output token [inputs, tokens, D], not {list(vectors.shape)}; "
                "similarity='cosine' takes one embedding per input"
            )
        return vectors

    return read


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


def image_tower(model: Any, image: Any, embed: Embed | None, late: bool) -> Tower:
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
    if isinstance(vision, ViT) and (embed is not None or late):
        from vitreous.capture.see_through import see_through

        vision = see_through(vision.module, vision.name, size=vision.size, preprocess=vision.preprocess)
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
        read = token_vectors(EMBEDDINGS[-1:], embed) if late else pooled_vector(EMBEDDINGS, embed)
        vision = replace(vision, read=read, forward=forward_of(vision.module, read, vision.inputs))
    with torch.no_grad():
        vectors = vision.forward(tensor)
    return Tower(vision, tensor, vectors[0] if late else vectors, image=None if originals is None else originals[0])
