"""A run that is killed within a cell keeps the rows of finished metrics, and the next run computes the others only."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from tests.bench.fixture import fill, small_plan, told
from tests.forked import run_forked
from vitreous.bench import worker
from vitreous.bench.pool import processes
from vitreous.bench.run_plan import execute
from vitreous.bench.store import Store

ONE_CELL = {"slice": 4}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A store of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    fill(folder, **ONE_CELL)
    return folder


def kill_within_a_cell(folder: Path, report: Path) -> None:
    """Fork a process per moment; each kills itself before its n-th metric. Report how they ended."""
    torch.set_num_threads(1)
    fill(folder.with_name("warm-up"), **ONE_CELL)  # loads and imports before the first fork
    signals = []
    for count in (2, 3):
        if (process := os.fork()) == 0:
            try:
                run_until(count, folder)
            finally:
                os._exit(0)
        _, status = os.waitpid(process, 0)
        signals.append(os.WIFSIGNALED(status) and os.WTERMSIG(status))
    report.write_text(json.dumps(signals))


def run_until(count: int, folder: Path) -> None:
    measure, measured = worker.measure_columns, []

    def watch(metric, *rest):
        measured.append(metric)
        if len(measured) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return measure(metric, *rest)

    worker.measure_columns = watch
    with Store(folder) as store:
        execute(small_plan(**ONE_CELL), store, checkpoint=0)


@pytest.mark.slow
def test_a_killed_run_keeps_the_finished_metrics_of_an_unfinished_cell(whole, tmp_path):
    folder = tmp_path / "run"
    assert run_forked(kill_within_a_cell, folder, tmp_path / "signals") == 0
    assert json.loads((tmp_path / "signals").read_text()) == [signal.SIGKILL] * 2

    with Store(folder) as store:
        known = len(store.known())
        assert known == 4 * (2 + 2 + 1)  # a map and a metric, then two further metrics, and the map of the other method
        assert store.done(small_plan(**ONE_CELL).run) == set()
    done = fill(folder, **ONE_CELL)
    assert done.rows == 4 * 2 * 4 - known
    for kind in ("scores", "maps"):
        assert told(folder, kind) == told(whole, kind)


@pytest.mark.slow
def test_workers_send_the_rows_of_unfinished_cells(whole, tmp_path):
    """Each is written while the cell goes on, and none twice."""
    with Store(tmp_path / "run") as store:
        progress = execute(small_plan(**ONE_CELL), store, processes(1), checkpoint=0)
        assert (progress.rows, progress.done_cells, progress.done_images) == (4 * 2 * 4, 1, 4)
    assert told(tmp_path / "run") == told(whole)


def test_rows_of_an_interrupted_cell_are_kept(tmp_path, monkeypatch):
    measure = worker.measure_columns

    def interrupt(metric, *rest):
        if metric.name == "pointing_game":
            raise KeyboardInterrupt
        return measure(metric, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "measure_columns", interrupt)
        with Store(tmp_path) as store, pytest.raises(KeyboardInterrupt):
            execute(small_plan(**ONE_CELL), store)
    with Store(tmp_path) as store:
        assert len(store.known()) == 4 * 2  # the maps and the first metric of the first method
