"""Executors: functions that run the cells of a job and yield outcomes in any order.

The rows do not depend on the executor.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from vitreous.bench.run import run_cell
from vitreous.bench.signals import children_ignore_terminal, deferred_signals
from vitreous.bench.work_cells import Outcome, PlanJob, WorkCell
from vitreous.capture.threads import given_cores
from vitreous.core.errors import Caveat, ModelError

if TYPE_CHECKING:
    from vitreous.bench.plan import Plan

Executor: TypeAlias = Callable[[PlanJob, Sequence[WorkCell]], Generator[Outcome, None, None]]
LOSSES = 3  # number of workers that may die on one cell before it is reported as failed


def run_serially(job: PlanJob, cells: Sequence[WorkCell]) -> Generator[Outcome, None, None]:
    """Run the cells one after the other in this process."""
    job = replace(job, device=list_devices(job.plan)[0])
    for cell in cells:
        yield run_cell(job, cell)


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
    """Run cells in a pool of processes; start a new pool when a worker dies."""
    threads_each = max(1, count_cores() // workers) if threads is None else threads
    waiting, loss_counts = list(reversed(cells)), dict.fromkeys((cell.number for cell in cells), 0)
    while waiting:
        with WorkerPool(job, min(workers, len(waiting)), threads_each) as pool:
            running: dict[Future[Outcome], WorkCell] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < workers + 1:  # one more than workers, so that none is idle
                        cell = waiting.pop()
                        running[submit(pool, cell)] = cell
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        outcome = future.result()
                        del running[future]
                        yield outcome
            except BrokenProcessPool:
                yield from requeue_unfinished(job, running, loss_counts, waiting)


def submit(pool: ProcessPoolExecutor, cell: WorkCell) -> Future[Outcome]:
    """Submit a cell, which may start a worker.

    Stop signals are deferred, since an interruption while a worker starts would leave it running.
    """
    with deferred_signals(), children_ignore_terminal():
        return pool.submit(run_in_worker, cell)


def requeue_unfinished(
    job: PlanJob, running: dict[Future[Outcome], WorkCell], loss_counts: dict[int, int], waiting: list[WorkCell]
) -> Iterator[Outcome]:
    """Yield the outcomes that were finished when a worker died, and put the other cells back on `waiting`.

    A cell that was running when a worker died for the `LOSSES`-th time is reported as failed instead.
    """
    for future, cell in running.items():
        if future.done() and not future.exception():
            yield future.result()
            continue
        loss_counts[cell.number] += 1
        if loss_counts[cell.number] < LOSSES:
            waiting.append(cell)
        else:
            yield make_failed_outcome(job, cell)


def make_failed_outcome(job: PlanJob, cell: WorkCell) -> Outcome:
    """Outcome of a cell whose worker died `LOSSES` times."""
    model, data = job.plan.models[cell.model].label, job.plan.datasets[cell.dataset].label
    message = (
        f"a slice of {data} on {model} took its worker down {LOSSES} times (out of memory?); a smaller slice may work"
    )
    return Outcome(cell, model, data, failed=[message])


def choose_process_context(*modules: str) -> ForkServerContext | SpawnContext:
    """Start method of worker processes.

    On Linux, workers are forked from a server process, which imports `modules` once for all of them and never uses a GPU.
    The server of the first call in a process serves all later ones, and keeps the environment variables of that time:
    `become_worker` sets those of the parent. Elsewhere every worker is a new process.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    with children_ignore_terminal():
        resource_tracker.ensure_running()  # its start ends with SIGINT unblocked in this process
    with children_ignore_terminal():  # workers inherit the mask of the server
        forkserver.ensure_running()
    return context


class WorkerPool:
    """Context manager for a pool of worker processes.

    No worker outlives it: they are ended on exit, also after an error or a signal, and end themselves if this process
    is killed.
    """

    def __init__(self, job: PlanJob, workers: int, threads: int) -> None:
        context = choose_process_context("vitreous.bench.pool", "vitreous.models.timm")
        with children_ignore_terminal():  # the semaphore tracker ignores SIGINT and SIGTERM, but not SIGHUP
            counter = context.Value("i", 0)
        arguments = (job, threads, dict(os.environ), list_devices(job.plan), counter)
        self.pool = ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=arguments)

    def __enter__(self) -> ProcessPoolExecutor:
        return self.pool

    def __exit__(self, kind: Any, *_: Any) -> None:
        with deferred_signals():
            if kind is not None:
                self.kill_workers()
            self.pool.shutdown(wait=True, cancel_futures=True)

    def kill_workers(self) -> None:
        """Kill all workers; this is safe at any time, since workers write no files."""
        processes = list((self.pool._processes or {}).values())
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        # while a writer is open, the pool would wait for the rest of a message that a killed worker did not finish
        results: Any = self.pool._result_queue
        results._writer.close()


# ── in a worker ──────────────────────────────────────────────────────────────────────────────────

WORKER_JOB: list[PlanJob] = []


def start_worker(
    job: PlanJob, threads: int, environment: Mapping[str, str], places: Sequence[str], counter: Any
) -> None:
    """Initialise a worker: signals, threads, environment, device, and a thread that ends it when its parent has died."""
    become_worker(threads, environment)
    warnings.simplefilter("ignore", Caveat)  # the parent has already issued the same warnings
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    WORKER_JOB[:] = [replace(job, device=places[number % len(places)])]


def become_worker(threads: int, environment: Mapping[str, str]) -> None:
    """Prepare a child process: it ignores SIGINT, has `threads` torch threads, and ends when its parent has died.

    `environment` has the environment variables of the parent, which may have changed since the server started.
    """
    set_environment(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles SIGINT and terminates the workers
    threading.Thread(target=exit_with_parent, args=(multiprocessing.parent_process(),), daemon=True).start()
    torch.set_num_threads(threads)


def set_environment(environment: Mapping[str, str]) -> None:
    """Replace the environment variables of this process."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def exit_with_parent(parent: Any) -> None:
    """Exit when the parent process has ended."""
    parent.join()
    os._exit(1)


def run_in_worker(cell: WorkCell) -> Outcome:
    """Run a cell in a worker."""
    return run_cell(WORKER_JOB[0], cell)


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
