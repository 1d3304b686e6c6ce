"""Texts as targets: a picture is asked how near its embedding lies to theirs."""

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
    """What is asked of every picture: scale · cosine of its embedding with each of the first `asked` texts of its row."""

    texts: Float[Tensor, "g all d"]  # of unit length; g is the number of pictures, or 1 when all are asked the same
    asked: int
    pictures: int | None  # None: as many as there are
    scale: float
    names: tuple[str, ...] | None = None

    @property
    def together(self) -> int:
        """Texts that a picture is compared with: those asked about, and those they stand against."""
        return self.texts.shape[1]

    def check(self, vit: ViT, pictures: int) -> None:
        """One sentence for what does not fit."""
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
        """The model that answers with cosines to the texts of those pictures, and which texts are whose."""
        shared = self.pictures is None
        texts = self.texts if shared else self.texts[those]
        first = torch.arange(len(images)) * (0 if shared else self.together)
        return likened(vit, texts.flatten(0, 1), self.scale), images, first[:, None] + torch.arange(self.asked)

    def question(self, asked: Question) -> Question:
        """The same question, among the texts of the picture's own row."""
        count = self.together
        if count == 1 and asked.compares:
            raise SpecError(
                f"question {asked.name!r} compares texts, and each picture has one; give several, or against=…"
            )

        def function(cosines: Rows, targets: Targets) -> Float[Tensor, " r"]:
            return asked(self.own(cosines, targets), targets % count)

        return Question("cosine" if asked.name == "logit" else asked.name, function, asked.affine)

    def own(self, cosines: Rows, targets: Targets) -> Float[Tensor, "r all"]:
        """Of cosines with everybody's texts, those with the texts of the row."""
        first = targets.div(self.together, rounding_mode="floor") * self.together
        return cosines.gather(1, first[:, None] + torch.arange(self.together, device=targets.device))

    def answered(self, found: Any) -> Any:
        """An attribution whose targets and logits are those of the picture's own texts."""
        logits = None if self.together == 1 else self.own(found.logits, found.targets)
        return replace(found, targets=found.targets % self.together, logits=logits)

    def name(self, row: int) -> str:
        return f"text {row % self.asked}" if self.names is None else self.names[row % len(self.names)]

    def facts(self, question: Question, lin: Linearisation) -> dict[str, Any]:
        """For the provenance, as plain values."""
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
    """The target of an explanation, as an embedding: scale · cosine with the picture's own embedding is explained.

    `embedding`: [d] for every picture, [b d] one for each, [b k d] several for each (rows as with several classes); tensors,
    arrays or lists of these. `scale`: a number such as `model.logit_scale.exp()`. `names`: one per text. `against`: other
    texts [a d] that the questions "margin" and "probability" compare with, and that get no map of their own.
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
    if isinstance(scale, Tensor) and scale.numel() == 1:
        scale = scale.detach().item()
    known = isinstance(scale, int | float | np.number) and not isinstance(scale, bool)
    if not (known and math.isfinite(scale) and scale > 0):
        raise ShapeError(f"scale is one number above 0, such as model.logit_scale.exp(), not {scale!r}")
    return float(scale)


def unit(embedding: Any, what: str, axes: tuple[int, ...]) -> Float[Tensor, "*any d"]:
    """Vectors of unit length, in float64."""
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
    """A list of vectors, or of lists of them, as one tensor."""
    if isinstance(embedding, list | tuple) and any(
        isinstance(e, Tensor | np.ndarray | list | tuple) for e in embedding
    ):
        return torch.stack([stacked(e) for e in embedding])
    return embedding if isinstance(embedding, Tensor) else torch.as_tensor(embedding)


def flattened(names: str | Sequence[Any]) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    return tuple(name for part in names for name in ((part,) if isinstance(part, str) else flattened(part)))
