"""Read the rows of a run cell by cell, in the order of its plan, with few parts in memory at a time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.bench.atomic_files import read_part
from vitreous.bench.rows import make_schema

if TYPE_CHECKING:
    import sqlite3

    import pyarrow as pa

    PartReader = Callable[[str], tuple[pa.Table, dict[str, int]]]

# columns that depend on the run; the others are determined by the key
NAMED = ("model", "dataset", "image", "index", "role", "label")
# bytes of parts that are kept: cells lie close to each other in the parts, also if several workers wrote them
PART_BYTES = 1 << 26
KEY_BYTES = 150  # of a key in memory
KEYS_AT_ONCE = 500  # keys in one query of the index


def make_part_reader(folder: Path, columns: Sequence[str] | None) -> PartReader:
    """A function that reads some columns (None for all) of a part, and keeps the last parts.

    It returns the rows of the part and the index of every key in them, and raises `DataError` if the part is damaged.
    """
    from cachetools import LRUCache, cached

    names = None if columns is None else list(dict.fromkeys(("key", *columns)))

    @cached(LRUCache(PART_BYTES, getsizeof=lambda part: part[0].nbytes + KEY_BYTES * len(part[1])))
    def read(name: str) -> tuple[pa.Table, dict[str, int]]:
        table = read_part(folder / name, names)
        return table, {key: row for row, key in enumerate(table["key"].to_pylist())}

    return read


def scan_cells(
    connection: sqlite3.Connection,
    parts_folder: Path,
    run: str,
    kind: str,
    columns: Sequence[str] | None = None,
    cells: Sequence[int] | None = None,
) -> Iterator[pa.Table]:
    """The rows of every finished cell of a run, one table per cell.

    Parameters
    ----------
    connection, parts_folder
        Index and parts of a store.
    run
        Name of the run.
    kind
        "scores" or "maps".
    columns
        Columns of the tables; None for all.
    cells
        Positions of the cells among the finished cells of the run; None for all.

    Raises
    ------
    DataError
        If a part is damaged or missing.
    """
    read = make_part_reader(parts_folder, columns)
    names = [name for name in make_schema(kind).names if columns is None or name in columns]
    numbers = [number for (number,) in connection.execute("SELECT cell FROM cells WHERE run = ? ORDER BY cell", (run,))]
    for number in numbers if cells is None else [numbers[cell] for cell in cells]:
        listed = connection.execute("SELECT listing FROM cells WHERE run = ? AND cell = ?", (run, number))
        (packed,) = listed.fetchone()
        yield read_cell(connection, read, json.loads(zlib.decompress(packed)), kind, names)


def read_cell(
    connection: sqlite3.Connection, read: PartReader, listing: dict[str, Any], kind: str, names: Sequence[str]
) -> pa.Table:
    """Rows of one cell, in the order of its listing and with the labels of this run."""
    import pyarrow as pa

    rows = listing["rows"]
    keys = [key for *_, own in rows for key in own]
    part_of = dict(find_parts(connection, keys))
    places: dict[str, list[int]] = {}  # of the keys in every part
    for place, key in enumerate(keys):
        if part_of.get(key, "").startswith(f"{kind}-"):
            places.setdefault(part_of[key], []).append(place)
    fields = pa.schema([make_schema(kind).field(name) for name in names])
    if not places:
        return fields.empty_table()
    tables = []
    for part, own in places.items():
        table, row_of = read(part)
        tables.append(table.take(pa.array([row_of[keys[place]] for place in own], pa.int64())))
    order = np.concatenate([np.array(own) for own in places.values()])
    joined = pa.concat_tables(tables).take(pa.array(np.argsort(order)))
    entries = np.repeat(np.arange(len(rows)), [len(own) for *_, own in rows])[np.sort(order)].tolist()
    # the same row may have other labels in this run
    arrays = {name: joined[name] for name in names if name not in NAMED}
    arrays |= {name: pa.repeat(pa.scalar(listing[name]), len(entries)) for name in ("model", "dataset")}
    arrays |= {
        name: pa.array([rows[entry][at] for entry in entries], make_schema(kind).field(name).type)
        for at, name in enumerate(NAMED[2:])
    }
    return pa.table({name: arrays[name] for name in names}, schema=fields)


def find_parts(connection: sqlite3.Connection, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Key and part of every key that the store has."""
    for start in range(0, len(keys), KEYS_AT_ONCE):
        piece = [bytes.fromhex(key) for key in keys[start : start + KEYS_AT_ONCE]]
        marks = ", ".join("?" * len(piece))
        for key, part in connection.execute(f"SELECT key, part FROM rows WHERE key IN ({marks})", piece):
            yield key.hex(), part
