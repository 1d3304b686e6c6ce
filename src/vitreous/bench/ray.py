"""Executor that runs cells on a Ray cluster.

Workers only compute and return outcomes; the driver alone writes to the store, so that no row is lost or written twice.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from vitreous.bench.pool import LOSSES, Executor, count_cores, make_failed_outcome
from vitreous.bench.run import run_cell
from vitreous.bench.work_cells import Outcome, PlanJob, WorkCell
from vitreous.core.errors import DataError, SpecError

FETCHED: dict[str, Any] = {}  # in a worker: the object that it fetched last, by the name of its reference


def on_ray(address: str, workers: int | None = None, threads: int = 1, gpus: float | None = None) -> Executor:
    """Executor that runs cells on a Ray cluster.

    Parameters
    ----------
    address
        "auto" for the cluster that runs on this machine, "local" to start one for this run, or host:port.
    workers
        Number of cells in flight, and the number of CPUs of a "local" cluster; None for twice as many cells as the
        cluster can run at once.
    threads
        Number of CPUs and torch threads per cell.
    gpus
        GPUs per cell; None for 1 if the plan's device is CUDA, otherwise 0.
    """
    return partial(run_on_ray, address=address, workers=workers, threads=threads, gpus=gpus)


def run_on_ray(
    job: PlanJob, cells: Sequence[WorkCell], address: str, workers: int | None, threads: int, gpus: float | None
) -> Generator[Outcome, None, None]:
    """Submit cells to Ray and yield their outcomes; Ray retries a cell up to `LOSSES` times when its worker dies."""
    with ray_session(address, workers) as ray:
        share = gpus if gpus is not None else float(str(job.plan.device).startswith("cuda"))
        # a stream: a task that is retried yields the same outcomes again, and goes on after those that were fetched
        options = {"num_cpus": threads, "num_gpus": share, "max_retries": LOSSES, "num_returns": "streaming"}
        task = ray.remote(**options)(run_in_worker)
        job = replace(job, device="cuda" if share else job.plan.device or "cpu")
        job_reference, waiting, running = [ray.put(job)], list(reversed(cells)), {}
        while waiting or running:
            while waiting and len(running) < (workers or 2 * count_slots(ray, threads, share)):
                cell = waiting.pop()
                running[task.remote(job_reference, cell, threads)] = cell
            ready, _ = ray.wait(list(running), num_returns=1)
            for stream in ready:
                cell = running.pop(stream)
                try:
                    outcome = ray.get(next(stream))
                    if not outcome.is_complete:
                        running[stream] = cell
                    yield outcome
                except (
                    ray.exceptions.WorkerCrashedError,
                    ray.exceptions.OutOfMemoryError,
                    ray.exceptions.NodeDiedError,
                ):
                    yield make_failed_outcome(job, cell)
                except ray.exceptions.RayTaskError as problem:
                    raise problem.cause if problem.cause is not None else problem from None


def run_in_worker(job_reference: list[Any], cell: WorkCell, threads: int) -> Iterator[Outcome]:
    """Run a cell in a worker and yield its outcomes; models and datasets stay open between cells."""
    import torch

    torch.set_num_threads(threads)
    yield from run_cell(fetch_once(job_reference), cell)


def fetch_once(reference: list[Any]) -> Any:
    """The object that a reference stands for, fetched once per worker; outside of a list, Ray fetches it for every task."""
    import ray

    name = reference[0].hex()
    if name not in FETCHED:
        FETCHED.clear()
        FETCHED[name] = ray.get(reference[0])
    return FETCHED[name]


@contextmanager
def ray_session(address: str, workers: int | None) -> Iterator[Any]:
    """Context manager for the module `ray`, connected to a cluster; a connection that exists is used and kept."""
    ray = need_ray()
    if ray.is_initialized():
        yield ray
        return
    handler = signal.getsignal(signal.SIGTERM)
    connect(ray, address, workers)
    # Ray replaces the handler by one that exits the process; `ray.shutdown` ends Ray's processes
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def need_ray() -> Any:
    """Import Ray; raise `DataError` with the command that installs it if it is missing."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise DataError("--ray needs Ray: pip install 'vitreous[ray]'") from None
    return ray


def connect(ray: Any, address: str, workers: int | None) -> None:
    """Start a local cluster or connect to one; raise `SpecError` if it does not answer."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=workers or count_cores(), include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        return
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as problem:
        message = str(problem).strip().splitlines()[0][:200] if str(problem).strip() else type(problem).__name__
        raise SpecError(
            f"--ray {address}: no Ray cluster answers there ({message}); `ray start --head` starts one, and --ray local needs none"
        ) from None


def count_slots(ray: Any, threads: int, gpus: float) -> int:
    """Number of cells that the cluster can run at once; it may change during the run."""
    resources = ray.cluster_resources()
    room = resources.get("CPU", 1) // threads
    return max(1, int(min(room, resources.get("GPU", 0) // gpus) if gpus else room))
