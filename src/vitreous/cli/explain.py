"""`vitreous explain`: write overlays, sheets and raw maps of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from vitreous.bench.signals import stop_signals
from vitreous.cli import options
from vitreous.cli.console import caveats_as_notes, spinner
from vitreous.cli.files import OutputFolder, gather_images
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.core.errors import SpecError


@options.takes_model_options()
def explain(
    images: Annotated[list[str], Argument(metavar="IMAGE", help="Files, folders or patterns.")],
    model: options.Model,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    method: options.Methods = None,
    target: Annotated[
        list[str] | None,
        Option(
            "--target",
            "-t",
            metavar="CLASS",
            help="Class index or name; repeatable.",
            show_default="the predicted class",
        ),
    ] = None,
    question: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Score to explain: contrast (why this class rather than another; the probability) or support (evidence for "
            "the class at all; the logit); also log-probability, margin or sigmoid.",
            show_default="the method's own",
        ),
    ] = None,
    device: options.Device = None,
    precision: options.Precision = None,
    arguments: dict[str, Any] = options.NO_ARGUMENTS,
    out: Annotated[Path, Option("--out", "-o", metavar="FOLDER", help="Folder for the results.")] = Path(
        "vitreous-out"
    ),
    mode: Annotated[
        str, Option(metavar="NAME", help="Interpolation of maps: nearest, bilinear or bicubic.")
    ] = "bilinear",
    shared_scale: Annotated[
        bool, Option("--shared-scale/--own-scale", help="One colour scale for all classes of an image, or one per map.")
    ] = True,
    with_images: Annotated[
        bool, Option("--with-images", help="Store the model's input, the resized image, with the raw maps, too.")
    ] = False,
    json: options.Json = False,
) -> int:
    """Show which patches led to the prediction: an overlay per method and class, a sheet, and the raw maps.

    Overlays and sheets (.png) show the image; the raw maps (.safetensors) do not contain it. Files are named after the image.
    """
    if mode not in ("nearest", "bilinear", "bicubic"):
        raise SpecError(f"mode {mode!r} is not known; known: nearest, bilinear, bicubic")
    sources, output = gather_images(images), OutputFolder(out)
    loading = {"checkpoint": checkpoint, "pretrained": pretrained, "device": device, "arguments": arguments}
    with caveats_as_notes(), stop_signals():
        with spinner(f"loading {model}"):
            from vitreous.cli.results import Explainer, Results, explain_images

            explainer = Explainer(model, method or [DEFAULT_METHOD], target or [], question, precision, loading)
        return explain_images(sources, explainer, Results(output, mode, shared_scale, with_images), as_json=json)
