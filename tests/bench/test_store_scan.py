"""Runs are read and summarised piece by piece, with the same results as in one piece."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from vitreous.bench.resample import compute_curve_band, resample_values
from vitreous.bench.rows import to_frame
from vitreous.bench.section_files import SectionFiles
from vitreous.bench.store import Store
from vitreous.bench.summary import summarise, summarise_store
from vitreous.core.digests import digest
from vitreous.report import compare_runs, write_report

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
                                "key": key, "model": "m", "dataset": "d", "image": f"i{index}", "index": index,
                                "target": -1 if broken else index % 5, "role": role, "label": 1, "predicted": 2,
                                "probability": 0.5, "method": method, "metric": metric, "higher_is_better": True,
                                "value": float("nan") if failed else float(draw.normal()), "error": "lost" if failed else None,
                                "parts": [], "seconds": 0.1, "map_seconds": 0.2, "peak_mib": 3.0, "about": "x" * 500,
                            }
                        )  # fmt: skip
                listed.append((f"i{index}", index, role, 1, keys))
        listing = {"model": "m", "dataset": "d", "rows": listed, "failed": False}
        outcomes.append(
            SimpleNamespace(is_complete=True, cell=cell, rows={"scores": rows, "maps": []}, listing=listing)
        )
        if len(outcomes) == 4 or cell == images // CELL - 1:
            store.record("r", outcomes)
            outcomes = []
    return store


@pytest.mark.parametrize("roles", [("predicted",), ("predicted", "label"), ("top 1", "top 2")])
def test_the_summary_of_a_stream_is_that_of_the_table(roles, tmp_path):
    with fill_store(tmp_path, 4 * CELL, roles) as store:
        table = store.table()
        whole, streamed = summarise(to_frame(table), draws=50), summarise_store(store, draws=50)

    assert [(summary.metric, summary.role, summary.image_count) for summary in streamed] == [
        (summary.metric, summary.role, summary.image_count) for summary in whole
    ]
    for summary, other in zip(streamed, whole, strict=True):
        for entry, expected in zip(summary.entries, other.entries, strict=True):
            np.testing.assert_equal(asdict(entry), asdict(expected))


@pytest.mark.parametrize("roles", [("predicted",), ("predicted", "label")])
def test_reports_and_comparisons_hold_the_rows_of_one_metric(roles, tmp_path, monkeypatch):
    fill_store(tmp_path, 4 * CELL, roles).close()
    added_rows, read_rows = [], []

    def add(files, cell, table, add=SectionFiles.add):
        added_rows.append(len(table))
        add(files, cell, table)

    def read(files, metric, kind="scores", read=SectionFiles.read):
        read_rows.append(len(read(files, metric, kind)))
        return read(files, metric, kind)

    def refuse_table(*_):
        raise AssertionError("the whole table is read")

    monkeypatch.setattr(Store, "table", refuse_table)
    monkeypatch.setattr(SectionFiles, "add", add)
    monkeypatch.setattr(SectionFiles, "read", read)
    write_report(tmp_path, tmp_path / "report.html", gallery=0)
    comparison = compare_runs(tmp_path, tmp_path)

    rows_of_cell = (1 + (CELL - 1) * len(roles)) * len(METHODS) * len(METRICS)  # the broken image has no role
    assert added_rows == [rows_of_cell] * 4 * 3  # one report, and a comparison of two runs
    assert max(read_rows) == 4 * rows_of_cell / len(METRICS)
    assert {change.verdict for change in comparison.changes} == {"the same"}


def test_arrays_that_do_not_fit_into_the_cache_are_made_again(tmp_path, monkeypatch):
    with fill_store(tmp_path, 2 * CELL) as store:
        expected = summarise_store(store, draws=50)
        monkeypatch.setattr("vitreous.bench.section_files.CACHE_BYTES", 1)
        summaries = summarise_store(store, draws=50)

    for summary, other in zip(summaries, expected, strict=True):
        np.testing.assert_equal(summary.plain(), other.plain())
        assert not summary.scores.section.files.batches.cache


def test_resamples_do_not_depend_on_how_many_are_in_memory(monkeypatch):
    draw = np.random.default_rng(0)
    parts = {"a": {"score": draw.normal(size=40)}, "b": {"score": draw.normal(size=40)}}
    images = [row // 2 for row in range(40)]
    curves, clusters = draw.random((40, 3)), [np.array([row, row + 1]) for row in range(0, 40, 2)]

    def compute():
        means = resample_values(parts, lambda own: own["score"].mean(-1), images, 50, 0)
        return means["a"], means["b"], *compute_curve_band(curves, clusters)

    expected = compute()
    monkeypatch.setattr("vitreous.bench.resample.NUMBERS_AT_ONCE", 100)
    for values, other in zip(compute(), expected, strict=True):
        np.testing.assert_allclose(values, other, rtol=1e-12)


def test_rows_are_in_the_order_of_the_plan_with_the_requested_columns(tmp_path):
    with fill_store(tmp_path, 3 * CELL) as store:
        table = store.table()
        pieces = list(store.scan(columns=("index", "value")))

    assert table["index"].to_pylist() == sorted(table["index"].to_pylist())
    assert [len(piece) for piece in pieces] == [CELL * 4] * 3
    assert pieces[0].column_names == ["index", "value"]
    assert pa.concat_tables(pieces)["index"].to_pylist() == table["index"].to_pylist()


@pytest.mark.slow
def test_memory_of_a_scan_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    """Arrow memory while a store is read: the parts that are kept, whatever the number of rows."""
    monkeypatch.setattr("vitreous.bench.store.PART_BYTES", 1 << 19)
    peaks = []
    for images in (50 * CELL, 200 * CELL):
        with fill_store(tmp_path / str(images), images) as store:
            before, peak = pa.total_allocated_bytes(), 0
            for piece in store.scan():
                peak = max(peak, pa.total_allocated_bytes() - before)
                del piece
            peaks.append(peak)
    assert peaks[1] < 1.2 * peaks[0]
