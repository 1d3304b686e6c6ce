"""What is known: a folder that several processes may write, that survives being killed, and that is keyed by content.

    RUN/
      ledger.sqlite             which key lies in which part, and which keys every cell of a run is made of
      parts/KIND-SHA256.parquet rows, written whole or not at all; the name is the checksum of the content
      shards/i-of-n/            stores of their own, one per `--shard i/n`, until `--merge` brings them together

A key is the hash of all that decides a number (`vitreous.bench.keys`): weights, pixels, target, method with every option,
metric with its protocol and the labels, masks and boxes it reads, question, precision, version of the library. So a row is
computed once, whatever the plan that asks for it is called. The ledger can be made anew from the parts.

`Store(folder).table()` is the last run: exactly one row for every picture, target, method and metric of its plan, in that
order. Columns of `kind="scores"` (pyarrow types in `vitreous.bench.rows`):

    model, dataset    labels, as the plan has them
    picture, index    key of the picture in its data set, and its place there
    target            class that was explained; target_name its name; role: "predicted", "label", "rival", "class" (given) or "top 1", "top 2", …
    label, predicted  true class (−1 unknown) and the model's; probability: of the target, softmax over the whole picture (NaN where the model answers with one number)
    method            canonical spec; question: what was asked
    metric            canonical spec; value: the number, NaN where undefined; higher_is_better: null where it does not judge
    parts             named numbers for reducers that pool, [(name, number), …]
    curve, levels     points of the metric's curve and where they lie; null where there is none
    seconds           of this metric, per row (work that metrics share is counted at the first of them)
    map_seconds       of the method, per row, without the forward pass that all methods of a picture share
    peak_mib          largest memory while the method ran: of the device, or of the process on a CPU
    error             null, or one sentence why there is no number; value is NaN then
    weights, pixels, evidence, precision, device, vitreous, torch, protocol, about
                      provenance: hashes; protocol (of the metric) and about (of the method and model) are JSON
    key               the row's own key, 32 hex digits

Columns of `kind="maps"`: the same up to question, then map_seconds, peak_mib, error and provenance, and

    grid              float16, row by row; the map is grid · scale, so that nothing over- or underflows
    scale, rows, columns, native ("patch" or "pixel": then the grid holds sums over patches), signed, score (the number explained)
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.bench.ledger import open_ledger
from vitreous.bench.parts import is_whole, read_part, write_part
from vitreous.bench.rows import COLUMNS, as_table, need_pyarrow, schema
from vitreous.core.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

NAMED = ("model", "dataset", "picture", "index", "role", "label")  # what a run calls its rows; all else is content


class Store:
    """Rows that are known, and the runs that asked for them."""

    def __init__(self, folder: str | Path, *, create: bool = True) -> None:
        need_pyarrow()
        self.folder = Path(folder)
        self.parts_folder, self.ledger = self.folder / "parts", self.folder / "ledger.sqlite"
        if not create and not self.parts_folder.is_dir():
            raise DataError(f"'{folder}' holds no results; `vitreous bench … --out {folder}` would put some there")
        try:
            self.parts_folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise DataError(f"'{folder}' cannot be made a folder for results: {problem.strerror}") from None
        self.connection, fresh = open_ledger(self.ledger, write=create)
        if fresh:
            self._rebuild()

    def _rebuild(self) -> None:
        """List what whole parts lie there; a run's cells are listed again when it is asked for again."""
        with self.writing():
            listed = {name for (name,) in self.connection.execute("SELECT name FROM parts")}
            for path in sorted(self.parts_folder.glob("*.parquet")):
                if path.name not in listed and is_whole(path):
                    table = read_part(path)
                    failed = [error is not None for error in table["error"].to_pylist()]
                    keys = [bytes.fromhex(key) for key in table["key"].to_pylist()]
                    self._list(path.name, path.stat().st_size, keys, failed)

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time; all of it or nothing."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def known(self) -> frozenset[bytes]:
        """Keys of every row that holds a number; errors are tried again."""
        return frozenset(key for (key,) in self.connection.execute("SELECT key FROM rows WHERE failed = 0"))

    def add(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Put down what is new among these rows, and say how many that were; a number takes the place of an error."""
        with self.writing():
            return self._add(kind, rows)

    def _add(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> int:
        fresh: dict[bytes, Mapping[str, Any]] = {}
        for row in rows:
            key = bytes.fromhex(row["key"])
            held = self.connection.execute("SELECT failed FROM rows WHERE key = ?", (key,)).fetchone()
            if held is None or (held[0] and row["error"] is None):
                fresh.setdefault(key, row)
        if fresh:
            name, size = write_part(self.parts_folder, kind, as_table(kind, list(fresh.values())))
            self._list(name, size, list(fresh), [row["error"] is not None for row in fresh.values()])
        return len(fresh)

    def record(self, run: str, outcomes: Sequence[Any], asked: Mapping[int, str] | None = None) -> int:
        """Finished cells: their new rows, what each is made of and asked about, in one step; how many rows were new."""
        with self.writing():
            new = sum(self._add(kind, [row for one in outcomes for row in one.rows[kind]]) for kind in COLUMNS)
            for one in outcomes:
                listing = {**one.listing, "asked": (asked or {}).get(one.cell, "")}
                packed = zlib.compress(json.dumps(listing, separators=(",", ":")).encode())
                self.connection.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", (run, one.cell, packed))
        return new

    def begin(self, run: str, plan: str, about: Mapping[str, Any]) -> None:
        """Make `run` the last one; a run that is taken up again keeps its cells."""
        with self.writing():
            self.connection.execute(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", (run, plan, time.time(), json.dumps(about))
            )

    def _list(self, name: str, size: int, keys: Sequence[bytes], failed: Sequence[bool]) -> None:
        self.connection.execute(
            "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)", (name, size, len(keys), time.time())
        )
        self.connection.executemany(
            "INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET part = excluded.part, failed = excluded.failed WHERE rows.failed",
            ((key, name, int(bad)) for key, bad in zip(keys, failed, strict=True)),
        )

    # ── keeping sound ────────────────────────────────────────────────────────────────────────────

    def mend(self) -> list[str]:
        """Forget parts that are damaged or gone, so that their rows are computed again; names of these parts."""
        names = [name for (name,) in self.connection.execute("SELECT name FROM parts")]
        lost = [name for name in names if not is_whole(self.parts_folder / name)]
        with self.writing():
            for name in lost:
                self.connection.execute("DELETE FROM rows WHERE part = ?", (name,))
                self.connection.execute("DELETE FROM parts WHERE name = ?", (name,))
                (self.parts_folder / name).unlink(missing_ok=True)
            listed = {name for (name,) in self.connection.execute("SELECT name FROM parts")}
            for path in self.parts_folder.iterdir():  # nobody else writes while we hold the ledger
                if path.name not in listed:
                    path.unlink(missing_ok=True)
        return lost

    def merge(self, others: Iterable[str | Path]) -> int:
        """Take over the rows and cells of other stores; how many rows were new."""
        new = 0
        for folder in others:
            with Store(folder, create=False) as other:
                for name in other.part_names():
                    new += self.add(name.split("-")[0], read_part(other.parts_folder / name).to_pylist())
                with self.writing():
                    for table, places in (("runs", "?, ?, ?, ?"), ("cells", "?, ?, ?")):
                        held = other.connection.execute(f"SELECT * FROM {table}").fetchall()
                        self.connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", held)
        return new

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def part_names(self) -> list[str]:
        return [name for (name,) in self.connection.execute("SELECT name FROM parts ORDER BY made, name")]

    def runs(self) -> list[dict[str, Any]]:
        """Every run, the last one last: name, plan as TOML, when it began, and what else was known then."""
        held = self.connection.execute("SELECT name, plan, made, about FROM runs ORDER BY made").fetchall()
        return [{"name": n, "plan": p, "made": m, "about": json.loads(a)} for n, p, m, a in held]

    def listings(self, run: str) -> dict[int, dict[str, Any]]:
        """What every finished cell of a run is made of."""
        held = self.connection.execute("SELECT cell, listing FROM cells WHERE run = ? ORDER BY cell", (run,))
        return {cell: json.loads(zlib.decompress(packed)) for cell, packed in held}

    def forget(self, run: str, asked: Mapping[int, str]) -> None:
        """Drop the listings of cells that do not exist any more, or asked about something else; their rows stay known."""
        stale = [cell for cell, listing in self.listings(run).items() if listing.get("asked") != asked.get(cell)]
        with self.writing():
            self.connection.executemany("DELETE FROM cells WHERE run = ? AND cell = ?", ((run, cell) for cell in stale))

    def done(self, run: str, asked: Mapping[int, str] | None = None) -> set[int]:
        """Cells of a run of which every row is there and holds a number; of those that asked about this, if it is said."""
        whole = self.known()
        return {
            cell
            for cell, listing in self.listings(run).items()
            if (asked is None or listing.get("asked") == asked.get(cell))
            and not listing["failed"]
            and all(bytes.fromhex(key) in whole for row in listing["rows"] for key in row[-1])
        }

    def table(self, run: str | None = None, kind: str = "scores") -> pa.Table:
        """The rows of a run (the last one), in the order of its plan."""
        import pyarrow as pa

        if run is None:
            runs = self.runs()
            if not runs:
                raise DataError(
                    f"'{self.folder}' holds no run; `vitreous bench … --out {self.folder}` would put one there"
                )
            run = str(runs[-1]["name"])
        names = [name for name in self.part_names() if name.startswith(f"{kind}-")]
        held = pa.concat_tables([schema(kind).empty_table(), *(read_part(self.parts_folder / name) for name in names)])
        place: dict[str, int] = {}
        part_of = dict(self.connection.execute("SELECT key, part FROM rows"))
        at = 0
        for name in names:
            (count,) = self.connection.execute("SELECT rows FROM parts WHERE name = ?", (name,)).fetchone()
            for offset, key in enumerate(held["key"][at : at + count].to_pylist()):
                if part_of.get(bytes.fromhex(key)) == name:
                    place[key] = at + offset
            at += count
        taken: list[int] = []
        named: dict[str, list[Any]] = {name: [] for name in NAMED}
        for listing in self.listings(run).values():
            for *about, keys in listing["rows"]:
                for key in keys:
                    if key in place:
                        taken.append(place[key])
                        for column, value in zip(NAMED, (listing["model"], listing["dataset"], *about), strict=True):
                            named[column].append(value)
        found = held.take(pa.array(taken, pa.int64()))
        for column, values in named.items():  # the same content may bear another name in this run
            field = found.schema.field(column)
            found = found.set_column(found.schema.get_field_index(column), field, pa.array(values, field.type))
        return found
