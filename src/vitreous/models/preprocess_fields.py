"""Fields of `Preprocess`, read from the preprocessing of timm, torchvision and Hugging Face."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from PIL import Image

from vitreous.core.errors import ModelError

Triple: TypeAlias = tuple[float, float, float]

HF_FAMILIES = ("ViT", "DeiT", "Beit", "Bit", "Siglip", "CLIP")  # resize, crop, rescale and normalise, in this order


def timm_fields(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """Fields of the evaluation transform of timm; see `Preprocess.from_timm`."""
    keys = {"input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode"}
    if odd := sorted(key for key in config.keys() - keys if config[key]):
        raise ModelError(f"timm data config with {', '.join(odd)} is not known; known: {', '.join(sorted(keys))}")
    colours, height, width = config["input_size"]
    if colours != 3:
        raise ModelError(f"images have 3 colours, the model reads {colours}")
    part = config.get("crop_pct") or 0.875
    box = math.floor(height / part), math.floor(width / part)
    mean, std, interpolation = triple(config["mean"]), triple(config["std"]), config["interpolation"]
    match config.get("crop_mode") or "center":
        case "squash":
            return ((height, width), box, "stretch", interpolation, mean, std)
        case "border":
            red, green, blue = (round(255 * value) for value in mean)
            return ((height, width), box, "contain", interpolation, mean, std, (red, green, blue))
        case "center" if box[0] == box[1]:
            return ((height, width), box, "shortest", interpolation, mean, std)
        case "center":  # timm does not pass the interpolation on in this case
            return ((height, width), box, "cover", "bilinear", mean, std)
        case mode:
            raise ModelError(f"timm crop_mode {mode!r} is not known; known: center, squash, border")


def torchvision_fields(preset: Any) -> tuple[Any, ...]:
    """Fields of a torchvision preset; see `Preprocess.from_torchvision`."""
    if type(preset).__name__ != "ImageClassification":
        raise ModelError(f"torchvision's {type(preset).__name__!r} is not known; known: ImageClassification")
    crop, box = ((sides[0], sides[-1]) for sides in (preset.crop_size, preset.resize_size))
    fit = "shortest" if len(preset.resize_size) == 1 else "stretch"
    return (crop, box, fit, preset.interpolation.value, triple(preset.mean), triple(preset.std))


def huggingface_fields(processor: Any) -> tuple[Any, ...]:
    """Fields of a Hugging Face image processor; see `Preprocess.from_hf`."""
    name = type(processor).__name__
    if name.removesuffix("Fast").removesuffix("Pil") not in [f"{family}ImageProcessor" for family in HF_FAMILIES]:
        raise ModelError(f"{name!r} is not known; known: the image processors of {', '.join(HF_FAMILIES)}")
    steps = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad")
    resizes, crops, rescales, normalises, pads = (bool(getattr(processor, step, False)) for step in steps)
    box, shortest = edges(processor.size) if resizes else (None, False)
    size = edges(processor.crop_size)[0] if crops else None if shortest else box
    if pads or size is None:
        raise ModelError(f"{name!r} with do_pad, or without one size for all images (do_center_crop), is not known")
    # A rescale factor other than 1/255 is equivalent to another mean and standard deviation.
    unit = 255 * processor.rescale_factor if rescales else 255.0
    mean = triple(processor.image_mean if normalises else 0.0, unit)
    std = triple(processor.image_std if normalises else 1.0, unit)
    method = getattr(processor.resample, "value", processor.resample)  # name in torchvision, or number in Pillow
    method = method if isinstance(method, str) else Image.Resampling(method).name.lower()
    own = ("floor", "pillow") if getattr(processor, "backend", "torchvision") == "pil" else ("truncate", "torch")
    return (size, box, "shortest" if shortest else "stretch", method, mean, std, (0, 0, 0), *own)


def edges(size: Any) -> tuple[tuple[int, int], bool]:
    """Height and width of a Hugging Face size, and whether only the shortest edge is given."""
    match {key: value for key, value in dict(size).items() if value}:
        case {"height": height, "width": width, **rest} if not rest:
            return (height, width), False
        case {"shortest_edge": edge, **rest} if not rest:
            return (edge, edge), True
    raise ModelError(f"image size {size} is not known; known: height and width, or shortest_edge")


def triple(values: Any, unit: float = 1.0) -> Triple:
    """One number per colour channel, divided by `unit`; a single number is repeated."""
    values = list(values) if isinstance(values, Sequence) else [values] * 3
    if len(values) != 3:
        raise ModelError(f"a mean or deviation per colour has 3 numbers, not {len(values)}")
    red, green, blue = (float(value) / unit for value in values)
    return red, green, blue
