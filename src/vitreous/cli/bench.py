"""`vitreous bench`: models × data sets × methods × metrics, measured, resumed, and told as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitreous.core.errors import SpecError

Several = list[str] | None


def bench(
    plan: Annotated[Path | None, typer.Argument(metavar="PLAN.toml", help="A plan; or say it by flags.")] = None,
    model: Annotated[Several, typer.Option("--model", "-m", metavar="NAME", help="Repeat for several.")] = None,
    checkpoint: Annotated[str | None, typer.Option(metavar="FILE", help="Local weights of the one model.")] = None,
    model_arg: Annotated[Several, typer.Option(metavar="KEY=VALUE", help="For the model's builder.")] = None,
    data: Annotated[
        Several, typer.Option("--data", "-d", metavar="SPEC", help="Such as scenes:single?count=20.")
    ] = None,
    method: Annotated[
        Several, typer.Option("--method", "-x", metavar="SPEC", show_default="eight well-known ones")
    ] = None,
    metric: Annotated[
        Several,
        typer.Option(
            "--metric", metavar="SPEC", help="Repeat for several; or all.", show_default="all that fit but road"
        ),
    ] = None,
    protocol: Annotated[str | None, typer.Option(metavar="NAME", help="A paper's metrics, grids and choices.")] = None,
    pictures: Annotated[int | None, typer.Option(min=1, help="Of each data set.", show_default="all")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Which pictures.", show_default="0")] = None,
    targets: Annotated[str | None, typer.Option(help="predicted, label, predicted+label, pair or 'top 2'.")] = None,
    question: Annotated[str | None, typer.Option(metavar="NAME", show_default="the method's own")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bf16 or float64.")] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", show_default="GPUs if there are any")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Pictures run at once.")] = None,
    slice: Annotated[int | None, typer.Option(min=1, help="Pictures in a piece of work.")] = None,  # noqa: A002
    maps: Annotated[bool | None, typer.Option("--maps/--no-maps", help="Keep the maps, for galleries.")] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", metavar="FOLDER", show_default="runs/NAME")] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Processes on this machine.")] = 1,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="auto, local or host:port of a cluster.")] = None,
    gpus: Annotated[float | None, typer.Option(min=0, help="GPUs for each Ray worker.")] = None,
    shard: Annotated[str | None, typer.Option(metavar="i/n", help="One part of the work, for job arrays.")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Bring the shards together; compute nothing.")] = False,
    recheck: Annotated[bool, typer.Option("--recheck", help="Look again at pictures of finished work.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and how long it takes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> int:
    """Measure methods on models and data sets. What is known is not computed again: run it twice, add a method, kill it."""
    from vitreous.cli.say import busy, notes

    given = {
        "methods": method, "metrics": metric, "protocol": protocol, "pictures": pictures, "seed": seed, "targets": targets,
        "question": question, "precision": precision, "device": device, "batch_size": batch_size, "slice": slice,
        "maps": maps, "out": out, "models": models_of(model, checkpoint, model_arg), "datasets": data,
    }  # fmt: skip
    with notes():
        with busy("reading the plan"):
            asked = plan_of(plan, given)
        if shard is not None:
            from vitreous.bench.cells import shard_of

            shard_of([], shard)  # before a folder is made for it
        folder = Path(asked.out or (f"runs/{plan.stem}" if plan else "runs/bench"))
        if merge:
            return merged(asked, folder, as_json=json)
        with busy("looking at models and data"):
            looked_at(asked)
        if dry_run:
            return foretell(asked, folder, shard, workers, as_json=json)
        return work(asked, folder, executor(asked, workers, ray, gpus), shard, recheck=recheck, as_json=json)


def models_of(names: Several, checkpoint: str | None, arguments: Several) -> list[Any] | None:
    """Models as a plan has them."""
    from vitreous.cli.explain import builder_arguments

    if not names:
        if checkpoint or arguments:
            raise SpecError("--checkpoint and --model-arg belong to a --model")
        return None
    if len(names) > 1 and (checkpoint or arguments):
        raise SpecError("--checkpoint and --model-arg are for one --model; with several, write a plan")
    given = {**({"checkpoint": checkpoint} if checkpoint else {}), **builder_arguments(arguments or [])}
    return [{"name": name, **given} for name in names]


def plan_of(path: Path | None, given: dict[str, Any]) -> Any:
    from vitreous.bench.read import plan_from_flags, read_plan

    if path is not None:
        return read_plan(path, **given)
    if given["metrics"] is None and given["protocol"] is None:
        given = {**given, "metrics": "usual"}
    return plan_from_flags(**given)


def looked_at(plan: Any) -> None:
    from vitreous.bench.check import check

    for note in check(plan):
        typer.echo(f"note: {note}", err=True)


def executor(plan: Any, workers: int, ray: str | None, gpus: float | None) -> Any:
    from vitreous.bench.pool import processes, serial

    if ray is not None:
        from vitreous.bench.ray import on_ray

        return on_ray(ray, workers if workers > 1 else None, gpus=gpus)
    return processes(workers) if workers > 1 else serial


def shelf(folder: Path, shard: str | None) -> Path:
    return folder if shard is None else folder / "shards" / shard.replace("/", "-of-")


def work(plan: Any, folder: Path, run: Any, shard: str | None, *, recheck: bool, as_json: bool) -> int:
    """Compute what is missing, then print the table."""
    from vitreous.bench.drive import execute
    from vitreous.bench.store import Store
    from vitreous.cli.standings import bar, tell

    with Store(shelf(folder, shard)) as store:
        with bar() as report:
            told = execute(plan, store, run, shard=shard, recheck=recheck, report=report)
        tell(plan, store, told, as_json=as_json, table=shard is None)
    return 1 if told.failed else 0


def merged(plan: Any, folder: Path, *, as_json: bool) -> int:
    from vitreous.bench.cells import cells_of
    from vitreous.bench.drive import Progress, missing_cells
    from vitreous.bench.store import Store
    from vitreous.cli.standings import tell

    shards = sorted((folder / "shards").glob("*-of-*"))
    if not shards:
        raise SpecError(f"'{folder / 'shards'}' holds no shards; `vitreous bench … --shard 1/2` makes one")
    with Store(folder) as store:
        new = store.merge(shards)
        store.begin(plan.run, plan.toml, {"merged": [one.name for one in shards]})
        missing = missing_cells(plan, store)
        told = Progress(len(cells_of(plan)), 0, rows=new)
        if missing:
            told.failed = {
                f"{len(missing)} of {told.cells} pieces of work missing or failed; run their shards, or the plan without --shard": 1
            }
        tell(plan, store, told, as_json=as_json)
    return 1 if missing else 0


def foretell(plan: Any, folder: Path, shard: str | None, workers: int, *, as_json: bool) -> int:
    """Cells, forwards, backwards, time; what the store knows of this very plan is left out."""
    from vitreous.bench.cells import asked_of, cells_of, shard_of
    from vitreous.bench.cost import estimate
    from vitreous.bench.store import Store
    from vitreous.cli.say import busy, document, show, table

    cells = cells_of(plan)
    cells = cells if shard is None else shard_of(cells, shard)
    place, known = shelf(folder, shard), set()
    if (place / "ledger.sqlite").exists():
        with Store(place) as store:
            known = store.done(plan.run, asked_of(plan, cells))
    with busy("calibrating"):
        told = estimate(plan, [cell for cell in cells if cell.number not in known])
    if as_json:
        from dataclasses import asdict

        document(
            {"folder": str(place), "cells": len(cells), "known": len(known), "estimates": [asdict(one) for one in told]}
        )
        return 0
    names = ("cells", "pictures", "forwards", "backwards", "about")
    listing = table("model", *names, right=names)
    for one in told:
        listing.add_row(
            one.model,
            str(one.cells),
            str(one.pictures),
            f"{one.forwards:,.0f}",
            f"{one.backwards:,.0f}",
            spell(one.seconds / workers),
        )
    show(listing)
    typer.echo(
        f"{len(plan.methods)} methods × {len(plan.metrics)} metrics; {len(known)} of {len(cells)} cells are known; nothing was computed"
    )
    for name in dict.fromkeys(name for one in told for name in one.unknown):
        typer.echo(f"note: {name} does not say what it costs; it is not counted", err=True)
    return 0


def spell(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
