"""Targets of an explanation: `Target`, the interface, and `ClassTarget`, classes of the model's own head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.linearise import Linearisation
from vitreous.capture.probe import probe_of
from vitreous.capture.score_function import ScoreFunction
from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.model import BlackBox
from vitreous.models.tensor_types import Images

Explained = TypeVar("Explained", bound=Any)  # an `Attribution`, which is defined above this layer of the package


@runtime_checkable
class Target(Protocol):
    """What is explained for every image: classes (`ClassTarget`) or texts (`TextTarget`)."""

    def fit(self, vit: BlackBox, images: int) -> Target:
        """Return the target for this model and number of images; raise an error if it does not fit."""
        ...

    def batch(self, rows: slice) -> Target:
        """Return the target of some of the images."""
        ...

    def scalar(self, vit: BlackBox) -> bool:
        """Whether the score is one number of its own, so that "logit" replaces the score function of a paper."""
        ...

    def score_function(self, question: ScoreFunction) -> ScoreFunction:
        """Return the score function as it applies to the outputs of `probe`."""
        ...

    def probe(
        self, vit: BlackBox, images: Images, question: ScoreFunction, hold: bool | None, *, differentiable: bool = False
    ) -> BlackBoxProbe:
        """Return the probe of a batch; `question` is a result of `score_function`, the rest as for `probe_of`."""
        ...

    def describe(self, attribution: Explained, vit: BlackBox) -> Explained:
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

    def fit(self, vit: BlackBox, images: int) -> ClassTarget:
        return ClassTarget(class_indices(vit, self.classes, images))

    def batch(self, rows: slice) -> ClassTarget:
        return ClassTarget(None if self.classes is None else self.classes[rows])

    def scalar(self, vit: BlackBox) -> bool:
        return vit.scalar

    def score_function(self, question: ScoreFunction) -> ScoreFunction:
        return question

    def probe(
        self, vit: BlackBox, images: Images, question: ScoreFunction, hold: bool | None, *, differentiable: bool = False
    ) -> BlackBoxProbe:
        return probe_of(vit, images, self.classes, question, hold, differentiable=differentiable)

    def describe(self, attribution: Explained, vit: BlackBox) -> Explained:
        return replace(attribution, names=tuple(vit.class_name(index) for index in attribution.targets.tolist()))

    def provenance(self, question: ScoreFunction, lin: Linearisation) -> dict[str, Any]:
        return {}


def class_indices(vit: BlackBox, target: Any, images: int) -> Int[Tensor, "b k"] | None:
    """Validate `target` and return class indices [b k], or None for the predicted class."""
    if vit.embedding:
        raise ModelError(
            f"{vit.name!r} has no classifier ({vit.embedding}), so its outputs are no classes; ask about an embedding "
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
            rows = [[class_index(vit, t) for t in (row if isinstance(row, list | tuple) else [row])] for row in target]
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
    count = vit.outputs
    if not target.numel():
        raise ShapeError(f"target holds no class for {images} images; give at least one for each, or None")
    if target.min() < 0 or target.max() >= count:
        wrong = int(target.max() if target.min() >= 0 else target.min())
        if vit.scalar:
            raise ShapeError(
                f"target {wrong} is not an output: {vit.name!r} answers with one number, target 0; "
                "wrap(model, outputs='binary') says that it decides between the classes 0 and 1"
            )
        raise ShapeError(f"target {wrong} is not a class: the model has classes 0 to {count - 1}")
    return target


def class_index(vit: BlackBox, target: Any) -> int:
    """Return the index of a class given by number or by name (case-insensitive)."""
    if not isinstance(target, str):
        if isinstance(target, bool) or int(target) != target:
            raise ValueError(target)
        return int(target)
    names = [name.lower() for name in vit.classes or ()]
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
