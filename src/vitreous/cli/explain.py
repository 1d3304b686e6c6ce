"""`vitreous explain`: write overlays, sheets and raw maps of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from vitreous.cli import options
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.core.errors import DataError, SpecError

TABLES = 3  # up to this many images are printed as tables; more are printed as one line each


@options.takes_model_options()
def explain(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="Files, folders or patterns.")],
    model: options.Model,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    method: options.Methods = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "-t",
            metavar="CLASS",
            help="Class index or name; repeatable.",
            show_default="the predicted class",
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Score to explain: contrast (why this class rather than another; the probability) or support (evidence for "
            "the class at all; the logit); also log-probability, margin or sigmoid.",
            show_default="the method's own",
        ),
    ] = None,
    device: options.Device = None,
    precision: options.Precision = None,
    arguments: dict[str, Any] = options.NO_ARGUMENTS,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the results.")] = Path(
        "vitreous-out"
    ),
    mode: Annotated[
        str, typer.Option(metavar="NAME", help="Interpolation of maps: nearest, bilinear or bicubic.")
    ] = "bilinear",
    shared_scale: Annotated[
        bool,
        typer.Option(
            "--shared-scale/--own-scale", help="One colour scale for all classes of an image, or one per map."
        ),
    ] = True,
    json: options.Json = False,
) -> int:
    """Show which patches led to the prediction: an overlay per method and class, a sheet, and the raw maps."""
    from vitreous.bench.signals import stop_signals
    from vitreous.cli.console import caveats_as_notes
    from vitreous.cli.files import OutputFolder, gather_images

    if mode not in ("nearest", "bilinear", "bicubic"):
        raise SpecError(f"mode {mode!r} is not known; known: nearest, bilinear, bicubic")
    sources, output = gather_images(images), OutputFolder(out)
    loading = {"checkpoint": checkpoint, "pretrained": pretrained, "device": device, "arguments": arguments}
    request = Request(model, method or [DEFAULT_METHOD], target or [], question, loading, precision)
    with caveats_as_notes(), stop_signals():
        return explain_all(sources, request, output, {"mode": mode, "shared_scale": shared_scale}, as_json=json)


@dataclass(frozen=True, slots=True)
class Request:
    """Options of `vitreous explain` as given on the command line."""

    model: str
    methods: Sequence[str] = (DEFAULT_METHOD,)
    targets: Sequence[str] = ()
    question: str | None = None
    loading: dict[str, Any] = field(default_factory=dict)  # arguments of `load_model`
    precision: str | None = None


class Explainer:
    """A model with methods, targets and a score function; the constructor checks all of them."""

    def __init__(self, request: Request) -> None:
        from vitreous.bench.model_options import load_model
        from vitreous.capture.precision import check_precision
        from vitreous.capture.score_function import resolve_score_function
        from vitreous.capture.targets import class_index
        from vitreous.methods.spec import resolve

        # check methods and score function before loading the model; two names of the same method count once
        self.methods = list({method.spec: method for method in map(resolve, request.methods)}.values())
        self.question = None if request.question is None else resolve_score_function(request.question)
        check_precision(request.precision)
        self.precision = request.precision
        self.vit = load_model(request.model, **request.loading)
        self.targets = list(dict.fromkeys(class_index(self.vit, target) for target in request.targets))

    def __call__(self, image: Any, progress: Any) -> Iterator[Any]:
        """Yield one attribution per method."""
        from vitreous.front import explain

        target = [self.targets] if self.targets else None
        for method in self.methods:
            with progress.step(method.spec):
                attribution = explain(self.vit, image, target, method, self.question, precision=self.precision)
            yield attribution


def explain_all(sources: Sequence[Path], request: Request, output: Any, look: dict[str, Any], *, as_json: bool) -> int:
    """Explain all images; those that cannot be read are reported and skipped. Return the exit status."""
    from vitreous.bench.signals import Stopped
    from vitreous.cli.console import ProgressBar, print_json, spinner

    with spinner(f"loading {request.model}"):
        from vitreous.cli.results import Results, print_failure, print_line, print_record
        from vitreous.models.image_input import open_image

        explainer, results = Explainer(request), Results(output, **look)
    print_result = print_record if len(sources) <= TABLES else print_line
    records: list[Any] = []
    failed: list[Any] = []
    progress = ProgressBar(sources, "explaining")
    try:
        for source in progress:
            try:
                image = open_image(source)
            except DataError as problem:
                failed.append({"picture": str(source), "reason": str(problem)})
                progress.hide()
                print_failure(problem)
                continue
            attributions, interruption = collect_until_interrupted(explainer(image, progress))
            if attributions:
                records.append(results.keep(source, attributions, explainer.vit))
            if attributions and not as_json:
                progress.hide()
                print_result(records[-1])
            if interruption is not None:
                raise interruption
    except KeyboardInterrupt as interruption:
        progress.hide()
        if as_json:
            print_json(summarise_records(request, records, failed))
        outcome_note = f"what was finished is in {output.folder}" if records else "nothing was finished"
        raise Stopped.with_kept(interruption, outcome_note) from None
    if as_json:
        print_json(summarise_records(request, records, failed))
    elif len(sources) > 1:
        failures = f", {len(failed)} failed" if failed else ""
        typer.echo(f"{len(records)} image{'' if len(records) == 1 else 's'} explained in {output.folder}{failures}")
    return 1 if failed else 0


def collect_until_interrupted(items: Iterator[Any]) -> tuple[list[Any], KeyboardInterrupt | None]:
    """Collect all items, or those before an interruption; return them and the interruption, if any."""
    collected: list[Any] = []
    try:
        collected.extend(items)
    except KeyboardInterrupt as interruption:
        return collected, interruption
    return collected, None


def summarise_records(request: Request, records: list[Any], failed: list[Any]) -> dict[str, Any]:
    from vitreous import __version__

    return {"vitreous": __version__, "model": request.model, "pictures": records, "failed": failed}
