"""Convert transforms of torchvision, timm and Hugging Face, and other callables, to a `Preprocess`."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from vitreous.core.errors import Caveat, ModelError
from vitreous.models.image_decoding import Source, open_image
from vitreous.models.image_input import PerChannel, Preprocess, for_channels

Transform = Callable[[Image.Image], Any]
PreprocessInput: TypeAlias = Preprocess | Transform | Enum  # an `Enum` is an entry of torchvision's weights

TEST_SIZES = ((61, 47), (47, 61), (320, 250), (64, 64))  # (width, height) of the images that a conversion is tested on
ROUNDING = 1e-5  # tolerance for float rounding, relative and absolute
LEVELS = 2.01 / 255  # largest colour difference between libraries that resize with the same geometry
UNKNOWN: PerChannel = (math.nan, math.nan, math.nan)

# Random steps of torchvision and timm whose names do not start with "Random".
RANDOM_STEPS = {
    "AugMix", "AugMixAugment", "AutoAugment", "ColorJitter", "CutMix", "ElasticTransform", "FiveCrop", "GaussianNoise",
    "MixUp", "RandAugment", "ScaleJitter", "TenCrop", "ThreeAugment", "TrivialAugmentWide",
}  # fmt: skip
RGB_FUNCTIONS = {"_convert_image_to_rgb", "_convert_to_rgb"}  # of CLIP and open_clip; images are already RGB


@dataclass(frozen=True, slots=True)
class TransformPreprocess(Preprocess):
    """Transform with known geometry that rounds differently from `Preprocess`, so `transform` itself is called."""

    transform: Transform = field(kw_only=True)

    def __call__(self, image: Source) -> Float[Tensor, "channels H W"]:
        return apply_transform(self.transform, open_image(image))


@dataclass(frozen=True, slots=True)
class OpaquePreprocess(TransformPreprocess):
    """Callable with unknown geometry and normalisation; maps cannot be brought back to the original image."""

    mean: PerChannel = UNKNOWN
    std: PerChannel = UNKNOWN

    def place(self, image_size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        raise ModelError(
            f"the geometry of preprocess={describe(self.transform)} is not known, so a map cannot be brought back to the "
            "original image; give a vitreous.Preprocess, or a chain of Resize, CenterCrop, ToTensor and Normalize"
        )

    def denormalise(self, images: Float[Tensor, "*b channels H W"]) -> UInt8[Tensor, "*b channels H W"]:
        """8-bit colours for display: every image scaled from its minimum to its maximum."""
        images = images.float().nan_to_num()
        low, high = images.amin((-3, -2, -1), keepdim=True), images.amax((-3, -2, -1), keepdim=True)
        return ((images - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)


def as_preprocess(transform_like: PreprocessInput) -> Preprocess:
    """Convert a transform, image processor or callable to a `Preprocess`.

    Parameters
    ----------
    transform_like
        A `Preprocess`, a torchvision transform (v1 or v2, also `weights.transforms()` or the weights themselves), a
        timm transform, a Hugging Face image processor, or any callable that takes an RGB PIL image and returns a
        float tensor [channels, H, W].

    Returns
    -------
    Preprocess
        Exactly invertible if the geometry is known. The conversion is tested on images of several shapes; if it
        differs from `transform_like` by more than rounding, the callable is used directly, a `Caveat` is issued and maps cannot
        be brought back to the original image.

    Raises
    ------
    ModelError
        If `transform_like` is not callable, is random, or does not return a float tensor [channels, H, W].
    """
    if isinstance(transform_like, Preprocess):
        return transform_like
    transform = find_transform(transform_like)
    if not callable(transform):
        raise ModelError(
            f"preprocess is a vitreous.Preprocess, a torchvision or timm transform, a Hugging Face image processor or a "
            f"callable from image to tensor, not {type(transform).__name__!r}"
        )
    name = describe(transform)
    if chance := next(random_steps(transform), None):
        raise ModelError(
            f"preprocess={name} chooses at random ({chance}); give the transform for evaluation, "
            "such as Resize, CenterCrop, ToTensor and Normalize"
        )
    call = partial(transform, return_tensors="pt") if root_of(transform) == "transformers" else transform
    images = [sample_image(*size) for size in TEST_SIZES]
    tensors = [apply_transform(call, image) for image in images]
    if not all(torch.equal(apply_transform(call, images[0]), tensors[0]) for _ in range(3)):
        raise ModelError(f"preprocess={name} gives another tensor every time; give one without random steps")
    channels, height, width = tensors[-1].shape
    converted = convert(transform, (height, width), channels)
    if converted is not None:
        pairs = [(converted(image), own) for image, own in zip(images, tensors, strict=True)]
        if all(a.shape == b.shape and torch.allclose(a, b, ROUNDING, ROUNDING) for a, b in pairs):
            return converted
        if all(a.shape == b.shape and same_colours(a, b, converted) for a, b in pairs):
            geometry = {item.name: getattr(converted, item.name) for item in fields(Preprocess)}
            return TransformPreprocess(**geometry, transform=call)
    warnings.warn(
        f"the geometry of preprocess={name} is not known: maps are drawn on what the model saw, and "
        "pixels(size='original') is refused",
        Caveat,
        stacklevel=3,
    )
    unknown = UNKNOWN[:1] * channels
    return OpaquePreprocess((height, width), mean=unknown, std=unknown, transform=call)


def find_transform(source: Any) -> Any:
    """The transform of an entry of a weights enum, the image processor of a processor for images and texts, or `source`."""
    match root_of(source):
        case "torchvision" if hasattr(source, "meta") and hasattr(source, "transforms"):
            return source.transforms()
        case "transformers":
            return getattr(source, "image_processor", source)
    return source


def apply_transform(transform: Transform, image: Image.Image) -> Float[Tensor, "channels H W"]:
    """Apply a user's transform to an image; raise `ModelError` unless it returns a float tensor [channels, H, W]."""
    expected = "it is called with one RGB PIL image and returns a float tensor [3, H, W], or [1, H, W] for grey images"
    try:
        output = transform(image)
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        size = f"{image.width}x{image.height}"
        raise ModelError(
            f"preprocess={describe(transform)} failed on an image of {size} ({reason}); {expected}"
        ) from None
    if isinstance(output, Mapping) and "pixel_values" in output:
        output = output["pixel_values"]
    if isinstance(output, list | tuple) and len(output) == 1:
        output = output[0]
    if isinstance(output, np.ndarray):
        output = torch.from_numpy(output)
    if not isinstance(output, Tensor):
        raise ModelError(f"preprocess={describe(transform)} returned {type(output).__name__!r}; {expected}")
    output = output[0] if output.ndim == 4 and len(output) == 1 else output
    if output.ndim != 3 or not output.numel() or not output.is_floating_point():
        shape = f"{str(output.dtype).removeprefix('torch.')} {list(output.shape)}"
        raise ModelError(f"preprocess={describe(transform)} returned {shape}; {expected}")
    return output.as_subclass(Tensor).float()  # torchvision v2 returns a Tensor subclass


