"""Targets of an explanation: `Target`, the interface, and its two kinds.

`ClassTarget` explains classes of the model's own head, `TextTarget` the cosine between the embeddings of an image and a text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vitreous.capture.linearise import Linearisation
from vitreous.capture.score_function import Rows, ScoreFunction, Targets
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.models.model import BlackBox
from vitreous.models.outputs import compare_with_texts

Explained = TypeVar("Explained", bound=Any)  # an `Attribution`, which is defined above this layer of the package


@runtime_checkable
class Target(Protocol):
    """What is explained for every image: classes (`ClassTarget`) or texts (`TextTarget`)."""

    def fit(self, model: BlackBox, images: int) -> Target:
        """Return the target for this model and number of images; raise an error if it does not fit."""
        ...

    def batch(self, rows: slice) -> Target:
        """Return the target of some of the images."""
        ...

    def scalar(self, model: BlackBox) -> bool:
        """Whether the score is one number of its own, so that "logit" replaces the score function of a paper."""
        ...

    def score_function(self, question: ScoreFunction) -> ScoreFunction:
        """Return the score function as it applies to the logits of `outputs`."""
        ...

    def outputs(self, model: BlackBox, images: int) -> tuple[BlackBox, Int[Tensor, "b k"] | None]:
        """Return the model whose outputs are explained, and their indices; None for the predicted class."""
        ...

    def describe(self, attribution: Explained, model: BlackBox) -> Explained:
        """Return the attribution of a batch with the names of its targets."""
        ...

    def provenance(self, question: ScoreFunction, lin: Linearisation) -> dict[str, Any]:
        """Return entries about the target as plain values."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ClassTarget:
    """Classes of the model's own head, k per image.

    Attributes
    ----------
    classes
        None for the predicted class; a class index or name; one per image; or [b k]. Class indices [b k] or None after
        `fit`.
    """

    classes: Any = None

    def fit(self, model: BlackBox, images: int) -> ClassTarget:
        return ClassTarget(class_indices(model, self.classes, images))

    def batch(self, rows: slice) -> ClassTarget:
        return ClassTarget(None if self.classes is None else self.classes[rows])

    def scalar(self, model: BlackBox) -> bool:
        return model.scalar

    def score_function(self, question: ScoreFunction) -> ScoreFunction:
        return question

    def outputs(self, model: BlackBox, images: int) -> tuple[BlackBox, Int[Tensor, "b k"] | None]:
        return model, self.classes

    def describe(self, attribution: Explained, model: BlackBox) -> Explained:
        return replace(attribution, names=tuple(model.class_name(index) for index in attribution.targets.tolist()))

    def provenance(self, question: ScoreFunction, lin: Linearisation) -> dict[str, Any]:
        return {}


def class_indices(model: BlackBox, target: Any, images: int) -> Int[Tensor, "b k"] | None:
    """Validate `target` and return class indices [b k], or None for the predicted class."""
    if model.embedding:
        raise ModelError(
            f"{model.name!r} has no classifier ({model.embedding}), so its outputs are no classes; ask about an embedding "
            "with target=vitreous.text_target(…), or give it a head"
        )
    if target is None:
        return None
    if isinstance(target, np.ndarray | np.generic):
        target = torch.as_tensor(target) if target.dtype.kind in "biufc" else target.tolist()
    if isinstance(target, Tensor) and (target.is_meta or target.layout != torch.strided):
        raise ShapeError(
            f"target must be a dense tensor that holds values, not one on {target.device} of layout {target.layout}"
        )
    if isinstance(target, bool):
        raise ShapeError("target must be a class, not True or False")
    if isinstance(target, str | int):
        target = [target] * images
    if isinstance(target, set | frozenset | dict | bytes):
        raise ShapeError(f"target must be a list, which has an order, not a {type(target).__name__}")
    if not isinstance(target, Tensor):
        try:
            rows = [
                [class_index(model, t) for t in (row if isinstance(row, list | tuple) else [row])] for row in target
            ]
            target = torch.tensor(rows, dtype=torch.long) if not any(rows) else torch.tensor(rows)
        except ShapeError:
            raise
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise ShapeError(
                f"target must be a class, one per image, or [images, k]; got {target!r} for {images} images"
            ) from None
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise ShapeError(
            f"target must be whole numbers, not {target.dtype}; an embedding is given as vitreous.text_target(…)"
        )
    target = target.expand(images) if target.ndim == 0 else target
    if target.ndim > 2 or len(target) != images:
        hint = f"; for several classes of one image write target=[{target.flatten().tolist()}]" if images == 1 else ""
        raise ShapeError(f"target has {len(target)} entries for {images} images{hint}")
    target = target.reshape(images, -1).long()
    count = model.outputs
    if not target.numel():
        raise ShapeError(f"target holds no class for {images} images; give at least one for each, or None")
    if target.min() < 0 or target.max() >= count:
        wrong = int(target.max() if target.min() >= 0 else target.min())
        if model.scalar:
            raise ShapeError(
                f"target {wrong} is not an output: {model.name!r} answers with one number, target 0; "
                "wrap(model, outputs='binary') says that it decides between the classes 0 and 1"
            )
        raise ShapeError(f"target {wrong} is not a class: the model has classes 0 to {count - 1}")
    return target


