"""`vitreous bench`: measure models × datasets × methods × metrics, resume, and print a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from vitreous.cli import options
from vitreous.cli.console import print_notes, resumable, spinner
from vitreous.core.errors import SpecError

if TYPE_CHECKING:
    from vitreous.bench.plan import Plan


@options.takes_model_options()
def bench(
    plan: Annotated[Path | None, Argument(metavar="PLAN.toml", help="A plan; options change its entries.")] = None,
    model: Annotated[list[str] | None, Option("--model", "-m", metavar="NAME", help="Model; repeatable.")] = None,
    checkpoint: Annotated[str | None, Option(metavar="FILE", help="Local weights of the model.")] = None,
    arguments: dict[str, Any] = options.NO_ARGUMENTS,
    data: Annotated[
        list[str] | None, Option("--data", "-d", metavar="SPEC", help="Dataset, such as scenes:single?count=20.")
    ] = None,
    method: Annotated[
        list[str] | None,
        Option(
            "--method",
            "-x",
            metavar="SPEC",
            help="Method; repeatable. protocol: all rows of the paper of --protocol.",
            show_default="eight well-known ones",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        Option(
            "--metric",
            "--metrics",
            metavar="SPEC",
            help="Metric; repeatable. all: all that fit the data, which takes long.",
            show_default="six cheap ones, as they fit",
        ),
    ] = None,
    protocol: Annotated[str | None, Option(metavar="NAME", help="Evaluate as in this paper, such as tis.")] = None,
    images: Annotated[int | None, Option(min=1, help="Number of images of each dataset.", show_default="all")] = None,
    seed: Annotated[int | None, Option(min=0, help="Seed that selects the images.", show_default="0")] = None,
    targets: Annotated[
        str | None, Option(help="Classes to explain: predicted, label, predicted+label, pair or 'top 2'.")
    ] = None,
    question: options.Question = None,
    precision: options.RunPrecision = None,
    device: options.RunDevice = None,
    batch_size: options.BatchSize = None,
    slice: Annotated[int | None, Option(min=1, help="Images in a unit of work.")] = None,  # noqa: A002
    maps: Annotated[bool | None, Option("--maps/--no-maps", help="Store the maps; reports show them.")] = None,
    out: options.ResultFolder = None,
    workers: options.Workers = 1,
    ray: options.Ray = None,
    gpus: options.RayGpus = None,
    shard: options.Shard = None,
    merge: Annotated[bool, Option("--merge", help="Merge the shards; compute nothing.")] = False,
    recheck: Annotated[bool, Option("--recheck", help="Read the images of finished work again.")] = False,
    recompute: options.Recompute = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print what would be done, and how long it takes.")] = False,
    json: options.Json = False,
) -> int:
    """Measure methods on models and datasets. Stored results are not computed again, so a run can be stopped and continued.

    Methods are ranked with those that explain the same score; with --question logit all of them explain the logit:

    vitreous bench -m scenes -d scenes:single?count=20 --question logit
    """
    entries = {
        "methods": method, "metrics": metric, "protocol": protocol, "images": images, "seed": seed, "targets": targets,
        "question": question, "precision": precision, "device": device, "batch_size": batch_size, "slice": slice,
        "maps": maps, "out": out, "models": make_model_entries(model, checkpoint, arguments), "datasets": data,
    }  # fmt: skip
    with resumable():
        with spinner("reading the plan", lines=True):
            from vitreous.bench.plan_check import check
            from vitreous.bench.work_cells import select_shard
            from vitreous.cli import run_output

            checked_plan = make_plan(plan, entries)
        if shard is not None:
            select_shard([], shard)  # check the shard before a folder is created for it
        folder = Path(checked_plan.out or (f"runs/{plan.stem}" if plan else "runs/bench"))
        if merge:
            return run_output.merge_shards(checked_plan, folder, as_json=json)
        with spinner("checking models and data", lines=True):
            print_notes(check(checked_plan))
        if dry_run:
            return run_output.print_estimate(checked_plan, folder, shard, workers, as_json=json)
        executor = run_output.choose_executor(workers, ray, gpus)
        run_options = {"recheck": recheck, "recompute": recompute or ()}
        return run_output.execute_plan(checked_plan, folder, executor, shard, **run_options, as_json=json)


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


def make_plan(path: Path | None, entries: dict[str, Any]) -> Plan:
    """Make a plan from a file, with `entries` replacing those of the file, or from `entries` alone."""
    from vitreous.bench.plan_parser import plan_from_flags, read_plan

    if path is not None:
        return read_plan(path, **entries)
    if entries["metrics"] is None and entries["protocol"] is None:
        entries = {**entries, "metrics": "usual"}
    return plan_from_flags(**entries)
