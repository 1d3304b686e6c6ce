"""Runs of `bench`, `map` and `reproduce`: execution, progress, what an interrupted run has kept, and tables of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitreous.bench import run_plan
from vitreous.bench.cost import estimate
from vitreous.bench.plan import Plan
from vitreous.bench.pool import Executor, processes, run_serially
from vitreous.bench.recompute import find_specs, list_metrics
from vitreous.bench.signals import Stopped
from vitreous.bench.store import Store
from vitreous.bench.summary import MethodSummary, MetricSummary, summarise_store
from vitreous.bench.work_cells import fingerprint_cells, select_shard, split_plan
from vitreous.cli import console
from vitreous.cli.console import format_duration, print_json, print_notes, print_table, progress_lines, spinner
from vitreous.core.errors import SpecError
from vitreous.report.formatting import format_score


class RunDisplay:
    """Callback that shows the progress of a run and keeps the last state."""

    def __init__(self) -> None:
        self.progress: run_plan.RunProgress | None = None
        self.show: Callable[[run_plan.RunProgress], None] | None = None

    def __call__(self, progress: run_plan.RunProgress) -> None:
        self.progress = progress
        if self.show is not None:
            self.show(progress)

    @property
    def line(self) -> str:
        """The last state as a line of text."""
        progress = self.progress
        if progress is None:
            return "preparing"
        left = progress.seconds_left
        remaining = f", about {format_duration(left)} left" if isfinite(left) and left > 0 else ""
        return f"{format_images_done(progress)}, {format_rate(progress)}{remaining}"


def format_images_done(progress: run_plan.RunProgress) -> str:
    """Number of finished images, and of all images if it is known."""
    total = "" if progress.images is None else f" of {progress.images}"
    return f"{progress.done_images}{total} images"


def format_rate(progress: run_plan.RunProgress) -> str:
    failures = f", {sum(progress.failed.values())} failures" if progress.failed else ""
    rate = f"{progress.images_per_second:.2f} images/s" if progress.images_per_second else "computing the next ones"
    return f"{rate}{failures}"


@contextmanager
def run_display(folder: Path) -> Iterator[RunDisplay]:
    """Show the progress of a run: a bar on a terminal, plain lines otherwise.

    An interruption is raised as `Stopped` with a message on what the run has kept in `folder`.
    """
    screen, display = console.open_console(stderr=True), RunDisplay()
    try:
        if not screen.is_terminal:
            with progress_lines(lambda: display.line):
                yield display
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        columns = (*columns, TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
        with Progress(*columns, console=screen, transient=True) as bar:
            task = bar.add_task("images", total=None, rate="")
            display.show = lambda progress: bar.update(
                task, total=progress.images, completed=progress.done_images, rate=format_rate(progress)
            )
            yield display
    except KeyboardInterrupt as interruption:
        raise Stopped.with_kept(interruption, describe_kept(display.progress, folder), resumable=True) from None


def describe_kept(progress: run_plan.RunProgress | None, folder: Path) -> str:
    if progress is None or progress.done_images == 0:
        return "nothing new was computed"
    rows = f", {progress.rows} new rows" if progress.rows else ""
    return f"{format_images_done(progress)} are done and kept in {folder}{rows}"


def print_standings(
    plan: Plan, store: Store, progress: run_plan.Progress, *, as_json: bool, table: bool = True
) -> None:
    """Print what was done and, if `table` is set, the scores."""
    columns = summarise_store(store) if table and plan.metrics else []
    if as_json:
        done = {"folder": str(store.folder), "run": plan.run, "images": progress.images, "new_rows": progress.rows}
        scores = [column.plain() for column in columns]
        print_json({**done, "skipped": progress.skipped, "failed": progress.failed, "columns": scores})
        return
    print_notes(progress.mended)
    groups: dict[tuple[str, str, str], list[MetricSummary]] = {}
    for column in columns:
        groups.setdefault((column.model, column.dataset, column.score), []).append(column)
    for group in groups.values():
        print_scores(group, plan)
    if scores := [*dict.fromkeys(column.score for column in columns if column.score)]:
        print_notes(
            [
                f"methods that explain different scores ({', '.join(scores)}) are in separate tables, since they are not comparable; "
                f"--question {scores[0]} explains the same score by all of them"
            ]
        )
    print_notes([f"reduced, not the published evaluation: {plan.reduced}"] if plan.reduced and columns else [])
    if columns:
        typer.echo(
            "mean [95 % interval over images]; * best, = not significantly different from the best, ↑ ↓ direction that is better"
        )
    if any(column.image_count == 1 for column in columns):
        print_notes(["one image gives no interval, so methods cannot be compared"])
    print_failures(progress)
    print_counts(progress, store.folder)


def print_failures(progress: run_plan.RunProgress) -> None:
    for sentence, count in progress.failed.items():
        typer.echo(f"failed{f' {count} times' if count > 1 else ''}: {sentence}", err=True)


def print_counts(progress: run_plan.RunProgress, folder: Path) -> None:
    """Print the number of new rows and of images that were left out, and the folder of the results."""
    new_rows = f"{progress.rows} new rows" if progress.rows else "nothing new"
    skipped = f", {progress.skipped} images left out by the protocol" if progress.skipped else ""
    typer.echo(f"{new_rows}{skipped}; results in {folder}")


def print_scores(columns: list[MetricSummary], plan: Plan) -> None:
    """Print methods × metrics of one model, dataset and score; on a narrow terminal as several tables below each other."""
    arrow = {True: " ↑", False: " ↓", None: ""}
    names = [
        f"{column.metric}{f' of the {column.role} class' if column.role else ''}{arrow[column.higher_is_better]}"
        for column in columns
    ]
    methods = [(entry.method, format_score(entry.score)) for entry in columns[0].entries]
    has_winner = [len({entry.rank for entry in column.entries}) > 1 for column in columns]
    figures = [
        [format_entry(entry, has_winner=own) for entry in column.entries]
        for column, own in zip(columns, has_winner, strict=True)
    ]
    widths = [max(map(len, (name, *own))) + 2 for name, own in zip(names, figures, strict=True)]
    titles = ("method", "score")
    room = console.open_console().width - sum(max(map(len, own)) + 2 for own in zip(titles, *methods, strict=True))
    typer.echo(describe_table(columns[0], plan))
    start = 0
    while start < len(names):
        stop = start + 1
        while stop < len(names) and sum(widths[start : stop + 1]) <= room:
            stop += 1
        rows = [(*method, *(own[row] for own in figures[start:stop])) for row, method in enumerate(methods)]
        print_table((*titles, *names[start:stop]), rows, right=names[start:stop])
        start = stop


def describe_table(column: MetricSummary, plan: Plan) -> str:
    """Model with its real name, dataset, number of images, and the score that its methods have in common."""
    model_names = {model.label: model.name for model in plan.models}
    name = model_names.get(column.model, column.model)
    model = column.model if name in column.model else f"{column.model} ({name})"
    count = column.image_count
    score = f", score: {column.score}" if column.score else ""
    return f"{model} on {column.dataset}, {count} image{'' if count == 1 else 's'}{score}"


def format_entry(entry: MethodSummary, *, has_winner: bool = True) -> str:
    if entry.rows == 0:
        return "failed"
    has_interval = not isnan(entry.low)  # without an interval, no method can be called best
    mark = "" if not has_interval else "*" if entry.rank == 1 and has_winner else "=" if entry.tied else " "
    undefined = f" ({entry.undefined} undefined)" if entry.undefined else ""
    span = f" [{entry.low:.3f}, {entry.high:.3f}]" if has_interval else ""
    return f"{'undefined' if isnan(entry.value) else f'{entry.value:.3f}'}{span}{undefined}{mark}"


# ── runs of a plan ───────────────────────────────────────────────────────────────────────────────


def choose_executor(workers: int, ray: str | None, gpus: float | None) -> Executor:
    if ray is not None:
        from vitreous.bench.ray import on_ray

        return on_ray(ray, workers if workers > 1 else None, gpus=gpus)
    return processes(workers) if workers > 1 else run_serially


def choose_store_folder(folder: Path, shard: str | None) -> Path:
    return folder if shard is None else folder / "shards" / shard.replace("/", "-of-")


def execute_plan(
    plan: Plan,
    folder: Path,
    executor: Executor,
    shard: str | None,
    *,
    recheck: bool = False,
    recompute: Sequence[str] = (),
    as_json: bool,
) -> int:
    """Compute what is missing, then print the table; return the exit status."""
    run_options: dict[str, Any] = {
        "recheck": recheck,
        "recompute": find_specs(recompute, plan.methods, list_metrics(plan)),
    }
    with Store(choose_store_folder(folder, shard)) as store:
        with run_display(store.folder) as display:
            progress = run_plan.execute(plan, store, executor, shard=shard, **run_options, report=display)
        print_standings(plan, store, progress, as_json=as_json, table=shard is None)
    return 1 if progress.failed else 0


def merge_shards(plan: Plan, folder: Path, *, as_json: bool) -> int:
    """Merge the shards and print the table; return the exit status."""
    progress = merge_stores(plan, folder)
    with Store(folder) as store:
        print_standings(plan, store, progress, as_json=as_json)
    return 1 if progress.failed else 0


def merge_stores(plan: Plan, folder: Path) -> run_plan.Progress:
    """Merge the stores of the shards; what they lack is a failure."""
    shards = sorted((folder / "shards").glob("*-of-*"))
    if not shards:
        raise SpecError(f"'{folder / 'shards'}' holds no shards; `--shard 1/2` makes one")
    with Store(folder) as store:
        new_rows = store.merge(shards)
        store.begin(plan.run, plan.toml, {"merged": [shard.name for shard in shards]})
        missing = run_plan.list_missing_cells(plan, store)
    progress = run_plan.Progress(0, cells=len(split_plan(plan)), rows=new_rows)
    if missing:
        progress.failed = {
            f"{len(missing)} of {progress.cells} pieces of work missing or failed; run their shards, or the plan without --shard": 1
        }
    return progress


def print_estimate(
    plan: Plan, folder: Path, shard: str | None, workers: int, *, as_json: bool, stderr: bool = False
) -> int:
    """Print cells, forward and backward passes and time; finished cells of this plan in the store are not counted."""
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
    names = ("cells", "images", "forwards", "backwards", "about", "device")
    rows = []
    for entry in estimates:
        passes = (f"{entry.forwards:,.0f}", f"{entry.backwards:,.0f}")
        about = format_duration(entry.seconds / workers)
        rows.append((entry.model, str(entry.cells), str(entry.images), *passes, about, entry.device))
    print_table(("model", *names), rows, right=names[:-1], stderr=stderr)
    typer.echo(
        err=stderr,
        message=f"{len(plan.methods)} methods × {len(plan.metrics)} metrics; {len(done_cells)} of {len(cells)} cells are known; nothing was computed",
    )
    unknown = dict.fromkeys(name for entry in estimates for name in entry.unknown)
    print_notes(f"the cost of {name} is unknown; it is not counted" for name in unknown)
    return 0
