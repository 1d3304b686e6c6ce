"""Output shared by all verbs: consoles, tables, JSON, notes and progress."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from vitreous.bench.signals import Stopped, stop_signals
from vitreous.core.errors import Caveat

T = TypeVar("T")
PATIENCE = 2.0  # seconds until a progress bar appears on a terminal
INTERVAL = 2.0  # seconds until the first line of progress in a pipe, and smallest time between two lines
SPREAD = 5  # in long work, the next line of progress comes after 1/5 of the time passed


class PipeConsole(Console):
    """A console that raises `BrokenPipeError` when the pipe is closed; rich's own would exit."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def open_console(*, stderr: bool = False) -> Console:
    """Open a console with colours on a terminal only; in pipes and files lines are not wrapped."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 250
    return PipeConsole(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), *, stderr: bool = False
) -> None:
    """Print a table without trailing spaces.

    Parameters
    ----------
    columns
        Titles; a table whose titles are all empty has no header.
    rows
        Cells of every row.
    right
        Columns that are aligned to the right.
    stderr
        Print on stderr.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), show_header=any(columns))
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*row)
    console = open_console(stderr=stderr)
    with console.capture() as capture:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()), err=stderr)


def print_json(content: Any) -> None:
    """Print one JSON document, with null for numbers that are not finite."""
    typer.echo(json.dumps(to_json_value(content), indent=1, ensure_ascii=False, allow_nan=False))


def to_json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def print_notes(notes: Iterable[str]) -> None:
    """Print each note as one line on stderr."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def caveats_as_notes() -> Iterator[None]:
    """Print each `Caveat` once, as one line on stderr; hide other libraries' warnings and logs unless debugging."""
    printed: set[str] = set()
    level = logging.root.manager.disable

    def print_note(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        line = " ".join(str(message).split())
        if line not in printed and (issubclass(category, Caveat) or os.environ.get("VITREOUS_DEBUG")):
            printed.add(line)
            print_notes([line])

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = print_note
        try:
            logging.disable(level if os.environ.get("VITREOUS_DEBUG") else logging.WARNING)
            yield
        finally:
            logging.disable(level)


@contextmanager
def resumable() -> Iterator[None]:
    """Context manager for a run: caveats are notes, and stop signals raise `Stopped`, resumable by the same command."""
    with caveats_as_notes(), stop_signals():
        try:
            yield
        except KeyboardInterrupt as interruption:
            if isinstance(interruption, Stopped) and interruption.kept:
                raise
            raise Stopped.with_kept(interruption, "nothing new was computed", resumable=True) from None


# ── progress ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def spinner(sentence: str, *, lines: bool = False) -> Iterator[None]:
    """Show a spinner on a terminal; in a pipe print nothing, or plain lines if `lines` is set."""
    console = open_console(stderr=True)
    in_pipe = progress_lines(lambda: sentence) if lines else nullcontext()
    with console.status(sentence) if console.is_terminal else in_pipe:
        yield


@contextmanager
def progress_lines(state: Callable[[], str]) -> Iterator[None]:
    """Print `state()` and the time passed as plain lines on stderr, from a thread.

    The first line is printed after `INTERVAL` seconds; later ones are at least as far apart, and further apart in long
    work.
    """
    finished = threading.Event()
    begun = time.monotonic()

    def print_lines() -> None:
        wait = INTERVAL
        while not finished.wait(wait):
            passed = time.monotonic() - begun
            try:
                typer.echo(f"{state()} ({format_duration(passed)} so far)", err=True)
            except OSError:  # stderr is closed
                return
            wait = max(INTERVAL, passed / SPREAD)

    printer = threading.Thread(target=print_lines, daemon=True)
    printer.start()
    try:
        yield
    finally:
        finished.set()
        printer.join()


class ProgressBar(Generic[T]):
    """Iterate over items with a progress bar.

    On a terminal, the bar appears if the items take long, and a second one for a long step of one item.

    Parameters
    ----------
    items
        Items to iterate over.
    label
        Text beside the bar.
    lines
        Whether to print plain lines if stderr is not a terminal; otherwise nothing is printed there.
    """

    def __init__(self, items: Sequence[T], label: str, *, lines: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = open_console(stderr=True)
        self.bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self.items, self.label, self.several = items, label, len(items) > 1
        self.lines = lines and not console.is_terminal
        self.task = self.bar.add_task(label, total=len(items), visible=self.several)

    def __iter__(self) -> Iterator[T]:
        begun, state = time.monotonic(), f"{self.label}: 0 of {len(self.items)} done"
        try:
            with progress_lines(lambda: state) if self.lines else nullcontext():
                for done, item in enumerate(self.items):
                    state = f"{self.label}: {done} of {len(self.items)} done, now {item}"
                    if self.several and self._is_due(begun):
                        self.bar.start()
                    yield item
                    self.bar.advance(self.task)
        finally:
            self.hide()

    @contextmanager
    def step(self, label: str) -> Iterator[None]:
        """Context manager in which long work reports its progress to a second bar."""
        from vitreous.core.progress import reporting

        begun, task = time.monotonic(), self.bar.add_task(label, total=None, visible=False)

        def report(done: int, total: int) -> None:
            if self._is_due(begun):
                self.bar.update(task, completed=done, total=total, visible=True)
                self.bar.start()

        try:
            with reporting(report):
                yield
        finally:
            self.bar.remove_task(task)

    def _is_due(self, begun: float) -> bool:
        """Whether stderr is a terminal and the work has taken long enough to show a bar."""
        return self.bar.console.is_terminal and time.monotonic() - begun > PATIENCE

    def hide(self) -> None:
        """Remove the bar so that text can be printed; it appears again with the next item."""
        if self.bar.live.is_started:
            self.bar.stop()
