"""Output files of `vitreous map`: Parquet shards, written atomically, and what a folder already holds.

A shard holds the rows of a fixed range of images. Until all of its images are explained, its rows are in memory and
every `CHECKPOINT` seconds in `_NAME.partial.parquet`, which holds a whole number of images from the first one on. Readers of
a whole folder (pyarrow, pandas, Spark) leave out files and folders whose names begin with an underscore.

Every file contains a hash of itself (`vitreous.core.sealed_files`). When all images are explained, `_manifest.json` lists all
files (`vitreous.mapping.manifest`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.bench.atomic_files import encode_parquet
from vitreous.bench.code_record import compare_code
from vitreous.bench.signals import deferred_signals
from vitreous.core.errors import DataError
from vitreous.core.sealed_files import UNSEALED, is_intact, put_whole, seal
from vitreous.mapping.explain import SliceRows, map_schema
from vitreous.mapping.job import FORMAT, MapJob, name_shard
from vitreous.mapping.manifest import MANIFEST, write_manifest
from vitreous.mapping.source import ImageSource

if TYPE_CHECKING:
    import pyarrow as pa

CHECKPOINT = 30.0  # seconds of work that a killed run may lose
ROW_GROUP = 1024  # rows that are read together
# columns that repeat themselves; a dictionary would make grids larger
AGAIN = "repeat `vitreous map` with the same options, and its images are explained again"
REPEATED = ["target_name", "role", "method", "question", "native", "error"]
PARTIAL = ".partial.parquet"
COPIES = ("_sorted", "_safetensors")  # subfolders of `vitreous.mapping.export`


@dataclass(frozen=True, slots=True)
class ShardState:
    """Metadata of a file: its images, whether it is complete, its failed rows, and the code that computed it."""

    path: Path
    run: str
    code: str
    seal: str
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
        return self.path.name.removeprefix("_").removesuffix(PARTIAL).removesuffix(".parquet")


def read_state(path: Path) -> ShardState | None:
    """State of a shard from its metadata; None if it is damaged or was not written by this version of the format."""
    about = read_about(path)
    if about is None or about.get("format") != FORMAT:
        return None
    return ShardState(path, about["run"], about["code"], about["seal"], **about["shard"])


def check_file(path: Path, *, whole: bool = True) -> None:
    """Raise `DataError` if a file of maps is damaged.

    Parameters
    ----------
    path
        The file. Files of earlier versions, which contain no hash, pass if their metadata can be read.
    whole
        Whether to check all bytes; otherwise the metadata only.
    """
    try:
        with path.open("rb") as file:
            file.seek(-8, os.SEEK_END)
            length = int.from_bytes(file.read(4), "little")
        intact = is_intact(path, length + 8, whole=whole)
    except OSError as problem:
        raise DataError(f"'{path}' cannot be read: {problem.strerror or problem}; {AGAIN}") from None
    if intact is None:  # of an earlier version, or the place of its hash cannot be found
        intact = is_parquet(path) and (read_about(path) or {}).get("format") != FORMAT
    if not intact:
        raise DataError(f"'{path}' is damaged; {AGAIN}")


def read_about(path: Path) -> dict[str, Any] | None:
    """Metadata of a file of maps; None if it is damaged or has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # of the file, not of the Arrow schema in it, which is a copy without the hashes
        return json.loads((pq.read_metadata(path).metadata or {})[b"vitreous"])
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
        table = read_rows(partial.path).cast(map_schema())
        return ShardBuffer(rows.range.part, start, partial.stop, [table])

    def complete(self, name: str) -> None:
        buffer = self.buffers.pop(name)
        self.write(self.folder / f"{name}.parquet", buffer)
        (self.folder / f"_{name}{PARTIAL}").unlink(missing_ok=True)

    def save_partials(self) -> None:
        """Write the rows of unfinished shards, so that a run that is killed goes on from here."""
        with deferred_signals():
            for name, buffer in self.buffers.items():
                if buffer.tables:
                    self.write(self.folder / f"_{name}{PARTIAL}", buffer)
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
    """Write a file of maps atomically; `about` is its metadata, to which the seal is added."""
    sealed = json.dumps({**json.loads(about), "seal": UNSEALED}, ensure_ascii=False)
    table = table.replace_schema_metadata({"vitreous": sealed})
    # pages have checksums of their own, for other readers
    data = encode_parquet(table, row_group_size=ROW_GROUP, use_dictionary=REPEATED, write_page_checksum=True)
    put_whole(path, seal(data, int.from_bytes(data[-8:-4], "little") + 8))


