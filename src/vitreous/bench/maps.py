"""Maps for others: float16 token grids in safetensors shards, readable without Vitreous. Parquet is what the store has already."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.bench.parts import put_whole
from vitreous.bench.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

SHARD = 4096  # maps in a file
ABOUT = ("model", "dataset", "picture", "index", "target", "target_name", "role", "label", "predicted", "probability")
FORMAT = "vitreous.maps/1"


def export_parquet(store: Store, folder: Path) -> list[Path]:
    """`maps-00000.parquet`, …: the rows of the last run, in order."""
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
    """`maps-00000.safetensors`, …: `grids` [n rows columns] float16, `scales` [n] and `targets` [n]; the map is grid · scale.

    The header holds one JSON text, `maps`, with what each of the n maps shows. Maps that failed are in the store only.
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
    """Runs of maps of one method on one grid, at most so many at once."""
    same = ("model", "method", "rows", "columns")
    for start in range(0, len(table), SHARD):
        rows = [row for row in table.slice(start, SHARD).to_pylist() if row["error"] is None]
        rows.sort(key=lambda row: [str(row[name]) for name in same])
        for _, some in groupby(rows, lambda row: [row[name] for name in same]):
            yield list(some)


def tidy(folder: Path, found: list[Path], ending: str) -> list[Path]:
    """Shards of an earlier, longer run are no part of this one."""
    for path in folder.glob(f"maps-*.{ending}"):
        if path not in found:
            path.unlink()
    return found
