"""Where a row spends its time, operator by operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

from suite.bed import Bed
from suite.case import Case


def profiled(case: Case, bed: Bed, rows: int = 12) -> str:
    """The operators that take most of either side, by their own time."""
    parts = [f"{case.what} against {case.against}, {bed.size}, batch {bed.batch}"]
    for side, work in (("ours", case.ours), ("theirs", case.theirs)):
        parts += ["", side, operators(work, bed.cuda, rows)]
    return "\n".join(parts)


def operators(work: Callable[[], object], cuda: bool, rows: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        with profile(activities=kinds) as seen:
            work()
    spent = "self_device_time_total" if cuda else "self_cpu_time_total"
    events = sorted(seen.key_averages(), key=lambda one: getattr(one, spent), reverse=True)
    total = sum(getattr(one, spent) for one in events) or 1
    lines = ["| operator | calls | ms | share |", "|---|---|---|---|"]
    for one in events[:rows]:
        own = getattr(one, spent)
        lines.append(f"| `{one.key}` | {one.count} | {own / 1000:.1f} | {own / total:.0%} |")
    return "\n".join([*lines, f"| all | {sum(one.count for one in events)} | {total / 1000:.1f} | |"])
