"""Several model replicas on one machine: processes that each compute a share of the shards into the same folder."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitreous.bench.pool import LOSSES, become_worker, count_cores
from vitreous.bench.signals import children_ignore_terminal, deferred_signals, stop_signals
from vitreous.core.errors import DataError
from vitreous.mapping.job import MapJob, Share
from vitreous.mapping.run import MapProgress, run_map
from vitreous.mapping.shard_files import inspect_folder
from vitreous.mapping.source import open_source


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """Arguments of `run_map` that all replicas share."""

    batch_size: int | None
    decoding: int | None
    threads: int


def run_replicas(
    job: MapJob,
    folder: Path,
    workers: int,
    *,
    device: str | None = None,
    batch_size: int | None = None,
    decoding: int | None = None,
    recheck: bool = False,
    retry: bool = False,
    report: Callable[[MapProgress], object] | None = None,
) -> MapProgress:
    """As `run_map`, by `workers` processes; GPUs are assigned to them in turn.

    A process that dies is started again, and goes on where it was.

    Raises
    ------
    DataError
        If one process dies `LOSSES` times.
    """
    source = open_source(job.spec, job.pictures)
    state = inspect_folder(folder, job, source, recheck=recheck, retry=retry)
    progress = MapProgress(source.images, state.images, state.images)
    context = multiprocessing.get_context("spawn")
    with children_ignore_terminal():
        messages: Any = context.Queue()
    options = ReplicaOptions(batch_size, decoding, max(1, count_cores() // workers))
    gpus = torch.cuda.device_count() if (device or "cuda") == "cuda" else 0

    def start(number: int) -> Any:
        own = f"cuda:{number % gpus}" if gpus else device or "cpu"
        process = context.Process(
            target=replica, args=(job, folder, Share(number, workers), own, options, messages), daemon=False
        )
        with deferred_signals(), children_ignore_terminal():
            process.start()
        return process

    running = {number: start(number) for number in range(workers)}
    reports: dict[int, MapProgress] = {}
    totals: dict[int, list[MapProgress]] = {number: [] for number in running}
    if report:
        report(progress)
    try:
        while running:
            try:
                number, news = messages.get(timeout=0.5)
            except queue.Empty:
                for number, process in list(running.items()):
                    if process.exitcode is None:
                        continue
                    if reports.pop(number, None) is not None:
                        totals[number].append(MapProgress(None))
                    if len(totals[number]) + 1 >= LOSSES:
                        raise DataError(
                            f"replica {number} died {LOSSES} times (out of memory?); fewer --workers or a smaller --batch-size may work"
                        ) from None
                    totals[number].append(MapProgress(None))
                    running[number] = start(number)
                continue
            if isinstance(news, BaseException):
                raise news
            if news is None:
                running.pop(number).join()
                continue
            before = reports.get(number, MapProgress(None))
            add_difference(progress, before, news)
            reports[number] = news
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
    progress.done_pictures += (after.done_pictures - after.known_pictures) - (
        before.done_pictures - before.known_pictures
    )
    progress.rows += after.rows - before.rows
    progress.skipped += after.skipped - before.skipped
    for error, count in after.failed.items():
        progress.failed[error] = progress.failed.get(error, 0) + count - before.failed.get(error, 0)


def replica(job: MapJob, folder: Path, share: Share, device: str, options: ReplicaOptions, messages: Any) -> None:
    """Body of a replica's process: run its share and send progress, an error, or None at the end."""
    become_worker(options.threads)
    try:
        with stop_signals():
            run_map(
                job,
                folder,
                device=device,
                batch_size=options.batch_size,
                decoding=options.decoding,
                share=share,
                report=lambda progress: messages.put((share.number, progress)),
            )
        messages.put((share.number, None))
    except KeyboardInterrupt:
        return
    except Exception as problem:  # noqa: BLE001 - raised again in the parent
        messages.put((share.number, problem))
