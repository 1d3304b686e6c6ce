"""Progress of long computations: counters report to whatever shows them, by default a bar in terminals and notebooks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

Report: TypeAlias = Callable[[int, int], object]  # (done, total)

REPORT: ContextVar[Report | None] = ContextVar("vitreous.progress", default=None)
PATIENCE = 2.0  # seconds until a bar appears


@contextmanager
def reporting(report: Report) -> Iterator[None]:
    """Context in which `report(done, total)` is called after every piece; an exception from it stops the work."""
    token = REPORT.set(report)
    try:
        yield
    finally:
        REPORT.reset(token)


class Tally:
    """Progress counter that calls the current report."""

    def __init__(self, total: int) -> None:
        self.done, self.total = 0, total

    def add(self, count: int) -> None:
        self.done += count
        report = REPORT.get()
        if report is not None:
            report(self.done, self.total)


# ── display ──────────────────────────────────────────────────────────────────────────────────────


class ProgressDisplay:
    """Receives the steps of a computation, and shows nothing."""

    is_shown = False

    def begin_step(self, label: str) -> None:
        """Name the current step; the number of its pieces is not known yet."""

    def end_step(self) -> None:
        """Count the current step as done."""


class ProgressBars(ProgressDisplay):
    """Steps of a computation and, below them, the pieces of the current step; on stderr, after `PATIENCE` seconds.

    Parameters
    ----------
    label
        What is computed.
    total
        Number of steps.
    console
        Where bars are drawn.
    """

    is_shown = True

    def __init__(self, label: str, total: int, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Remaining

        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Remaining())
        self.bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self.steps = self.bar.add_task(label, total=total, visible=total > 1)
        self.pieces = self.bar.add_task(label, total=None, visible=total == 1)
        self.lock, self.is_closed = threading.Lock(), False
        self.delay = threading.Timer(PATIENCE, self.show)
        self.delay.daemon = True

    def begin_step(self, label: str) -> None:
        self.bar.reset(self.pieces, description=label, total=None, visible=True)

    def end_step(self) -> None:
        self.bar.advance(self.steps)

    def report(self, done: int, total: int) -> None:
        """Show how many pieces of the current step are done."""
        self.bar.update(self.pieces, completed=done, total=total)

    def show(self) -> None:
        with self.lock:
            if not self.is_closed:
                self.bar.start()

    def close(self) -> None:
        self.delay.cancel()
        with self.lock:
            self.is_closed = True
            self.bar.stop()


@contextmanager
def show_progress(progress: bool | None, label: str, total: int = 1) -> Iterator[ProgressDisplay]:
    """Context in which the counters of a computation are shown, if it takes longer than `PATIENCE`.

    Parameters
    ----------
    progress
        True shows them. None does so in a terminal or a notebook, unless they are reported to something else already.
        False shows nothing.
    label, total
        As for `ProgressBars`.
    """
    is_shown = REPORT.get() is None if progress is None else progress
    console = open_console(always=progress is True) if is_shown else None
    if console is None:
        is_refused = progress is False and REPORT.get() is None  # also by what is called inside
        with reporting(lambda done, total: None) if is_refused else nullcontext():
            yield ProgressDisplay()
        return
    display = ProgressBars(label, total, console)
    display.delay.start()
    try:
        with reporting(display.report):
            yield display
    finally:
        display.close()


def open_console(*, always: bool) -> Console | None:
    """Console of stderr, if it is a terminal or that of a notebook, or if `always` is set."""
    if sys.stderr is None or not (always or sys.stderr.isatty() or "ipykernel" in sys.modules):
        return None
    from rich.console import Console

    return Console(file=sys.stderr)
