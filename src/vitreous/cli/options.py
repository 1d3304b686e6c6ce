"""Options that several verbs have: of the model, and of runs over a dataset."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

from typer import Option

from vitreous.core.defaults import DEFAULT_METHOD, MODEL_SOURCES
from vitreous.core.errors import SpecError
from vitreous.core.plugins import add_to_path, is_importable, load_plugin

T = TypeVar("T")
MODEL = Option(
    "--model",
    "-m",
    metavar="NAME",
    help="Model, such as timm:vit_base_patch16_224, or MODULE:NAME or FILE.py:NAME that builds one.",
)
CHECKPOINT = Option(metavar="FILE", help="Local weights: safetensors, or a torch file.")

Model = Annotated[str, MODEL]
OptionalModel = Annotated[str | None, MODEL]
Checkpoint = Annotated[Path | None, CHECKPOINT]
Pretrained = Annotated[bool, Option(help="Download the weights if no checkpoint is given.")]
Precision = Annotated[
    str | None, Option(metavar="NAME", help="float32, tf32, bf16 or auto.", show_default="torch's settings")
]
Device = Annotated[str | None, Option(metavar="NAME", help="Device, such as cpu, cuda or mps.")]
Methods = Annotated[
    list[str] | None, Option("--method", "-x", metavar="SPEC", help="Method; repeatable.", show_default=DEFAULT_METHOD)
]
Json = Annotated[bool, Option("--json", help="Print one JSON document instead of tables.")]

# options of `bench`, `map` and `reproduce`
Question = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Score that all methods explain: logit, probability, log-probability, margin or sigmoid; own: that of each paper.",
        show_default="own",
    ),
]
RunPrecision = Annotated[str | None, Option(help="float32, tf32, bf16, auto or float64.")]
RunDevice = Annotated[str | None, Option(metavar="NAME", help="Device.", show_default="GPUs if there are any")]
BatchSize = Annotated[int | None, Option(min=1, help="Images in a batch.")]
Workers = Annotated[int, Option("--workers", "-w", min=1, help="Processes on this machine.")]
Ray = Annotated[str | None, Option(metavar="ADDRESS", help="Ray cluster to run on: auto, local or host:port.")]
RayGpus = Annotated[float | None, Option(min=0, help="GPUs for each Ray worker.")]
ResultFolder = Annotated[
    str | None, Option("--out", "-o", metavar="FOLDER", help="Folder of the results.", show_default="runs/NAME")
]
Recompute = Annotated[
    list[str] | None,
    Option(
        "--recompute",
        metavar="SPEC",
        help="Compute again what is stored of these methods and metrics: names, specs or patterns such as 'mine*'; repeatable.",
    ),
]
Shard = Annotated[str | None, Option(metavar="i/n", help="Compute part i of n, for job arrays.")]

# options that `takes_model_options` adds to a verb, with their annotations; the default of all but the flag is None
OPTIONS = {
    "model_arg": Annotated[
        list[str] | None, Option("--model-arg", metavar="KEY=VALUE", help="Builder argument; repeatable.")
    ],
    "classes": Annotated[
        Path | None, Option(metavar="FILE", help="Class names: one per line, or JSON (a list, or index to name).")
    ],
    "black_box": Annotated[
        bool, Option("--black-box", help="Use the model's outputs only; works for any image classifier.")
    ],
    "mean": Annotated[
        str | None, Option(metavar="R,G,B", help="Mean of the pixel values (0 to 1).", show_default="the model's")
    ],
    "std": Annotated[
        str | None, Option(metavar="R,G,B", help="Standard deviation of pixel values.", show_default="the model's")
    ],
    "size": Annotated[
        str | None, Option(metavar="PIXELS", help="Input size, or HEIGHTxWIDTH.", show_default="the model's")
    ],
    "crop": Annotated[
        float | None,
        Option(metavar="SHARE", help="Share that the centre crop keeps, up to 1.", show_default="the model's"),
    ],
}
PLUGIN = Annotated[
    list[str] | None,
    Option(
        "--plugin",
        metavar="MODULE",
        help="Import this module or FILE.py first: it registers methods, metrics, datasets or models; repeatable.",
    ),
]
NO_ARGUMENTS: dict[str, Any] = {}
RESERVED = ("name", "checkpoint", "pretrained", "device", "classes", "black_box", "mean", "std", "size", "crop")


def takes_model_options(*left_out: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate a verb whose parameter `arguments` is made from `OPTIONS`, which take its place on the command line."""

    def decorate(verb: Callable[..., T]) -> Callable[..., T]:
        signature = inspect.signature(verb, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            if name != "arguments":
                parameters.append(parameter)
                continue
            for key, annotation in OPTIONS.items():
                if key not in left_out:
                    default = False if key == "black_box" else None
                    parameters.append(parameter.replace(name=key, annotation=annotation, default=default))

        @wraps(verb)
        def call(**options: Any) -> T:
            arguments = collect_model_arguments(**{key: options.pop(key, None) for key in OPTIONS})
            return verb(**options, arguments=arguments)

        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        call.__dict__["__signature__"] = signature.replace(parameters=parameters)
        return call

    return decorate


def takes_plugins(verb: Callable[..., T]) -> Callable[..., T]:
    """Decorate a verb with the option --plugin; the modules, and those that --model names, are imported before it runs."""
    signature = inspect.signature(verb, eval_str=True)
    plugin = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=PLUGIN)
    parameters = [*signature.parameters.values(), plugin]

    @wraps(verb)
    def call(**options: Any) -> T:
        for name in options.pop("plugin") or []:
            load_plugin(name)
        named = options.get("model") or options.get("models") or []
        for name in [named] if isinstance(named, str) else named:
            load_module_of(name)
        return verb(**options)

    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return call


def load_module_of(model: str) -> None:
    """Import the module of MODULE:NAME or FILE.py:NAME, also as KEY=MODULE:NAME; nothing for models of a source."""
    for name in (model, model.partition("=")[2]):  # `serve` has NAME=FILE, and `reproduce` has KEY=NAME
        module, colon, _ = name.partition(":")
        if colon and (module.endswith(".py") or (module not in MODEL_SOURCES and is_importable_here(module))):
            load_plugin(module)
            return


def is_importable_here(module: str) -> bool:
    """Whether a module is installed or in the current folder."""
    add_to_path(os.getcwd())
    return is_importable(module)


def collect_model_arguments(model_arg: Sequence[str] | None, **options: Any) -> dict[str, Any]:
    """Arguments for `load_model`: builder arguments and the model options that were given."""
    classes = options.get("classes")
    options |= {"classes": None if classes is None else str(classes), "black_box": options.get("black_box") or None}
    return {
        **parse_builder_arguments(model_arg or []),
        **{key: value for key, value in options.items() if value is not None},
    }


def parse_builder_arguments(pairs: Sequence[str]) -> dict[str, Any]:
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
