"""Export the maps of a run as Parquet, or as float16 grids in safetensors files that can be read without Vitreous."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.bench.atomic_files import put_whole
from vitreous.bench.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

SHARD = 4096  # maps in a file
ABOUT = ("model", "dataset", "picture", "index", "target", "target_name", "role", "label", "predicted", "probability")
FORMAT = "vitreous.maps/1"


def export_parquet(store: Store, folder: Path) -> list[Path]:
    """Write the maps of the last run, in order, as `maps-00000.parquet`, `maps-00001.parquet`, ….

    Returns
    -------
    list of Path
        The files, each of at most `SHARD` maps.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, found = store.table(kind="maps"), []
    for number, start in enumerate(range(0, len(table), SHARD)):
        path, held = folder / f"maps-{number:05d}.parquet", pa.BufferOutputStream()
        pq.write_table(table.slice(start, SHARD), held, compression="zstd")
        put_whole(path, held.getvalue().to_pybytes())
        found.append(path)
    return tidy(folder, found, "parquet")


def export_safetensors(store: Store, folder: Path) -> list[Path]:
    """Write the maps of the last run as `maps-00000.safetensors`, `maps-00001.safetensors`, ….

    Each file holds `grids` [n rows columns] float16, `scales` [n] and `targets` [n]; the map is grid · scale. The
    header entry `maps` is a JSON list that describes each of the n maps. Maps that failed are not exported.

    Returns
    -------
    list of Path
        The files, each of at most `SHARD` maps of one model and method on one grid size.
    """
    from safetensors.numpy import save

    found: list[Path] = []
    for rows in shards(store.table(kind="maps")):
        shape = (len(rows), rows[0]["rows"], rows[0]["columns"])
        arrays = {
            "grids": np.array([row["grid"] for row in rows], dtype=np.float16).reshape(shape),
            "scales": np.array([row["scale"] for row in rows], dtype=np.float32),
            "targets": np.array([row["target"] for row in rows], dtype=np.int64),
        }
        about = [{name: row[name] for name in (*ABOUT, "method", "question", "key")} for row in rows]
        path = folder / f"maps-{len(found):05d}.safetensors"
        put_whole(path, save(arrays, {"format": FORMAT, "maps": json.dumps(about, ensure_ascii=False)}))
        found.append(path)
    return tidy(folder, found, "safetensors")


def shards(table: pa.Table) -> Iterator[list[dict[str, Any]]]:
    """Yield groups of at most `SHARD` maps of one model and method on one grid size; failed maps are left out."""
    same = ("model", "method", "rows", "columns")
    for start in range(0, len(table), SHARD):
        rows = [row for row in table.slice(start, SHARD).to_pylist() if row["error"] is None]
        rows.sort(key=lambda row: [str(row[name]) for name in same])
        for _, some in groupby(rows, lambda row: [row[name] for name in same]):
            yield list(some)


def tidy(folder: Path, found: list[Path], ending: str) -> list[Path]:
    """Delete shards that an earlier, longer export left in the folder; return the current ones."""
    for path in folder.glob(f"maps-*.{ending}"):
        if path not in found:
            path.unlink()
    return found