def same_colours(a: Tensor, b: Tensor, preprocess: Preprocess) -> bool:
    """Whether two normalised images differ by no more than the rounding of resized 8-bit colours."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
    colours = ((image * std + mean).clamp(0, 1) for image in (a, b))
    return bool((next(colours) - next(colours)).abs().max() <= LEVELS)


def sample_image(width: int, height: int) -> Image.Image:
    """Noise image, which reveals shifts by one pixel; medium colours, so that bicubic overshoots are not clipped."""
    return Image.fromarray(np.random.default_rng(0).integers(64, 192, (height, width, 3), dtype=np.uint8))


# ── conversion ───────────────────────────────────────────────────────────────────────────────────


def convert(transform: Any, square: tuple[int, int], channels: int) -> Preprocess | None:
    """Convert to an equivalent `Preprocess`, or return None if that is not possible.

    `square` is the output size for a square image, used as `size` if there is no crop, and `channels` that of its tensors.
    """
    try:
        if root_of(transform) == "transformers":
            return Preprocess.from_hf(transform)
        if name_of(transform) == "torchvision.ImageClassification":
            return Preprocess.from_torchvision(transform)
        return convert_steps(list(steps_of(transform)), square, channels)
    except ModelError:
        return None


def convert_steps(steps: Sequence[Any], square: tuple[int, int], channels: int) -> Preprocess | None:
    """Convert a chain of Resize, CenterCrop, conversion to float and Normalize, in any order with the same effect.

    Returns None for other steps or orders.
    """
    settings: dict[str, Any] = {}
    values = "image"  # later "uint8" (tensor, 0 to 255), then "levels" (float, 0 to 255) or "unit" (float, 0 to 1)
    for step in steps:
        early = "size" not in settings and "mean" not in settings  # neither cropped nor normalised
        match name_of(step):
            case "torchvision.Resize" if early and "resize" not in settings and getattr(step, "max_size", None) is None:
                settings |= resize_fields(step.size, values) | {"interpolation": interpolation_of(step)}
            case "timm.ResizeKeepRatio" if early and "resize" not in settings and is_plain_resize(step):
                fit = "contain" if step.longest else "cover"
                box = (int(step.size[0]), int(step.size[1]))
                settings |= {"resize": box, "fit": fit, "interpolation": interpolation_of(step)}
            case "torchvision.CenterCrop" if early:
                settings["size"] = pair(step.size)
            case "timm.CenterCropOrPad" if early and step.padding_mode == "constant":
                red, green, blue = step.fill if isinstance(step.fill, list | tuple) else (step.fill,) * 3
                settings |= {"size": pair(step.size), "fill": (int(red), int(green), int(blue))}
            case "torchvision.ToTensor" | "timm.MaybeToTensor" if values == "image":
                values = "unit"
            case "timm.ToTensor" if values == "image":
                values = "levels"
            case "torchvision.PILToTensor" | "torchvision.ToImage" | "timm.MaybePILToTensor" if values == "image":
                values = "uint8"
            case "torchvision.ConvertImageDtype" if values == "uint8" and step.dtype == torch.float32:
                values = "unit"
            case "torchvision.ToDtype" if step.dtype == torch.float32 and values == "uint8":
                values = "unit" if step.scale else "levels"
            case "torchvision.ToDtype" if step.dtype == (torch.uint8 if values == "uint8" else torch.float32):
                if values == "image":
                    return None
            case "torchvision.Normalize" if "mean" not in settings and values in ("unit", "levels"):
                unit = 1.0 if values == "unit" else 255.0
                settings |= {name: for_channels(list(getattr(step, name)), channels, unit) for name in ("mean", "std")}
            case "torchvision.Grayscale" if early and channels == 1 and values in ("image", "uint8"):
                pass
            case "torchvision.Identity" | "torchvision.ToPureTensor" | "torchvision.RGB" | "torch.Identity" | "rgb":
                pass
            case _:
                return None
    if values not in ("unit", "levels"):
        return None
    if "mean" not in settings:
        unit = 1.0 if values == "unit" else 255.0
        settings |= {"mean": for_channels(0.0, channels), "std": for_channels(1.0, channels, unit)}
    if "size" in settings:
        return Preprocess(**settings)
    if settings.get("fit") == "stretch":
        return Preprocess(settings["resize"], **settings)
    return Preprocess(square, **settings, crop=False)


def resize_fields(size: Any, values: str) -> dict[str, Any]:
    """`resize`, `fit` and `engine` of a torchvision `Resize`; a single number is the shortest edge."""
    sides = [int(size)] if isinstance(size, int) else [int(side) for side in size or ()]
    if len(sides) not in (1, 2):
        raise ModelError(f"Resize(size={size!r}) is not known")
    fit = "shortest" if len(sides) == 1 else "stretch"
    return {"resize": (sides[0], sides[-1]), "fit": fit, "engine": "pillow" if values == "image" else "torch"}


def is_plain_resize(step: Any) -> bool:
    """Whether timm's `ResizeKeepRatio` is a plain "cover" or "contain", without random scale or aspect ratio."""
    return step.longest in (0, 1) and not (step.random_scale_prob or step.random_aspect_prob)


