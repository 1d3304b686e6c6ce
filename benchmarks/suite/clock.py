"""Time and memory of two functions that are called alternately.

On a CPU, time is process time (of all threads), which is independent of other processes, and memory is that of torch's allocator: the
maximum of the running sum of the profiler's memory events, in a separate call; buffers of oneDNN or BLAS are not included. On a CUDA
device, time is wall time with synchronisation, and memory is `max_memory_allocated`. Memory that was allocated before the call, such
as weights, is not counted.
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

from suite.case import Case
from suite.row import Row
from suite.workload import Workload

Work = Callable[[], object]


def measure_seconds(work: Work, device: str) -> float:
    cuda = device.startswith("cuda")
    now = time.perf_counter if cuda else time.process_time
    synchronise(cuda)
    start = now()
    work()
    synchronise(cuda)
    return now() - start


def synchronise(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def measure_peak(work: Work, device: str) -> int:
    """Peak of the memory that a call allocates, in bytes."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    return find_peak(list_allocations(profiler))


def measure_warm_peak(work: Work, device: str, short: float = 1.0) -> int:
    """Peak of a second call on a GPU, if the first was short: libraries allocate their workspaces in the first call."""
    start = time.perf_counter()
    first_peak = measure_peak(work, device)
    return (
        measure_peak(work, device) if device.startswith("cuda") and time.perf_counter() - start < short else first_peak
    )


def list_allocations(profiler: profile) -> list[int]:
    """Bytes that torch's CPU allocator allocated (+) and freed (−), in the order of time."""
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    cpu = torch.autograd.DeviceType.CPU
    return [
        e.nbytes()
        for e in sorted(events, key=lambda e: e.start_ns())
        if e.name() == "[memory]" and e.device_type() == cpu
    ]


def find_peak(steps: list[int]) -> int:
    total = most = 0
    for step in steps:
        total += step
        most = max(most, total)
    return most


def alternate(ours: Work, theirs: Work, device: str, rounds: int, cap: float = math.inf) -> list[tuple[float, float]]:
    """Seconds of both functions, called alternately `rounds` times or as often as `cap` seconds allow, at least once."""
    rounds_seconds, start = [], time.perf_counter()
    while not rounds_seconds or (
        len(rounds_seconds) < rounds and (time.perf_counter() - start) * (1 + 1 / len(rounds_seconds)) < cap
    ):
        rounds_seconds.append((measure_seconds(ours, device), measure_seconds(theirs, device)))
    return rounds_seconds


def measure_case(case: Case, workload: Workload, rounds: int, cap: float = math.inf) -> Row:
    """Measure a case; an exception becomes a row with its message."""
    row = Row.from_case(case, workload)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for side, work in (
                ("theirs", case.theirs),
                ("ours", case.ours),
            ):  # first, so that a missing package fails at once
                row.error = side  # until it has run
                row.peaks[side] = measure_warm_peak(work, workload.device)  # not timed; also the warm-up
            row.error = "agreement"
            row.agreement = None if case.agree is None else float(case.agree())
            row.error = "turns"
            rounds_seconds = alternate(case.ours, case.theirs, workload.device, rounds, cap)
        except Exception as problem:  # noqa: BLE001 - an error of another tool must not stop the run
            row.error = f"{row.error}: {format_error(problem)}"
        else:
            row.error = None
            row.set_rounds(rounds_seconds)
    gc.collect()
    if workload.cuda:
        torch.cuda.empty_cache()
    return row


def format_error(problem: BaseException) -> str:
    """Type and first line of an exception."""
    lines = re.sub(r" \(/\S*\)", "", str(problem)).strip().splitlines()  # paths differ between machines
    return f"{type(problem).__name__}: {lines[0][:200]}" if lines else type(problem).__name__
