"""Output files of `vitreous map`: Parquet shards, written atomically, and what a folder already holds.

A shard holds the rows of a fixed range of images. Until all of its images are explained, its rows are in memory and
every `CHECKPOINT` seconds in `NAME.partial.parquet`, which holds a whole number of images from the first one on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.bench.atomic_files import encode_parquet, put_whole
from vitreous.bench.signals import deferred_signals
from vitreous.core.errors import DataError
from vitreous.mapping.explain import SliceRows, map_schema
from vitreous.mapping.job import FORMAT, MapJob, name_shard
from vitreous.mapping.source import ImageSource

if TYPE_CHECKING:
    import pyarrow as pa

CHECKPOINT = 30.0  # seconds of work that a killed run may lose
ROW_GROUP = 1024  # rows that are read together
# columns that repeat themselves; a dictionary would make grids larger
REPEATED = ["target_name", "role", "method", "question", "native", "error"]
PARTIAL = ".partial.parquet"


@dataclass(frozen=True, slots=True)
class ShardState:
    """Metadata of a file: its images, whether it is complete, and its failed rows."""

    path: Path
    run: str
    part: int
    start: int
    stop: int
    ends_part: bool
    stamp: str
    failed: int

    @property
    def images(self) -> int:
        return self.stop - self.start

    @property
    def is_partial(self) -> bool:
        return self.path.name.endswith(PARTIAL)

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(PARTIAL).removesuffix(".parquet")


def read_state(path: Path) -> ShardState | None:
    """State of a shard from its metadata; None if it is damaged or was not written by this version of the format."""
    about = read_about(path)
    if about is None or about.get("format") != FORMAT:
        return None
    return ShardState(path, about["run"], **about["shard"])


def read_about(path: Path) -> dict[str, Any] | None:
    """Metadata of a file of maps; None if it is damaged or has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return json.loads((pq.read_schema(path).metadata or {})[b"vitreous"])
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None


@dataclass(slots=True)
class ShardBuffer:
    """Rows of a shard that is not complete, and results that wait for an earlier slice."""

    part: int
    start: int
    upto: int
    tables: list[pa.Table] = field(default_factory=list)
    waiting: dict[int, SliceRows] = field(default_factory=dict)
    ends_shard: bool = False
    ends_part: bool = False


class ShardWriter:
    """Writes shards as their rows arrive; only unfinished shards are in memory.

    Parameters
    ----------
    folder
        Folder of the files.
    job, source
        What is computed.
    about
        Metadata of every file.
    finished
        Partial shards to continue: their tables are read here.
    """

    def __init__(
        self,
        folder: Path,
        job: MapJob,
        source: ImageSource,
        about: Mapping[str, Any],
        partials: Mapping[str, ShardState],
        checkpoint: float = CHECKPOINT,
    ) -> None:
        self.folder, self.job, self.source, self.about = folder, job, source, about
        self.partials, self.checkpoint = dict(partials), checkpoint
        self.buffers: dict[str, ShardBuffer] = {}
        self.saved = time.monotonic()

    def add(self, rows: SliceRows) -> None:
        """Add the rows of a slice; a slice that arrives twice is counted once."""
        buffer = self.buffers.get(rows.range.shard)
        if buffer is None:
            buffer = self.buffers[rows.range.shard] = self.open_buffer(rows)
        if rows.range.start < buffer.upto:
            return
        buffer.waiting[rows.range.start] = rows
        with deferred_signals():  # rows and their count change together
            while (following := buffer.waiting.pop(buffer.upto, None)) is not None:
                buffer.tables.append(following.table)
                buffer.upto = following.range.stop
                buffer.ends_shard, buffer.ends_part = following.range.ends_shard, following.range.ends_part
            if buffer.ends_shard:
                self.complete(rows.range.shard)
        if time.monotonic() - self.saved >= self.checkpoint:
            self.save_partials()

    def open_buffer(self, rows: SliceRows) -> ShardBuffer:
        start = rows.range.start - rows.range.start % self.job.shard_size
        partial = self.partials.pop(rows.range.shard, None)
        if partial is None:
            return ShardBuffer(rows.range.part, start, start)
        import pyarrow.parquet as pq

        table = pq.read_table(partial.path).cast(map_schema())
        return ShardBuffer(rows.range.part, start, partial.stop, [table])

    def complete(self, name: str) -> None:
        buffer = self.buffers.pop(name)
        self.write(self.folder / f"{name}.parquet", buffer)
        (self.folder / f"{name}{PARTIAL}").unlink(missing_ok=True)

    def save_partials(self) -> None:
        """Write the rows of unfinished shards, so that a run that is killed goes on from here."""
        with deferred_signals():
            for name, buffer in self.buffers.items():
                if buffer.tables:
                    self.write(self.folder / f"{name}{PARTIAL}", buffer)
            self.saved = time.monotonic()

    def write(self, path: Path, buffer: ShardBuffer) -> None:
        import pyarrow as pa

        table = pa.concat_tables(buffer.tables)
        buffer.tables[:] = [table]
        shard = {
            "part": buffer.part,
            "start": buffer.start,
            "stop": buffer.upto,
            "ends_part": buffer.ends_part,
            "stamp": self.source.parts[buffer.part].stamp(buffer.start, buffer.upto),
            "failed": len(table) - table["error"].null_count,
        }
        about = json.dumps({**self.about, "shard": shard}, ensure_ascii=False)
        write_parquet(path, table, about)


