"""Convert shards: to safetensors files, or to shards whose rows are sorted by key."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from vitreous.core.sealed_files import put_whole
from vitreous.mapping.shard_files import COPIES, list_complete_files, read_about, read_rows, write_parquet

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "vitreous.maps/1"  # of safetensors files
DESCRIBED = ("key", "index", "target", "target_name", "role", "label", "predicted", "probability", "method", "question")
SORTED, SAFETENSORS = COPIES
SORTED_ROWS = 4096  # rows in a sorted file
MERGED_ROWS = 128  # rows of each shard that are in memory while shards are merged


def export_safetensors(folder: Path, shards: Sequence[Path]) -> list[Path]:
    """Write every shard as safetensors files in the subfolder `_safetensors`, which need only numpy to be read.

    Each file holds `grids` [n rows columns] float16, `scales` [n] and `targets` [n] of one method on one grid size; the
    map is grid · scale. The header entry `maps` is a JSON list that describes each of the n maps. Maps that failed are
    not exported.

    Returns
    -------
    list of Path
        The files: `maps-00000.safetensors`, `maps-00001.safetensors`, ….
    """
    from safetensors.numpy import save

    target = folder / SAFETENSORS
    target.mkdir(exist_ok=True)
    files: list[Path] = []
    same = ("method", "rows", "columns")
    for shard in shards:
        rows = [row for row in read_rows(shard).to_pylist() if row["error"] is None]
        model = (read_about(shard) or {}).get("model")
        rows.sort(key=lambda row: [str(row[name]) for name in same])
        for _, group in groupby(rows, lambda row: [row[name] for name in same]):
            maps = list(group)
            arrays = {
                "grids": np.array([row["grid"] for row in maps], np.float16).reshape(
                    len(maps), maps[0]["rows"], maps[0]["columns"]
                ),
                "scales": np.array([row["scale"] for row in maps], np.float32),
                "targets": np.array([row["target"] for row in maps], np.int64),
            }
            about = [{"model": model, "image": row["key"], **{name: row[name] for name in DESCRIBED}} for row in maps]
            path = target / f"maps-{len(files):05d}.safetensors"
            put_whole(path, save(arrays, {"format": FORMAT, "maps": json.dumps(about, ensure_ascii=False)}))
            files.append(path)
    for path in target.glob("maps-*.safetensors"):  # of an earlier, longer export
        if path not in files:
            path.unlink()
    return files


def sort_shards(folder: Path) -> list[Path]:
    """Write all rows sorted by key as `_sorted/maps-00000.parquet`, …

    Every shard is sorted on its own, and the sorted shards are merged; of each, one row group of `MERGED_ROWS` rows is
    in memory.

    Returns
    -------
    list of Path
        The sorted files. The shards stay as they are, so that the run can go on.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = folder / SORTED
    target.mkdir(exist_ok=True)
    shards = list_complete_files(folder)
    about = json.dumps({**(read_about(shards[0]) or {}), "sorted": True}, ensure_ascii=False)
    files: list[Path] = []
    with TemporaryDirectory(dir=target) as scratch:
        pieces = []
        for shard in shards:
            piece = Path(scratch) / shard.name
            order = [("key", "ascending"), ("index", "ascending")]
            pq.write_table(read_rows(shard).sort_by(order), piece, compression="zstd", row_group_size=MERGED_ROWS)
            pieces.append(piece)
        merged = heapq.merge(*map(iterate_rows, pieces), key=lambda row: row[0])
        while pending := [row for _, row in islice(merged, SORTED_ROWS)]:
            files.append(target / f"maps-{len(files):05d}.parquet")
            write_parquet(files[-1], pa.concat_tables(pending), about)
    for path in target.glob("maps-*.parquet"):  # of an earlier, longer run
        if path not in files:
            path.unlink()
    return files


def iterate_rows(piece: Path) -> Iterator[tuple[str, pa.Table]]:
    """Key and row (a table of one row) of a file, in order."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(piece) as file:
        for group in range(file.num_row_groups):
            table: pa.Table = file.read_row_group(group)
            for row, key in enumerate(table["key"].to_pylist()):
                yield key, table.slice(row, 1)
