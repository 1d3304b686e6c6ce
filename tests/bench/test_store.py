"""The store keeps every row once and completely, also after damage, concurrent writes and failures."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.bench.fixture import fill, small_plan, told
from tests.forked import forked_context
from vitreous.bench import index_db
from vitreous.bench.atomic_files import read_part
from vitreous.bench.store import Store
from vitreous.bench.work_cells import Outcome, WorkCell
from vitreous.core.errors import DataError


def row(number: int, value: float = 0.5, error: str | None = None) -> dict:
    return {
        "key": f"{number:032x}",
        "model": "m",
        "image": str(number),
        "index": number,
        "value": value,
        "error": error,
    }


def outcome(cell: int, *rows: dict) -> Outcome:
    places = {one["image"]: one["index"] for one in rows}
    made = Outcome(
        WorkCell(cell, 0, 0, tuple(places.values())),
        "m",
        "d",
        places=places,
        listed={one["image"]: [("predicted", 3, [one["key"]])] for one in rows},
    )
    made.rows["scores"] = list(rows)
    return made


def values(store: Store, run: str = "r") -> list:
    table = store.table(run)
    return list(zip(table["image"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_rows_come_back_in_the_order_of_their_cells(tmp_path):
    with Store(tmp_path) as store:
        store.begin("r", "", {})
        store.record("r", [outcome(1, row(2), row(3))])
        store.record("r", [outcome(0, row(0), row(1))])

        assert [name for name, _ in values(store)] == ["0", "1", "2", "3"]


def test_duplicate_rows_are_stored_once(tmp_path):
    with Store(tmp_path) as store:
        assert store.record("r", [outcome(0, row(1, 0.1))]) == 1
        assert store.record("r", [outcome(0, row(1, 0.9), row(2, 0.2))]) == 1

        assert values(store) == [("1", 0.1), ("2", 0.2)]


def test_a_number_replaces_an_error_but_not_vice_versa(tmp_path):
    with Store(tmp_path) as store:
        store.record("r", [outcome(0, row(1, float("nan"), "no"), row(2, 0.2))])
        assert store.known() == {bytes.fromhex(row(2)["key"])}

        store.record("r", [outcome(0, row(1, 0.1), row(2, float("nan"), "no"))])

        assert values(store) == [("1", 0.1), ("2", 0.2)]


def test_the_same_content_may_bear_two_names(tmp_path):
    copy = {**row(1), "image": "copy", "index": 9}
    with Store(tmp_path) as store:
        store.record("r", [outcome(0, row(1, 0.1)), outcome(1, copy)])

        assert values(store) == [("1", 0.1), ("copy", 0.1)]
        assert store.table("r")["index"].to_pylist() == [1, 9]


def test_two_runs_share_rows_and_have_separate_tables(tmp_path):
    with Store(tmp_path) as store:
        store.begin("first", "", {})
        store.record("first", [outcome(0, row(1))])
        store.begin("second", "", {})
        store.record("second", [outcome(0, row(1), row(2))])

        assert [len(store.table(run)) for run in ("first", "second")] == [1, 2]
        assert len(store.table()) == 2  # the last one


# ── damage ───────────────────────────────────────────────────────────────────────────────────────


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [flip, Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-40])])
def test_a_damaged_file_is_detected_and_computed_again(filled, harm):
    before = told(filled)
    harm(next(filled.glob("parts/scores-*.parquet")))

    with Store(filled) as store, pytest.raises(DataError, match=r"is damaged or gone; run the plan again"):
        store.table()
    again = fill(filled)

    assert len(again.mended) == 1
    assert again.rows > 0
    assert told(filled) == before


def test_an_unreadable_index_is_rebuilt_from_the_files(filled):
    before = told(filled)
    (filled / "ledger.sqlite").write_bytes(b"no database" * 1000)

    again = fill(filled)

    assert again.rows == 0
    assert told(filled) == before
    assert list(filled.glob("ledger.damaged-*"))


def test_a_part_that_never_reached_the_ledger_is_swept_away(filled):
    before = told(filled)
    (filled / "parts" / ".1-2.half").write_bytes(b"half")
    (filled / "parts" / f"scores-{'0' * 64}.parquet").write_bytes(b"whole, unlisted")

    fill(filled)

    assert told(filled) == before
    with Store(filled) as store:
        assert {path.name for path in (filled / "parts").iterdir()} == set(store.part_names())


def test_a_failed_write_leaves_no_partial_file(tmp_path, monkeypatch):
    with Store(tmp_path) as store:
        store.record("r", [outcome(0, row(1))])
        monkeypatch.setattr(Store, "_list", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.record("r", [outcome(1, row(2))])
        monkeypatch.undo()
        store.mend()

        assert values(store) == [("1", 0.5)]
        store.record("r", [outcome(1, row(2))])
        assert values(store) == [("1", 0.5), ("2", 0.5)]


def test_a_read_only_store_can_be_read(filled, monkeypatch):
    def refuse(path):
        raise sqlite3.OperationalError("attempt to write a readonly database")

    with Store(filled) as store:
        before = store.table()
    monkeypatch.setattr(index_db, "connect", refuse)
    monkeypatch.setattr(index_db.os, "access", lambda *_: False)

    with Store(filled, create=False) as store:
        assert store.table().equals(before)
    with pytest.raises(DataError, match="cannot be opened: attempt to write"):
        Store(filled)
    (filled / "ledger.sqlite-wal").write_bytes(b"half of it")  # its rows are not in the index yet
    with pytest.raises(DataError, match="cannot be opened"):
        Store(filled, create=False)


def test_other_folders_and_stores_of_newer_versions_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no results"):
        Store(tmp_path / "nothing", create=False)
    with Store(tmp_path / "empty") as store, pytest.raises(DataError, match="holds no run"):
        store.table()
    with sqlite3.connect(tmp_path / "empty" / "ledger.sqlite") as ledger:
        ledger.execute("PRAGMA user_version = 99")
    ledger.close()
    with pytest.raises(DataError, match="was written by a newer Vitreous"):
        Store(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made a folder"):
        Store(tmp_path / "file")


# ── concurrent access ─────────────────────────────────────────────────────────────────────────────


def write_many(folder: Path, first: int, start: Any) -> None:
    with Store(folder) as store:
        start.wait()  # for the other writer
        for cell in range(30):
            some = [row(number, number / 100) for number in range(first + cell, first + cell + 3)]
            store.record(f"r{first}", [outcome(cell, *some)])


@pytest.mark.slow
def test_two_processes_write_one_store(tmp_path):
    """This process and another; what they write overlaps."""
    context = forked_context()
    start = context.Barrier(2)
    writer = context.Process(target=write_many, args=(tmp_path, 0, start))
    writer.start()
    write_many(tmp_path, 10, start)
    writer.join()

    assert writer.exitcode == 0
    with Store(tmp_path) as store:
        assert store.mend() == []
        assert len(store.known()) == 42
        assert (
            sum(read_part(store.parts_folder / name).num_rows for name in store.part_names()) == 42
        )  # none of them twice
        assert all(value == int(name) / 100 for run in ("r0", "r10") for name, value in values(store, run))


def test_many_open_a_new_store_at_once(tmp_path):
    import threading

    wrong = []

    def open_it() -> None:
        try:
            Store(tmp_path).close()
        except Exception as problem:  # noqa: BLE001 - it is looked at below
            wrong.append(problem)

    several = [threading.Thread(target=open_it) for _ in range(12)]
    for one in several:
        one.start()
    for one in several:
        one.join()

    assert wrong == []


@pytest.mark.slow
def test_merged_shards_equal_a_single_run(tmp_path, original):
    from vitreous.bench.run_plan import execute, list_missing_cells

    plan = small_plan()
    for number in (1, 2):
        with Store(tmp_path / str(number)) as store:
            execute(plan, store, shard=f"{number}/2")
    with Store(tmp_path / "all") as store:
        store.merge([tmp_path / "1"])
        assert list_missing_cells(plan, store) == [1]
        store.merge([tmp_path / "2"])
        assert store.merge([tmp_path / "2"]) == 0
        assert list_missing_cells(plan, store) == []
    for kind in ("scores", "maps"):
        assert told(tmp_path / "all", kind) == told(original, kind)
