"""Maps of an attribution at pixel resolution, and on the original images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitreous.core.errors import ShapeError
from vitreous.methods.map_arrays import resize_maps
from vitreous.models.image_geometry import size_of
from vitreous.models.layout import ClipLayout

if TYPE_CHECKING:
    from vitreous.methods.attribution import Attribution


def pixel_maps(attribution: Attribution, size: tuple[int, int] | str | None, mode: str) -> Tensor | list[Tensor]:
    """Maps at pixel resolution; see `Attribution.pixels`."""
    layout = attribution.layout
    if mode not in ("nearest", "bilinear", "bicubic"):
        raise ShapeError(f"mode={mode!r}; known: 'nearest', 'bilinear', 'bicubic'")
    if isinstance(size, str):
        return original_pixel_maps(attribution, size, mode)
    if isinstance(layout, ClipLayout):
        maps = resize_maps(attribution.maps().flatten(0, 1), layout.size if size is None else size, mode)
        return maps.unflatten(0, (len(attribution), layout.times)).repeat_interleave(layout.tubelet, 1)
    return resize_maps(attribution.native_maps, layout.size if size is None else size, mode)


def original_pixel_maps(attribution: Attribution, size: str, mode: str) -> Tensor | list[Tensor]:
    """Maps of the size of each original image, NaN outside the region that was cropped for the model."""
    if size != "original":
        raise ShapeError(f"size={size!r}; give 'original' or (height, width)")
    if attribution.originals is None or attribution.preprocess is None:  # always so for clips
        raise ShapeError(
            "there are no original images here: they were given as tensors, or the attribution was read from a file; "
            "pixels() gives the maps at the size of what the model saw, and preprocess.restore(maps, (height, width)) "
            "brings them back to an image of that size"
        )
    maps = attribution.native_maps
    source = resize_maps(maps, attribution.layout.size, mode) if mode == "bicubic" else maps
    mode = "nearest" if mode == "nearest" else "bilinear"
    restored = [
        attribution.preprocess.restore(row, size_of(original), mode)
        for row, original in zip(source, attribution.originals, strict=True)
    ]
    return torch.stack(restored) if len({tuple(pixels.shape) for pixels in restored}) == 1 else restored