def read_rows(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Rows of a file of maps; raises `DataError` if it is damaged."""
    import pyarrow.parquet as pq

    check_file(path)
    return pq.read_table(path, columns=columns, page_checksum_verification=True)


def list_complete_files(folder: str | Path) -> list[Path]:
    """Complete files of maps in a folder, in order."""
    return sorted(Path(folder).glob("maps-*.parquet"))


def list_partial_files(folder: Path) -> list[Path]:
    """Files of unfinished shards in a folder."""
    return sorted(folder.glob(f"_maps-*{PARTIAL}"))


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
    failed
        Files with failed rows.
    notes
        Sentences on files that were deleted, because they were damaged or computed by other code.
    """

    finished: dict[str, int] = field(default_factory=dict)
    partials: dict[str, ShardState] = field(default_factory=dict)
    parts: set[int] = field(default_factory=set)
    images: int = 0
    failed: list[ShardState] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def inspect_folder(
    folder: Path, job: MapJob, source: ImageSource, *, recheck: bool = False, retry: bool = False
) -> FolderState:
    """Find out what a folder already holds, and delete files that are damaged or stale.

    Stale are those whose images have changed, and those that other code computed.

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
    stale: dict[str, list[str]] = {}  # names of the files, by what is other code

    def delete(path: Path) -> None:
        """Delete a file and what was made of it; another process may begin at the same time."""
        copies = (copy for name in COPIES for copy in (folder / name).glob("maps-*"))
        for stale_file in (folder / MANIFEST, *copies, path):
            stale_file.unlink(missing_ok=True)

    for path in [*list_complete_files(folder), *list_partial_files(folder)]:
        try:
            check_file(path)
        except DataError:
            state.notes.append(f"'{path.name}' was damaged; its images are explained again")
            delete(path)
            continue
        shard = read_state(path)
        if shard is None or shard.run != job.run:
            raise DataError(
                f"'{folder}' holds maps of another job (another model, method, dataset, option or version), such as "
                f"'{path.name}'; give another --out"
            )
        if shard.code != job.code:
            stale.setdefault(compare_code(shard.code, job.code), []).append(path.name)
            delete(path)
        elif recheck or (retry and shard.failed) or not is_current(shard, job, source):
            delete(path)
        elif not shard.is_partial or shard.name not in states:
            states[shard.name] = shard
        else:  # completed after the partial file was written
            path.unlink(missing_ok=True)
    for changed, names in stale.items():
        files = f"'{names[0]}'" + (f" and {len(names) - 1} more files" if len(names) > 1 else "")
        state.notes.append(f"other code of {changed} computed {files}; the images are explained again")
    for name, shard in states.items():
        state.finished[name] = shard.images if shard.is_partial else job.shard_size
        state.images += shard.images
        state.failed += [shard] if shard.failed else []
        if shard.is_partial:
            state.partials[name] = shard
    state.parts = find_complete_parts(states, job, source)
    return state


def find_complete_parts(states: Mapping[str, ShardState], job: MapJob, source: ImageSource) -> set[int]:
    """Indices of the parts of which all shards are complete."""
    complete = {name: shard for name, shard in states.items() if not shard.is_partial}
    last_shards = {shard.part: shard.start // job.shard_size for shard in complete.values() if shard.ends_part}
    return {
        part
        for part, number in last_shards.items()
        if all(name_shard(source, part, before) in complete for before in range(number + 1))
    }


def list_finished_folder(folder: Path, job: MapJob, source: ImageSource) -> None:
    """Write the manifest of a folder if it holds all shards."""
    shards = [shard for path in list_complete_files(folder) if (shard := read_state(path)) is not None]
    states = {shard.name: shard for shard in shards}
    if len(find_complete_parts(states, job, source)) < len(source.parts):
        return
    files = {
        shard.path.name: {
            "images": shard.images,
            "failed": shard.failed,
            "bytes": shard.path.stat().st_size,
            "seal": shard.seal,
        }
        for shard in shards
    }
    write_manifest(folder, job.run, files)


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