def class_index(model: BlackBox, target: Any) -> int:
    """Return the index of a class given by number or by name (case-insensitive)."""
    if not isinstance(target, str):
        if isinstance(target, bool) or int(target) != target:
            raise ValueError(target)
        return int(target)
    names = [name.lower() for name in model.classes or ()]
    if target.lstrip("-").isdigit() and target not in names:
        return int(target)
    if names.count(target.lower()) > 1:
        several = [str(i) for i, name in enumerate(names) if name == target.lower()]
        raise ShapeError(f"{target!r} is the name of classes {', '.join(several)}; give the index")
    if target.lower() in names:
        return names.index(target.lower())
    near = get_close_matches(target.lower(), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; give its index"
    raise ShapeError(f"the model has no class named {target!r}{hint}")


@dataclass(frozen=True, slots=True, eq=False)
class TextTarget:
    """Text embeddings as targets, made by `text_target`.

    The score of an image is scale · cosine of its embedding with each of the first `explained` texts of its group. The
    remaining texts are only used for comparison.

    Parameters
    ----------
    texts
        Unit vectors of the texts [groups, texts, d].
    explained
        Number of texts of a group that are explained.
    images
        Number of images; None if one group is for all images.
    scale
        Factor of the cosine.
    names
        Names of the explained texts, or None.

    Examples
    --------
    >>> import torch
    >>> import vitreous
    >>> vitreous.text_target(torch.ones(2, 8), names=["a cat", "a dog"]).scale  # one text for each of two images
    1.0
    >>> target = vitreous.text_target(torch.eye(2, 8), names=["a cat", "a dog"])
    >>> target.name(1), target.own(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))
    ('a dog', tensor([[0.9000]]))
    """

    texts: Float[Tensor, "g all d"]  # of unit length; g is the number of images, or 1 if all images share the texts
    explained: int
    images: int | None  # number of images; None if the texts are shared by any number of images
    scale: float
    names: tuple[str, ...] | None = None

    @property
    def together(self) -> int:
        """Number of texts per image: those explained, and those they are compared with."""
        return self.texts.shape[1]

    def fit(self, model: BlackBox, images: int) -> TextTarget:
        """Return the target if the texts fit the model and the number of images.

        Raises
        ------
        ShapeError
            If the embedding width, the number of images or the number of names does not fit.
        """
        width, outputs = self.texts.shape[-1], model.outputs
        if width != outputs:
            raise ShapeError(
                f"the text embedding has {width} numbers, but {model.name!r} makes embeddings of {outputs}; "
                "take both from one model, after its projections"
            )
        if self.images is not None and self.images != images:
            several = "; for several texts of one image give them as [1 k d]" if images == 1 else ""
            raise ShapeError(f"text_target has texts for {self.images} images, and {images} were given{several}")
        if self.names is not None and len(self.names) not in (self.explained, images * self.explained):
            raise ShapeError(
                f"text_target has {len(self.names)} names for {images} x {self.explained} texts; give one for each text"
            )
        return self

    def batch(self, rows: slice) -> TextTarget:
        """Return the target of some of the images."""
        names = self.names
        if names is not None and len(names) != self.explained:  # one name per image and text
            names = names[rows.start * self.explained : rows.stop * self.explained]
        if self.images is None:
            return replace(self, names=names)
        texts = self.texts[rows]
        return replace(self, texts=texts, images=len(texts), names=names)

    def scalar(self, model: BlackBox) -> bool:
        """The cosine is one number, whatever score function a method's paper uses."""
        return True

    def score_function(self, question: ScoreFunction) -> ScoreFunction:
        """Restrict a score function to the texts of each image's own group."""
        count = self.together
        if count == 1 and question.compares:
            raise SpecError(
                f"question {question.name!r} compares texts, and each image has one; give several, or against=…"
            )

        def function(cosines: Rows, targets: Targets) -> Float[Tensor, " r"]:
            return question(self.own(cosines, targets), targets % count)

        return ScoreFunction("cosine" if question.name == "logit" else question.name, function, question.affine)

    def outputs(self, model: BlackBox, images: int) -> tuple[BlackBox, Int[Tensor, "b k"]]:
        """Return a model whose outputs are the cosines with all texts of the batch, and the texts of every image."""
        first = torch.arange(images) * (0 if self.images is None else self.together)
        targets = first[:, None] + torch.arange(self.explained)
        return compare_with_texts(model, self.texts.flatten(0, 1), self.scale), targets

    def own(self, cosines: Rows, targets: Targets) -> Float[Tensor, "r all"]:
        """Select from the cosines with all texts those with the texts of the row's own group.

        Parameters
        ----------
        cosines
            Cosines with all texts [r all].
        targets
            Index of the explained text of every row.

        Returns
        -------
        Tensor
            Cosines with the texts of the row's group.
        """
        first = targets.div(self.together, rounding_mode="floor") * self.together
        return cosines.gather(1, first[:, None] + torch.arange(self.together, device=targets.device))

    def describe(self, attribution: Explained, model: BlackBox) -> Explained:
        """Return the attribution with names, and targets and logits of the texts of each image's own group."""
        logits = None if self.together == 1 else self.own(attribution.logits, attribution.targets)
        names = tuple(self.name(row) for row in range(len(attribution)))
        return replace(attribution, targets=attribution.targets % self.together, logits=logits, names=names)

    def name(self, row: int) -> str:
        """Return the name of the text that a row explains.

        Parameters
        ----------
        row
            Index of the row.

        Returns
        -------
        str
        """
        return f"text {row % self.explained}" if self.names is None else self.names[row % len(self.names)]

    def provenance(self, question: ScoreFunction, lin: Linearisation) -> dict[str, Any]:
        """Return entries about the texts as plain values."""
        among = question.name if self.together == 1 or question.name == "cosine" else f"{question.name} among texts"
        return {
            "question": among,
            "target": "text",
            "texts": {"asked": self.explained, "against": self.together - self.explained, "scale": self.scale},
            "length": "exact" if lin.norm == "exact" else "held fixed",
        }


def text_target(
    embedding: Tensor | NDArray[Any] | Sequence[Any],
    scale: float | np.number[Any] | Tensor = 1.0,
    *,
    names: str | Sequence[str | Sequence[str]] | None = None,
    against: Tensor | NDArray[Any] | Sequence[Any] | None = None,
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
    vectors = normalise_embeddings(embedding, "a text embedding", (1, 2, 3))
    images = None if vectors.ndim == 1 else len(vectors)
    texts = vectors.reshape(images or 1, -1, vectors.shape[-1])
    count = texts.shape[1]
    if against is not None:
        others = torch.atleast_2d(normalise_embeddings(against, "against", (1, 2)))
        if others.shape[-1] != texts.shape[-1]:
            raise ShapeError(f"against has {others.shape[-1]} numbers per text, the embedding {texts.shape[-1]}")
        texts = torch.cat([texts, others.to(texts).expand(len(texts), -1, -1)], 1)
    return TextTarget(texts, count, images, check_scale(scale), None if names is None else flatten_names(names))


def check_scale(scale: Any) -> float:
    """Validate `scale` and return it as a float."""
    if isinstance(scale, Tensor) and scale.numel() == 1:
        scale = scale.detach().item()
    is_number = isinstance(scale, int | float | np.number) and not isinstance(scale, bool)
    if not (is_number and math.isfinite(scale) and scale > 0):
        raise ShapeError(f"scale is one number above 0, such as model.logit_scale.exp(), not {scale!r}")
    return float(scale)


def normalise_embeddings(embedding: Any, name: str, axes: tuple[int, ...]) -> Float[Tensor, "*any d"]:
    """Validate embeddings and return them with unit length, in float64 on the CPU."""
    try:
        vectors = embedding if isinstance(embedding, Tensor) else stack_vectors(embedding)
    except (TypeError, ValueError, RuntimeError):
        raise ShapeError(f"{name} is a tensor, an array or a list of these of one shape, not {embedding!r}") from None
    shapes = " or ".join(("[d]", "[b d]", "[b k d]") if name != "against" else ("[d]", "[a d]"))
    if vectors.ndim not in axes or not vectors.numel():
        raise ShapeError(f"{name} has shape {list(vectors.shape)}; known: {shapes}")
    if not vectors.is_floating_point():
        raise ShapeError(f"{name} is a vector of floats, not {vectors.dtype}; a class is given as target=… itself")
    with torch.no_grad():
        vectors = vectors.to("cpu", torch.float64)
        length = vectors.norm(dim=-1, keepdim=True)
        if not (length.isfinite() & (length > 0)).all():
            raise ShapeError(f"{name} holds a vector that is zero or not finite, which has no direction")
        return vectors / length


def stack_vectors(embedding: Any) -> Tensor:
    """Stack a (nested) list of vectors into one tensor."""
    if isinstance(embedding, list | tuple) and any(
        isinstance(e, Tensor | np.ndarray | list | tuple) for e in embedding
    ):
        return torch.stack([stack_vectors(e) for e in embedding])
    return embedding if isinstance(embedding, Tensor) else torch.as_tensor(embedding)


def flatten_names(names: str | Sequence[Any]) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    return tuple(name for part in names for name in ((part,) if isinstance(part, str) else flatten_names(part)))
