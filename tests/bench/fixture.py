"""A small plan on the embedded model, and a store that it filled: a second or two of work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitreous.bench.plan import Plan
from vitreous.bench.plan_parser import plan_from_flags
from vitreous.bench.pool import Executor, run_serially
from vitreous.bench.rows import COSTS
from vitreous.bench.run import run_cell
from vitreous.bench.run_plan import Progress, execute
from vitreous.bench.store import Store
from vitreous.bench.work_cells import Outcome, PlanJob, WorkCell

SMALL: dict[str, Any] = {
    "models": ["scenes"],
    "datasets": ["scenes:single?count=4"],
    "methods": ["genatt", "random"],
    "metrics": ["deletion_aopc(ratios=(0.25, 0.5, 0.75))", "pointing_game", "sparseness"],
    "slice": 2,
    "device": "cpu",
}


def small_plan(**changes: Any) -> Plan:
    return plan_from_flags(**{**SMALL, **changes})


def fill(folder: Path, executor: Executor = run_serially, **changes: Any) -> Progress:
    """Run the small plan, with changes, into a store."""
    with Store(folder) as store:
        return execute(small_plan(**changes), store, executor)


def small_store(folder: Path, **changes: Any) -> Store:
    """An open store that holds one run of the small plan: 4 images × 2 methods × 3 metrics, and the maps."""
    fill(folder, **changes)
    return Store(folder)


def compute_cell(job: PlanJob, cell: WorkCell) -> Outcome:
    """The outcome of a cell with all of its rows."""
    *parts, outcome = run_cell(job, cell)
    for kind, rows in outcome.rows.items():
        rows[:0] = [row for part in parts for row in part.rows[kind]]
    return outcome


def told(folder: Path, kind: str = "scores") -> list[dict[str, Any]]:
    """The last run's table without times, which must not depend on the worker."""
    with Store(folder, create=False) as store:
        return [{k: repr(v) for k, v in row.items() if k not in COSTS} for row in store.table(kind=kind).to_pylist()]
