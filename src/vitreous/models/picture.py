"""From a picture to what the model sees, and back, so that a map lands on the original picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from PIL import Image
from torch import Tensor

from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.models.decode import Source, open_picture

Frame: TypeAlias = Image.Image | tuple[int, int]  # a picture as `open_picture` gives it, or its (height, width)
Triple: TypeAlias = tuple[float, float, float]
Array: TypeAlias = Tensor | np.ndarray

RESAMPLING = {method.name.lower(): method for method in Image.Resampling}
LARGE = 1 << 26  # pixels; resized pictures beyond this are never made whole
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PAPERS = ("chefer", "tokentm", "tis", "skipplus")
HF_FAMILIES = ("ViT", "DeiT", "Beit", "Bit", "Siglip", "CLIP")  # they resize, crop, rescale, normalise; in this order


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Resize, crop or pad around the centre, normalise; and the way back from what the model sees to the image.

    Sizes are (height, width).

    Parameters
    ----------
    size
        Height and width of what the model sees.
    resize
        The box that an image is resized to before the crop; None leaves it as it is.
    fit
        How it is brought to that box: "stretch" fills it, "shortest" makes the shorter edge `resize[0]` (torchvision's
        `Resize(n)`), "cover" covers it and "contain" lies within it, both in the image's own proportions.
    interpolation
        Of the resizing: "nearest", "bilinear", "bicubic", "lanczos", "box" or "hamming".
    mean, std
        Of every colour, for colours from 0 to 1: the model gets `(colour - mean) / std`.
    fill
        Colour (0 to 255) around an image that is smaller than `size`.
    centre
        Which side gets half a pixel of the crop; libraries differ: "round" (torchvision, timm), "truncate" or "floor".
    engine
        Who resizes, "pillow" or "torch" (torchvision on tensors); they round differently.
    crop
        False: there is no crop, the model sees the whole resized image, and `size` is that of a square one.

    Examples
    --------
    >>> from vitreous import Preprocess
    >>> preprocess = Preprocess(size=(224, 224), resize=(256, 256), fit="shortest", mean=(0.5,) * 3, std=(0.5,) * 3)
    >>> preprocess.window((512, 768))
    (160.0, 32.0, 608.0, 480.0)
    """

    size: tuple[int, int]  # what the model sees
    resize: tuple[int, int] | None = None  # the box a picture is brought to first; None leaves it as it is
    # fill the box, cover it by the shortest edge, cover it, or lie within it
    fit: Literal["stretch", "shortest", "cover", "contain"] = "stretch"
    interpolation: str = "bicubic"
    mean: Triple = (0.5, 0.5, 0.5)
    std: Triple = (0.5, 0.5, 0.5)
    fill: tuple[int, int, int] = (0, 0, 0)  # colour around a picture smaller than `size`
    centre: Literal["round", "truncate", "floor"] = "round"  # where half a pixel goes; libraries differ
    engine: Literal["pillow", "torch"] = "pillow"  # who resizes; they round differently
    crop: bool = True

    def __post_init__(self) -> None:
        if self.interpolation not in RESAMPLING:
            raise ModelError(f"no interpolation {self.interpolation!r}; known: {', '.join(RESAMPLING)}")

    def __call__(self, picture: Source) -> Float[Tensor, "3 H W"]:
        """What the model sees of one picture."""
        pixels = torch.from_numpy(np.array(self.cut(open_picture(picture)))).permute(2, 0, 1)
        return (pixels.float() / 255 - channels(self.mean)) / channels(self.std)

    def batch(self, pictures: Sequence[Source]) -> Float[Tensor, "b 3 H W"]:
        """What the model sees of several pictures."""
        if not pictures:
            raise ShapeError("no picture was given; a batch needs at least one")
        tensors = [self(picture) for picture in pictures]
        sizes = sorted({tuple(tensor.shape[-2:]) for tensor in tensors})
        if len(sizes) > 1:
            raise ShapeError(
                f"these images become tensors of several sizes, {', '.join(f'{h}x{w}' for h, w in sizes)}; explain them one "
                "by one, or give a preprocess with a crop"
            )
        return torch.stack(tensors)

    def cut(self, picture: Image.Image) -> Image.Image:
        """The picture, resized and cut to `size`, still to be normalised."""
        (top, left), (rows, columns) = self.place((picture.height, picture.width))
        height, width = self.seen_size((rows, columns))
        canvas = Image.new("RGB", (width, height), self.fill)
        if rows * columns <= LARGE:
            resize = resize_by_torch if self.engine == "torch" else Image.Image.resize
            canvas.paste(resize(picture, (columns, rows), RESAMPLING[self.interpolation]), (-left, -top))
            return canvas
        # a long thin picture would grow to gigabytes: resize only the part that is seen
        x, y, right, bottom = max(left, 0), max(top, 0), min(left + width, columns), min(top + height, rows)
        across, down = picture.width / columns, picture.height / rows
        box = (x * across, y * down, right * across, bottom * down)
        part = picture.resize((right - x, bottom - y), RESAMPLING[self.interpolation], box=box)
        canvas.paste(part, (x - left, y - top))
        return canvas

    def place(self, picture_size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Top and left of what the model sees, in the resized picture, and that picture's size."""
        resized = self.resized(*picture_size)
        top, left = (self.start(length, seen) for length, seen in zip(resized, self.seen_size(resized), strict=True))
        return (top, left), resized

    def seen_size(self, resized: tuple[int, int]) -> tuple[int, int]:
        """Height and width of what the model sees of an image that was resized to this size."""
        return self.size if self.crop else resized

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width after resizing, before the cut."""
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

    def start(self, length: int, seen: int) -> int:
        """Where the middle `seen` pixels of `length` begin; below zero when there are not as many."""
        spare = length - seen
        rounded = round(spare / 2) if spare > 0 else int(spare / 2)
        return {"round": rounded, "truncate": int(spare / 2), "floor": spare // 2}[self.centre]

    def window(self, picture: Frame) -> tuple[float, float, float, float]:
        """Left, top, right, bottom of what the model sees, in pixels of the picture; beyond its edges where padded."""
        height, width = size_of(picture)
        (top, left), (rows, columns) = self.place((height, width))
        seen_height, seen_width = self.seen_size((rows, columns))
        across, down = width / columns, height / rows
        return left * across, top * down, (left + seen_width) * across, (top + seen_height) * down

    def restore(
        self, values: Float[Tensor, "*b h w"], picture: Frame, mode: str = "bilinear", fill: float = math.nan
    ) -> Float[Tensor, "*b H W"]:
        """Bring maps of what the model saw back to the original image.

        Parameters
        ----------
        values
            Maps of any resolution that cover exactly what the model saw: `attribution.maps()` or `attribution.pixels()`.
        picture
            The original image as `open_picture` gives it (upright, as EXIF says), or its (height, width).
        mode
            "bilinear" between the centres of patches, or "nearest".
        fill
            The value of pixels that the model did not see: what a crop cut away.

        Returns
        -------
        Tensor
            Maps with the height and width of the original image. Padding around a small image is left out.

        Examples
        --------
        >>> import torch
        >>> from vitreous import Preprocess
        >>> preprocess = Preprocess(size=(2, 2), resize=(2, 2), fit="shortest")
        >>> preprocess.restore(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (2, 4), mode="nearest")
        tensor([[nan, 1., 2., nan],
                [nan, 3., 4., nan]])
        """
        height, width = size_of(picture)
        left, top, right, bottom = self.window((height, width))
        down = (torch.arange(height, dtype=torch.float64, device=values.device) + 0.5 - top) / (bottom - top)
        across = (torch.arange(width, dtype=torch.float64, device=values.device) + 0.5 - left) / (right - left)
        seen = ((down >= 0) & (down <= 1))[:, None] & (across >= 0) & (across <= 1)
        spread = resample(resample(values, down, mode).mT, across, mode).mT
        return spread.where(seen, torch.tensor(fill).to(values))

    def masks(self, values: Shaped[Array, "*b h w"], fill: int = -1) -> Shaped[Tensor, "*b H W"]:
        """Classes or masks of a picture's pixels where the model sees them, each from the nearest pixel; `fill` where padded."""
        values = torch.from_numpy(np.array(values)) if isinstance(values, np.ndarray) else values
        if values.dtype in (torch.bool, torch.uint8):  # -1 needs a sign
            values = values.to(torch.int8 if values.dtype == torch.bool else torch.int16)
        height, width = values.shape[-2:]
        (top, left), (rows, columns) = self.place((height, width))
        seen_height, seen_width = self.seen_size((rows, columns))
        (down, inside), (across, within) = (
            nearest(top, seen_height, rows, height),
            nearest(left, seen_width, columns, width),
        )
        seen = (inside[:, None] & within).to(values.device)
        return values[..., down[:, None], across].where(seen, torch.tensor(fill).to(values))

    def boxes(self, boxes: Shaped[Array, "k 4"], picture: Frame) -> Float[Tensor, "seen 4"]:
        """Boxes (x0, y0, x1, y1) of a picture in pixels that the model sees, clipped; without those that it does not see."""
        height, width = size_of(picture)
        (top, left), (rows, columns) = self.place((height, width))
        corners = torch.as_tensor(np.array(boxes) if isinstance(boxes, np.ndarray) else boxes).double()
        seen_height, seen_width = self.seen_size((rows, columns))
        across = (corners[:, 0::2] * columns / width - left).clamp(0, seen_width)
        down = (corners[:, 1::2] * rows / height - top).clamp(0, seen_height)
        seen = (across[:, 0] < across[:, 1]) & (down[:, 0] < down[:, 1])
        return torch.stack([across, down], -1).flatten(1)[seen]

    def denormalise(self, images: Float[Tensor, "*b 3 H W"]) -> UInt8[Tensor, "*b 3 H W"]:
        """What the model sees, as colours to show."""
        colours = images * channels(self.std).to(images) + channels(self.mean).to(images)
        return (colours * 255).round().clamp(0, 255).to(torch.uint8)

    @classmethod
    def plain(cls, size: int | tuple[int, int], mean: float | Triple = 0.5, std: float | Triple = 0.5) -> Preprocess:
        """Cover `size` keeping proportions, cut the middle out, normalise."""
        size = (size, size) if isinstance(size, int) else size
        return cls(size, size, "cover", mean=triple(mean), std=triple(std))

    @classmethod
    def published(cls, paper: str, own: Preprocess) -> Preprocess:
        """As a paper's evaluation sees pictures, at the size of the model whose `own` preprocessing this is."""
        match paper:
            case "chefer" | "tokentm":
                return cls(own.size, own.size, "stretch", "bilinear", own.mean, own.std)
            case "tis":  # ImageNet's colours for every model, also for those trained on others
                box = round(own.size[0] * 256 / 224), round(own.size[1] * 256 / 224)
                return cls(own.size, box, "stretch", "bilinear", *IMAGENET)
            case "skipplus":
                return own
        raise SpecError(f"no paper's preprocessing is called {paper!r}; known: {', '.join(PAPERS)}")

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> Preprocess:
        """As `timm.data.create_transform` does for evaluation, from `timm.data.resolve_model_data_config`."""
        known = {"input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode"}
        if odd := sorted(key for key in config.keys() - known if config[key]):
            raise ModelError(f"timm data config with {', '.join(odd)} is not known; known: {', '.join(sorted(known))}")
        colours, height, width = config["input_size"]
        if colours != 3:
            raise ModelError(f"pictures have 3 colours, the model reads {colours}")
        part = config.get("crop_pct") or 0.875
        box = math.floor(height / part), math.floor(width / part)
        mean, std, interpolation = triple(config["mean"]), triple(config["std"]), config["interpolation"]
        match config.get("crop_mode") or "center":
            case "squash":
                return cls((height, width), box, "stretch", interpolation, mean, std)
            case "border":
                red, green, blue = (round(255 * value) for value in mean)
                return cls((height, width), box, "contain", interpolation, mean, std, (red, green, blue))
            case "center" if box[0] == box[1]:
                return cls((height, width), box, "shortest", interpolation, mean, std)
            case "center":  # here timm does not pass its interpolation on
                return cls((height, width), box, "cover", "bilinear", mean, std)
            case mode:
                raise ModelError(f"timm crop_mode {mode!r} is not known; known: center, squash, border")

    @classmethod
    def from_torchvision(cls, preset: Any) -> Preprocess:
        """As `weights.transforms()` of a torchvision classifier does."""
        if type(preset).__name__ != "ImageClassification":
            raise ModelError(f"torchvision's {type(preset).__name__!r} is not known; known: ImageClassification")
        crop, box = ((sides[0], sides[-1]) for sides in (preset.crop_size, preset.resize_size))
        fit = "shortest" if len(preset.resize_size) == 1 else "stretch"
        return cls(crop, box, fit, preset.interpolation.value, triple(preset.mean), triple(preset.std))

    @classmethod
    def from_hf(cls, processor: Any) -> Preprocess:
        """As a Hugging Face image processor does."""
        name = type(processor).__name__
        if name.removesuffix("Fast").removesuffix("Pil") not in [f"{family}ImageProcessor" for family in HF_FAMILIES]:
            raise ModelError(f"{name!r} is not known; known: the image processors of {', '.join(HF_FAMILIES)}")
        steps = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad")
        resizes, crops, rescales, normalises, pads = (bool(getattr(processor, step, False)) for step in steps)
        box, shortest = edges(processor.size) if resizes else (None, False)
        size = edges(processor.crop_size)[0] if crops else None if shortest else box
        if pads or size is None:
            raise ModelError(
                f"{name!r} with do_pad, or without one size for all pictures (do_center_crop), is not known"
            )
        # a rescale factor other than 1/255 is the same as another mean and deviation
        unit = 255 * processor.rescale_factor if rescales else 255.0
        mean = triple(processor.image_mean if normalises else 0.0, unit)
        std = triple(processor.image_std if normalises else 1.0, unit)
        method = getattr(processor.resample, "value", processor.resample)  # torchvision's name, or Pillow's number
        method = method if isinstance(method, str) else Image.Resampling(method).name.lower()
        own = ("floor", "pillow") if getattr(processor, "backend", "torchvision") == "pil" else ("truncate", "torch")
        return cls(size, box, "shortest" if shortest else "stretch", method, mean, std, (0, 0, 0), *own)


def resize_by_torch(picture: Image.Image, size: tuple[int, int], method: Image.Resampling) -> Image.Image:
    from torchvision.transforms.v2 import InterpolationMode, functional

    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    pixels = functional.resize(pixels, [size[1], size[0]], InterpolationMode(method.name.lower()), antialias=True)
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def edges(size: Any) -> tuple[tuple[int, int], bool]:
    """Height and width of a Hugging Face size, and whether they stand for the shortest edge alone."""
    match {key: value for key, value in dict(size).items() if value}:
        case {"height": height, "width": width, **rest} if not rest:
            return (height, width), False
        case {"shortest_edge": edge, **rest} if not rest:
            return (edge, edge), True
    raise ModelError(f"image size {size} is not known; known: height and width, or shortest_edge")


def triple(values: Any, unit: float = 1.0) -> Triple:
    """One number per colour, in `unit`s."""
    values = list(values) if isinstance(values, Sequence) else [values] * 3
    if len(values) != 3:
        raise ModelError(f"a mean or deviation per colour has 3 numbers, not {len(values)}")
    red, green, blue = (float(value) / unit for value in values)
    return red, green, blue


def channels(values: Triple) -> Float[Tensor, "3 1 1"]:
    return torch.tensor(values)[:, None, None]


def size_of(picture: Frame) -> tuple[int, int]:
    return (picture.height, picture.width) if isinstance(picture, Image.Image) else picture


def nearest(start: int, seen: int, resized: int, length: int) -> tuple[Int[Tensor, " seen"], Bool[Tensor, " seen"]]:
    """For `seen` pixels from `start` of an edge resized from `length`: the nearest pixel there was, and whether there is one."""
    places = torch.arange(start, start + seen)
    inside = (places >= 0) & (places < resized)
    # whole numbers: a pixel whose centre falls on an edge goes to the same side whatever the size
    return ((2 * places + 1) * length).div(2 * resized, rounding_mode="floor").clamp(0, length - 1), inside


def resample(values: Float[Tensor, "*b h w"], places: Float[Tensor, " H"], mode: str) -> Float[Tensor, "*b H w"]:
    """Rows of a map at `places` from 0 (its top edge) to 1 (its bottom edge)."""
    rows = values.shape[-2]
    if mode == "nearest":
        return values[..., (places * rows).floor().long().clamp(0, rows - 1), :]
    at = (places * rows - 0.5).clamp(0, rows - 1)
    above = at.floor().long()
    below = (above + 1).clamp(max=rows - 1)
    share = (at - above).to(values.dtype)[:, None]
    return values[..., above, :] * (1 - share) + values[..., below, :] * share
