"""A plan, a store and an executor: compute what is missing, write it down as it comes, say how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from vitreous.bench.cells import Cell, asked_of, cells_of, opened, shard_of
from vitreous.bench.job import Job, Outcome
from vitreous.bench.plan import Plan
from vitreous.bench.pool import Executor, serial
from vitreous.bench.signals import deferred_signals
from vitreous.bench.store import Store

PATIENCE = 2.0  # seconds that outcomes may wait to be written together: small files are many files


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    cells: int
    pictures: int  # of all cells
    done_cells: int = 0
    done_pictures: int = 0
    known_pictures: int = 0  # of these, known before it began
    rows: int = 0  # new ones
    skipped: int = 0
    failed: dict[str, int] = field(default_factory=dict)  # sentence → how often
    mended: list[str] = field(default_factory=list)  # parts of the store that were damaged
    begun: float = field(default_factory=time.monotonic)

    @property
    def pictures_per_second(self) -> float:
        return (self.done_pictures - self.known_pictures) / max(time.monotonic() - self.begun, 1e-9)

    @property
    def seconds_left(self) -> float:
        rate = self.pictures_per_second
        return (self.pictures - self.done_pictures) / rate if rate else float("nan")

    def add(self, outcome: Outcome) -> None:
        self.done_cells += 1
        self.done_pictures += outcome.pictures
        self.skipped += outcome.skipped
        for sentence in outcome.failed:
            self.failed[sentence] = self.failed.get(sentence, 0) + 1


def execute(
    plan: Plan,
    store: Store,
    executor: Executor = serial,
    *,
    shard: str | None = None,
    recheck: bool = False,
    patience: float = PATIENCE,
    report: Callable[[Progress], object] | None = None,
) -> Progress:
    """Compute all that the plan asks for and the store does not know.

    Pictures of finished cells are taken to be what they were; with `recheck` they are read again, and those that changed computed.
    """
    mended = store.mend()
    opened.cache_clear()  # a folder may have grown since somebody looked
    cells = cells_of(plan)
    mine = cells if shard is None else shard_of(cells, shard)
    store.begin(plan.run, plan.toml, {"cells": len(cells), "source": plan.source, "shard": shard})
    asked = asked_of(plan, cells)
    store.forget(plan.run, asked)
    finished = set() if recheck else store.done(plan.run)
    open_cells = [cell for cell in mine if cell.number not in finished]
    told = Progress(len(mine), pictures_in(mine), mended=mended)
    told.done_cells = len(mine) - len(open_cells)
    told.done_pictures = told.known_pictures = told.pictures - pictures_in(open_cells)
    if report:
        report(told)
    if not open_cells:
        return told
    known = b"".join(sorted(store.known()))
    held: list[Outcome] = []
    since = time.monotonic()
    try:
        with closing(executor(Job(plan, known), open_cells)) as outcomes:
            for outcome in outcomes:
                with deferred_signals():  # counted and to be written, or neither
                    held.append(outcome)
                    told.add(outcome)
                if time.monotonic() - since >= patience or told.done_cells == told.cells:
                    write(store, plan.run, held, asked, told)
                    since = time.monotonic()
                if report:
                    report(told)
    finally:
        write(store, plan.run, held, asked, told)  # also of a run that is interrupted
    return told


def write(store: Store, run: str, held: list[Outcome], asked: dict[int, str], told: Progress) -> None:
    """Write the outcomes that are held and count their new rows; a signal waits until both are done."""
    with deferred_signals():
        told.rows += store.record(run, held, asked) if held else 0
        held.clear()


def pictures_in(cells: Sequence[Cell]) -> int:
    return sum(len(cell.places) for cell in cells)


def missing_cells(plan: Plan, store: Store) -> list[int]:
    """Numbers of cells that the store does not know as a whole."""
    cells = cells_of(plan)
    finished = store.done(plan.run, asked_of(plan, cells))
    return [cell.number for cell in cells if cell.number not in finished]
