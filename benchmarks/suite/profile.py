"""Where a row spends its time, operator by operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from suite.bed import Bed
from suite.case import Case
from suite.clock import seconds
from suite.row import Row


def profiled(case: Case, bed: Bed, rows: int = 12) -> str:
    """The operators that take most of either side, by their own time."""
    parts = [f"{case.what} against {case.against}, {bed.size}, batch {bed.batch}"]
    for side, work in (("ours", case.ours), ("theirs", case.theirs)):
        parts += ["", side, "", operators(work, bed.cuda, rows)]
        parts += [f"\n{side}, without a profiler: {1000 * seconds(work, bed.device):.1f} ms"]
    return "\n".join(parts)


def slowest(rows: Iterable[Row], sizes: Collection[str], count: int = 3) -> list[Row]:
    """Of these sizes, the rows beside a floor or themselves that come nearest to their targets, or miss them by most; a name once."""
    judged: dict[str, Row] = {}
    for row in sorted((row for row in rows if row.size in sizes and strain(row)), key=strain, reverse=True):
        judged.setdefault(row.what, row)
    return list(judged.values())[:count]


def strain(row: Row) -> float:
    """How much of what its target allows a row takes: more than 1 is too much."""
    if row.ratio is None or row.error is not None or row.unit or row.group in ("peers", "stand-ins"):
        return 0.0
    return max(row.ratio / row.targets.get("at_most", float("inf")), row.ratio * row.targets.get("at_least", 0.0))


def operators(work: Callable[[], object], cuda: bool, rows: int) -> str:
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
