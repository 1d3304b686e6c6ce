"""Operations on tensors of maps: resizing, sums over patches, rescaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from vitreous.core.errors import ShapeError
from vitreous.models.layout import Layout


def check_size(size: Any) -> None:
    """Raise ShapeError unless `size` is a height and a width."""
    numbers = list(size) if isinstance(size, tuple | list) else []
    if len(numbers) != 2 or not all(isinstance(length, int | np.integer) and length > 0 for length in numbers):
        raise ShapeError(f"size={size!r}; (height, width) in pixels would work")


def resize_maps(maps: Float[Tensor, "r h w"], size: tuple[int, int], mode: str) -> Float[Tensor, "r height width"]:
    """Maps resized to `size` by interpolation."""
    check_size(size)
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    corners = False if mode in ("bilinear", "bicubic") else None
    return F.interpolate(maps[:, None], size=tuple(size), mode=mode, align_corners=corners)[:, 0]


def patch_sums(pixels: Float[Tensor, "r H W"], layout: Layout) -> Float[Tensor, "r p"]:
    """Sum of a pixel map over each patch; pixels outside the patch grid are ignored."""
    (rows, columns), (height, width) = layout.grid, layout.patch
    cells = pixels[:, : rows * height, : columns * width].unflatten(1, (rows, height)).unflatten(3, (columns, width))
    return cells.sum((2, 4)).flatten(1).to(torch.promote_types(pixels.dtype, torch.float32))


def enlarge_patches(values: Shaped[Tensor, "k p"], layout: Layout) -> Shaped[Tensor, "k H W"]:
    """Values of patches as pixel maps, each repeated over the pixels of its patch."""
    height, width = layout.patch
    return values.unflatten(1, layout.grid).repeat_interleave(height, 1).repeat_interleave(width, 2)


def zero_to_one(scores: Float[Tensor, "r p"]) -> Float[Tensor, "r p"]:
    """Every map rescaled to [0, 1]; a constant map becomes NaN (0 / 0), as in published code."""
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    return (scores - low) / (high - low)


def row_indices(rows: Any, count: int) -> list[int]:
    """Indices of the rows that a list of indices or a mask selects."""
    try:
        return [int(index) for index in torch.arange(count)[torch.atleast_1d(torch.as_tensor(rows)).cpu()]]
    except (TypeError, ValueError, RuntimeError, IndexError):
        raise ShapeError(
            f"rows {rows!r}: an index, a slice, a list of indices or a mask of {count} rows would work"
        ) from None
