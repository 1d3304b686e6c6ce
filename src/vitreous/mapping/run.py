"""`run_map`: explain every image of a source and write the maps as Parquet shards; go on where an earlier run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, Unpack

from vitreous.bench.plan_check import LOOK, check_model, find_annotations, make_target_error, note_other_classes
from vitreous.bench.plan_source import FLAGS, Origin
from vitreous.bench.pool import count_cores
from vitreous.bench.run_progress import RunProgress
from vitreous.core.errors import DataError
from vitreous.mapping.explain import MapExplainer, SliceRows
from vitreous.mapping.job import BATCH_SIZE, MapJob, Share, Slice, iterate_slices
from vitreous.mapping.local import decode, explain_slices
from vitreous.mapping.shard_files import FolderState, ShardWriter, inspect_folder
from vitreous.mapping.source import ImageSource, open_source


class MapProgress(RunProgress):
    """State of a run; `failed` counts rows."""

    def add(self, rows: SliceRows) -> None:
        self.done_images += rows.range.stop - rows.range.start
        self.rows += len(rows.table)
        self.skipped += rows.skipped
        for error in rows.table["error"].drop_null().to_pylist():
            self.add_failure(error)


class MapOptions(TypedDict, total=False):
    """Options of all ways to run a job; none changes the rows.

    Parameters
    ----------
    device
        Device of the model; None for a GPU if there is one.
    batch_size
        Number of images in a batch; None for `BATCH_SIZE` of the device.
    decoding
        Number of decoding processes; 0 for threads. None: threads if the model runs on the CPU, otherwise one process
        per core. On Ray, the largest number of decoding tasks at a time; None for all CPUs.
    recheck
        Compute everything again.
    retry
        Compute shards with failed rows again.
    report
        Called with the progress at the beginning and after every batch.
    """

    device: str | None
    batch_size: int | None
    decoding: int | None
    recheck: bool
    retry: bool
    report: Callable[[MapProgress], object] | None


def run_map(
    job: MapJob,
    folder: Path,
    *,
    share: Share = Share(),  # noqa: B008 - immutable
    **options: Unpack[MapOptions],
) -> MapProgress:
    """Compute the maps that a folder lacks, in this process.

    Memory does not grow with the number of images (the keys of a dataset aside; those of tar and Parquet files are not
    kept). A run that is killed goes on where it stopped: complete shards are kept, and of an unfinished shard what was
    saved in the last `CHECKPOINT` seconds before.

    Parameters
    ----------
    job
        What to compute.
    folder
        Folder of the files.
    share
        Which shards to compute.
    **options
        See `MapOptions`.

    Returns
    -------
    MapProgress

    Raises
    ------
    DataError
        If the source cannot be read, or the folder holds maps of another job.
    """
    explainer = MapExplainer(job, options.get("device") or choose_default_device())
    explainer.job = job = replace(job, weights=explainer.model.weights)
    source, state, progress = begin_run(job, folder, options)
    device_type = explainer.vit.device.type
    batch_size = options.get("batch_size") or BATCH_SIZE.get(device_type, 16)
    processes = options.get("decoding")
    if processes is None:
        processes = 0 if device_type == "cpu" else max(1, count_cores() // share.count - 1)
    list_slices = partial(iterate_pending_slices, source, state, batch_size, job.shard_size, share)
    with (
        writing(folder, job, source, explainer.about(), state, progress, options) as add,
        closing(decode(source, explainer.preprocess, list_slices, processes, batch_size)) as batches,
    ):
        explain_slices(explainer, batches, add)
    if not progress.done_images and source.images is None and share.count == 1:
        raise DataError(f"there is no image in '{job.spec}'")
    return progress


def begin_run(job: MapJob, folder: Path, options: MapOptions) -> tuple[ImageSource, FolderState, MapProgress]:
    """Open the source, find out what the folder holds, and report the progress for the first time."""
    source = open_source(job.spec, job.images)
    recheck, retry = options.get("recheck", False), options.get("retry", False)
    state = inspect_folder(folder, job, source, recheck=recheck, retry=retry)
    progress = MapProgress(source.images, state.images, state.images)
    if report := options.get("report"):
        report(progress)
    return source, state, progress


@contextmanager
def writing(
    folder: Path,
    job: MapJob,
    source: ImageSource,
    about: Mapping[str, Any],
    state: FolderState,
    progress: MapProgress,
    options: MapOptions,
) -> Iterator[Callable[[SliceRows], None]]:
    """Context manager for a function that writes the rows of a slice and reports the progress.

    Raises
    ------
    DataError
        At the end, if rows of a shard are missing.
    """
    writer, report = ShardWriter(folder, job, source, about, state.partials), options.get("report")

    def add(rows: SliceRows) -> None:
        writer.add(rows)
        progress.add(rows)
        if report:
            report(progress)

    try:
        yield add
    finally:
        writer.save_partials()  # keeps finished batches when the run is interrupted
    if unfinished := [name for name, buffer in writer.buffers.items() if buffer.waiting or not buffer.ends_shard]:
        raise DataError(f"no rows came for a part of {', '.join(unfinished[:3])}; run the command again")


def iterate_pending_slices(
    source: ImageSource, state: FolderState, batch_size: int, shard_size: int, share: Share
) -> Iterator[Slice]:
    """All slices that are still to be computed."""
    for part in range(len(source.parts)):
        if part not in state.parts:
            yield from iterate_slices(source, part, state.finished, batch_size, shard_size, share)


def choose_default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_job(job: MapJob, device: str | None) -> tuple[MapJob, list[str]]:
    """Load the model and look at the source before anything is computed.

    Returns
    -------
    tuple of MapJob and list of str
        The job with the hash of the weights, and notes for the user.

    Raises
    ------
    SpecError
        If the job cannot run; the message is one sentence and names the flag.
    """
    origin = Origin(flags=FLAGS)
    with origin.blame("datasets", job.spec):
        source = open_source(job.spec, job.images)
        labelled = has_labels(source)
    if job.targets in ("label", "predicted+label", "pair") and not labelled:
        raise make_target_error(job.targets, "labels", job.spec, origin)
    model = check_model(job.model, job.precision, device or choose_default_device(), [job.targets], origin)
    note = note_other_classes(model.vit, job.model.label, source.classes, source.name)
    return replace(job, weights=model.weights), [note] if note else []


def has_labels(source: ImageSource) -> bool:
    """Whether one of the first images of a part has a label; raises `DataError` if none of them can be read."""
    for part in source.parts:
        annotations = find_annotations(partial(part.load, item) for item in islice(part.items(0), LOOK))
        if annotations is not None:
            return "labels" in annotations
    raise DataError(f"none of the first images of '{source.spec}' can be read")
