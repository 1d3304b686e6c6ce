"""Several model replicas on one machine: processes that each compute a share of the shards into the same folder."""

from __future__ import annotations

import multiprocessing
import queue
from collections import Counter
from pathlib import Path
from typing import Any, Unpack

import torch

from vitreous.bench.pool import LOSSES, become_worker, count_cores
from vitreous.bench.signals import children_ignore_terminal, deferred_signals, stop_signals
from vitreous.core.errors import DataError
from vitreous.mapping.job import MapJob, Share
from vitreous.mapping.run import MapOptions, MapProgress, begin_run, run_map


def run_replicas(job: MapJob, folder: Path, workers: int, **options: Unpack[MapOptions]) -> MapProgress:
    """As `run_map`, by `workers` processes; GPUs are assigned to them in turn.

    A process that dies is started again, and goes on where it was.

    Raises
    ------
    DataError
        If one process dies `LOSSES` times.
    """
    _, _, progress = begin_run(job, folder, options)
    device, report = options.get("device"), options.get("report")
    shared: MapOptions = {"batch_size": options.get("batch_size"), "decoding": options.get("decoding")}
    context = multiprocessing.get_context("spawn")
    with children_ignore_terminal():
        messages: Any = context.Queue()
    threads = max(1, count_cores() // workers)
    gpus = torch.cuda.device_count() if (device or "cuda") == "cuda" else 0

    def start(number: int) -> Any:
        replica_options: MapOptions = {**shared, "device": f"cuda:{number % gpus}" if gpus else device or "cpu"}
        arguments = (job, folder, Share(number, workers), threads, messages, replica_options)
        process = context.Process(target=run_replica, args=arguments, daemon=False)
        with deferred_signals(), children_ignore_terminal():
            process.start()
        return process

    running = {number: start(number) for number in range(workers)}
    reports: dict[int, MapProgress] = {}  # the last one of every process
    losses = Counter[int]()
    try:
        while running:
            try:
                number, message = messages.get(timeout=0.5)
            except queue.Empty:
                for number in [number for number, process in running.items() if process.exitcode is not None]:
                    losses[number] += 1
                    if losses[number] >= LOSSES:
                        raise DataError(
                            f"replica {number} died {LOSSES} times (out of memory?); fewer --workers or a smaller --batch-size may work"
                        ) from None
                    reports.pop(number, None)
                    running[number] = start(number)
                continue
            if isinstance(message, BaseException):
                raise message
            if message is None:
                running.pop(number).join()
                continue
            add_difference(progress, reports.get(number, MapProgress(None)), message)
            reports[number] = message
            if report:
                report(progress)
    finally:
        for process in running.values():
            process.terminate()  # they save what they have
        for process in running.values():
            process.join()
    return progress


def add_difference(progress: MapProgress, before: MapProgress, after: MapProgress) -> None:
    """Add what a replica has done between two of its reports."""
    progress.done_images += (after.done_images - after.known_images) - (before.done_images - before.known_images)
    progress.rows += after.rows - before.rows
    progress.skipped += after.skipped - before.skipped
    for error, count in after.failed.items():
        progress.add_failure(error, count - before.failed.get(error, 0))


def run_replica(job: MapJob, folder: Path, share: Share, threads: int, messages: Any, options: MapOptions) -> None:
    """Body of a replica's process: run its share and send progress, an error, or None at the end."""
    become_worker(threads)
    options["report"] = lambda progress: messages.put((share.number, progress))
    try:
        with stop_signals():
            run_map(job, folder, share=share, **options)
        messages.put((share.number, None))
    except KeyboardInterrupt:
        return
    except Exception as problem:  # noqa: BLE001 - raised again in the parent
        messages.put((share.number, problem))
