"""A map laid over the picture it explains, in the frame of the original."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.core.errors import ShapeError
from vitreous.draw.scale import OPACITY, QUANTILE, Number, Scale, scale_of, toned
from vitreous.methods.attribution import Attribution
from vitreous.models.picture import open_picture, resample
from vitreous.models.transforms import OpaquePreprocess

Mode = Literal["nearest", "bilinear", "bicubic"]
Window = tuple[float, float, float, float]  # left, top, right, bottom of what the model sees, in pixels shown

SMALL, LARGE = 480, 1280  # the longest side of a picture as it is shown
UNSEEN = 0.35  # how much of a picture is left where the model does not look


def overlay_image(
    attribution: Attribution,
    row: int = 0,
    *,
    opacity: Number = OPACITY,
    mode: Mode = "bilinear",
    scale: Scale | None = None,
    quantile: Number = QUANTILE,
    longest: int = LARGE,
) -> Image.Image:
    """One row over its picture, in the picture's proportions; the bare map where there is no picture.

    Missing scores are hatched; what the model does not see of the picture is faded. `longest` bounds its sides.
    """
    if not 0 <= opacity <= 1:
        raise ShapeError(f"opacity={opacity}; a number from 0 to 1 would work")
    one = attribution[row]
    scale = scale or scale_of(one, quantile=quantile)
    found = backdrop(one, longest)
    if found is None:
        return bare_image(one, mode=mode, scale=scale)
    picture, window = found
    values, seen = spread(one, picture, window, mode)
    base = toned(np.asarray(picture, np.float32) / 255, scale)
    painted = np.where(seen[..., None], scale.over(base, np.nan_to_num(values), opacity), faded(base))
    return as_picture(hatched(painted, np.isnan(values) & seen))


def bare_image(one: Attribution, *, mode: Mode, scale: Scale) -> Image.Image:
    """The colours alone, as large as what the model sees, or enlarged."""
    height, width = one.layout.size
    width, height = shown_size(width, height)
    values, _ = spread(one, Image.new("RGB", (width, height)), (0.0, 0.0, float(width), float(height)), mode)
    return as_picture(hatched(scale.colours(np.nan_to_num(values)), np.isnan(values)))


def backdrop(one: Attribution, longest: int = LARGE) -> tuple[Image.Image, Window] | None:
    """The picture to show of a single row, and where in it the model looks."""
    if one.pictures is not None and one.preprocess is not None and not isinstance(one.preprocess, OpaquePreprocess):
        picture = upright(one.pictures[0])
        window = one.preprocess.window(picture)
    elif one.images is not None:
        picture = as_picture(seen_by_the_model(one))
        window = (0.0, 0.0, float(picture.width), float(picture.height))
    else:
        return None
    size = shown_size(*picture.size, longest)
    across, down = size[0] / picture.width, size[1] / picture.height
    left, top, right, bottom = window
    small = picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    return small, (left * across, top * down, right * across, bottom * down)


def upright(picture: Any) -> Image.Image:
    """`explain` keeps pictures as they are shown; others are brought to that."""
    return picture if isinstance(picture, Image.Image) and picture.mode == "RGB" else open_picture(picture)


def seen_by_the_model(one: Attribution) -> np.ndarray:
    """The model's input as colours in [0, 1]; stretched from its least to its most when nobody knows its normalisation."""
    assert one.images is not None
    image = one.images[0].float().cpu()
    if one.preprocess is not None:
        return one.preprocess.denormalise(image).permute(1, 2, 0).numpy() / 255
    image = image.nan_to_num().permute(1, 2, 0).numpy()
    return (image - image.min()) / ((image.max() - image.min()) or 1)


def shown_size(width: int, height: int, longest: int = LARGE) -> tuple[int, int]:
    """Small pictures are enlarged and huge ones reduced; most stay as they are."""
    side = max(width, height)
    share = min(max(side, SMALL), longest) / side
    return max(round(width * share), 1), max(round(height * share), 1)


def spread(one: Attribution, picture: Image.Image, window: Window, mode: Mode) -> tuple[np.ndarray, np.ndarray]:
    """The map at every pixel shown, NaN where a score is missing, and which pixels the model sees."""
    left, top, right, bottom = window
    down = (torch.arange(picture.height, dtype=torch.float64) + 0.5 - top) / (bottom - top)
    across = (torch.arange(picture.width, dtype=torch.float64) + 0.5 - left) / (right - left)
    seen = ((down >= 0) & (down <= 1))[:, None] & (across >= 0) & (across <= 1)

    def at(maps: Tensor, mode: str) -> Tensor:
        return resample(resample(maps, down, mode).mT, across, mode).mT

    own = (one.maps() if one.native_pixels is None else one.native_pixels)[0].double().cpu()
    values = at(enlarged(own.nan_to_num(0.0, 1e30, -1e30), one, mode), coarse(mode))
    missing = own.isnan()
    if missing.any():  # a missing score takes no part in its neighbours' means
        known = at(enlarged((~missing).double(), one, mode), coarse(mode)).clamp(min=1e-3)
        values = (values / known).masked_fill(at(missing.double(), "nearest") > 0, torch.nan)
    return values.float().numpy(), seen.numpy()


def coarse(mode: Mode) -> str:
    return "nearest" if mode == "nearest" else "bilinear"


def enlarged(values: Tensor, one: Attribution, mode: Mode) -> Tensor:
    """A patch map made smooth at the model's own pixels before it is stretched, when that is asked for."""
    if mode not in ("nearest", "bilinear", "bicubic"):
        raise ShapeError(f"mode={mode!r}; known: 'nearest', 'bilinear', 'bicubic'")
    if mode != "bicubic":
        return values
    return torch.nn.functional.interpolate(values[None, None], size=one.layout.size, mode="bicubic")[0, 0]


def faded(base: np.ndarray) -> np.ndarray:
    return UNSEEN * base + (1 - UNSEEN)


def hatched(picture: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Grey stripes where a score is missing, so that it cannot be taken for any colour of the scale."""
    y, x = np.indices(missing.shape)
    period = max(min(missing.shape) // 40, 4)
    stripes = np.where((x + y) // (period // 2) % 2 == 0, 0.35, 0.65)[..., None]
    return np.where(missing[..., None], stripes, picture)


def as_picture(colours: np.ndarray) -> Image.Image:
    return Image.fromarray((colours.clip(0, 1) * 255).round().astype(np.uint8))
