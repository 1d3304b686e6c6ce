"""Options of a model beyond its weights (class names, preprocessing, black box), and loading a model with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitreous.bench.code_record import identify_model, identify_module
from vitreous.core.code_identity import CodeIdentity
from vitreous.core.errors import ModelError, SpecError
from vitreous.data.reader import expand_path
from vitreous.front import load, wrap
from vitreous.models.black_box import with_observed_outputs
from vitreous.models.class_names import read_class_names
from vitreous.models.image_input import PerChannel, Preprocess, for_channels
from vitreous.models.model import BlackBox
from vitreous.models.model_registry import build_named
from vitreous.models.outputs import count_with_noun

if TYPE_CHECKING:
    from vitreous.bench.plan import ModelSpec


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
    mean: PerChannel | None = None
    std: PerChannel | None = None
    size: tuple[int, int] | None = None
    crop: float | None = None

    @classmethod
    def split(cls, arguments: Mapping[str, Any]) -> tuple[ModelOptions, dict[str, Any]]:
        """Split a model's arguments in a plan into checked options and arguments of the model's builder."""
        options = {key: parse_option(key, arguments[key]) for key in OPTIONS if arguments.get(key) is not None}
        return cls(**options), {key: value for key, value in arguments.items() if key not in OPTIONS}

    @property
    def changes_preprocess(self) -> bool:
        return any(value is not None for value in (self.mean, self.std, self.size, self.crop))


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
        As for `vitreous.load`; the checkpoint may begin with "assets:", the folder that VITREOUS_ASSETS names.
    arguments
        `ModelOptions` by name, and arguments of the model's builder.

    Raises
    ------
    SpecError
        If the value of an option is invalid.
    ModelError
        If the model cannot be loaded, or an option does not fit it.
    """
    checkpoint = None if checkpoint is None else expand_path(str(checkpoint))
    options, builder = ModelOptions.split(arguments or {})
    names = None if options.classes is None else read_class_names(options.classes)
    if not options.black_box:
        vit = load(name, checkpoint, pretrained, device, classes=names, size=options.size, **builder)
        if options.size is not None:
            check_input_size(vit, options.size)
        return replace(vit, preprocess=change_preprocess(vit.preprocess, options, vit.name, vit.size, vit.channels))
    outputs = builder.pop("outputs", None)
    built = build_named(name, checkpoint=checkpoint, pretrained=pretrained, device=device or "cpu", **builder)
    known = {"preprocess": built.preprocess, "classes": names or built.classes, "outputs": outputs}
    vit = wrap(built.module, name, black_box=True, **known)
    preprocess = change_preprocess(vit.preprocess, options, name, vit.size, vit.channels)
    vit = replace(vit, preprocess=preprocess, size=vit.size if preprocess is None else preprocess.size)
    origin = replace(vit.origin, checkpoint=None if checkpoint is None else str(checkpoint))
    return with_observed_outputs(replace(vit, origin=origin), torch.zeros(1, vit.channels, *vit.size))


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model, the hash of its weights, and what else determines what it computes.

    Parameters
    ----------
    vit, weights
        The model and the hash of its weights.
    structure
        Its name and the arguments that it was built with, as JSON: two models may have the same weights.
    code
        Code other than the library's by which it was built, described and run.
    """

    vit: BlackBox
    weights: str
    structure: str
    code: tuple[CodeIdentity, ...]


def load_cached(model: ModelSpec, precision: str, device: str | None) -> LoadedModel:
    """Load a model; the last two are cached per process, until the checkpoint, the file of class names or code changes."""
    files = (model.checkpoint, dict(model.arguments).get("classes"))
    stamps = (*map(stamp_file, files), *map(str, identify_model(model.name)))
    return load_hashed(model, precision, device, "; ".join(stamps))


@lru_cache(maxsize=2)
def load_hashed(model: ModelSpec, precision: str, device: str | None, stamps: str) -> LoadedModel:
    """Load a model; its weights are hashed before they are converted to `precision`."""
    from vitreous.bench.keys import hash_weights, to_canonical_json

    vit = load_model(model.name, model.checkpoint, model.pretrained, device, dict(model.arguments))
    weights = hash_weights(vit.module)
    arguments = {name: value for name, value in model.arguments if name != "classes"}
    structure = to_canonical_json({"name": model.name, "arguments": arguments})
    vit.module.to(torch.float64 if precision == "float64" else torch.float32)
    return LoadedModel(vit, weights, structure, identify_module(model.name, vit.module))


def stamp_file(file: str | None) -> str:
    """Size and modification time of a file; an empty string if there is no such file."""
    if file is None or not Path(file).is_file():
        return ""
    stat = Path(file).stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def check_input_size(model: BlackBox, size: tuple[int, int]) -> None:
    """Raise `ModelError` if the model does not accept this input size, before any image is read."""
    height, width = size
    try:
        with torch.no_grad():
            model.forward(torch.zeros(1, model.channels, height, width, device=model.device, dtype=model.dtype))
    except Exception as problem:  # noqa: BLE001 - the module may raise anything
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise ModelError(
            f"{model.name!r} does not take images of {height} × {width} ({reason}); "
            "timm's transformers are built for another size by --model-arg img_size=…"
        ) from None


def change_preprocess(
    preprocess: Preprocess | None, options: ModelOptions, name: str, size: tuple[int, int], channels: int = 3
) -> Preprocess | None:
    """The model's preprocessing with mean, standard deviation, size and crop replaced where given."""
    if not options.changes_preprocess:
        return preprocess
    if type(preprocess) is not Preprocess:  # None, or a transform that computes everything itself
        if options.mean is None or options.std is None:
            raise ModelError(
                f"{name!r} does not say how images are prepared; give --mean and --std, and --size if needed"
            )
        preprocess = Preprocess.plain(options.size or size, channels=channels)
    normalisation = {"mean": options.mean, "std": options.std}
    for key, value in normalisation.items():
        if value is not None and len(value) not in (1, channels):
            raise ModelError(
                f"--{key} has {len(value)} numbers, and {name!r} takes images of {count_with_noun(channels, 'channel')}"
            )
    new = replace(
        preprocess, **{key: for_channels(value, channels) for key, value in normalisation.items() if value is not None}
    )
    if options.size is not None and new.resize is not None:
        scaled = (round(box * to / side) for box, to, side in zip(new.resize, options.size, new.size, strict=True))
        new = replace(new, resize=tuple(scaled))
    new = new if options.size is None else replace(new, size=options.size)
    if options.crop is None:
        return new
    height, width = (math.floor(side / options.crop) for side in new.size)  # as timm's crop_pct
    return replace(new, resize=(height, width), fit="shortest" if height == width else "cover")


