"""Text targets: explain the cosine between the embeddings of an image and a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.linearise import Linearisation
from vitreous.capture.question import Question, Rows, Targets
from vitreous.core.errors import ShapeError, SpecError
from vitreous.models.shapes import Images
from vitreous.models.texts import likened
from vitreous.models.vit import ViT


@dataclass(frozen=True, slots=True, eq=False)
class TextTarget:
    """Text embeddings as targets, made by `text_target`.

    The score of an image is scale · cosine of its embedding with each of the first `asked` texts of its group. The
    remaining texts are only used for comparison.

    Examples
    --------
    >>> import torch
    >>> import vitreous
    >>> vitreous.text_target(torch.ones(2, 8), names=["a cat", "a dog"]).scale  # one text for each of two images
    1.0
    """

    texts: Float[Tensor, "g all d"]  # of unit length; g is the number of images, or 1 if all images share the texts
    asked: int
    pictures: int | None  # number of images; None if the texts are shared by any number of images
    scale: float
    names: tuple[str, ...] | None = None

    @property
    def together(self) -> int:
        """Number of texts per image: those explained, and those they are compared with."""
        return self.texts.shape[1]

    def check(self, vit: ViT, pictures: int) -> None:
        """Check the texts against the model and the number of images.

        Raises
        ------
        ShapeError
            If the embedding width, the number of images or the number of names does not fit.
        """
        given, made = self.texts.shape[-1], vit.outputs
        if given != made:
            raise ShapeError(
                f"the text embedding has {given} numbers, but {vit.name!r} makes embeddings of {made}; "
                "take both from one model, after its projections"
            )
        if self.pictures is not None and self.pictures != pictures:
            several = "; for several texts of one picture give them as [1 k d]" if pictures == 1 else ""
            raise ShapeError(f"text_target has texts for {self.pictures} pictures, and {pictures} were given{several}")
        if self.names is not None and len(self.names) not in (self.asked, pictures * self.asked):
            raise ShapeError(
                f"text_target has {len(self.names)} names for {pictures} x {self.asked} texts; give one for each text"
            )

    def part(self, vit: ViT, images: Images, those: slice) -> tuple[ViT, Images, Int[Tensor, "b k"]]:
        """Return the arguments of a probe for a slice of the images: cosine model, images and text indices."""
        shared = self.pictures is None
        texts = self.texts if shared else self.texts[those]
        first = torch.arange(len(images)) * (0 if shared else self.together)
        return likened(vit, texts.flatten(0, 1), self.scale), images, first[:, None] + torch.arange(self.asked)

    def question(self, asked: Question) -> Question:
        """Restrict a score function to the texts of each image's own group."""
        count = self.together
        if count == 1 and asked.compares:
            raise SpecError(
                f"question {asked.name!r} compares texts, and each picture has one; give several, or against=…"
            )

        def function(cosines: Rows, targets: Targets) -> Float[Tensor, " r"]:
            return asked(self.own(cosines, targets), targets % count)

        return Question("cosine" if asked.name == "logit" else asked.name, function, asked.affine)

    def own(self, cosines: Rows, targets: Targets) -> Float[Tensor, "r all"]:
        """Select from the cosines with all texts those with the texts of the row's own group."""
        first = targets.div(self.together, rounding_mode="floor") * self.together
        return cosines.gather(1, first[:, None] + torch.arange(self.together, device=targets.device))

    def answered(self, found: Any) -> Any:
        """Return the attribution with targets and logits restricted to the texts of each image's own group."""
        logits = None if self.together == 1 else self.own(found.logits, found.targets)
        return replace(found, targets=found.targets % self.together, logits=logits)

    def name(self, row: int) -> str:
        """Return the name of the text that a row explains."""
        return f"text {row % self.asked}" if self.names is None else self.names[row % len(self.names)]

    def facts(self, question: Question, lin: Linearisation) -> dict[str, Any]:
        """Return the provenance entries about the texts, as plain values."""
        among = question.name if self.together == 1 or question.name == "cosine" else f"{question.name} among texts"
        return {
            "question": among,
            "target": "text",
            "texts": {"asked": self.asked, "against": self.together - self.asked, "scale": self.scale},
            "length": "exact" if lin.norm == "exact" else "held fixed",
        }


