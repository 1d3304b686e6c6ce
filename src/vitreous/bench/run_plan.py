"""Run a plan: compute the rows that the store lacks, write them as they arrive, and report progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from vitreous.bench.code_record import format_plan_code
from vitreous.bench.plan import Plan
from vitreous.bench.pool import Executor, run_serially
from vitreous.bench.signals import deferred_signals
from vitreous.bench.store import Store
from vitreous.bench.work_cells import (
    Outcome,
    PlanJob,
    WorkCell,
    fingerprint_cells,
    open_cached,
    select_shard,
    split_plan,
)

PATIENCE = 2.0  # seconds to collect outcomes before writing, to avoid many small files
CHECKPOINT = 30.0  # seconds of an unfinished cell's work that a killed run may lose, besides one metric of one method
MESSAGES = 100  # different error messages that are counted one by one


@dataclass(slots=True)
class RunProgress:
    """State of a run over images, of `vitreous bench` and `vitreous map`.

    Parameters
    ----------
    images
        Number of images; None if it is not known before they are read.
    done_images, known_images
        Images that are done, and those of them that were done before this run began.
    rows
        New rows.
    skipped
        Images that the dataset's protocol leaves out.
    failed
        Number of failures by error message, those of earlier runs included if their rows are kept.
    known_failed
        Those of earlier runs.
    mended
        Sentences on stored results that were damaged or stale, and are computed again.
    begun
        Start of the run on the monotonic clock.
    """

    images: int | None
    done_images: int = 0
    known_images: int = 0
    rows: int = 0
    skipped: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    known_failed: dict[str, int] = field(default_factory=dict)
    mended: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    @property
    def images_per_second(self) -> float:
        return (self.done_images - self.known_images) / max(time.monotonic() - self.begun, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Estimated remaining time; NaN if it is not known."""
        rate = self.images_per_second
        return (self.images - self.done_images) / rate if rate and self.images is not None else math.nan

    def add_failure(self, message: str, count: int = 1) -> None:
        """Count a failure; memory is bounded, whatever the number of broken images."""
        if message not in self.failed and len(self.failed) >= MESSAGES:
            message = "other errors"
        self.failed[message] = self.failed.get(message, 0) + count


@dataclass(slots=True)
class Progress(RunProgress):
    """State of a run of a plan; images of unfinished cells are not counted as done.

    Parameters
    ----------
    images, done_images, known_images, rows, skipped, failed, known_failed, mended, begun
        As for `RunProgress`.
    cells, done_cells
        Number of cells, and those that are finished, including those that the store had before.
    """

    cells: int = 0
    done_cells: int = 0

    def add(self, outcome: Outcome) -> None:
        self.done_cells += 1
        self.done_images += outcome.image_count
        self.skipped += outcome.skipped
        for sentence in outcome.failed:
            self.add_failure(sentence)


def execute(
    plan: Plan,
    store: Store,
    executor: Executor = run_serially,
    *,
    shard: str | None = None,
    recheck: bool = False,
    recompute: Collection[str] = (),
    patience: float = PATIENCE,
    checkpoint: float = CHECKPOINT,
    report: Callable[[Progress], object] | None = None,
) -> Progress:
    """Compute all rows of the plan that the store does not have.

    Parameters
    ----------
    plan, store
        What to compute and where to keep it.
    executor
        Runs the cells, see `vitreous.bench.pool` and `vitreous.bench.ray`.
    shard
        "i/n" to compute every n-th cell from the i-th on; None for all cells.
    recheck
        Whether to read the images of finished cells again and compute those that have changed. By default they are
        assumed to be unchanged.
    recompute
        Canonical specs of methods and metrics whose stored rows are removed and computed again.
    patience
        Seconds to collect outcomes of finished cells before writing them.
    checkpoint
        Seconds after which the rows of an unfinished cell are written.
    report
        Called with the progress before the first cell and after every cell.

    Returns
    -------
    Progress
    """
    mended = store.mend()
    if recompute:
        store.discard(recompute)
    open_cached.cache_clear()  # images may have been added to the folder since it was opened
    cells = split_plan(plan)
    own_cells = cells if shard is None else select_shard(cells, shard)
    store.begin(plan.run, plan.toml, {"cells": len(cells), "source": plan.source, "shard": shard})
    fingerprints = fingerprint_cells(plan, cells)
    store.forget(plan.run, fingerprints)
    finished = set() if recheck else store.done(plan.run)
    open_cells = [cell for cell in own_cells if cell.number not in finished]
    images, done = count_images(own_cells), count_images(own_cells) - count_images(open_cells)
    done_cells = len(own_cells) - len(open_cells)
    progress = Progress(images, done, done, cells=len(own_cells), done_cells=done_cells, mended=mended)
    if report:
        report(progress)
    if not open_cells:
        return progress
    known_keys = b"".join(sorted(store.known()))
    unwritten: list[Outcome] = []
    since = time.monotonic()
    try:
        with closing(executor(PlanJob(plan, known_keys, code=format_plan_code(plan)), open_cells)) as outcomes:
            for outcome in outcomes:
                with deferred_signals():  # keeps the count and the list of outcomes consistent
                    unwritten.append(outcome)
                    if outcome.is_complete:
                        progress.add(outcome)
                wait = patience if outcome.is_complete else checkpoint
                if time.monotonic() - since >= wait or progress.done_cells == progress.cells:
                    write_outcomes(store, plan.run, unwritten, fingerprints, progress)
                    since = time.monotonic()
                if report and outcome.is_complete:
                    report(progress)
    finally:
        # keeps what is finished when the run is interrupted
        write_outcomes(store, plan.run, unwritten, fingerprints, progress)
    return progress


def write_outcomes(
    store: Store, run: str, unwritten: list[Outcome], fingerprints: dict[int, str], progress: Progress
) -> None:
    """Write the collected outcomes and count their new rows; stop signals are deferred until both are done."""
    with deferred_signals():
        progress.rows += store.record(run, unwritten, fingerprints) if unwritten else 0
        unwritten.clear()


def count_images(cells: Sequence[WorkCell]) -> int:
    """Total number of images of some cells."""
    return sum(len(cell.places) for cell in cells)


def list_missing_cells(plan: Plan, store: Store) -> list[int]:
    """Numbers of the cells that are not finished: rows are missing or failed, or the fingerprint has changed."""
    cells = split_plan(plan)
    finished = store.done(plan.run, fingerprint_cells(plan, cells))
    return [cell.number for cell in cells if cell.number not in finished]
