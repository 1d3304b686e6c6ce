"""Executors: each takes a job and its cells and gives outcomes back, in whatever order they come. Who runs a cell changes no row."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
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
from vitreous.bench.signals import children_ignore_terminal, deferred_signals
from vitreous.capture.threads import given_cores
from vitreous.core.errors import Caveat, ModelError

Executor: TypeAlias = Callable[[Job, Sequence[Cell]], Generator[Outcome, None, None]]
LOSSES = 3  # workers that one cell may take down before it is given up


def serial(job: Job, cells: Sequence[Cell]) -> Generator[Outcome, None, None]:
    """Here, one after the other."""
    job = replace(job, device=devices(job.plan)[0])
    for cell in cells:
        yield run_cell(job, cell)


def processes(workers: int, threads: int | None = None) -> Executor:
    """So many processes; the cores are shared fairly among them, and GPUs go round."""
    return partial(run_processes, workers=workers, threads=threads)


def run_processes(
    job: Job, cells: Sequence[Cell], workers: int, threads: int | None = None
) -> Generator[Outcome, None, None]:
    each = max(1, cores() // workers) if threads is None else threads
    waiting, lost = list(reversed(cells)), dict.fromkeys((cell.number for cell in cells), 0)
    while waiting:
        with crew(job, min(workers, len(waiting)), each) as pool:
            flying: dict[Future[Outcome], Cell] = {}
            try:
                while waiting or flying:
                    while waiting and len(flying) < workers + 1:  # one in hand, so that nobody waits
                        cell = waiting.pop()
                        flying[submit(pool, cell)] = cell
                    for future in wait(flying, return_when=FIRST_COMPLETED).done:
                        found = future.result()
                        del flying[future]
                        yield found
            except BrokenProcessPool:
                yield from survivors(job, flying, lost, waiting)


def submit(pool: ProcessPoolExecutor, cell: Cell) -> Future[Outcome]:
    """Submit a cell, which may start a worker; an interruption in the middle of that would leave the worker behind."""
    with deferred_signals(), children_ignore_terminal():
        return pool.submit(work, cell)


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
    """A pool of worker processes; none of them outlives it, whether it ends by an error, a signal or a kill."""

    def __init__(self, job: Job, workers: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        with children_ignore_terminal():  # the tracker of semaphores ignores SIGINT and SIGTERM, and not SIGHUP
            counter = context.Value("i", 0)
        arguments = (job, threads, devices(job.plan), counter)
        self.pool = ProcessPoolExecutor(workers, context, initializer=begin, initargs=arguments)

    def __enter__(self) -> ProcessPoolExecutor:
        return self.pool

    def __exit__(self, kind: Any, *_: Any) -> None:
        with deferred_signals():
            if kind is not None:
                self.kill_workers()
            self.pool.shutdown(wait=True, cancel_futures=True)

    def kill_workers(self) -> None:
        """Workers write no files, so they can be killed at any moment."""
        processes = list((self.pool._processes or {}).values())
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        # of a message that a worker had not finished the pool would wait for the rest, as long as a writer is open
        results: Any = self.pool._result_queue
        results._writer.close()


# ── in a worker ──────────────────────────────────────────────────────────────────────────────────

MINE: list[Job] = []


def begin(job: Job, threads: int, places: Sequence[str], counter: Any) -> None:
    """Prepare a worker: threads, device, and a thread that ends it when its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles SIGINT and ends the workers
    warnings.simplefilter("ignore", Caveat)  # the parent has opened the same models and datasets, and said it
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
