"""Time of a row by operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from suite.case import Case
from suite.clock import measure_seconds
from suite.row import Row
from suite.workload import Workload


def profile_case(case: Case, workload: Workload, rows: int = 12) -> str:
    """The operators with the largest self time, of both sides."""
    parts = [f"{case.what} against {case.against}, {workload.size}, batch {workload.batch}"]
    for side, work in (("ours", case.ours), ("theirs", case.theirs)):
        parts += ["", side, "", list_operators(work, workload.cuda, rows)]
        parts += [f"\n{side}, without a profiler: {1000 * measure_seconds(work, workload.device):.1f} ms"]
    return "\n".join(parts)


def find_slowest(rows: Iterable[Row], sizes: Collection[str], count: int = 3) -> list[Row]:
    """Rows of these sizes that are closest to their targets or miss them most; each method once, without other tools."""
    judged: dict[str, Row] = {}
    for row in sorted(
        (row for row in rows if row.size in sizes and compute_strain(row)), key=compute_strain, reverse=True
    ):
        judged.setdefault(row.what, row)
    return list(judged.values())[:count]


def compute_strain(row: Row) -> float:
    """Ratio of a row to its target: more than 1 is a miss."""
    if row.ratio is None or row.error is not None or row.unit or row.group in ("peers", "stand-ins"):
        return 0.0
    return max(row.ratio / row.targets.get("at_most", float("inf")), row.ratio * row.targets.get("at_least", 0.0))


def list_operators(work: Callable[[], object], cuda: bool, rows: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        with profile(activities=kinds) as profiler:
            work()
    spent = "self_device_time_total" if cuda else "self_cpu_time_total"
    named = [
        event for event in profiler.key_averages() if event.device_type == DeviceType.CPU
    ]  # kernels' time is their operators'
    events = sorted(named, key=lambda event: getattr(event, spent), reverse=True)
    total = sum(getattr(event, spent) for event in events) or 1
    lines = ["| operator | calls | ms | share |", "|---|---|---|---|"]
    for event in events[:rows]:
        own = getattr(event, spent)
        lines.append(f"| `{event.key}` | {event.count} | {own / 1000:.1f} | {own / total:.0%} |")
    return "\n".join([*lines, f"| all | {sum(event.count for event in events)} | {total / 1000:.1f} | |"])
