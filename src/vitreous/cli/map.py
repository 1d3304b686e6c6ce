"""`vitreous map`: explain a whole dataset and keep the maps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from vitreous.cli import options
from vitreous.cli.bench import make_model_entries, make_plan
from vitreous.cli.console import print_json, print_notes, resumable, spinner
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.core.errors import SpecError

if TYPE_CHECKING:
    from vitreous.bench.plan import Plan
    from vitreous.mapping.job import MapJob
    from vitreous.mapping.run import MapProgress


@options.takes_model_options()
def map(  # noqa: A001 - the verb
    data: Annotated[
        str,
        Argument(
            metavar="DATASET",
            help="A folder of images, tar or Parquet files, a URI of these, or a spec such as scenes:pair.",
        ),
    ],
    model: options.Model,
    checkpoint: Annotated[str | None, Option(metavar="FILE", help="Local weights.")] = None,
    arguments: dict[str, Any] = options.NO_ARGUMENTS,
    method: options.Methods = None,
    out: Annotated[Path, Option("--out", "-o", metavar="FOLDER", help="Folder for the maps.")] = Path("vitreous-maps"),
    format: Annotated[str, Option(help="parquet, or safetensors in addition.")] = "parquet",  # noqa: A002
    sort: Annotated[bool, Option("--sort", help="Sort all rows by key when everything is done.")] = False,
    targets: Annotated[str | None, Option(help="Classes to explain: predicted, label, pair or 'top 2'.")] = None,
    question: options.Question = None,
    images: Annotated[int | None, Option(min=1, help="Number of images.", show_default="all")] = None,
    precision: options.RunPrecision = None,
    device: options.RunDevice = None,
    batch_size: Annotated[
        int | None, Option(min=1, help="Images in a batch.", show_default="64 on a GPU, 16 on a CPU")
    ] = None,
    slice: Annotated[int | None, Option(min=1, help="Other name of --batch-size.", hidden=True)] = None,  # noqa: A002
    shard_size: Annotated[int, Option(min=1, help="Images in an output file.")] = 4096,
    workers: Annotated[
        int, Option("--workers", "-w", min=1, help="Model replicas on this machine, each with its process.")
    ] = 1,
    decoders: Annotated[
        int | None,
        Option(
            min=0,
            help="Decoding processes of each replica; 0 for threads.",
            show_default="0 on a CPU, the cores on a GPU",
        ),
    ] = None,
    shard: options.Shard = None,
    ray: options.Ray = None,
    gpus: Annotated[float | None, Option(min=0, help="GPUs for each replica on Ray.")] = None,
    recheck: Annotated[bool, Option("--recheck", help="Compute everything again.")] = False,
    recompute: options.Recompute = None,
    retry: Annotated[bool, Option("--retry", help="Compute files with failed rows again.")] = False,
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Explain every image of a dataset. Maps are float16 grids with a scale, in Parquet files that need no Vitreous to be read."""
    if format not in ("parquet", "safetensors"):
        raise SpecError(f"--format {format!r} is not known; known: parquet, safetensors")
    if sum((ray is not None, shard is not None, workers > 1 and ray is None)) > 1:
        raise SpecError("--ray, --shard and --workers are three ways to share out the work; give one of them")
    entries = {
        "models": make_model_entries([model], checkpoint, arguments), "datasets": [data], "methods": method or [DEFAULT_METHOD],
        "metrics": [], "targets": targets, "question": question, "images": images, "precision": precision,
        "device": device, "batch_size": batch_size, "slice": slice,
    }  # fmt: skip
    with resumable():
        with spinner("checking the model and the data", lines=True):
            from vitreous.mapping.run import check_job

            plan = make_plan(None, entries)
            job, notes = check_job(make_job(plan, data, shard_size), plan.device)
        print_notes(notes)
        compute = choose_pipeline(workers, ray, gpus, shard)
        settings = {"device": plan.device, "batch_size": batch_size or slice, "decoding": decoders}
        from vitreous.bench.recompute import find_specs

        # a file holds the maps of all methods
        settings |= {"recheck": recheck or bool(find_specs(recompute or (), job.methods)), "retry": retry}
        return compute_maps(job, out, compute, settings, format, sort=sort, as_json=json)


def make_job(plan: Plan, data: str, shard_size: int) -> MapJob:
    """The job that the checked entries of a plan describe."""
    from vitreous.mapping.job import MapJob

    evaluation = plan.evaluations[0]
    return MapJob(
        plan.models[0], data, plan.methods, evaluation.targets, plan.question, plan.precision, plan.images, shard_size
    )


def choose_pipeline(workers: int, ray: str | None, gpus: float | None, shard: str | None) -> Callable[..., MapProgress]:
    """The function that runs a job: in this process, in several, on Ray, or a share of it for a job array."""
    from vitreous.bench.plan_source import parse_fraction
    from vitreous.mapping.job import Share
    from vitreous.mapping.run import run_map, run_replicas

    if ray is not None:
        from vitreous.mapping.ray_data import run_on_ray

        return partial(run_on_ray, address=ray, workers=workers if workers > 1 else None, gpus=gpus)
    if workers > 1:
        return partial(run_replicas, workers=workers)
    if shard is None:
        return run_map
    number, count = parse_fraction(shard, "--shard")
    return partial(run_map, share=Share(number - 1, count))


def compute_maps(
    job: MapJob,
    folder: Path,
    compute: Callable[..., MapProgress],
    settings: dict[str, Any],
    file_format: str,
    *,
    sort: bool,
    as_json: bool,
) -> int:
    """Compute the maps that are missing, convert or sort them if asked, and say what was done; return the exit status."""
    from vitreous.cli.run_output import print_counts, print_failures, run_display
    from vitreous.mapping.export import export_safetensors, sort_shards
    from vitreous.mapping.shard_files import list_complete_files

    with run_display(folder) as display:
        progress = compute(job, folder, report=display, **settings)
        if sort:
            sort_shards(folder)
        files = list_complete_files(folder)
        if file_format == "safetensors":
            files = export_safetensors(folder, files)
    names = [file.relative_to(folder).as_posix() for file in files]
    if as_json:
        done = {"folder": str(folder), "run": job.run, "new_maps": progress.rows, "skipped": progress.skipped}
        print_json({**done, "failed": progress.failed, "mended": progress.mended, "files": names})
    else:
        print_notes(progress.mended)
        print_failures(progress)
        if progress.known_failed:
            print_notes(
                ["rows that failed in an earlier run are kept; --retry computes the files with such rows again"]
            )
        print_counts(progress, folder)
        plural, ellipsis = "" if len(names) == 1 else "s", " …" if len(names) > 3 else ""
        typer.echo(f"{len(names)} file{plural} of maps in {folder}: {', '.join(names[:3])}{ellipsis}")
    return 1 if progress.failed else 0
