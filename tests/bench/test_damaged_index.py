"""A damaged index is never read as if it were whole: the table is the same, or it is refused and the next run mends it."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.bench.fixture import fill, told
from vitreous.bench.store import Store
from vitreous.core.errors import DataError

PAGE = 4096


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A store whose index has several pages of each table: 16 images in 8 cells."""
    folder = tmp_path_factory.mktemp("large") / "run"
    fill(folder, datasets=["scenes:single?count=16"], methods=["genatt", "random"], metrics=["sparseness", "entropy"])
    with sqlite3.connect(folder / "ledger.sqlite") as index:
        index.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    index.close()
    return folder


def read_or_refuse(folder: Path) -> Any:
    """Both tables and the plan of the last run, or the error."""
    try:
        with Store(folder, create=False) as store:
            return [told(folder), told(folder, "maps"), [run["plan"] for run in store.runs()]]
    except DataError as problem:
        return problem


def list_harms(data: bytes) -> list[bytes]:
    """Every page zeroed, half pages zeroed, and single bits in places all over the file."""
    zeroed = [
        data[:at] + bytes(length) + data[at + length :]
        for length in (PAGE, PAGE // 2)
        for at in range(0, len(data), PAGE)
    ]
    flipped = []
    for number, at in enumerate(range(0, len(data), max(1, len(data) // 100))):
        damaged = bytearray(data)
        damaged[at] ^= 1 << number % 8
        flipped.append(bytes(damaged))
    return [*zeroed, *flipped]


@pytest.mark.slow
def test_every_damage_is_refused_or_changes_nothing(large, tmp_path):
    expected = read_or_refuse(large)
    data = (large / "ledger.sqlite").read_bytes()
    assert len(data) >= 6 * PAGE
    refused = 0
    folder = Path(shutil.copytree(large, tmp_path / "run"))
    for damaged in list_harms(data):
        for file in folder.glob("ledger*"):
            file.unlink()
        (folder / "ledger.sqlite").write_bytes(damaged)
        outcome = read_or_refuse(folder)
        assert isinstance(outcome, DataError) or outcome == expected
        refused += isinstance(outcome, DataError)
        if isinstance(outcome, DataError):
            assert str(folder) in str(outcome)
            assert "run the plan again" in str(outcome) or "would put one there" in str(outcome)
    assert refused > 2 * len(data) // PAGE // 2


@pytest.mark.slow
@pytest.mark.parametrize("table", ["cells", "rows", "runs", "counts"])
def test_a_repeated_run_builds_the_index_again(table, large, tmp_path):
    """One entry of a table is gone, as after a page of zeros that still looks like one; nothing is computed again."""
    folder = Path(shutil.copytree(large, tmp_path / "run"))
    expected = read_or_refuse(large)
    with sqlite3.connect(folder / "ledger.sqlite") as index:
        index.execute({"cells": "DELETE FROM cells WHERE cell = 3"}.get(table, f"DELETE FROM {table} WHERE 1"))
    index.close()

    assert isinstance(read_or_refuse(folder), DataError)
    plan: dict[str, Any] = {
        "datasets": ["scenes:single?count=16"],
        "methods": ["genatt", "random"],
        "metrics": ["sparseness", "entropy"],
    }
    assert fill(folder, **plan).rows == (16 * 6 if table == "rows" else 0)
    assert fill(folder, **plan).rows == 0
    assert read_or_refuse(folder) == expected


def test_a_damaged_listing_does_not_stop_a_run(filled):
    """Decompression failed with `Error -3` for ever."""
    before = told(filled)
    with sqlite3.connect(filled / "ledger.sqlite") as index:
        index.execute("UPDATE cells SET listing = x'789c00' WHERE cell = 1")
    index.close()

    again = fill(filled)

    assert again.rows == 0
    assert again.mended == [f"the index of '{filled}' was damaged or gone; it is built again from its files"]
    assert told(filled) == before


def test_a_damaged_index_of_a_read_only_store_is_built_in_memory(filled, monkeypatch):
    from vitreous.bench import index_db

    with sqlite3.connect(filled / "ledger.sqlite") as index:
        index.execute("DELETE FROM counts")
    index.close()

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(index_db.Path, "replace", refuse)
    with Store(filled, create=False) as store:
        with pytest.raises(DataError, match="has been built again from its files; run the plan again"):
            store.table()
        assert len(store.known()) == 4 * 2 * 4
    assert not list(filled.glob("ledger.damaged*"))


def test_rows_that_are_missing_are_counted(filled):
    with sqlite3.connect(filled / "ledger.sqlite") as index:
        index.execute("DELETE FROM rows WHERE key IN (SELECT key FROM rows LIMIT 3)")
    index.close()

    with (
        Store(filled) as store,
        pytest.raises(DataError, match=r"[123] of 16 rows of 'scenes' on .* are missing .* run the plan again"),
    ):
        store.table()
