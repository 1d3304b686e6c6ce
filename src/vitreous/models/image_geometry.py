"""Where the pixels of an image go when it is resized and cropped, and the way back for maps, masks and boxes."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from PIL import Image
from torch import Tensor

Frame: TypeAlias = Image.Image | tuple[int, int]  # an image as returned by `open_image`, or its (height, width)
Array: TypeAlias = Tensor | np.ndarray


class ImageGeometry:
    """The geometry of a `Preprocess`, which documents the attributes. All sizes are (height, width)."""

    __slots__ = ()

    size: tuple[int, int]
    resize: tuple[int, int] | None
    fit: Literal["stretch", "shortest", "cover", "contain"]
    centre: Literal["round", "truncate", "floor"]
    crop: bool

    def place(self, image_size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Top and left of the crop in the resized image, and the size of the resized image."""
        resized = self.resized(*image_size)
        top, left = (self.start(length, count) for length, count in zip(resized, self.seen_size(resized), strict=True))
        return (top, left), resized

    def seen_size(self, resized: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the model input for an image that was resized to `resized`."""
        return self.size if self.crop else resized

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width after resizing, before the crop."""
        if self.resize is None:
            return height, width
        if self.fit == "stretch":
            return self.resize
        if self.fit == "shortest":
            shortest = min(height, width)
            return int(self.resize[0] * height / shortest), int(self.resize[0] * width / shortest)
        ratios = height / self.resize[0], width / self.resize[1]
        ratio = min(ratios) if self.fit == "cover" else max(ratios)
        return max(round(height / ratio), 1), max(round(width / ratio), 1)

    def start(self, length: int, count: int) -> int:
        """Start of the central `count` pixels of `length`; negative if there are fewer than `count`."""
        spare = length - count
        rounded = round(spare / 2) if spare > 0 else int(spare / 2)
        return {"round": rounded, "truncate": int(spare / 2), "floor": spare // 2}[self.centre]

    def window(self, image: Frame) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the model input in pixels of the original image.

        They lie outside of the image where it is padded.
        """
        height, width = size_of(image)
        (top, left), (rows, columns) = self.place((height, width))
        seen_height, seen_width = self.seen_size((rows, columns))
        across, down = width / columns, height / rows
        return left * across, top * down, (left + seen_width) * across, (top + seen_height) * down

    def restore(
        self, values: Float[Tensor, "*b h w"], image: Frame, mode: str = "bilinear", fill: float = math.nan
    ) -> Float[Tensor, "*b H W"]:
        """Resample maps over the model input to the original image.

        Parameters
        ----------
        values
            Maps of any resolution that cover exactly the model input: `attribution.maps()` or `attribution.pixels()`.
        image
            The original image as returned by `open_image` (upright according to EXIF), or its (height, width).
        mode
            "bilinear" (between the centres of patches) or "nearest".
        fill
            Value of pixels outside of the crop.

        Returns
        -------
        Tensor
            Maps with the height and width of the original image. Padding around a small image is removed.

        Examples
        --------
        >>> import torch
        >>> from vitreous import Preprocess
        >>> preprocess = Preprocess(size=(2, 2), resize=(2, 2), fit="shortest")
        >>> preprocess.restore(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (2, 4), mode="nearest")
        tensor([[nan, 1., 2., nan],
                [nan, 3., 4., nan]])
        """
        height, width = size_of(image)
        spread, in_view = sample_window(values, (height, width), self.window((height, width)), mode)
        return spread.where(in_view, torch.tensor(fill).to(values))

    def masks(self, values: Shaped[Array, "*b h w"], fill: int = -1) -> Shaped[Tensor, "*b H W"]:
        """Apply the geometry to masks or class maps of the original image, with nearest-neighbour sampling.

        Parameters
        ----------
        values
            Masks with the height and width of the original image. bool becomes int8 and uint8 becomes int16, so that
            negative values of `fill` are possible.
        fill
            Value of padding.

        Returns
        -------
        Tensor
            Masks with the height and width of the model input.
        """
        values = torch.from_numpy(np.array(values)) if isinstance(values, np.ndarray) else values
        if values.dtype in (torch.bool, torch.uint8):  # `fill` may be negative
            values = values.to(torch.int8 if values.dtype == torch.bool else torch.int16)
        height, width = values.shape[-2:]
        (top, left), (rows, columns) = self.place((height, width))
        seen_height, seen_width = self.seen_size((rows, columns))
        (down, inside), (across, within) = (
            nearest(top, seen_height, rows, height),
            nearest(left, seen_width, columns, width),
        )
        in_view = (inside[:, None] & within).to(values.device)
        return values[..., down[:, None], across].where(in_view, torch.tensor(fill).to(values))

    def boxes(self, boxes: Shaped[Array, "k 4"], image: Frame) -> Float[Tensor, "seen 4"]:
        """Apply the geometry to boxes (x0, y0, x1, y1) in pixels of the original image.

        Parameters
        ----------
        boxes
            One row per box.
        image
            The original image, or its (height, width).

        Returns
        -------
        Tensor
            Boxes in pixels of the model input, clipped to it. Boxes that lie outside of it are dropped.
        """
        height, width = size_of(image)
        (top, left), (rows, columns) = self.place((height, width))
        corners = torch.as_tensor(np.array(boxes) if isinstance(boxes, np.ndarray) else boxes).double()
        seen_height, seen_width = self.seen_size((rows, columns))
        across = (corners[:, 0::2] * columns / width - left).clamp(0, seen_width)
        down = (corners[:, 1::2] * rows / height - top).clamp(0, seen_height)
        in_view = (across[:, 0] < across[:, 1]) & (down[:, 0] < down[:, 1])
        return torch.stack([across, down], -1).flatten(1)[in_view]


def size_of(image: Frame) -> tuple[int, int]:
    return (image.height, image.width) if isinstance(image, Image.Image) else image


def nearest(start: int, count: int, resized: int, length: int) -> tuple[Int[Tensor, " seen"], Bool[Tensor, " seen"]]:
    """Nearest original pixels of the `count` pixels from `start` on, along an edge resized from `length` to `resized`.

    Returns their indices, and whether each pixel lies inside of the resized image.
    """
    places = torch.arange(start, start + count)
    inside = (places >= 0) & (places < resized)
    # Integer arithmetic: ties are resolved in the same direction for every size.
    return ((2 * places + 1) * length).div(2 * resized, rounding_mode="floor").clamp(0, length - 1), inside


def sample_window(
    values: Float[Tensor, "*b h w"], size: tuple[int, int], window: tuple[float, float, float, float], mode: str
) -> tuple[Float[Tensor, "*b H W"], Bool[Tensor, "H W"]]:
    """Sample maps of a window (left, top, right, bottom) of an image at all its pixels; also return which lie in the window."""
    (height, width), (left, top, right, bottom) = size, window
    down = (torch.arange(height, dtype=torch.float64, device=values.device) + 0.5 - top) / (bottom - top)
    across = (torch.arange(width, dtype=torch.float64, device=values.device) + 0.5 - left) / (right - left)
    in_view = ((down >= 0) & (down <= 1))[:, None] & (across >= 0) & (across <= 1)
    return resample(resample(values, down, mode).mT, across, mode).mT, in_view


def resample(values: Float[Tensor, "*b h w"], places: Float[Tensor, " H"], mode: str) -> Float[Tensor, "*b H w"]:
    """Sample rows of a map at `places`, from 0 (top edge) to 1 (bottom edge)."""
    rows = values.shape[-2]
    if mode == "nearest":
        return values[..., (places * rows).floor().long().clamp(0, rows - 1), :]
    at = (places * rows - 0.5).clamp(0, rows - 1)
    above = at.floor().long()
    below = (above + 1).clamp(max=rows - 1)
    share = (at - above).to(values.dtype)[:, None]
    return values[..., above, :] * (1 - share) + values[..., below, :] * share
