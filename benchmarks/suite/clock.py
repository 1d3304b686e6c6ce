"""Seconds and bytes of two pieces of work that take turns.

On a CPU seconds are the process's own (all its threads), so that what else runs there does not count, and bytes are those of torch's
allocator: the running sum of the profiler's memory events, in a call of its own; what oneDNN or BLAS keep for themselves is not seen.
On a CUDA device seconds are on the clock, with the device waited for, and bytes are `max_memory_allocated`. Both above what was
there before the call, so that weights do not count.
"""

from __future__ import annotations

import gc
import math
import re
import time
import warnings
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from suite.bed import Bed
from suite.case import Case
from suite.row import Row

Work = Callable[[], object]


def seconds(work: Work, device: str) -> float:
    cuda = device.startswith("cuda")
    now = time.perf_counter if cuda else time.process_time
    settle(cuda)
    start = now()
    work()
    settle(cuda)
    return now() - start


def settle(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def peak(work: Work, device: str) -> int:
    """Bytes above those before the call, at the worst moment of it."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    return highest(moves(profiler))


def warm_peak(work: Work, device: str, short: float = 1.0) -> int:
    """Libraries take their workspaces on a GPU in the first call: it is weighed again, where it is short enough to matter."""
    begun = time.perf_counter()
    first_peak = peak(work, device)
    return peak(work, device) if device.startswith("cuda") and time.perf_counter() - begun < short else first_peak


def moves(profiler: profile) -> list[int]:
    """What torch's CPU allocator gave (+) and took back (−), in the order of time."""
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    cpu = torch.autograd.DeviceType.CPU
    return [
        e.nbytes()
        for e in sorted(events, key=lambda e: e.start_ns())
        if e.name() == "[memory]" and e.device_type() == cpu
    ]


def highest(steps: list[int]) -> int:
    total = most = 0
    for step in steps:
        total += step
        most = max(most, total)
    return most


def turns(ours: Work, theirs: Work, device: str, rounds: int, cap: float = math.inf) -> list[tuple[float, float]]:
    """Seconds of both, one after the other, `rounds` times, or as often as `cap` seconds allow; once at least."""
    rounds_seconds, begun = [], time.perf_counter()
    while not rounds_seconds or (
        len(rounds_seconds) < rounds and (time.perf_counter() - begun) * (1 + 1 / len(rounds_seconds)) < cap
    ):
        rounds_seconds.append((seconds(ours, device), seconds(theirs, device)))
    return rounds_seconds


def measured(case: Case, bed: Bed, rounds: int, cap: float = math.inf) -> Row:
    """The row of a case; what raises becomes a row that says so."""
    row = Row.of(case, bed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for side, work in (
                ("theirs", case.theirs),
                ("ours", case.ours),
            ):  # a peer that is not there says so at once
                row.error = side  # until it has run
                row.peaks[side] = warm_peak(work, bed.device)  # untimed: this is what warms up
            row.error = "agreement"
            row.agreement = None if case.agree is None else float(case.agree())
            row.error = "turns"
            rounds_seconds = turns(case.ours, case.theirs, bed.device, rounds, cap)
        except Exception as problem:  # noqa: BLE001 - whatever a peer may raise is a row, never the end of the run
            row.error = f"{row.error}: {error_line(problem)}"
        else:
            row.error = None
            row.take(rounds_seconds)
    gc.collect()
    if bed.cuda:
        torch.cuda.empty_cache()
    return row


def error_line(problem: BaseException) -> str:
    """What went wrong, in one line."""
    lines = re.sub(r" \(/\S*\)", "", str(problem)).strip().splitlines()  # where a file lies is one machine's
    return f"{type(problem).__name__}: {lines[0][:200]}" if lines else type(problem).__name__
