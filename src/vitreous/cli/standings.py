"""What `bench` and `map` say: how far they are, and the table of methods × metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isnan
from typing import Any

import typer


@contextmanager
def bar() -> Iterator[Callable[[Any], None] | None]:
    """On a terminal: pictures per second, time left, failures."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from vitreous.cli.say import console

    err = console(stderr=True)
    if not err.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as shown:
        task = shown.add_task("pictures", total=None, rate="")

        def report(told: Any) -> None:
            failures = f", {sum(told.failed.values())} failures" if told.failed else ""
            rate = f"{told.pictures_per_second:.2f} pictures/s{failures}"
            shown.update(task, total=told.pictures, completed=told.done_pictures, rate=rate)

        yield report


def tell(plan: Any, store: Any, told: Any, *, as_json: bool, table: bool = True) -> None:
    """What was done, and what the numbers say."""
    from vitreous.bench.summary import summarise
    from vitreous.cli.say import document

    columns = summarise(store.table()) if table and plan.metrics else []
    if as_json:
        done = {"folder": str(store.folder), "run": plan.run, "pictures": told.pictures, "new_rows": told.rows}
        document({**done, "skipped": told.skipped, "failed": told.failed, "columns": [one.plain() for one in columns]})
        return
    for name in told.mended:
        typer.echo(f"note: {name} was damaged; what it held was computed again", err=True)
    for where in dict.fromkeys((one.model, one.dataset) for one in columns):
        print_table(*where, [one for one in columns if (one.model, one.dataset) == where])
    if columns:
        typer.echo(
            "mean [95 % interval over pictures]; * best, = not told from the best, ↑ more is better, ↓ less is better"
        )
    if any(one.pictures == 1 for one in columns):
        typer.echo("note: one picture has no interval, and tells no method from another", err=True)
    for sentence, count in told.failed.items():
        typer.echo(f"failed{f' {count} times' if count > 1 else ''}: {sentence}", err=True)
    fresh = f"{told.rows} new rows" if told.rows else "nothing new"
    skipped = f", {told.skipped} pictures left out by the protocol" if told.skipped else ""
    typer.echo(f"{fresh}{skipped}; results in {store.folder}")


def print_table(model: str, dataset: str, columns: list[Any]) -> None:
    """Methods × metrics; where the terminal is narrow, some metrics under the others."""
    from vitreous.cli.say import console, show, table

    arrow = {True: " ↑", False: " ↓", None: ""}
    names = [
        f"{column.metric}{f' of the {column.role} class' if column.role else ''}{arrow[column.higher_is_better]}"
        for column in columns
    ]
    methods = [entry.method for entry in columns[0].entries]
    figures = [[figure(entry) for entry in column.entries] for column in columns]
    widths = [max(map(len, (name, *own))) + 2 for name, own in zip(names, figures, strict=True)]
    room = console().width - max(map(len, ("method", *methods))) - 2
    count = columns[0].pictures
    typer.echo(f"{model} on {dataset}, {count} picture{'' if count == 1 else 's'}")
    start = 0
    while start < len(names):
        stop = start + 1
        while stop < len(names) and sum(widths[start : stop + 1]) <= room:
            stop += 1
        listing = table("method", *names[start:stop], right=names[start:stop])
        for row, method in enumerate(methods):
            listing.add_row(method, *(own[row] for own in figures[start:stop]))
        show(listing)
        start = stop


def figure(entry: Any) -> str:
    if entry.rows == 0:
        return "failed"
    known = not isnan(entry.low)  # without an interval nobody is ahead
    mark = "" if not known else "*" if entry.rank == 1 else "=" if entry.tied else " "
    lost = f" ({entry.undefined} undefined)" if entry.undefined else ""
    span = f" [{entry.low:.3f}, {entry.high:.3f}]" if known else ""
    return f"{'undefined' if isnan(entry.value) else f'{entry.value:.3f}'}{span}{lost}{mark}"
