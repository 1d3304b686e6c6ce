"""`vitreous map`: explain a whole dataset and keep the maps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitreous.cli.model_options import (
    BlackBox,
    Classes,
    Crop,
    Mean,
    Model,
    ModelArguments,
    Size,
    Std,
    model_arguments,
)
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.core.errors import SpecError


def map(  # noqa: A001 - the verb
    data: Annotated[str, typer.Argument(metavar="DATASET", help="A folder of images, or a spec such as scenes:pair.")],
    model: Model,
    checkpoint: Annotated[str | None, typer.Option(metavar="FILE", help="Local weights.")] = None,
    model_arg: ModelArguments = None,
    classes: Classes = None,
    black_box: BlackBox = False,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    crop: Crop = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-x", metavar="SPEC", help="Repeatable.", show_default=DEFAULT_METHOD),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the maps.")] = Path(
        "vitreous-maps"
    ),
    format: Annotated[str, typer.Option(help="parquet or safetensors.")] = "parquet",  # noqa: A002
    targets: Annotated[str | None, typer.Option(help="predicted, label, pair or 'top 2'.")] = None,
    question: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The score that is explained.", show_default="the method's own"),
    ] = None,
    images: Annotated[
        int | None, typer.Option("--images", "--pictures", min=1, help="Number of images.", show_default="all")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32, bf16, auto or float64.")] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", show_default="GPUs if there are any")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images in a batch.")] = None,
    slice: Annotated[int | None, typer.Option(min=1, help="Images in a unit of work.")] = None,  # noqa: A002
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Processes on this machine.")] = 1,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="auto, local or host:port of a cluster.")] = None,
    gpus: Annotated[float | None, typer.Option(min=0, help="GPUs for each Ray worker.")] = None,
    recheck: Annotated[bool, typer.Option("--recheck", help="Read the images of finished work again.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Explain every image of a dataset. Maps are float16 grids with a scale, in files that need no Vitreous to be read."""
    from vitreous.cli.bench import check_plan, choose_executor, make_plan, model_entries
    from vitreous.cli.console import caveats_as_notes, spinner
    from vitreous.cli.run_output import resumable

    if format not in ("parquet", "safetensors"):
        raise SpecError(f"--format {format!r} is not known; known: parquet, safetensors")
    arguments = model_arguments(model_arg, classes, black_box, mean, std, size, crop)
    entries = {
        "models": model_entries([model], checkpoint, arguments), "datasets": [data], "methods": method or [DEFAULT_METHOD],
        "metrics": [], "targets": targets, "question": question, "pictures": images, "precision": precision,
        "device": device, "batch_size": batch_size, "slice": slice,
    }  # fmt: skip
    with caveats_as_notes(), resumable():
        with spinner("checking the model and the data", lines=True):
            plan = make_plan(None, entries)
            check_plan(plan)
        return compute_maps(plan, out, choose_executor(workers, ray, gpus), format, recheck=recheck, as_json=json)


def compute_maps(plan: Any, folder: Path, executor: Any, file_format: str, *, recheck: bool, as_json: bool) -> int:
    """Compute the maps that are missing, then export all of them; return the exit status."""
    from vitreous.bench.maps import export_parquet, export_safetensors
    from vitreous.bench.run_plan import execute
    from vitreous.bench.store import Store
    from vitreous.cli.console import print_json
    from vitreous.cli.run_output import print_standings, run_display

    with Store(folder / "store") as store:
        with run_display(store.folder) as display:
            progress = execute(plan, store, executor, recheck=recheck, report=display)
            files = (export_parquet if file_format == "parquet" else export_safetensors)(store, folder)
        names = [file.name for file in files]
        if as_json:
            done = {"folder": str(folder), "run": plan.run, "new_maps": progress.rows}
            print_json({**done, "failed": progress.failed, "files": names})
        else:
            print_standings(plan, store, progress, as_json=False, table=False)
            plural, more = "" if len(names) == 1 else "s", " …" if len(names) > 3 else ""
            typer.echo(f"{len(names)} file{plural} of maps in {folder}: {', '.join(names[:3])}{more}")
    return 1 if progress.failed else 0
