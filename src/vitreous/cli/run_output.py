"""Output of `bench` and `map`: progress, what an interrupted run has kept, and the table of methods × metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import typer


class RunDisplay:
    """Callback that shows the progress of a run and keeps the last state."""

    def __init__(self, show: Callable[[Any], None] | None = None) -> None:
        self.progress: Any = None
        self.show = show

    def __call__(self, progress: Any) -> None:
        self.progress = progress
        if self.show is not None:
            self.show(progress)

    @property
    def line(self) -> str:
        """The last state as a line of text."""
        progress = self.progress
        if progress is None:
            return "preparing"
        from vitreous.cli.console import format_duration

        left = progress.seconds_left
        remaining = f", about {format_duration(left)} left" if isfinite(left) and left > 0 else ""
        return f"{format_images_done(progress)}, {format_rate(progress)}{remaining}"


def format_images_done(progress: Any) -> str:
    """Number of finished images, and of all images if it is known."""
    total = "" if progress.images is None else f" of {progress.images}"
    return f"{progress.done_images}{total} images"


def format_rate(progress: Any) -> str:
    failures = f", {sum(progress.failed.values())} failures" if progress.failed else ""
    return f"{progress.images_per_second:.2f} images/s{failures}"


@contextmanager
def run_display(folder: Path) -> Iterator[RunDisplay]:
    """Show the progress of a run: a bar on a terminal, plain lines otherwise.

    An interruption is raised as `Stopped` with a message on what the run has kept in `folder`.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from vitreous.bench.signals import Stopped
    from vitreous.cli.console import open_console, progress_lines

    console, display = open_console(stderr=True), RunDisplay()
    try:
        if not console.is_terminal:
            with progress_lines(lambda: display.line):
                yield display
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        columns = (*columns, TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("images", total=None, rate="")
            display.show = lambda progress: bar.update(
                task, total=progress.images, completed=progress.done_images, rate=format_rate(progress)
            )
            yield display
    except KeyboardInterrupt as interruption:
        raise Stopped.with_kept(interruption, describe_kept(display.progress, folder), resumable=True) from None


@contextmanager
def resumable() -> Iterator[None]:
    """Context manager in which stop signals raise `Stopped`, marked as resumable by the same command."""
    from vitreous.bench.signals import Stopped, stop_signals

    with stop_signals():
        try:
            yield
        except KeyboardInterrupt as interruption:
            if isinstance(interruption, Stopped) and interruption.kept:
                raise
            raise Stopped.with_kept(interruption, "nothing new was computed", resumable=True) from None


def describe_kept(progress: Any, folder: Path) -> str:
    if progress is None or progress.done_images == 0:
        return "nothing new was computed"
    rows = f", {progress.rows} new rows" if progress.rows else ""
    return f"{format_images_done(progress)} are done and kept in {folder}{rows}"


def print_standings(plan: Any, store: Any, progress: Any, *, as_json: bool, table: bool = True) -> None:
    """Print what was done and, if `table` is set, the scores."""
    from vitreous.bench.summary import summarise_store
    from vitreous.cli.console import print_json

    columns = summarise_store(store) if table and plan.metrics else []
    if as_json:
        done = {"folder": str(store.folder), "run": plan.run, "pictures": progress.images, "new_rows": progress.rows}
        scores = [column.plain() for column in columns]
        print_json({**done, "skipped": progress.skipped, "failed": progress.failed, "columns": scores})
        return
    for name in progress.mended:
        typer.echo(f"note: {name} was damaged; what it held was computed again", err=True)
    for where in dict.fromkeys((column.model, column.dataset) for column in columns):
        print_scores(*where, [column for column in columns if (column.model, column.dataset) == where])
    if columns:
        typer.echo(
            "mean [95 % interval over images]; * best, = not significantly different from the best, ↑ ↓ direction that is better"
        )
    if any(column.image_count == 1 for column in columns):
        typer.echo("note: one image gives no interval, so methods cannot be compared", err=True)
    print_failures(progress)
    print_counts(progress, store.folder)


def print_failures(progress: Any) -> None:
    for sentence, count in progress.failed.items():
        typer.echo(f"failed{f' {count} times' if count > 1 else ''}: {sentence}", err=True)


def print_counts(progress: Any, folder: Path) -> None:
    """Print the number of new rows and of images that were left out, and the folder of the results."""
    new_rows = f"{progress.rows} new rows" if progress.rows else "nothing new"
    skipped = f", {progress.skipped} images left out by the protocol" if progress.skipped else ""
    typer.echo(f"{new_rows}{skipped}; results in {folder}")


def print_scores(model: str, dataset: str, columns: list[Any]) -> None:
    """Print methods × metrics; on a narrow terminal as several tables below each other."""
    from vitreous.cli.console import open_console, print_table

    arrow = {True: " ↑", False: " ↓", None: ""}
    names = [
        f"{column.metric}{f' of the {column.role} class' if column.role else ''}{arrow[column.higher_is_better]}"
        for column in columns
    ]
    methods = [entry.method for entry in columns[0].entries]
    figures = [[format_entry(entry) for entry in column.entries] for column in columns]
    widths = [max(map(len, (name, *own))) + 2 for name, own in zip(names, figures, strict=True)]
    room = open_console().width - max(map(len, ("method", *methods))) - 2
    count = columns[0].image_count
    typer.echo(f"{model} on {dataset}, {count} image{'' if count == 1 else 's'}")
    start = 0
    while start < len(names):
        stop = start + 1
        while stop < len(names) and sum(widths[start : stop + 1]) <= room:
            stop += 1
        rows = [(method, *(own[row] for own in figures[start:stop])) for row, method in enumerate(methods)]
        print_table(("method", *names[start:stop]), rows, right=names[start:stop])
        start = stop


def format_entry(entry: Any) -> str:
    if entry.rows == 0:
        return "failed"
    has_interval = not isnan(entry.low)  # without an interval, no method can be called best
    mark = "" if not has_interval else "*" if entry.rank == 1 else "=" if entry.tied else " "
    undefined = f" ({entry.undefined} undefined)" if entry.undefined else ""
    span = f" [{entry.low:.3f}, {entry.high:.3f}]" if has_interval else ""
    return f"{'undefined' if isnan(entry.value) else f'{entry.value:.3f}'}{span}{undefined}{mark}"
