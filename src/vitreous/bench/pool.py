"""Executors: functions that run the cells of a job and yield outcomes in any order.

The rows do not depend on the executor.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

import torch

from vitreous.bench.child_processes import ChildProcesses
from vitreous.bench.run import run_cell
from vitreous.bench.work_cells import Outcome, PlanJob, WorkCell
from vitreous.capture.threads import given_cores
from vitreous.core.errors import Caveat, ModelError

if TYPE_CHECKING:
    from vitreous.bench.plan import Plan

Executor: TypeAlias = Callable[[PlanJob, Sequence[WorkCell]], Generator[Outcome, None, None]]
POLL = 1.0  # seconds between two looks at the rows of unfinished cells
LOSSES = 3  # number of workers that may die on one cell before it is reported as failed


def run_serially(job: PlanJob, cells: Sequence[WorkCell]) -> Generator[Outcome, None, None]:
    """Run the cells one after the other in this process."""
    job = replace(job, device=list_devices(job.plan)[0])
    for cell in cells:
        yield from run_cell(job, cell)


def processes(workers: int, threads: int | None = None) -> Executor:
    """Executor that runs cells in worker processes on this machine.

    Parameters
    ----------
    workers
        Number of processes; GPUs are assigned to them in turn.
    threads
        Number of torch threads per process; None divides the available cores evenly.
    """
    return partial(run_processes, workers=workers, threads=threads)


def run_processes(
    job: PlanJob, cells: Sequence[WorkCell], workers: int, threads: int | None = None
) -> Generator[Outcome, None, None]:
    """Run cells in processes; each has a thread here, which gives it a cell and waits for its outcomes."""
    threads_each = max(1, count_cores() // workers) if threads is None else threads
    devices, idle, incomplete = list_devices(job.plan), SimpleQueue[int](), SimpleQueue[Outcome]()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="vitreous-worker")
    try:
        with ChildProcesses("vitreous.bench.pool", "vitreous.models.timm") as children:

            def start(number: int) -> None:
                own_job = replace(job, device=devices[number % len(devices)])
                children.start(number, compute_cells, own_job, threads=threads_each, daemon=False)

            def compute(cell: WorkCell) -> Outcome:
                number = idle.get()
                try:
                    for _ in range(LOSSES):
                        try:
                            outcome: Outcome = children.call(number, cell)
                            while not outcome.is_complete:
                                incomplete.put(outcome)
                                outcome = children.next_message(number)
                            return outcome
                        except EOFError:  # it died
                            start(number)
                    return make_failed_outcome(job, cell)
                finally:
                    idle.put(number)

            for number in range(min(workers, len(cells))):
                start(number)
                idle.put(number)
            waiting, running = iter(cells), set[Future[Outcome]]()
            while True:  # one cell more than workers is submitted, so that none of them is idle
                running |= {pool.submit(compute, cell) for cell in islice(waiting, workers + 1 - len(running))}
                if not running:
                    break
                done, running = wait(running, timeout=POLL, return_when=FIRST_COMPLETED)
                while not incomplete.empty():
                    yield incomplete.get()
                yield from (future.result() for future in done)
    finally:
        pool.shutdown(cancel_futures=True)


def compute_cells(pipe: Connection, job: PlanJob) -> None:
    """Body of a worker: receive cells and send their outcomes."""
    warnings.simplefilter("ignore", Caveat)  # the parent has already issued the same warnings
    while True:
        for outcome in run_cell(job, pipe.recv()):
            pipe.send(outcome)


def make_failed_outcome(job: PlanJob, cell: WorkCell) -> Outcome:
    """Outcome of a cell whose worker died `LOSSES` times."""
    model, data = job.plan.models[cell.model].label, job.plan.datasets[cell.dataset].label
    message = (
        f"a slice of {data} on {model} took its worker down {LOSSES} times (out of memory?); a smaller slice may work"
    )
    return Outcome(cell, model, data, failed=[message])


# ── resources ────────────────────────────────────────────────────────────────────────────────────


def count_cores() -> int:
    """Number of cores to use: OMP_NUM_THREADS if it is set, otherwise what the system allows."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and int(limit):
        return int(limit)
    return given_cores()


def list_devices(plan: Plan) -> list[str]:
    """Devices that workers are assigned to in turn: the plan's device, or all GPUs, or the CPU.

    Raises
    ------
    ModelError
        If the plan asks for CUDA and it is not available.
    """
    device = plan.device
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device != "cuda":
        return [device]
    if not torch.cuda.is_available():
        raise ModelError("device 'cuda' is not available here; device 'cpu' would work")
    return [f"cuda:{place}" for place in range(torch.cuda.device_count())]
