"""The pipeline on Ray Data: list → decode on CPU workers → explain by one model replica per GPU → shards.

The stages are those of one process. The driver alone writes files, so that a slice whose worker or node died and that
was computed again is written once.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from vitreous.bench.ray import fetch_once, ray_session
from vitreous.core.errors import DataError
from vitreous.mapping.decode import decode_slice
from vitreous.mapping.explain import MapExplainer
from vitreous.mapping.job import BATCH_SIZE, MapJob, iterate_slices
from vitreous.mapping.run import MapOptions, MapProgress, MapRun

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
    **options: Unpack[MapOptions],
) -> MapProgress:
    """As `run_map`, on a Ray cluster.

    Parameters
    ----------
    job, folder, **options
        As for `run_map`. The folder is one of the machine where this function runs; images and checkpoint must be
        reachable from all nodes.
    address
        "auto" for the cluster that runs on this machine, "local" to start one for this run, or host:port.
    workers
        Number of replicas, and the number of CPUs of a "local" cluster; None for all GPUs, or one per CPU.
    gpus
        GPUs per replica; None for 1 if the cluster has GPUs and the device is not "cpu".
    """
    with ray_session(address, workers) as ray:
        resources = ray.cluster_resources()
        if gpus is None:
            gpus = float(options.get("device") != "cpu" and resources.get("GPU", 0) >= 1)
        replicas = workers or max(1, int(resources["GPU"] // gpus if gpus else resources.get("CPU", 1)))
        explainer = MapExplainer(job, "cpu")  # for the metadata; the model is loaded on the CPU and not run
        job = explainer.job  # with the hash of the weights
        run = MapRun.begin(job, folder, options)
        parts = [part for part in range(len(run.source.parts)) if part not in run.state.parts]
        batch_size = options.get("batch_size") or BATCH_SIZE["cuda" if gpus else "cpu"]
        with run.writing(explainer.about()) as add:
            if parts:
                shared = [ray.put((run.source, explainer.preprocess, run.state.finished))]
                data = make_pipeline(job, shared, parts, batch_size, replicas, gpus, options.get("decoding"))
                for rows in data.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=2):
                    for packed in rows["data"]:
                        add(pickle.loads(packed))
    return run.progress


def make_pipeline(
    job: MapJob, shared: list[Any], parts: list[int], batch_size: int, replicas: int, gpus: float, decoding: int | None
) -> Any:
    """The dataset whose rows are pickled `SliceRows`; `shared` refers to the source, preprocessing and finished shards."""
    import ray.data as ray_data
    from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.verbose_progress = False
    listed: Any = ray_data.from_items(
        [{"part": part} for part in parts], override_num_blocks=min(len(parts), LIST_BLOCKS)
    )
    slices: Any = listed.map_batches(
        list_part,
        batch_size=1,
        num_cpus=CPU_SHARE,
        fn_kwargs={"shared": shared, "sizes": (batch_size, job.shard_size)},
    ).repartition(target_num_rows_per_block=1)
    decoded = slices.map_batches(
        decode_rows,
        batch_size=1,
        num_cpus=1 if gpus else CPU_SHARE,
        fn_kwargs={"shared": shared},
        compute=TaskPoolStrategy(decoding),
    )
    return decoded.map_batches(
        RayReplica,
        batch_size=2,
        num_gpus=gpus or None,
        num_cpus=None if gpus else CPU_SHARE,
        compute=ActorPoolStrategy(min_size=1, max_size=replicas),
        fn_constructor_args=(job, "cuda" if gpus else "cpu"),
    )


# ── in a worker ──────────────────────────────────────────────────────────────────────────────────


def pack(values: list[Any]) -> Rows:
    data = np.empty(len(values), object)
    data[:] = [pickle.dumps(value, protocol=5) for value in values]
    return {"data": data}


def list_part(rows: Rows, shared: list[Any], sizes: tuple[int, int]) -> Iterator[Rows]:
    """Slices of one part that are still to be computed."""
    source, _, finished = fetch_once(shared)
    for part in rows["part"].tolist():
        for work in iterate_slices(source, part, finished, *sizes):
            yield pack([work])


def decode_rows(rows: Rows, shared: list[Any]) -> Rows:
    """Decode slices."""
    import torch

    torch.set_num_threads(1)
    source, preprocess, _ = fetch_once(shared)
    return pack([decode_slice(source, preprocess, pickle.loads(packed)) for packed in rows["data"]])


class RayReplica:
    """An actor with one model replica, which is loaded once."""

    def __init__(self, job: MapJob, device: str) -> None:
        self.explainer = MapExplainer(job, device)
        if self.explainer.model.weights != job.weights:
            raise DataError(
                "a node has other weights than the machine that started the run; give all nodes the same files"
            )

    def __call__(self, rows: Rows) -> Rows:
        launched = [self.explainer.launch(pickle.loads(packed)) for packed in rows["data"]]
        return pack([self.explainer.finish(work) for work in launched])
