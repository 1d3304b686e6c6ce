"""Images of an attribution that has none, such as one that was read from a file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.core.errors import ShapeError
from vitreous.models.image_input import Preprocess, open_image
from vitreous.models.layout import ClipLayout, Layout
from vitreous.models.transforms import OpaquePreprocess

if TYPE_CHECKING:
    from vitreous.methods.attribution import Attribution


def attach_images(attribution: Attribution, images: Any) -> Attribution:
    """Copy of an attribution with these images; see `Attribution.with_images`."""
    inputs, originals = input_and_originals(images, attribution.preprocess, attribution.layout)
    rows, count = len(attribution), len(inputs)
    if rows % count:
        raise ShapeError(f"{count} images do not fit {rows} rows; one per row, or one per so many rows, would work")
    if attribution.logits is not None and not same_in_groups(attribution.logits, count):
        raise ShapeError(
            f"the rows are about more than {count} image{'s' * (count > 1)}: their logits differ; give one image per row"
        )
    share = rows // count
    return replace(
        attribution,
        images=inputs.repeat_interleave(share, 0),
        originals=None if originals is None else tuple(image for image in originals for _ in range(share)),
    )


def input_and_originals(
    images: Any, preprocess: Preprocess | None, layout: Layout
) -> tuple[Tensor, tuple[Image.Image, ...] | None]:
    """The model's input for these images, and the original images; None for float tensors, which are the input."""
    sources = as_list(images, layout)
    if not sources:
        raise ShapeError("no images were given")
    if all(isinstance(source, Tensor) and source.is_floating_point() for source in sources):
        return stack_inputs(sources, layout), None
    if isinstance(layout, ClipLayout):
        raise ShapeError("the frames of a clip are given as a float tensor [clips, frames, channels, height, width]")
    if preprocess is None or isinstance(preprocess, OpaquePreprocess):
        raise ShapeError(
            "the geometry of the preprocessing is not known, so the map has no place on an original image; the model's "
            "input, a float tensor [images, channels, height, width], would work"
        )
    originals = tuple(open_image(source) for source in sources)
    return preprocess.batch(originals), originals


def as_list(images: Any, layout: Layout) -> list[Any]:
    """The images one by one: a tensor or array may be one of them or a batch."""
    single = 4 if isinstance(layout, ClipLayout) else 3
    if isinstance(images, Tensor | np.ndarray):
        return list(images) if images.ndim == single + 1 else [images]
    return list(images) if isinstance(images, list | tuple) else [images]


def same_in_groups(rows: Tensor, count: int) -> bool:
    """Whether the rows of each of `count` equal consecutive groups are the same, up to rounding."""
    groups = rows.double().unflatten(0, (count, -1))
    return torch.allclose(groups, groups[:, :1].expand_as(groups), rtol=1e-2, atol=1e-3, equal_nan=True)


def stack_inputs(tensors: list[Tensor], layout: Layout) -> Tensor:
    """Model inputs as one batch; a ShapeError if they are not of the size that was explained."""
    shapes = {tuple(tensor.shape) for tensor in tensors}
    dimensions = 4 if isinstance(layout, ClipLayout) else 3
    (shape, *others) = sorted(shapes)
    if others or len(shape) != dimensions or tuple(shape[-2:]) != tuple(layout.size):
        height, width = layout.size
        raise ShapeError(f"the model's input has {height} x {width} pixels here, not {sorted(shapes)}")
    return torch.stack(tensors)
