"""`run_map`: explain every image of a source and write the maps as Parquet shards; go on where an earlier run stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from vitreous.bench.plan_source import FLAGS, Origin
from vitreous.bench.pool import count_cores
from vitreous.bench.worker_job import load_cached
from vitreous.capture.targets import class_indices
from vitreous.core.errors import DataError, ModelError, VitreousError
from vitreous.mapping.explain import MapExplainer, SliceRows
from vitreous.mapping.job import BATCH_SIZE, MapJob, Share, Slice, slices_of
from vitreous.mapping.local import decode, explain_slices
from vitreous.mapping.shard_files import FolderState, ShardWriter, inspect_folder
from vitreous.mapping.source import ImageSource, open_source

LOOK = 16  # images that are read to find out whether there are labels


@dataclass(slots=True)
class MapProgress:
    """State of a run.

    Parameters
    ----------
    pictures
        Number of images; None if it is not known before they are read.
    done_pictures, known_pictures
        Images that are done, and those of them that were done before this run began.
    rows
        New rows.
    skipped
        Images that the dataset's protocol leaves out.
    failed
        Number of failed rows by error message.
    begun
        Start of the run on the monotonic clock.
    """

    pictures: int | None
    done_pictures: int = 0
    known_pictures: int = 0
    rows: int = 0
    skipped: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    @property
    def pictures_per_second(self) -> float:
        return (self.done_pictures - self.known_pictures) / max(time.monotonic() - self.begun, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Estimated remaining time; NaN if it is not known."""
        rate = self.pictures_per_second
        return (self.pictures - self.done_pictures) / rate if rate and self.pictures is not None else math.nan

    def add(self, rows: SliceRows) -> None:
        self.done_pictures += rows.range.stop - rows.range.start
        self.rows += len(rows.table)
        self.skipped += rows.skipped
        for error in rows.table["error"].drop_null().to_pylist():
            if error in self.failed or len(self.failed) < 100:  # bounded, whatever the number of broken images
                self.failed[error] = self.failed.get(error, 0) + 1
            else:
                self.failed["other errors"] = self.failed.get("other errors", 0) + 1


def run_map(
    job: MapJob,
    folder: Path,
    *,
    device: str | None = None,
    batch_size: int | None = None,
    decoding: int | None = None,
    share: Share = Share(),  # noqa: B008 - immutable
    recheck: bool = False,
    retry: bool = False,
    report: Callable[[MapProgress], object] | None = None,
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
    device
        Device of the model; None for a GPU if there is one.
    batch_size
        Number of images in a batch.
    decoding
        Number of decoding processes; 0 for threads. None: threads if the model runs on the CPU, otherwise one process
        per core.
    share
        Which shards to compute.
    recheck
        Compute everything again.
    retry
        Compute shards with failed rows again.
    report
        Called with the progress at the beginning and after every batch.

    Returns
    -------
    MapProgress

    Raises
    ------
    DataError
        If the source cannot be read, or the folder holds maps of another job.
    """
    source = open_source(job.spec, job.pictures)
    device = device or default_device()
    explainer = MapExplainer(job, device)
    explainer.job = job = replace(job, weights=explainer.model.weights)
    state = inspect_folder(folder, job, source, recheck=recheck, retry=retry)
    progress = MapProgress(source.images, state.images, state.images)
    writer = ShardWriter(folder, job, source, explainer.about(), state.partials)
    kind = explainer.vit.device.type
    size = batch_size or BATCH_SIZE.get(kind, 16)
    processes = decoding if decoding is not None else 0 if kind == "cpu" else max(1, count_cores() // share.count - 1)

    def add(rows: SliceRows) -> None:
        writer.add(rows)
        progress.add(rows)
        if report:
            report(progress)

    if report:
        report(progress)
    try:
        list_slices = partial(pending_slices, source, state, size, job.shard_size, share)
        with closing(decode(source, explainer.preprocess, list_slices, processes, size)) as batches:
            explain_slices(explainer, batches, add)
    finally:
        writer.save_partials()  # keeps finished batches when the run is interrupted
    if not progress.done_pictures and source.images is None and share.count == 1:
        raise DataError(f"there is no image in '{job.spec}'")
    return progress


def pending_slices(
    source: ImageSource, state: FolderState, batch_size: int, shard_size: int, share: Share
) -> Iterator[Slice]:
    """All slices that are still to be computed."""
    for part in range(len(source.parts)):
        if part not in state.parts:
            yield from slices_of(source, part, state.finished, batch_size, shard_size, share)


def default_device() -> str:
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
    try:
        source = open_source(job.spec, job.pictures)
        labelled = has_labels(source)
    except VitreousError as problem:
        raise origin.wrong(str(problem), "datasets", job.spec) from None
    if job.targets in ("label", "predicted+label", "pair") and not labelled:
        raise origin.wrong(
            f'targets = "{job.targets}" needs labels, and dataset {job.spec!r} has none; "predicted" would work',
            "targets",
        )
    try:
        model = load_cached(job.model, job.precision, device or default_device())
    except VitreousError as problem:
        raise origin.wrong(str(problem), "models", job.model.name) from None
    if model.vit.preprocess is None:
        raise origin.wrong(f"model {job.model.name!r} does not say how images are prepared", "models", job.model.name)
    if isinstance(job.targets, tuple):
        try:
            class_indices(model.vit, [list(job.targets)], 1)
        except (VitreousError, ModelError) as problem:
            raise origin.wrong(f"{model.vit.name}: {problem}", "targets") from None
    notes = []
    own, theirs = model.vit.classes, source.classes
    if own is not None and theirs is not None and [name.lower() for name in own] != [name.lower() for name in theirs]:
        notes.append(
            f"the classes of {source.name} ({theirs[0]}, …) are not those of {job.model.label} ({own[0]}, …); labels are counted as they are"
        )
    return replace(job, weights=model.weights), notes


def has_labels(source: ImageSource) -> bool:
    """Whether one of the first readable images has a label; raises `DataError` if none of them can be read."""
    readable = 0
    for part in source.parts:
        for tried, item in enumerate(part.items(0)):
            if tried == LOOK:
                break
            try:
                sample = part.load(item)
            except DataError:
                continue
            readable += 1
            if sample.label is not None or sample.cover is not None:
                return True
        if readable:
            return False
    raise DataError(f"none of the first images of '{source.spec}' can be read")
