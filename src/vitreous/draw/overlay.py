"""A map laid over the image it explains, in the frame of the original."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.core.errors import ShapeError
from vitreous.draw.scale import OPACITY, QUANTILE, Number, Scale, scale_of, tone_base
from vitreous.methods.attribution import Attribution
from vitreous.methods.map_arrays import resize_maps
from vitreous.models.image_bands import shown_at_full_contrast
from vitreous.models.image_geometry import sample_window
from vitreous.models.image_input import open_image
from vitreous.models.layout import ClipLayout
from vitreous.models.transforms import OpaquePreprocess

Mode = Literal["nearest", "bilinear", "bicubic"]
Window = tuple[float, float, float, float]  # left, top, right, bottom of what the model sees, in pixels shown
FramedImage = tuple[Image.Image, Window]

SMALL, LARGE = 480, 1280  # bounds of the longest side of a displayed image, in pixels
UNSEEN = 0.35  # contrast kept where the model does not see the image


def overlay_image(
    attribution: Attribution,
    row: int = 0,
    *,
    opacity: Number = OPACITY,
    mode: Mode = "bilinear",
    scale: Scale | None = None,
    quantile: Number = QUANTILE,
    longest: int = LARGE,
    uncertainty: bool = False,
) -> Image.Image:
    """Lay the map of one row over its image.

    Parameters
    ----------
    attribution, row
        Which map.
    opacity
        Opacity of the strongest colours, 0 to 1.
    mode
        How patches are enlarged: "nearest", "bilinear" or "bicubic".
    scale
        Colour scale; by default the row's own, whose colours end at the `quantile` of |score|.
    longest
        Largest side of the result in pixels.
    uncertainty
        True draws thin lines over scores whose interval contains zero (`Attribution.unsettled`).
    quantile
        Quantile of |score| at which colours end, up to 1; not used with `scale`.

    Returns
    -------
    PIL.Image.Image
        In the proportions of the original image; the map alone where the attribution has no image. Missing scores are
        hatched, and parts of the image that the model does not see are faded.

    Raises
    ------
    ShapeError
        If `opacity` or `mode` is not one of the above, or the map is that of a clip.

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution, draw
    >>> from vitreous.models.vit import Layout
    >>> attribution = Attribution(torch.rand(2, 4), Layout((2, 2), (16, 16), 0), torch.tensor([3, 5]), "ixg")
    >>> draw.overlay_image(attribution, row=1).mode
    'RGB'
    """
    attribution = attribution[row]
    framed_image = backdrop(attribution, longest)
    style = MapStyle(opacity=opacity, mode=mode, uncertainty=uncertainty)
    return style.draw(attribution, scale or scale_of(attribution, quantile=quantile), framed_image)


@dataclass(frozen=True, slots=True)
class MapStyle:
    """How maps are drawn."""

    overlay: bool = True
    opacity: Number = OPACITY
    mode: Mode = "bilinear"
    longest: int = LARGE  # side of an image, in pixels
    uncertainty: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.opacity <= 1:
            raise ShapeError(f"opacity={self.opacity}; a number from 0 to 1 would work")

    def draw(self, attribution: Attribution, scale: Scale, framed_image: FramedImage | None) -> Image.Image:
        """The map of a single row over its image, or alone: as large as the model's input, or enlarged."""
        if framed_image is None:
            refuse_clip(attribution)
            height, width = attribution.layout.size
            width, height = display_size(width, height)
            values, _ = map_at_pixels(attribution, (height, width), (0.0, 0.0, float(width), float(height)), self.mode)
            return to_image(hatch_missing(scale.colours(np.nan_to_num(values)), np.isnan(values)))
        image, window = framed_image
        size = image.height, image.width
        values, seen = map_at_pixels(attribution, size, window, self.mode)
        base = tone_base(np.asarray(image, np.float32) / 255, scale)
        faded = UNSEEN * base + (1 - UNSEEN)
        painted = np.where(seen[..., None], scale.over(base, np.nan_to_num(values), self.opacity), faded)
        painted = hatch_missing(painted, np.isnan(values) & seen)
        if not self.uncertainty:
            return to_image(painted)
        unsettled = replace(attribution, patches=attribution.unsettled().flatten(1).double(), native_pixels=None)
        mask, _ = map_at_pixels(unsettled, size, window, "nearest")
        return to_image(draw_lines(painted, (mask > 0.5) & seen))


