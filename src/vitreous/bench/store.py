"""Store of results: a folder of rows that are keyed by content.

Several processes may write to it, and it survives crashes and killed processes.

    RUN/
      ledger.sqlite             index: the part of every key, and the keys of every cell of a run; checked when it is opened
      parts/KIND-SHA256.parquet rows, written atomically; the name contains the checksum of the content
      shards/i-of-n/            separate stores, one per `--shard i/n`, until `--merge` combines them

A key is the hash of everything that determines a number (`vitreous.bench.keys`): model with its weights, pixels, target,
method with all options, metric with its protocol and the labels, masks and boxes it reads, score function, precision,
and the code of all of these and of the library. A row is therefore computed once, even if several plans need it. The index can be rebuilt from the parts.

`Store(folder).table()` returns the last run: exactly one row for every image, target, method and metric of its plan, in
that order. Columns of `kind="scores"` (pyarrow types in `vitreous.bench.rows`):

    model, dataset    labels in the plan
    image, index      key of the image in its dataset, and its index there
    target            explained class; target_name: its name; role: "predicted", "label", "rival", "class" (given) or
                      "top 1", "top 2", …
    label, predicted  true class (−1 if unknown) and predicted class; probability: softmax probability of the target on
                      the whole image (NaN if the model has a single output)
    method            canonical spec; question: name of the score function
    metric            canonical spec; value: the number, NaN if undefined; higher_is_better: null if the metric has no
                      better direction
    parts             named numbers for reducers that pool, [(name, number), …]
    curve, levels     points of the metric's curve and their levels; null if there is none
    seconds           time of this metric, per row (work that metrics share is counted for the first of them)
    map_seconds       time of the method, per row, without the forward pass that all methods of an image share
    peak_mib          peak memory while the method ran: of the device, or of the process on a CPU
    error             null, or one sentence why there is no number; value is NaN then
    weights, code, pixels, evidence, precision, device, vitreous, torch, protocol, about
                      provenance: hashes; code (see `vitreous.core.code_identity`), protocol (of the metric) and about (of the
                      method and model) are JSON
    key               key of the row, 32 hexadecimal digits

Columns of `kind="maps"`: the same up to question, then map_seconds, peak_mib, error and provenance, and

    grid              float16, row by row; the map is grid · scale, which avoids overflow and underflow
    scale, rows, columns
                      scale and shape of the grid
    native            "patch" or "pixel"; for "pixel" the grid holds sums over patches, or the pixels themselves if a black
                      box has no patches
    signed            whether the scores have a sign
    score             the number that is explained
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.bench.atomic_files import is_whole, read_part, write_part
from vitreous.bench.index_db import open_index, replace_index
from vitreous.bench.index_values import hash_run, pack_listing, unpack_listing
from vitreous.bench.rows import COLUMNS, make_schema, need_pyarrow, to_table
from vitreous.core.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    PartReader = Callable[[str], tuple[pa.Table, dict[str, int]]]

# columns that depend on the run; the others are determined by the key
NAMED = ("model", "dataset", "image", "index", "role", "label")
# bytes of parts that are kept: cells lie close to each other in the parts, also if several workers wrote them
PART_BYTES = 1 << 26
KEY_BYTES = 150  # of a key in memory
KEYS_AT_ONCE = 500  # keys in one query of the index


class Store:
    """Rows of all runs in a folder, and the runs that they belong to.

    Parameters
    ----------
    folder
        The folder.
    create
        Whether to create the folder if it has no results; the index must be writable then.

    Raises
    ------
    DataError
        If the folder has no results and `create` is False, if it cannot be created, or if pyarrow is not installed.
    """

    def __init__(self, folder: str | Path, *, create: bool = True) -> None:
        need_pyarrow()
        self.folder = Path(folder)
        self.parts_folder, index = self.folder / "parts", self.folder / "ledger.sqlite"
        if not create and not self.parts_folder.is_dir():
            raise DataError(f"'{folder}' holds no results; `vitreous bench … --out {folder}` would put some there")
        try:
            self.parts_folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise DataError(f"'{folder}' cannot be made a folder for results: {problem.strerror}") from None
        self.index, self.notes = index, list[str]()
        self.connection, is_new = open_index(index, write=create)
        if is_new:
            self._rebuild()

    def _rebuild(self) -> None:
        """Index all undamaged parts; the cells of a run are indexed again when the run is executed again."""
        if any(self.parts_folder.glob("*.parquet")):
            self.notes.append(f"the index of '{self.folder}' was damaged or gone; it is built again from its files")
        with self.writing():
            listed = {name for (name,) in self.connection.execute("SELECT name FROM parts")}
            for path in sorted(self.parts_folder.glob("*.parquet")):
                if path.name not in listed and is_whole(path):
                    self._list_table(path.name, path.stat().st_size, read_part(path))

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Transaction with an exclusive write lock; rolled back if the block raises."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def _query(self, statement: str, *values: Any) -> list[Any]:
        """Rows that the index answers with; if it is damaged, it is built again, and `DataError` is raised."""
        try:
            return self.connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as problem:  # locked or not readable, but not damaged
            raise DataError(f"'{self.index}' cannot be read: {problem}") from None
        except sqlite3.DatabaseError as problem:
            raise self._renew_index(str(problem)) from None

    def _renew_index(self, reason: str) -> DataError:
        """Build the index again; return an error that says what was lost."""
        self.connection.close()
        self.connection = replace_index(self.index)
        self._rebuild()
        return DataError(
            f"the index of '{self.folder}' was damaged ({reason}) and has been built again from its files; run the plan again, "
            "which computes nothing that the files hold"
        )

    def check_index(self) -> None:
        """Build the index again if the listing of a cell cannot be read or is missing."""
        notes = len(self.notes)
        try:
            for run in self.runs():
                self.listings(run["name"])
        except DataError:
            if len(self.notes) == notes:  # it could not be read for another reason
                raise

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def known(self) -> frozenset[bytes]:
        """Keys of all rows without an error; failed rows are computed again."""
        return frozenset(key for (key,) in self._query("SELECT key FROM rows WHERE failed = 0"))

    def add(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Write the rows that are new, or that replace an error by a number; return how many were written."""
        with self.writing():
            return self._add(kind, rows)

    def _add(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> int:
        new_rows: dict[bytes, Mapping[str, Any]] = {}
        for row in rows:
            key = bytes.fromhex(row["key"])
            stored = self.connection.execute("SELECT failed FROM rows WHERE key = ?", (key,)).fetchone()
            if stored is None or (stored[0] and row["error"] is None):
                new_rows.setdefault(key, row)
        if new_rows:
            name, size = write_part(self.parts_folder, kind, to_table(kind, list(new_rows.values())))
            self._list(name, size, list(new_rows), [row["error"] is not None for row in new_rows.values()])
        return len(new_rows)

    def record(self, run: str, outcomes: Sequence[Any], fingerprints: Mapping[int, str] | None = None) -> int:
        """Write the rows of cells, and list the keys of those that are finished, in one transaction.

        Parameters
        ----------
        run
            Name of the run.
        outcomes
            Outcomes of the cells.
        fingerprints
            Fingerprints by cell number, see `vitreous.bench.work_cells.fingerprint_cells`.

        Returns
        -------
        int
            Number of new rows.
        """
        with self.writing():
            new = sum(self._add(kind, [row for outcome in outcomes for row in outcome.rows[kind]]) for kind in COLUMNS)
            for outcome in outcomes:
                if not outcome.is_complete:
                    continue
                listing = {**outcome.listing, "asked": (fingerprints or {}).get(outcome.cell, "")}
                values = (run, outcome.cell, pack_listing(run, outcome.cell, listing))
                self.connection.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", values)
            self._count_cells(run)
        return new

    def _count_cells(self, run: str) -> None:
        """Write down how many cells of a run are finished, so that a missing one is noticed."""
        count = "(SELECT count(*) FROM cells WHERE run = ?1)"
        self.connection.execute(f"INSERT OR REPLACE INTO counts VALUES (?1, {count})", (run,))

    def begin(self, run: str, plan: str, about: Mapping[str, Any]) -> None:
        """Make `run` the last run; a run that is resumed keeps its cells."""
        with self.writing():
            described = (run, plan, time.time(), json.dumps(about))
            self.connection.execute(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", (*described, hash_run(*described))
            )

    def _list_table(self, name: str, size: int, table: pa.Table) -> None:
        """Index a part with these rows."""
        keys = [bytes.fromhex(key) for key in table["key"].to_pylist()]
        self._list(name, size, keys, [error is not None for error in table["error"].to_pylist()])

    def _list(self, name: str, size: int, keys: Sequence[bytes], failed: Sequence[bool]) -> None:
        """Index a part and its keys; an existing key is replaced only if its row had failed."""
        self.connection.execute(
            "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)", (name, size, len(keys), time.time())
        )
        self.connection.executemany(
            "INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET part = excluded.part, failed = excluded.failed WHERE rows.failed",
            ((key, name, int(bad)) for key, bad in zip(keys, failed, strict=True)),
        )

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────

    def mend(self) -> list[str]:
        """Build a damaged index again, and remove parts that are damaged or missing, so that their rows are computed again.

        Returns
        -------
        list of str
            A sentence on each.
        """
        self.check_index()
        counts = dict(self._query("SELECT name, rows FROM parts"))
        damaged = [name for name in counts if not is_whole(self.parts_folder / name)]
        with self.writing():
            for name in damaged:
                self.connection.execute("DELETE FROM rows WHERE part = ?", (name,))
                self.connection.execute("DELETE FROM parts WHERE name = ?", (name,))
                (self.parts_folder / name).unlink(missing_ok=True)
            listed = set(self.part_names())
            for path in self.parts_folder.iterdir():  # safe, since the transaction excludes other writers
                if path.name not in listed:
                    path.unlink(missing_ok=True)
        return [
            *self.notes,
            *(f"'{name}' was damaged or gone; its {counts[name]} rows are computed again" for name in damaged),
        ]

    def discard(self, specs: Collection[str]) -> int:
        """Remove all rows of some methods and metrics, given by canonical specs, from all runs; return their number."""
        import pyarrow as pa

        specs_to_remove, removed, replaced = set(specs), 0, list[Path]()
        with self.writing():
            for name in self.part_names():
                table = read_part(self.parts_folder / name)
                columns = [table[column].to_pylist() for column in ("method", "metric") if column in table.column_names]
                rows_to_keep = [
                    row for row, own in enumerate(zip(*columns, strict=True)) if not specs_to_remove.intersection(own)
                ]
                rest = table.take(pa.array(rows_to_keep, pa.int64()))
                if len(rest) == len(table):
                    continue
                removed += len(table) - len(rest)
                self.connection.execute("DELETE FROM rows WHERE part = ?", (name,))
                self.connection.execute("DELETE FROM parts WHERE name = ?", (name,))
                replaced.append(self.parts_folder / name)
                if len(rest):
                    self._list_table(*write_part(self.parts_folder, name.split("-")[0], rest), rest)
        for path in replaced:
            path.unlink(missing_ok=True)
        return removed

    def merge(self, folders: Iterable[str | Path]) -> int:
        """Copy the rows, runs and cells of other stores into this one; return the number of new rows."""
        new = 0
        for folder in folders:
            with Store(folder, create=False) as source:
                source.check_index()
                for name in source.part_names():
                    new += self.add(name.split("-")[0], read_part(source.parts_folder / name).to_pylist())
                with self.writing():
                    for table, places in (("runs", "?, ?, ?, ?, ?"), ("cells", "?, ?, ?")):
                        stored = source._query(f"SELECT * FROM {table}")
                        self.connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", stored)
                    for (run,) in source._query("SELECT DISTINCT run FROM cells"):
                        self._count_cells(run)
        return new

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def part_names(self) -> list[str]:
        """Names of all parts, oldest first."""
        return [name for (name,) in self._query("SELECT name FROM parts ORDER BY made, name")]

    def runs(self) -> list[dict[str, Any]]:
        """All runs, the last one last: name, plan as TOML, start time, and further information."""
        stored = self._query("SELECT name, plan, made, about, checked FROM runs ORDER BY made")
        if any(hash_run(*values) != stated for *values, stated in stored):
            raise self._renew_index("the description of a run")
        return [{"name": n, "plan": p, "made": m, "about": json.loads(a)} for n, p, m, a, _ in stored]

    def listings(self, run: str) -> dict[int, dict[str, Any]]:
        """Listing of every finished cell of a run: labels, images and row keys."""
        return {cell: self._read_listing(run, cell) for cell in self._list_cells(run)}

    def _list_cells(self, run: str) -> list[int]:
        """Numbers of the finished cells of a run, in order."""
        cells = [cell for (cell,) in self._query("SELECT cell FROM cells WHERE run = ? ORDER BY cell", run)]
        stated = [count for (count,) in self._query("SELECT cells FROM counts WHERE run = ?", run)]
        if [len(cells)] != (stated or [0]):
            raise self._renew_index(f"it lists {len(cells)} of {sum(stated)} pieces of work")
        return cells

    def _read_listing(self, run: str, cell: int) -> dict[str, Any]:
        """Labels, images and row keys of a finished cell."""
        stored = self._query("SELECT listing FROM cells WHERE run = ? AND cell = ?", run, cell)
        listing = unpack_listing(run, cell, stored[0][0]) if stored else None
        if listing is None:
            raise self._renew_index(f"the listing of piece of work {cell}")
        return listing

    def forget(self, run: str, fingerprints: Mapping[int, str]) -> None:
        """Delete the listings of cells whose fingerprint has changed or that no longer exist; their rows are kept."""
        stale = [cell for cell, listing in self.listings(run).items() if listing.get("asked") != fingerprints.get(cell)]
        with self.writing():
            self.connection.executemany("DELETE FROM cells WHERE run = ? AND cell = ?", ((run, cell) for cell in stale))
            self._count_cells(run)

    def done(self, run: str, fingerprints: Mapping[int, str] | None = None) -> set[int]:
        """Numbers of the cells of a run whose rows are all present and without errors.

        If `fingerprints` is given, only cells with these fingerprints count.
        """
        whole = self.known()
        return {
            cell
            for cell, listing in self.listings(run).items()
            if (fingerprints is None or listing.get("asked") == fingerprints.get(cell))
            and not listing["failed"]
            and all(bytes.fromhex(key) in whole for row in listing["rows"] for key in row[-1])
        }

    def table(self, run: str | None = None, kind: str = "scores") -> pa.Table:
        """Rows of a run, in the order of its plan.

        Parameters
        ----------
        run
            Name of the run; the last one if None.
        kind
            "scores" or "maps".

        Raises
        ------
        DataError
            If there is no run, or a part is damaged or missing.
        """
        import pyarrow as pa

        return pa.concat_tables([make_schema(kind).empty_table(), *self.scan(run, kind)])

    def scan(
        self,
        run: str | None = None,
        kind: str = "scores",
        columns: Sequence[str] | None = None,
        cells: Sequence[int] | None = None,
    ) -> Iterator[pa.Table]:
        """Rows of a run cell by cell, in the order of its plan; only few parts of the store are in memory.

        Parameters
        ----------
        run, kind
            As for `table`.
        columns
            Columns of the tables; None for all.
        cells
            Positions of the cells among the finished cells of the run; None for all.

        Raises
        ------
        DataError
            If there is no run, or a part is damaged or missing.
        """
        if run is None:
            runs = self.runs()
            if not runs:
                raise DataError(
                    f"'{self.folder}' holds no run; `vitreous bench … --out {self.folder}` would put one there"
                )
            run = str(runs[-1]["name"])
        read = make_part_reader(self.parts_folder, columns)
        names = [name for name in COLUMNS[kind] if columns is None or name in columns]
        numbers = self._list_cells(run)
        for number in numbers if cells is None else [numbers[cell] for cell in cells]:
            yield self._read_cell(self._read_listing(run, number), read, kind, names)

    def _read_cell(self, listing: dict[str, Any], read: PartReader, kind: str, names: Sequence[str]) -> pa.Table:
        """Rows of one cell, in the order of its listing and with the labels of this run."""
        import pyarrow as pa

        rows = listing["rows"]
        keys = [key for *_, own in rows for key in own]
        # of a name with another kind, a bit was changed
        part_of = {key: part for key, part in self._find_parts(keys) if part.split("-")[0] in COLUMNS}
        if missing := len(set(keys) - part_of.keys()):
            raise DataError(
                f"{missing} of {len(set(keys))} rows of '{listing['model']}' on '{listing['dataset']}' are missing in "
                f"'{self.folder}'; run the plan again, and they are computed again"
            )
        places: dict[str, list[int]] = {}  # of the keys in every part
        for place, key in enumerate(keys):
            if part_of[key].startswith(f"{kind}-"):
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

    def _find_parts(self, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Key and part of every key that the store has."""
        for start in range(0, len(keys), KEYS_AT_ONCE):
            piece = [bytes.fromhex(key) for key in keys[start : start + KEYS_AT_ONCE]]
            marks = ", ".join("?" * len(piece))
            for key, part in self._query(f"SELECT key, part FROM rows WHERE key IN ({marks})", *piece):
                yield key.hex(), part


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