# ── values of options ────────────────────────────────────────────────────────────────────────────


def parse_option(name: str, value: Any) -> Any:
    """Parse the value of an option; raise `SpecError` if it is invalid."""
    parse, sentence = OPTIONS[name]
    try:
        return parse(value)
    except (TypeError, ValueError):
        raise SpecError(sentence.format(value=value)) from None


def parse_path(value: Any) -> str:
    if not isinstance(value, str | Path) or not str(value):
        raise TypeError
    return str(value)


def parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def parse_mean(value: Any) -> PerChannel:
    channels = parse_channels(value)
    if max(map(abs, channels)) > 1:
        raise SpecError(f"mean {value} is not of pixel values from 0 to 1; divide values from 0 to 255 by 255")
    return channels


def parse_std(value: Any) -> PerChannel:
    channels = parse_channels(value)
    if any(not 0 < number <= 2 for number in channels):
        raise SpecError(
            f"std {value} is not of pixel values from 0 to 1: it is above 0; divide values from 0 to 255 by 255"
        )
    return channels


def parse_channels(value: Any) -> PerChannel:
    """Parse a number per channel: '0.485,0.456,0.406', one number for all channels, or a list."""
    numbers = tuple(float(part) for part in split_value(value, ","))
    if not all(map(math.isfinite, numbers)):
        raise ValueError
    return numbers


def parse_size(value: Any) -> tuple[int, int]:
    """Parse height and width: '384', '224x320' (height first), a number or a list of two."""
    sides = [int(part) if isinstance(part, str) else part for part in split_value(value, "x")]
    if len(sides) not in (1, 2) or any(not isinstance(side, int) or not 1 <= side <= 16384 for side in sides):
        raise ValueError
    return sides[0], sides[-1]


def parse_crop(value: Any) -> float:
    share = float(value)
    if not 0 < share <= 1:
        raise ValueError
    return share


def split_value(value: Any, separator: str) -> Sequence[Any]:
    """Parts of a text or a list; other values are the only part."""
    if isinstance(value, str):
        return value.lower().split(separator)
    return value if isinstance(value, list | tuple) else [value]


CHANNELS = "is not understood; write one number, or one per channel such as 0.485,0.456,0.406"
OPTIONS: dict[
    str, tuple[Callable[[Any], Any], str]
] = {  # parser, and error message if it raises ValueError or TypeError
    "classes": (parse_path, "classes {value!r} is no file; give a file with one class name per line, or JSON"),
    "black_box": (parse_flag, "black_box is true or false, not {value!r}"),
    "mean": (parse_mean, "mean {value} " + CHANNELS),
    "std": (parse_std, "std {value} " + CHANNELS),
    "size": (parse_size, "size {value} is not understood; write pixels such as 384, or HEIGHTxWIDTH such as 224x320"),
    "crop": (
        parse_crop,
        "crop {value} is not understood; write the share that is kept, above 0 and up to 1, such as 0.875",
    ),
}