def refuse_clip(attribution: Attribution) -> None:
    """Raise `ShapeError` for maps of a clip, which are drawn one time step at a time."""
    if isinstance(attribution.layout, ClipLayout):
        raise ShapeError(
            "a clip has one map per time step; .plot() draws them, and .save('clip.gif') writes an animation"
        )


def backdrop(attribution: Attribution, longest: int = LARGE) -> FramedImage | None:
    """Image of a single row at display size, and the part of it that the model sees; None without an image."""
    refuse_clip(attribution)
    preprocess = attribution.preprocess
    if attribution.originals is not None and preprocess is not None and not isinstance(preprocess, OpaquePreprocess):
        image = attribution.originals[0]  # `explain` keeps images upright and in RGB
        image = image if isinstance(image, Image.Image) and image.mode == "RGB" else open_image(image)
        window = preprocess.window(image)
        image = shown_at_full_contrast(image)
    elif attribution.images is not None:
        image = to_image(denormalise_input(attribution))
        window = (0.0, 0.0, float(image.width), float(image.height))
    else:
        return None
    size = display_size(*image.size, longest)
    across, down = size[0] / image.width, size[1] / image.height
    left, top, right, bottom = window
    small = image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    return small, (left * across, top * down, right * across, bottom * down)


def denormalise_input(attribution: Attribution) -> np.ndarray:
    """The model's input as colours in [0, 1]; min-max scaled when it has not three channels or its normalisation is not known.

    Of more than three channels the first three are shown; one, or the mean of two, is grey.
    """
    assert attribution.images is not None
    image = attribution.images[0].float().cpu()
    image = image[:3] if len(image) >= 3 else image.mean(0, keepdim=True).expand(3, -1, -1)
    if attribution.preprocess is not None and attribution.images.shape[-3] == 3:
        return attribution.preprocess.denormalise(image).permute(1, 2, 0).numpy() / 255
    image = image.nan_to_num().permute(1, 2, 0).numpy()
    return (image - image.min()) / ((image.max() - image.min()) or 1)


def display_size(width: int, height: int, longest: int = LARGE) -> tuple[int, int]:
    """Display size: small images are enlarged, large ones reduced, others kept."""
    side = max(width, height)
    share = min(max(side, SMALL), longest) / side
    return max(round(width * share), 1), max(round(height * share), 1)


def map_at_pixels(
    attribution: Attribution, size: tuple[int, int], window: Window, mode: Mode
) -> tuple[np.ndarray, np.ndarray]:
    """The map at every pixel of an image of this (height, width), NaN where a score is missing, and a mask of what the model sees."""
    if mode not in ("nearest", "bilinear", "bicubic"):
        raise ShapeError(f"mode={mode!r}; known: 'nearest', 'bilinear', 'bicubic'")

    def at(maps: Tensor, mode: Mode) -> tuple[Tensor, Tensor]:
        if mode == "bicubic":  # to the model's own pixels, and bilinearly from there on
            maps = resize_maps(maps[None], attribution.layout.size, mode)[0]
        return sample_window(maps, size, window, "nearest" if mode == "nearest" else "bilinear")

    own = attribution.native_maps[0].double().cpu()
    values, seen = at(own.nan_to_num(0.0, 1e30, -1e30), mode)
    missing = own.isnan()
    if missing.any():  # a missing score takes no part in its neighbours' means
        weights, _ = at((~missing).double(), mode)
        hatched, _ = at(missing.double(), "nearest")
        values = (values / weights.clamp(min=1e-3)).masked_fill(hatched > 0, torch.nan)
    return values.float().numpy(), seen.numpy()


def hatch_missing(colours: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Grey stripes where a score is missing, which no colour of the scale resembles."""
    if not missing.any():
        return colours.astype(np.float64)
    y, x = np.indices(missing.shape)
    period = max(min(missing.shape) // 40, 4)
    stripes = np.where((x + y) // (period // 2) % 2 == 0, 0.35, 0.65)[..., None]
    return np.where(missing[..., None], stripes, colours)


def draw_lines(colours: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Thin diagonal lines, dark on light and light on dark, with the colours visible between them."""
    y, x = np.indices(where.shape)
    period = max(min(where.shape) // 56, 5)
    line = where & ((x + y) % period == 0)
    contrast = np.where(colours.mean(-1, keepdims=True) > 0.5, 0.2, 0.9)
    return np.where(line[..., None], 0.35 * colours + 0.65 * contrast, colours)


def to_image(colours: np.ndarray) -> Image.Image:
    return Image.fromarray((colours.clip(0, 1) * 255).round().astype(np.uint8))
