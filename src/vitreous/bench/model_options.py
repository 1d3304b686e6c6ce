"""Options of a model beyond its weights (class names, preprocessing, black box), and loading a model with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from vitreous.core.errors import ModelError, SpecError
from vitreous.front import load, wrap
from vitreous.models.black_box import with_observed_outputs
from vitreous.models.class_names import read_class_names
from vitreous.models.image_input import Preprocess, Triple
from vitreous.models.model import BlackBox
from vitreous.models.model_registry import build_named


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options of a model; None keeps what the model's source defines.

    Parameters
    ----------
    classes
        File of class names, see `read_class_names`.
    black_box
        Use the model's outputs only, not its layers.
    mean, std
        Mean and standard deviation of the pixel values (0 to 1) in training, per colour channel.
    size
        Height and width of the model's input images.
    crop
        Fraction of the resized image's shorter side that a centre crop keeps; 1 keeps all of it.
    """

    classes: str | None = None
    black_box: bool = False
    mean: Triple | None = None
    std: Triple | None = None
    size: tuple[int, int] | None = None
    crop: float | None = None

    @classmethod
    def split(cls, arguments: Mapping[str, Any]) -> tuple[ModelOptions, dict[str, Any]]:
        """Split a model's arguments in a plan into checked options and arguments of the model's builder."""
        checks = {
            "classes": check_path, "black_box": check_flag, "mean": check_mean, "std": check_std, "size": check_size,
            "crop": check_crop,
        }  # fmt: skip
        options = {key: checks[key](arguments[key]) for key in OPTION_NAMES if arguments.get(key) is not None}
        return cls(**options), {key: value for key, value in arguments.items() if key not in OPTION_NAMES}

    @property
    def changes_preprocess(self) -> bool:
        return any(value is not None for value in (self.mean, self.std, self.size, self.crop))


OPTION_NAMES = tuple(field.name for field in fields(ModelOptions))


def load_model(
    name: str,
    checkpoint: str | Path | None = None,
    pretrained: bool = True,
    device: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> BlackBox:
    """Load a model by name and apply the options among `arguments`.

    Parameters
    ----------
    name, checkpoint, pretrained, device
        As for `vitreous.load`.
    arguments
        `ModelOptions` by name, and arguments of the model's builder.

    Raises
    ------
    SpecError
        If the value of an option is invalid.
    ModelError
        If the model cannot be loaded, or an option does not fit it.
    """
    options, builder = ModelOptions.split(arguments or {})
    names = None if options.classes is None else read_class_names(options.classes)
    if options.black_box:
        return load_black_box(name, checkpoint, pretrained, device, builder, options, names)
    vit = load(name, checkpoint, pretrained, device, classes=names, size=options.size, **builder)
    if options.size is not None:
        check_input_size(vit, options.size)
    return replace(vit, preprocess=change_preprocess(vit.preprocess, options, vit.name, vit.size))


def load_black_box(
    name: str,
    checkpoint: str | Path | None,
    pretrained: bool,
    device: str | None,
    builder: dict[str, Any],
    options: ModelOptions,
    names: tuple[str, ...] | None,
) -> BlackBox:
    built = build_named(name, checkpoint=checkpoint, pretrained=pretrained, device=device or "cpu", **builder)
    classes = built.classes if names is None else names
    vit = wrap(built.module, name, preprocess=built.preprocess, classes=classes, black_box=True)
    preprocess = change_preprocess(vit.preprocess, options, name, vit.size)
    vit = replace(vit, preprocess=preprocess, size=vit.size if preprocess is None else preprocess.size)
    origin = replace(vit.origin, checkpoint=None if checkpoint is None else str(checkpoint))
    return with_observed_outputs(replace(vit, origin=origin), torch.zeros(1, vit.channels, *vit.size))


def check_input_size(vit: BlackBox, size: tuple[int, int]) -> None:
    """Raise `ModelError` if the model does not accept this input size, before any image is read."""
    height, width = size
    try:
        with torch.no_grad():
            vit.forward(torch.zeros(1, vit.channels, height, width, device=vit.device, dtype=vit.dtype))
    except Exception as problem:  # noqa: BLE001 - the module may raise anything
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise ModelError(
            f"{vit.name!r} does not take images of {height} × {width} ({reason}); "
            "timm's transformers are built for another size by --model-arg img_size=…"
        ) from None


def change_preprocess(
    preprocess: Preprocess | None, options: ModelOptions, name: str, size: tuple[int, int]
) -> Preprocess | None:
    """The model's preprocessing with mean, standard deviation, size and crop replaced where given."""
    if not options.changes_preprocess:
        return preprocess
    if type(preprocess) is not Preprocess:  # None, or a transform that computes everything itself
        if options.mean is None or options.std is None:
            raise ModelError(
                f"{name!r} does not say how images are prepared; give --mean and --std, and --size if needed"
            )
        preprocess = Preprocess.plain(options.size or size, options.mean, options.std)
    new = replace(preprocess, mean=options.mean or preprocess.mean, std=options.std or preprocess.std)
    if options.size is not None and new.resize is not None:
        scaled = (round(box * to / side) for box, to, side in zip(new.resize, options.size, new.size, strict=True))
        new = replace(new, resize=tuple(scaled))
    new = new if options.size is None else replace(new, size=options.size)
    if options.crop is None:
        return new
    height, width = (math.floor(side / options.crop) for side in new.size)  # as timm's crop_pct
    return replace(new, resize=(height, width), fit="shortest" if height == width else "cover")


# ── values of options ────────────────────────────────────────────────────────────────────────────


def check_path(value: Any) -> str:
    if not isinstance(value, str | Path) or not str(value):
        raise SpecError(f"classes {value!r} is no file; give a file with one class name per line, or JSON")
    return str(value)


def check_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"black_box is true or false, not {value!r}")
    return value


def check_mean(value: Any) -> Triple:
    channels = parse_channels("mean", value)
    if max(map(abs, channels)) > 1:
        raise SpecError(f"mean {value} is not of pixel values from 0 to 1; divide values from 0 to 255 by 255")
    return channels


def check_std(value: Any) -> Triple:
    channels = parse_channels("std", value)
    if any(not 0 < number <= 2 for number in channels):
        raise SpecError(
            f"std {value} is not of pixel values from 0 to 1: it is above 0; divide values from 0 to 255 by 255"
        )
    return channels


def parse_channels(name: str, value: Any) -> Triple:
    """Parse three numbers: '0.485,0.456,0.406', one number for all channels, or a list."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    try:
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
        raise SpecError(f"{name} {value} is not understood; write one number or three, such as 0.485,0.456,0.406")
    red, green, blue = numbers * (3 // len(numbers))
    return red, green, blue


def check_size(value: Any) -> tuple[int, int]:
    """Parse height and width: '384', '224x320' (height first), a number or a list of two."""
    parts = (
        value.lower().split("x") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    )
    try:
        sides = [int(part) if isinstance(part, str) else part for part in parts]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2) or any(not isinstance(side, int) or not 1 <= side <= 16384 for side in sides):
        raise SpecError(f"size {value} is not understood; write pixels such as 384, or HEIGHTxWIDTH such as 224x320")
    return sides[0], sides[-1]


def check_crop(value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = math.nan
    if not 0 < share <= 1:
        raise SpecError(
            f"crop {value} is not understood; write the share that is kept, above 0 and up to 1, such as 0.875"
        )
    return share