def interpolation_of(step: Any) -> str:
    return str(getattr(step.interpolation, "value", step.interpolation))


def pair(size: Any) -> tuple[int, int]:
    sides = [size] if isinstance(size, int) else list(size)
    return int(sides[0]), int(sides[-1])


def steps_of(transform: Any) -> Iterator[Any]:
    """Steps of a composition in order, with nested compositions flattened."""
    if name_of(transform) == "torchvision.Compose":
        for step in transform.transforms:
            yield from steps_of(step)
    elif type(transform) is nn.Sequential:
        for step in transform:
            yield from steps_of(step)
    else:
        yield transform


def random_steps(transform: Any) -> Iterator[str]:
    """Names of the random torchvision and timm steps in a transform, including nested ones."""
    name = type(transform).__name__
    chances = (getattr(transform, option, 0) for option in ("random_scale_prob", "random_aspect_prob"))  # of timm
    if root_of(transform) in ("torchvision", "timm") and (
        name.startswith("Random") or name in RANDOM_STEPS or any(chances)
    ):
        yield name
    inner = getattr(transform, "transforms", None) if not isinstance(transform, nn.Sequential) else transform
    if isinstance(inner, list | tuple | nn.ModuleList | nn.Sequential):
        for step in inner:
            yield from random_steps(step)


def root_of(transform: Any) -> str:
    """Library that defines the object's class: "torchvision", "timm", "torch", "transformers" or "" for others.

    Subclasses that are defined elsewhere count as "transformers" if their base class is, and as "" otherwise.
    """
    root = type(transform).__module__.split(".")[0]
    if any(base.__module__.split(".")[0] == "transformers" for base in type(transform).__mro__):
        return "transformers"
    return root if root in ("torchvision", "timm", "torch") else ""


def name_of(step: Any) -> str:
    if isinstance(step, types.FunctionType) and step.__name__ in RGB_FUNCTIONS:
        return "rgb"
    return f"{root_of(step)}.{type(step).__name__}"


def describe(transform: Any) -> str:
    """How an error message refers to a transform."""
    transform = transform.func if isinstance(transform, partial) else transform
    return getattr(transform, "__name__", None) or type(transform).__name__
