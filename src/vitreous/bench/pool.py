"""Executors: each takes a job and its cells and gives outcomes back, in whatever order they come. Who runs a cell changes no row."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch

from vitreous.bench.cells import Cell
from vitreous.bench.job import Job, Outcome
from vitreous.bench.plan import Plan
from vitreous.bench.run import run_cell
from vitreous.capture.threads import given_cores
from vitreous.core.errors import ModelError

Executor: TypeAlias = Callable[[Job, Sequence[Cell]], Iterator[Outcome]]
LOSSES = 3  # workers that one cell may take down before it is given up


def serial(job: Job, cells: Sequence[Cell]) -> Iterator[Outcome]:
    """Here, one after the other."""
    job = replace(job, device=devices(job.plan)[0])
    for cell in cells:
        yield run_cell(job, cell)


def processes(workers: int, threads: int | None = None) -> Executor:
    """So many processes; the cores are shared fairly among them, and GPUs go round."""
    return partial(run_processes, workers=workers, threads=threads)


def run_processes(job: Job, cells: Sequence[Cell], workers: int, threads: int | None = None) -> Iterator[Outcome]:
    each = max(1, cores() // workers) if threads is None else threads
    waiting, lost = list(reversed(cells)), dict.fromkeys((cell.number for cell in cells), 0)
    while waiting:
        with crew(job, min(workers, len(waiting)), each) as pool:
            flying: dict[Future[Outcome], Cell] = {}
            try:
                while waiting or flying:
                    while waiting and len(flying) < workers + 1:  # one in hand, so that nobody waits
                        cell = waiting.pop()
                        flying[pool.submit(work, cell)] = cell
                    for future in wait(flying, return_when=FIRST_COMPLETED).done:
                        found = future.result()
                        del flying[future]
                        yield found
            except BrokenProcessPool:
                yield from survivors(job, flying, lost, waiting)


def survivors(
    job: Job, flying: dict[Future[Outcome], Cell], lost: dict[int, int], waiting: list[Cell]
) -> Iterator[Outcome]:
    """A worker died: what was done is taken, the rest waits again, and a cell that keeps doing this is given up."""
    for future, cell in flying.items():
        if future.done() and not future.exception():
            yield future.result()
            continue
        lost[cell.number] += 1
        if lost[cell.number] < LOSSES:
            waiting.append(cell)
        else:
            yield given_up(job, cell)


def given_up(job: Job, cell: Cell) -> Outcome:
    model, data = job.plan.models[cell.model].label, job.plan.datasets[cell.dataset].label
    said = (
        f"a slice of {data} on {model} took its worker down {LOSSES} times (out of memory?); a smaller slice may work"
    )
    return Outcome(cell, model, data, failed=[said])


class crew:  # noqa: N801 - read as a word: with crew(…)
    """A pool that leaves nobody behind: not after an error, not after Ctrl-C, not when we are killed."""

    def __init__(self, job: Job, workers: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        arguments = (job, threads, devices(job.plan), context.Value("i", 0))
        self.pool = ProcessPoolExecutor(workers, context, initializer=begin, initargs=arguments)

    def __enter__(self) -> ProcessPoolExecutor:
        return self.pool

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            for process in list((self.pool._processes or {}).values()):
                process.terminate()
        self.pool.shutdown(wait=True, cancel_futures=True)


# ── in a worker ──────────────────────────────────────────────────────────────────────────────────

MINE: list[Job] = []


def begin(job: Job, threads: int, places: Sequence[str], counter: Any) -> None:
    """A worker's first moments: its threads, its device, and an eye on its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends us
    threading.Thread(target=leave_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    torch.set_num_threads(threads)
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    MINE[:] = [replace(job, device=places[number % len(places)])]


def leave_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def work(cell: Cell) -> Outcome:
    return run_cell(MINE[0], cell)


# ── what there is ────────────────────────────────────────────────────────────────────────────────


def cores() -> int:
    """Cores that we may use: what OMP_NUM_THREADS says, or what the system gives us."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdigit() and int(said):
        return int(said)
    return given_cores()


def devices(plan: Plan) -> list[str]:
    """The devices that workers take in turn: the plan's, or every GPU there is, or the CPU."""
    asked = plan.device
    if asked is None:
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    if asked != "cuda":
        return [asked]
    if not torch.cuda.is_available():
        raise ModelError("device 'cuda' is not available here; device 'cpu' would work")
    return [f"cuda:{place}" for place in range(torch.cuda.device_count())]
