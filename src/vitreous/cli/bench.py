"""`vitreous bench`: measure models × datasets × methods × metrics, resume, and print a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitreous.cli import options
from vitreous.core.errors import SpecError


@options.takes_model_options()
def bench(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN.toml", help="A plan; options change its entries.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option("--model", "-m", metavar="NAME", help="Model; repeatable.")] = None,
    checkpoint: Annotated[str | None, typer.Option(metavar="FILE", help="Local weights of the model.")] = None,
    arguments: dict[str, Any] = options.NO_ARGUMENTS,
    data: Annotated[
        list[str] | None, typer.Option("--data", "-d", metavar="SPEC", help="Dataset, such as scenes:single?count=20.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-x",
            metavar="SPEC",
            help="Method; repeatable. protocol: all rows of the paper of --protocol.",
            show_default="eight well-known ones",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", metavar="SPEC", help="Metric, or all; repeatable.", show_default="all that fit but road"
        ),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(metavar="NAME", help="Evaluate as in this paper, such as tis.")
    ] = None,
    images: Annotated[
        int | None, typer.Option("--images", min=1, help="Number of images of each dataset.", show_default="all")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed that selects the images.", show_default="0")] = None,
    targets: Annotated[
        str | None, typer.Option(help="Classes to explain: predicted, label, predicted+label, pair or 'top 2'.")
    ] = None,
    question: options.Question = None,
    precision: options.RunPrecision = None,
    device: options.RunDevice = None,
    batch_size: options.BatchSize = None,
    slice: Annotated[int | None, typer.Option(min=1, help="Images in a unit of work.")] = None,  # noqa: A002
    maps: Annotated[bool | None, typer.Option("--maps/--no-maps", help="Store the maps; reports show them.")] = None,
    out: options.ResultFolder = None,
    workers: options.Workers = 1,
    ray: options.Ray = None,
    gpus: options.RayGpus = None,
    shard: options.Shard = None,
    merge: Annotated[bool, typer.Option("--merge", help="Merge the shards; compute nothing.")] = False,
    recheck: Annotated[bool, typer.Option("--recheck", help="Read the images of finished work again.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and how long it takes.")
    ] = False,
    json: options.Json = False,
) -> int:
    """Measure methods on models and datasets. Stored results are not computed again, so a run can be stopped and continued."""
    from vitreous.cli.console import caveats_as_notes, spinner
    from vitreous.cli.run_output import resumable

    entries = {
        "methods": method, "metrics": metric, "protocol": protocol, "images": images, "seed": seed, "targets": targets,
        "question": question, "precision": precision, "device": device, "batch_size": batch_size, "slice": slice,
        "maps": maps, "out": out, "models": make_model_entries(model, checkpoint, arguments), "datasets": data,
    }  # fmt: skip
    with caveats_as_notes(), resumable():
        with spinner("reading the plan", lines=True):
            checked_plan = make_plan(plan, entries)
        if shard is not None:
            from vitreous.bench.work_cells import select_shard

            select_shard([], shard)  # check the shard before a folder is created for it
        folder = Path(checked_plan.out or (f"runs/{plan.stem}" if plan else "runs/bench"))
        if merge:
            return merge_shards(checked_plan, folder, as_json=json)
        with spinner("checking models and data", lines=True):
            check_plan(checked_plan)
        if dry_run:
            return print_estimate(checked_plan, folder, shard, workers, as_json=json)
        executor = choose_executor(workers, ray, gpus)
        return run_plan(checked_plan, folder, executor, shard, recheck=recheck, as_json=json)


def make_model_entries(names: list[str] | None, checkpoint: str | None, arguments: dict[str, Any]) -> list[Any] | None:
    """Entries of a plan for the models."""
    if not (checkpoint or arguments):
        return [{"name": name} for name in names] if names else None
    flags = "--checkpoint, --model-arg, --classes, --black-box, --mean, --std, --size and --crop"
    if not names:
        raise SpecError(f"{flags} belong to a --model")
    if len(names) > 1:
        raise SpecError(f"{flags} are for one --model; with several, write a plan")
    lists = {key: list(value) if isinstance(value, tuple) else value for key, value in arguments.items()}
    return [{"name": names[0], **({"checkpoint": checkpoint} if checkpoint else {}), **lists}]


def make_plan(path: Path | None, entries: dict[str, Any]) -> Any:
    """Make a plan from a file, with `entries` replacing those of the file, or from `entries` alone."""
    from vitreous.bench.plan_parser import plan_from_flags, read_plan

    if path is not None:
        return read_plan(path, **entries)
    if entries["metrics"] is None and entries["protocol"] is None:
        entries = {**entries, "metrics": "usual"}
    return plan_from_flags(**entries)


def check_plan(plan: Any) -> None:
    """Check a plan and print notes about it; raise an error if it cannot run."""
    from vitreous.bench.plan_check import check

    for note in check(plan):
        typer.echo(f"note: {note}", err=True)


def choose_executor(workers: int, ray: str | None, gpus: float | None) -> Any:
    from vitreous.bench.pool import processes, run_serially

    if ray is not None:
        from vitreous.bench.ray import on_ray

        return on_ray(ray, workers if workers > 1 else None, gpus=gpus)
    return processes(workers) if workers > 1 else run_serially


def choose_store_folder(folder: Path, shard: str | None) -> Path:
    return folder if shard is None else folder / "shards" / shard.replace("/", "-of-")


def run_plan(plan: Any, folder: Path, executor: Any, shard: str | None, *, recheck: bool, as_json: bool) -> int:
    """Compute what is missing, then print the table; return the exit status."""
    from vitreous.bench.run_plan import execute
    from vitreous.bench.store import Store
    from vitreous.cli.run_output import print_standings, run_display

    with Store(choose_store_folder(folder, shard)) as store:
        with run_display(store.folder) as display:
            progress = execute(plan, store, executor, shard=shard, recheck=recheck, report=display)
        print_standings(plan, store, progress, as_json=as_json, table=shard is None)
    return 1 if progress.failed else 0


def merge_shards(plan: Any, folder: Path, *, as_json: bool) -> int:
    from vitreous.bench.run_plan import Progress, list_missing_cells
    from vitreous.bench.store import Store
    from vitreous.bench.work_cells import split_plan
    from vitreous.cli.run_output import print_standings

    shards = sorted((folder / "shards").glob("*-of-*"))
    if not shards:
        raise SpecError(f"'{folder / 'shards'}' holds no shards; `vitreous bench … --shard 1/2` makes one")
    with Store(folder) as store:
        new_rows = store.merge(shards)
        store.begin(plan.run, plan.toml, {"merged": [shard.name for shard in shards]})
        missing = list_missing_cells(plan, store)
        progress = Progress(0, cells=len(split_plan(plan)), rows=new_rows)
        if missing:
            progress.failed = {
                f"{len(missing)} of {progress.cells} pieces of work missing or failed; run their shards, or the plan without --shard": 1
            }
        print_standings(plan, store, progress, as_json=as_json)
    return 1 if missing else 0


def print_estimate(plan: Any, folder: Path, shard: str | None, workers: int, *, as_json: bool) -> int:
    """Print cells, forward and backward passes and time; finished cells of this plan in the store are not counted."""
    from vitreous.bench.cost import estimate
    from vitreous.bench.store import Store
    from vitreous.bench.work_cells import fingerprint_cells, select_shard, split_plan
    from vitreous.cli.console import format_duration, print_json, print_table, spinner

    cells = split_plan(plan)
    cells = cells if shard is None else select_shard(cells, shard)
    place, done_cells = choose_store_folder(folder, shard), set()
    if (place / "ledger.sqlite").exists():
        with Store(place) as store:
            done_cells = store.done(plan.run, fingerprint_cells(plan, cells))
    with spinner("calibrating", lines=True):
        estimates = estimate(plan, [cell for cell in cells if cell.number not in done_cells])
    if as_json:
        counts = {"folder": str(place), "cells": len(cells), "known": len(done_cells)}
        print_json({**counts, "estimates": [entry.plain() for entry in estimates]})
        return 0
    names = ("cells", "images", "forwards", "backwards", "about")
    rows = []
    for entry in estimates:
        passes = (f"{entry.forwards:,.0f}", f"{entry.backwards:,.0f}")
        about = format_duration(entry.seconds / workers)
        rows.append((entry.model, str(entry.cells), str(entry.images), *passes, about))
    print_table(("model", *names), rows, right=names)
    typer.echo(
        f"{len(plan.methods)} methods × {len(plan.metrics)} metrics; {len(done_cells)} of {len(cells)} cells are known; nothing was computed"
    )
    for name in dict.fromkeys(name for entry in estimates for name in entry.unknown):
        typer.echo(f"note: the cost of {name} is unknown; it is not counted", err=True)
    return 0
