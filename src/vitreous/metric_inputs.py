"""Maps, labels, masks and boxes as they are given to `evaluate`: checked and converted to one entry per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vitreous.capture.score_function import QUESTIONS
from vitreous.capture.targets import class_index, class_indices
from vitreous.core.errors import ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.map_arrays import patch_sums
from vitreous.metrics.metric import Metric
from vitreous.models.model import BlackBox, Network


def same_images(attribution: Attribution, share: int) -> bool:
    """Whether each `share` consecutive rows are of one image, as far as the images are stored."""
    if share == 1 or attribution.images is None:
        return True
    groups = attribution.images.unflatten(0, (-1, share))
    return bool((groups == groups[:, :1]).all())


def as_attribution(vit: BlackBox, images: Tensor, maps: Tensor, target: Any) -> Attribution:
    """Convert a tensor of maps (per patch, patch grid or pixels) to an `Attribution`."""
    layout = vit.layout((images.shape[-2], images.shape[-1]))
    targets = class_indices(vit, 0 if target is None and vit.scalar else target, len(images))
    if targets is None:
        raise ShapeError("maps of your own need target=…, the class that they explain")
    if not isinstance(maps, Tensor) or maps.ndim not in (2, 3) or len(maps) != targets.numel():
        raise ShapeError(
            f"maps are a tensor [{targets.numel()} patches] or [{targets.numel()} H W], one per image and target"
        )
    if maps.is_complex():
        raise ShapeError(f"maps are real numbers, not {maps.dtype}")
    if maps.ndim == 2 and maps.shape[-1] == layout.patches:
        return Attribution(maps, layout, targets.flatten(), "given")
    if maps.ndim == 3 and tuple(maps.shape[1:]) == layout.grid:
        return Attribution(maps.flatten(1), layout, targets.flatten(), "given")
    if maps.ndim == 3 and tuple(maps.shape[1:]) == layout.size:
        sums = patch_sums(maps, layout)
        return Attribution(sums, layout, targets.flatten(), "given", native="pixel", native_pixels=maps)
    patches = "" if not isinstance(vit, Network) else f"has {layout.patches} patches on a grid {list(layout.grid)} and "
    raise ShapeError(f"maps are {list(maps.shape)}; the model {patches}sees images {list(layout.size)}")


def check_masks(mask: Tensor | None, name: str) -> Tensor | None:
    if mask is None:
        return None
    try:
        mask = torch.as_tensor(mask)
    except (TypeError, ValueError, RuntimeError):
        raise ShapeError(f"{name} must be a tensor or an array [b H W], not {type(mask).__name__!r}") from None
    if mask.ndim != 3 or mask.is_floating_point():
        raise ShapeError(f"{name} must be whole numbers or booleans [b H W], not {mask.dtype} {list(mask.shape)}")
    if odd := sorted(set(mask.unique().tolist()) - {-1, 0, 1}):
        raise ShapeError(f"{name} hold the number {odd[0]}; 1 is the object, 0 not, and −1 does not count")
    return mask.to(torch.int8)


def find_label_indices(vit: BlackBox, labels: Any, images: int) -> Int[Tensor, " b"]:
    """Class indices of labels given by index or name, one for all images or one per image; −1 is unknown."""
    labels_list = labels.tolist() if isinstance(labels, Tensor | np.ndarray | np.generic) else labels
    try:
        listed = [labels_list] * images if isinstance(labels_list, str | int) else list(labels_list)
        indices = torch.tensor([class_index(vit, label) for label in listed], dtype=torch.long)
    except ShapeError:
        raise
    except (TypeError, ValueError):
        raise ShapeError(f"labels are one class per image, not {labels_list!r}") from None
    if odd := [label for label in indices.tolist() if not -1 <= label < vit.outputs]:
        raise ShapeError(f"label {odd[0]} is not a class: the model has 0 to {vit.outputs - 1}, and −1 says unknown")
    return indices


def boxes_of_images(boxes: Any) -> list[Tensor | None] | None:
    """Boxes of every image as tensors [k 4]; None for an image without boxes."""
    if boxes is None:
        return None
    if not isinstance(boxes, list | tuple | Tensor | np.ndarray):
        raise ShapeError(f"boxes are a list with a tensor [k 4] or None for every image, not {type(boxes).__name__!r}")
    return [None if image_boxes is None else as_boxes(image_boxes) for image_boxes in boxes]


def as_boxes(boxes: Any) -> Tensor:
    """Boxes of one image as a tensor [k 4]."""
    try:
        tensor = torch.as_tensor(boxes).reshape(-1, 4)
    except (TypeError, ValueError, RuntimeError):
        tensor = None
    if tensor is None or not (tensor[:, :2] <= tensor[:, 2:]).all():
        raise ShapeError(f"boxes of an image are [k 4] as x0 y0 x1 y1, x0 ≤ x1 and y0 ≤ y1, not {boxes!r}")
    return tensor


def spread_over_rows(name: str, value: Any, images: int, share: int) -> Any:
    """One entry per row: entries given per image are repeated for each of its `share` targets."""
    if len(value) == images * share:
        return value
    if len(value) != images:
        raise ShapeError(f"{name} has {len(value)} entries for {images} images")
    if isinstance(value, list):
        return [entry for entry in value for _ in range(share)]
    return value.repeat_interleave(share, 0)


def refuse_texts(attribution: Attribution, metrics: Sequence[Metric]) -> None:
    """Raise SpecError if the maps explain a text and one of the metrics has to run the model.

    Metrics of masks or of the map alone work for text targets too.
    """
    again = [metric.name for metric in metrics if {"probe", "method"} & set(metric.takes)]
    if again and attribution.provenance.get("target") == "text":
        raise SpecError(
            f"metric {again[0]!r} asks the model about classes, and these maps explain a text; metrics of masks and of the map "
            "alone work ('ap', 'pointing_game', 'sparseness'), or give the tower a head whose rows are the texts"
        )


def refuse_unrepeatable(attribution: Attribution, metrics: Sequence[Metric]) -> None:
    """Raise SpecError if a metric computes the explanation again and these maps cannot be reproduced.

    This is so for a part of an attribution and for maps of a custom score function (`question`).
    """
    again = [metric.name for metric in metrics if "method" in metric.takes]
    question, part = (attribution.provenance.get(key) for key in ("question", "part"))
    if again and part is not None:
        raise SpecError(f"metric {again[0]!r} explains again, and this map is a part, {part!r}, of what was explained")
    if again and question is not None and question not in QUESTIONS:
        raise SpecError(
            f"metric {again[0]!r} explains again, and this map answers a question of your own, {question!r}, which it does not hold; "
            f"known: {', '.join(QUESTIONS)}"
        )
