"""What verbs share: consoles, notes, progress, numbers."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from vitreous.core.errors import Caveat

T = TypeVar("T")
PATIENCE = 2.0  # seconds until a bar is worth its place


def console(*, stderr: bool = False) -> Console:
    """Colours on a terminal only; where there is no terminal, lines are as long as they need to be."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 250, highlight=False, markup=False, emoji=False)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left")
    return made


def show(shown: Table) -> None:
    """A table without blanks at the ends of its lines."""
    out = console()
    with out.capture() as held:
        out.print(shown)
    typer.echo("\n".join(line.rstrip() for line in held.get().splitlines()))


def document(content: Any) -> None:
    """JSON on stdout, with null for what is not a number."""
    typer.echo(json.dumps(plain(content), indent=1, ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


@contextmanager
def notes() -> Iterator[None]:
    """Caveats as one line each on stderr; other libraries' warnings and logs only for those who debug."""
    said: set[str] = set()
    level = logging.root.manager.disable

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        line = " ".join(str(message).split())
        if line not in said and (issubclass(category, Caveat) or os.environ.get("VITREOUS_DEBUG")):
            said.add(line)
            typer.echo(f"note: {line}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        try:
            logging.disable(level if os.environ.get("VITREOUS_DEBUG") else logging.WARNING)
            yield
        finally:
            logging.disable(level)


@contextmanager
def busy(sentence: str) -> Iterator[None]:
    """A spinner on a terminal, silence elsewhere."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield
        return
    with err.status(sentence):
        yield


class Watch(Generic[T]):
    """Items one by one; on a terminal a bar appears when they take their time, and one more for a long step of an item."""

    def __init__(self, items: Sequence[T], what: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        err = console(stderr=True)
        self.bar = Progress(*columns, console=err, transient=True, redirect_stdout=False, redirect_stderr=False)
        self.items, self.several = items, len(items) > 1
        self.task = self.bar.add_task(what, total=len(items), visible=self.several)

    def __iter__(self) -> Iterator[T]:
        begun = time.monotonic()
        try:
            for item in self.items:
                if self.several and self._due(begun):
                    self.bar.start()
                yield item
                self.bar.advance(self.task)
        finally:
            self.hide()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Inside, long work tells how far it is."""
        from vitreous.capture.progress import reporting

        begun, task = time.monotonic(), self.bar.add_task(what, total=None, visible=False)

        def report(done: int, total: int) -> None:
            if self._due(begun):
                self.bar.update(task, completed=done, total=total, visible=True)
                self.bar.start()

        try:
            with reporting(report):
                yield
        finally:
            self.bar.remove_task(task)

    def _due(self, begun: float) -> bool:
        """Somebody looks, and has waited long enough to want a bar."""
        return self.bar.console.is_terminal and time.monotonic() - begun > PATIENCE

    def hide(self) -> None:
        """Make place for something to be said; the bar comes back with the next item."""
        if self.bar.live.is_started:
            self.bar.stop()
