"""Runs are read and summarised piece by piece, with the same results as in one piece."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from vitreous.bench.keys import digest
from vitreous.bench.store import Store
from vitreous.bench.stream_summary import summarise_store
from vitreous.bench.summary import summarise

METHODS, METRICS, CELL = ("gradcam", "random"), ("deletion_aopc", "ap"), 16


def fill_store(folder: Path, images: int, roles: tuple[str, ...] = ("predicted",)) -> Store:
    """A store of invented scores; the third image of every cell is broken, and one method fails on the fifth."""
    draw = np.random.default_rng(0)
    store = Store(folder)
    store.begin("r", "", {})
    outcomes = []
    for cell in range(images // CELL):
        rows, listed = [], []
        for index in range(cell * CELL, (cell + 1) * CELL):
            broken = index % CELL == 2
            for role in ("",) if broken else roles:
                keys = []
                for method in METHODS:
                    for metric in METRICS:
                        failed = broken or (index % CELL == 4 and method == "random")
                        key = digest(f"{index} {role} {method} {metric}".encode())
                        keys.append(key)
                        rows.append(
                            {
                                "key": key, "model": "m", "dataset": "d", "picture": f"i{index}", "index": index,
                                "target": -1 if broken else index % 5, "role": role, "label": 1, "predicted": 2,
                                "probability": 0.5, "method": method, "metric": metric, "higher_is_better": True,
                                "value": float("nan") if failed else float(draw.normal()), "error": "lost" if failed else None,
                                "parts": [], "seconds": 0.1, "map_seconds": 0.2, "peak_mib": 3.0, "about": "x" * 500,
                            }
                        )  # fmt: skip
                listed.append((f"i{index}", index, role, 1, keys))
        listing = {"model": "m", "dataset": "d", "rows": listed, "failed": False}
        outcomes.append(SimpleNamespace(cell=cell, rows={"scores": rows, "maps": []}, listing=listing))
        if len(outcomes) == 4 or cell == images // CELL - 1:
            store.record("r", outcomes)
            outcomes = []
    return store


@pytest.mark.parametrize("roles", [("predicted",), ("predicted", "label"), ("top 1", "top 2")])
def test_the_summary_of_a_stream_is_that_of_the_table(roles, tmp_path):
    with fill_store(tmp_path, 4 * CELL, roles) as store:
        table = store.table()
        whole, streamed = summarise(table, draws=50), summarise_store(store, draws=50)

    assert [(one.metric, one.role, one.pictures) for one in streamed] == [
        (one.metric, one.role, one.pictures) for one in whole
    ]
    for one, other in zip(streamed, whole, strict=True):
        for entry, expected in zip(one.entries, other.entries, strict=True):
            np.testing.assert_equal(asdict(entry), asdict(expected))


def test_rows_come_in_the_order_of_the_plan_with_the_columns_that_are_asked_for(tmp_path):
    with fill_store(tmp_path, 3 * CELL) as store:
        table = store.table()
        pieces = list(store.scan(columns=("index", "value")))

    assert table["index"].to_pylist() == sorted(table["index"].to_pylist())
    assert [len(piece) for piece in pieces] == [CELL * 4] * 3
    assert pieces[0].column_names == ["index", "value"]
    assert pa.concat_tables(pieces)["index"].to_pylist() == table["index"].to_pylist()


@pytest.mark.slow
def test_memory_of_a_scan_does_not_grow_with_the_rows(tmp_path):
    """Arrow memory while a store is read: the parts that are kept, whatever the number of rows."""
    peaks = []
    for images in (200 * CELL, 800 * CELL):
        with fill_store(tmp_path / str(images), images) as store:
            before, peak = pa.total_allocated_bytes(), 0
            for piece in store.scan():
                peak = max(peak, pa.total_allocated_bytes() - before)
                del piece
            peaks.append(peak)
    assert peaks[1] < 1.2 * peaks[0]