def write_parquet(path: Path, table: pa.Table, about: str) -> None:
    """Write a file of maps atomically; `about` is its metadata."""
    table = table.replace_schema_metadata({"vitreous": about})
    put_whole(path, encode_parquet(table, row_group_size=ROW_GROUP, use_dictionary=REPEATED))


def list_complete_files(folder: str | Path) -> list[Path]:
    """Complete files of maps in a folder, in order."""
    return [path for path in sorted(Path(folder).glob("maps-*.parquet")) if not path.name.endswith(PARTIAL)]


@dataclass(slots=True)
class FolderState:
    """Shards of a job that a folder holds.

    Parameters
    ----------
    finished
        Number of images by shard name, for `iterate_slices`.
    partials
        Partial shards, by name.
    parts
        Indices of the parts that are complete.
    images
        Number of images in all of them.
    """

    finished: dict[str, int] = field(default_factory=dict)
    partials: dict[str, ShardState] = field(default_factory=dict)
    parts: set[int] = field(default_factory=set)
    images: int = 0


def inspect_folder(
    folder: Path, job: MapJob, source: ImageSource, *, recheck: bool = False, retry: bool = False
) -> FolderState:
    """Find out what a folder already holds, and delete files that are damaged or whose images have changed.

    Parameters
    ----------
    folder
        The folder; it is created if it does not exist.
    job, source
        What is to be computed.
    recheck
        Compute everything again.
    retry
        Compute shards with failed rows again.

    Raises
    ------
    DataError
        If the folder holds maps of another job, or cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise DataError(f"'{folder}' cannot be made a folder for maps: {problem.strerror}") from None
    state = FolderState()
    states: dict[str, ShardState] = {}
    for path in sorted(folder.glob("maps-*.parquet")):
        shard = read_state(path)
        if shard is None and not is_parquet(path):
            path.unlink()  # cut short by a power failure
            continue
        if shard is None or shard.run != job.run:
            raise DataError(
                f"'{folder}' holds maps of another job (another model, method, dataset, option or version), such as "
                f"'{path.name}'; give another --out"
            )
        if recheck or (retry and shard.failed) or not is_current(shard, job, source):
            path.unlink()
        elif not shard.is_partial or shard.name not in states:
            states[shard.name] = shard
        else:  # completed after the partial file was written
            path.unlink()
    last_shards: dict[int, int] = {}  # number of the last shard, by part
    for name, shard in states.items():
        state.finished[name] = shard.images if shard.is_partial else job.shard_size
        state.images += shard.images
        if shard.is_partial:
            state.partials[name] = shard
        elif shard.ends_part:
            last_shards[shard.part] = shard.start // job.shard_size
    for part, number in last_shards.items():
        names = [name_shard(source, part, before) for before in range(number + 1)]
        if all(name in state.finished and name not in state.partials for name in names):
            state.parts.add(part)
    return state


def is_current(shard: ShardState, job: MapJob, source: ImageSource) -> bool:
    """Whether a shard holds the images that the source has at its place."""
    if shard.part >= len(source.parts):
        return False
    part = source.parts[shard.part]
    if part.images is not None and not shard.is_partial:
        stop = min(shard.start + job.shard_size, part.images)
        if shard.stop != stop or shard.ends_part != (stop == part.images):
            return False
    if shard.name != name_shard(source, shard.part, shard.start // job.shard_size):
        return False
    return (part.images is None or shard.stop <= part.images) and shard.stamp == part.stamp(shard.start, shard.stop)


def is_parquet(path: Path) -> bool:
    """Whether the footer of a file can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return False
    return True
