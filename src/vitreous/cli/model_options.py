"""Options of all verbs that load a model: weights, builder arguments, class names, preprocessing, black box."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from vitreous.core.errors import SpecError

MODEL = typer.Option("--model", "-m", metavar="NAME", help="Such as timm:vit_base_patch16_224.")
CHECKPOINT = typer.Option(metavar="FILE", help="Local weights: safetensors, or a torch file.")

Model = Annotated[str, MODEL]
OptionalModel = Annotated[str | None, MODEL]
Checkpoint = Annotated[Path | None, CHECKPOINT]
Pretrained = Annotated[bool, typer.Option(help="Fetch weights when there is no checkpoint.")]
ModelArguments = Annotated[
    list[str] | None, typer.Option("--model-arg", metavar="KEY=VALUE", help="For the model's builder; repeatable.")
]
Classes = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Class names: one per line, or JSON (a list, or index to name).")
]
BlackBox = Annotated[
    bool, typer.Option("--black-box", help="Use the model's outputs only; works for any image classifier.")
]
Mean = Annotated[
    str | None, typer.Option(metavar="R,G,B", help="Mean of the pixel values (0 to 1).", show_default="the model's")
]
Std = Annotated[str | None, typer.Option(metavar="R,G,B", help="Their standard deviation.", show_default="the model's")]
Size = Annotated[
    str | None, typer.Option(metavar="PIXELS", help="Input size, or HEIGHTxWIDTH.", show_default="the model's")
]
Crop = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Share that the centre crop keeps, up to 1.", show_default="the model's"),
]

RESERVED = ("name", "checkpoint", "pretrained", "device", "classes", "black_box", "mean", "std", "size", "crop")


def model_arguments(
    builder: Sequence[str] | None,
    classes: Path | None,
    black_box: bool,
    mean: str | None,
    std: str | None,
    size: str | None,
    crop: float | None,
) -> dict[str, Any]:
    """Arguments for `load_model`: builder arguments and the model options that were given."""
    options = {
        "classes": None if classes is None else str(classes),
        "black_box": black_box or None,
        "mean": mean,
        "std": std,
        "size": size,
        "crop": crop,
    }
    return {**builder_arguments(builder or []), **{key: value for key, value in options.items() if value is not None}}


def builder_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE pairs; the value of `img_size=64` is a number, that of `global_pool=avg` a string."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key.isidentifier():
            raise SpecError(f"--model-arg {pair!r} is not understood; write KEY=VALUE, for example img_size=384")
        if key in RESERVED:
            raise SpecError(f"--model-arg {key}=… has an option of its own; see `vitreous explain --help`")
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[key] = value
    return arguments