def text_target(
    embedding: Any,
    scale: Any = 1.0,
    *,
    names: str | Sequence[Any] | None = None,
    against: Any = None,
) -> TextTarget:
    """Return text embeddings as a target for `explain`: scale · cosine with the image's embedding is explained.

    Parameters
    ----------
    embedding
        [d] shared by all images, [b d] one per image, or [b k d] several per image (rows are ordered as for several
        classes). A tensor, an array, or a list of these. Need not be normalised.
    scale
        Positive number such as `model.logit_scale.exp()`.
    names
        Names of the texts, one per text.
    against
        Further texts, [d] or [a d], with which score functions such as "margin" and "probability" compare; no maps
        are computed for them.

    Returns
    -------
    TextTarget

    Raises
    ------
    ShapeError
        If an embedding has a wrong shape or type or no direction, or `scale` is not a positive number.

    Examples
    --------
    >>> import timm
    >>> import torch
    >>> import vitreous
    >>> tower = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=0)
    >>> text = torch.randn(192)  # of a text encoder that was trained together with the tower
    >>> target = vitreous.text_target(text, scale=100.0, names="a cat")
    >>> vitreous.explain(tower, torch.randn(1, 3, 224, 224), target, "ixg").patches.shape
    torch.Size([1, 196])
    """
    given = unit(embedding, "a text embedding", (1, 2, 3))
    pictures = None if given.ndim == 1 else len(given)
    texts = given.reshape(pictures or 1, -1, given.shape[-1])
    asked = texts.shape[1]
    if against is not None:
        others = torch.atleast_2d(unit(against, "against", (1, 2)))
        if others.shape[-1] != texts.shape[-1]:
            raise ShapeError(f"against has {others.shape[-1]} numbers per text, the embedding {texts.shape[-1]}")
        texts = torch.cat([texts, others.to(texts).expand(len(texts), -1, -1)], 1)
    return TextTarget(texts, asked, pictures, number(scale), None if names is None else flattened(names))


def number(scale: Any) -> float:
    """Validate `scale` and return it as a float."""
    if isinstance(scale, Tensor) and scale.numel() == 1:
        scale = scale.detach().item()
    known = isinstance(scale, int | float | np.number) and not isinstance(scale, bool)
    if not (known and math.isfinite(scale) and scale > 0):
        raise ShapeError(f"scale is one number above 0, such as model.logit_scale.exp(), not {scale!r}")
    return float(scale)


def unit(embedding: Any, what: str, axes: tuple[int, ...]) -> Float[Tensor, "*any d"]:
    """Validate embeddings and return them with unit length, in float64 on the CPU."""
    try:
        found = embedding if isinstance(embedding, Tensor) else stacked(embedding)
    except (TypeError, ValueError, RuntimeError):
        raise ShapeError(f"{what} is a tensor, an array or a list of these of one shape, not {embedding!r}") from None
    shapes = " or ".join(("[d]", "[b d]", "[b k d]") if what != "against" else ("[d]", "[a d]"))
    if found.ndim not in axes or not found.numel():
        raise ShapeError(f"{what} has shape {list(found.shape)}; known: {shapes}")
    if not found.is_floating_point():
        raise ShapeError(f"{what} is a vector of floats, not {found.dtype}; a class is given as target=… itself")
    with torch.no_grad():
        found = found.to("cpu", torch.float64)
        length = found.norm(dim=-1, keepdim=True)
        if not (length.isfinite() & (length > 0)).all():
            raise ShapeError(f"{what} holds a vector that is zero or not finite, which has no direction")
        return found / length


def stacked(embedding: Any) -> Tensor:
    """Stack a (nested) list of vectors into one tensor."""
    if isinstance(embedding, list | tuple) and any(
        isinstance(e, Tensor | np.ndarray | list | tuple) for e in embedding
    ):
        return torch.stack([stacked(e) for e in embedding])
    return embedding if isinstance(embedding, Tensor) else torch.as_tensor(embedding)


def flattened(names: str | Sequence[Any]) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    return tuple(name for part in names for name in ((part,) if isinstance(part, str) else flattened(part)))
