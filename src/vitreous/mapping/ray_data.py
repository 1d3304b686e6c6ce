"""The pipeline on Ray Data: list → decode on CPU workers → explain by one model replica per GPU → shards.

The stages are those of one process. The driver alone writes files, so that a slice whose worker or node died and that
was computed again is written once.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.bench.ray import connect_keeping_handlers, need_ray
from vitreous.bench.worker_job import load_cached
from vitreous.core.errors import DataError
from vitreous.mapping.decode import decode_slice
from vitreous.mapping.explain import MapExplainer, SliceRows
from vitreous.mapping.job import BATCH_SIZE, MapJob, slices_of
from vitreous.mapping.run import MapProgress
from vitreous.mapping.shard_files import ShardWriter, inspect_folder
from vitreous.mapping.source import ImageSource, open_source
from vitreous.models.image_input import Preprocess

Rows = dict[str, np.ndarray]  # a block of Ray Data; the column `data` holds pickled values

CPU_SHARE = 0.5  # CPUs of a task or CPU replica, so that decoding and replicas find room on a node of one CPU
LIST_BLOCKS = 64  # tasks that list parts


def run_on_ray(
    job: MapJob,
    folder: Path,
    *,
    address: str,
    workers: int | None = None,
    gpus: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    decoding: int | None = None,
    recheck: bool = False,
    retry: bool = False,
    report: Callable[[MapProgress], object] | None = None,
) -> MapProgress:
    """As `run_map`, on a Ray cluster.

    Parameters
    ----------
    job, folder, batch_size, recheck, retry, report
        As for `run_map`. The folder is one of the machine where this function runs; images and checkpoint must be
        reachable from all nodes.
    address
        "auto" for the cluster that runs on this machine, "local" to start one for this run, or host:port.
    workers
        Number of replicas, and the number of CPUs of a "local" cluster; None for all GPUs, or one per CPU.
    gpus
        GPUs per replica; None for 1 if the cluster has GPUs and `device` is not "cpu".
    device
        Device of the replicas; None for GPUs if the cluster has any.
    decoding
        Largest number of decoding tasks at a time; None for all CPUs.
    """
    ray = need_ray()
    ours = not ray.is_initialized()
    if ours:
        connect_keeping_handlers(ray, address, workers)
    try:
        there = ray.cluster_resources()
        share = gpus if gpus is not None else float(device != "cpu" and there.get("GPU", 0) >= 1)
        replicas = workers or max(1, int(there["GPU"] // share if share else there.get("CPU", 1)))
        source = open_source(job.spec, job.pictures)
        here = MapExplainer(job, "cpu")  # for the metadata; the model is loaded on the CPU and not run
        here.job = job = replace(job, weights=here.model.weights)
        state = inspect_folder(folder, job, source, recheck=recheck, retry=retry)
        writer = ShardWriter(folder, job, source, here.about(), state.partials)
        progress = MapProgress(source.images, state.images, state.images)
        if report:
            report(progress)
        parts = [part for part in range(len(source.parts)) if part not in state.parts]
        size = batch_size or BATCH_SIZE["cuda" if share else "cpu"]
        try:
            if parts:
                data = pipeline(
                    ray, job, source, here.preprocess, state.finished, parts, size, replicas, share, decoding
                )
                for rows in data.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=2):
                    for packed in rows["data"]:
                        result: SliceRows = pickle.loads(packed)
                        writer.add(result)
                        progress.add(result)
                    if report:
                        report(progress)
        finally:
            writer.save_partials()
        if unfinished := [name for name, buffer in writer.buffers.items() if buffer.waiting or not buffer.ends_shard]:
            raise DataError(f"Ray returned no rows for a part of {', '.join(unfinished[:3])}; run the command again")
    finally:
        if ours:
            ray.shutdown()
    return progress


def pipeline(
    ray: Any,
    job: MapJob,
    source: ImageSource,
    preprocess: Preprocess,
    finished: dict[str, int],
    parts: list[int],
    batch_size: int,
    replicas: int,
    gpus: float,
    decoding: int | None,
) -> Any:
    """The dataset whose rows are pickled `SliceRows`."""
    import ray.data as ray_data
    from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.verbose_progress = False
    shared = ray.put(pickle.dumps((source, preprocess, finished)))
    listed: Any = ray_data.from_items(
        [{"part": part} for part in parts], override_num_blocks=min(len(parts), LIST_BLOCKS)
    )
    slices: Any = listed.map_batches(
        list_part,
        batch_size=1,
        num_cpus=CPU_SHARE,
        fn_kwargs={"shared": [shared], "sizes": (batch_size, job.shard_size)},
    ).repartition(target_num_rows_per_block=1)
    decoded = slices.map_batches(
        decode_rows,
        batch_size=1,
        num_cpus=1 if gpus else CPU_SHARE,
        fn_kwargs={"shared": [shared]},
        compute=TaskPoolStrategy(decoding),
    )
    return decoded.map_batches(
        RayReplica,
        batch_size=2,
        num_gpus=gpus or None,
        num_cpus=None if gpus else CPU_SHARE,
        compute=ActorPoolStrategy(min_size=1, max_size=replicas),
        fn_constructor_args=(job, "cuda" if gpus else "cpu"),
        max_restarts=-1,
        max_task_retries=-1,
    )


# ── in a worker ──────────────────────────────────────────────────────────────────────────────────

SHARED: dict[str, Any] = {}


def fetch(reference: list[Any]) -> Any:
    """What all tasks of a run share, fetched once per worker process."""
    import ray

    name = reference[0].hex()
    if name not in SHARED:
        SHARED.clear()
        SHARED[name] = pickle.loads(ray.get(reference[0]))
    return SHARED[name]


def pack(values: list[Any]) -> Rows:
    data = np.empty(len(values), object)
    data[:] = [pickle.dumps(value, protocol=5) for value in values]
    return {"data": data}


def list_part(rows: Rows, shared: list[Any], sizes: tuple[int, int]) -> Iterator[Rows]:
    """Slices of one part that are still to be computed."""
    source, _, finished = fetch(shared)
    for part in rows["part"].tolist():
        for work in slices_of(source, part, finished, *sizes):
            yield pack([work])


def decode_rows(rows: Rows, shared: list[Any]) -> Rows:
    """Decode slices."""
    import torch

    torch.set_num_threads(1)
    source, preprocess, _ = fetch(shared)
    return pack([decode_slice(source, preprocess, pickle.loads(packed)) for packed in rows["data"]])


class RayReplica:
    """An actor with one model replica, which is loaded once."""

    def __init__(self, job: MapJob, device: str) -> None:
        self.explainer = MapExplainer(job, device)
        weights = load_cached(job.model, job.precision, device).weights
        if weights != job.weights:
            raise DataError(
                "a node has other weights than the machine that started the run; give all nodes the same files"
            )

    def __call__(self, rows: Rows) -> Rows:
        launched = [self.explainer.launch(pickle.loads(packed)) for packed in rows["data"]]
        return pack([self.explainer.finish(work) for work in launched])
