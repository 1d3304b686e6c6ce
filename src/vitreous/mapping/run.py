"""Explain every image of a source and write the maps as Parquet shards; go on where an earlier run stopped.

`run_map` is the pipeline in one process: decoding threads or processes, one model replica, and a thread that writes.
`run_replicas` starts several such processes, which compute a share of the shards each, into the same folder.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from vitreous.bench.child_processes import LOST, ChildProcesses
from vitreous.bench.plan_check import LOOK, check_model, find_annotations, make_target_error, note_other_classes
from vitreous.bench.plan_source import FLAGS, Origin
from vitreous.bench.pool import LOSSES, count_cores
from vitreous.bench.run_plan import RunProgress
from vitreous.bench.signals import stop_signals
from vitreous.core.errors import DataError
from vitreous.mapping.decode import ImageBatch, decode
from vitreous.mapping.explain import Launched, MapExplainer, SliceRows, format_job_code
from vitreous.mapping.job import BATCH_SIZE, MapJob, Share, Slice, iterate_slices
from vitreous.mapping.shard_files import FolderState, ShardWriter, inspect_folder, list_finished_folder, read_rows
from vitreous.mapping.source import ImageSource, open_source

WRITES_AHEAD = 4  # batches that may wait for the writing thread


class MapProgress(RunProgress):
    """State of a run; `failed` counts rows, of files that are kept as well as of new ones."""

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


@dataclass(frozen=True, slots=True, eq=False)
class MapRun:
    """A run that has begun: what is read, what the folder already holds, and the progress.

    Parameters
    ----------
    job, folder
        What is computed, and where it is written.
    source, state
        The images, and the shards that the folder holds.
    progress, report
        The progress, and the function that is called with it.
    """

    job: MapJob
    folder: Path
    source: ImageSource
    state: FolderState
    progress: MapProgress
    report: Callable[[MapProgress], object]

    @classmethod
    def begin(cls, job: MapJob, folder: Path, options: MapOptions, share: Share = Share()) -> MapRun:  # noqa: B008
        """Open the source, find out what the folder holds, and report the progress for the first time."""
        source = open_source(job.spec, job.images)
        recheck, retry = options.get("recheck", False), options.get("retry", False)
        state = inspect_folder(folder, job, source, recheck=recheck, retry=retry)
        progress = MapProgress(source.images, state.images, state.images, mended=state.notes)
        for shard in state.failed:
            if share.has_shard(source, shard.part, shard.start // job.shard_size):
                for error in read_rows(shard.path, ["error"])["error"].drop_null().to_pylist():
                    progress.add_failure(error)
        progress.known_failed = dict(progress.failed)
        run = cls(job, folder, source, state, progress, options.get("report") or (lambda _: None))
        run.report(progress)
        return run

    @contextmanager
    def writing(self, about: Mapping[str, Any]) -> Iterator[Callable[[SliceRows], None]]:
        """Context manager for a function that writes the rows of a slice and reports the progress.

        Parameters
        ----------
        about
            Metadata of the files.

        Raises
        ------
        DataError
            At the end, if rows of a shard are missing.
        """
        writer = ShardWriter(self.folder, self.job, self.source, about, self.state.partials)

        def add(rows: SliceRows) -> None:
            writer.add(rows)
            self.progress.add(rows)
            self.report(self.progress)

        try:
            yield add
        finally:
            writer.save_partials()  # keeps finished batches when the run is interrupted
        if unfinished := [name for name, buffer in writer.buffers.items() if buffer.waiting or not buffer.ends_shard]:
            raise DataError(f"no rows came for a part of {', '.join(unfinished[:3])}; run the command again")
        list_finished_folder(self.folder, self.job, self.source)


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
    job = explainer.job  # with the hash of the weights
    run = MapRun.begin(job, folder, options, share)
    device_type = explainer.vit.device.type
    batch_size = options.get("batch_size") or BATCH_SIZE.get(device_type, 16)
    processes = options.get("decoding")
    if processes is None:
        processes = 0 if device_type == "cpu" else max(1, count_cores() // share.count - 1)
    list_slices = partial(iterate_pending_slices, run.source, run.state, batch_size, job.shard_size, share)
    with (
        run.writing(explainer.about()) as add,
        closing(decode(run.source, explainer.preprocess, list_slices, processes, batch_size)) as batches,
    ):
        explain_slices(explainer, batches, add)
    if not run.progress.done_images and run.source.images is None and share.count == 1:
        raise DataError(f"there is no image in '{job.spec}'")
    return run.progress


def explain_slices(explainer: MapExplainer, batches: Iterable[ImageBatch], add: Callable[[SliceRows], None]) -> None:
    """Explain batches and hand their rows to `add` in a thread, while the device computes the next ones."""
    waiting: deque[Future[None]] = deque()

    def finish(launched: Launched) -> None:
        add(explainer.finish(launched))

    with ThreadPoolExecutor(1, thread_name_prefix="vitreous-write") as writer:
        for batch in batches:
            waiting.append(writer.submit(finish, explainer.launch(batch)))
            while waiting and (len(waiting) > WRITES_AHEAD or waiting[0].done()):
                waiting.popleft().result()
        while waiting:
            waiting.popleft().result()


def iterate_pending_slices(
    source: ImageSource, state: FolderState, batch_size: int, shard_size: int, share: Share
) -> Iterator[Slice]:
    """All slices that are still to be computed."""
    for part in range(len(source.parts)):
        if part not in state.parts:
            yield from iterate_slices(source, part, state.finished, batch_size, shard_size, share)


def choose_default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


# ── several replicas ─────────────────────────────────────────────────────────────────────────────


def run_replicas(job: MapJob, folder: Path, workers: int, **options: Unpack[MapOptions]) -> MapProgress:
    """As `run_map`, by `workers` processes; GPUs are assigned to them in turn.

    A process that dies is started again, and goes on where it was.

    Raises
    ------
    DataError
        If one process dies `LOSSES` times.
    """
    run, device = MapRun.begin(job, folder, options), options.get("device")
    shared: MapOptions = {"batch_size": options.get("batch_size"), "decoding": options.get("decoding")}
    threads = max(1, count_cores() // workers)
    gpus = torch.cuda.device_count() if (device or "cuda") == "cuda" else 0
    reports: dict[int, MapProgress] = {}  # the last one of every process
    losses = Counter[int]()
    with ChildProcesses("vitreous.mapping.run", "vitreous.models.timm") as replicas:

        def start(number: int) -> None:
            replica_options: MapOptions = {**shared, "device": f"cuda:{number % gpus}" if gpus else device or "cpu"}
            arguments = (job, folder, Share(number, workers), replica_options)
            replicas.start(number, run_replica, *arguments, threads=threads, daemon=False)  # it starts decoders

        for number in range(workers):
            start(number)
        for number, message in replicas.messages():
            if message is LOST:
                losses[number] += 1
                if losses[number] >= LOSSES:
                    raise DataError(
                        f"replica {number} died {LOSSES} times (out of memory?); fewer --workers or a smaller --batch-size may work"
                    )
                reports.pop(number, None)
                start(number)
                continue
            add_difference(run.progress, reports.get(number, MapProgress(None)), message)
            reports[number] = message
            run.report(run.progress)
    return run.progress


def add_difference(progress: MapProgress, before: MapProgress, after: MapProgress) -> None:
    """Add what a replica has done between two of its reports."""
    progress.done_images += (after.done_images - after.known_images) - (before.done_images - before.known_images)
    progress.rows += after.rows - before.rows
    progress.skipped += after.skipped - before.skipped
    for error, count in after.failed.items():
        new = count - after.known_failed.get(error, 0)
        if new > (old := before.failed.get(error, 0) - before.known_failed.get(error, 0)):
            progress.add_failure(error, new - old)


def run_replica(pipe: Connection, job: MapJob, folder: Path, share: Share, options: MapOptions) -> None:
    """Body of a replica's process: run its share and send its progress; when it is terminated, it saves what it has."""
    with stop_signals():
        run_map(job, folder, share=share, **{**options, "report": pipe.send})


# ── before a run ─────────────────────────────────────────────────────────────────────────────────


def check_job(job: MapJob, device: str | None) -> tuple[MapJob, list[str]]:
    """Load the model and look at the source before anything is computed.

    Returns
    -------
    tuple of MapJob and list of str
        The job with the hash of the weights and the code, and notes for the user.

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
    return replace(job, weights=model.weights, code=format_job_code(job, model)), [note] if note else []


def has_labels(source: ImageSource) -> bool:
    """Whether one of the first images of a part has a label; raises `DataError` if none of them can be read."""
    readable = False
    for part in source.parts:
        for item in islice(part.items(0), LOOK):
            annotations = find_annotations([partial(part.load, item)])
            readable = readable or annotations is not None
            if annotations and "labels" in annotations:
                return True
        if readable:
            return False
    raise DataError(f"none of the first images of '{source.spec}' can be read")
