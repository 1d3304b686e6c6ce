"""The same rows of a benchmark from a Ray cluster, also when a worker is killed on the way."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.bench.fixture import fill, told
from vitreous.bench import ray as ray_executor

pytestmark = [  # warnings are Ray's own
    pytest.mark.ray,
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "run"
    fill(folder)
    return folder


def test_a_cluster_that_loses_a_worker_gives_the_rows_of_one_process(original, tmp_path, monkeypatch):
    mark = tmp_path / "mark"

    def mortal(held, cell, threads):
        from vitreous.bench.ray import run_in_worker  # of the worker, not replaced by a test

        for count, outcome in enumerate(run_in_worker(held, cell, threads)):
            if cell.number == 1 and count == 3 and not mark.exists():  # after some of its outcomes were fetched
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield outcome

    monkeypatch.setattr(ray_executor, "run_in_worker", mortal)

    done = fill(tmp_path / "run", ray_executor.on_ray("auto"))

    assert mark.exists()
    assert (done.failed, done.done_cells) == ({}, 2)
    for kind in ("scores", "maps"):
        assert told(tmp_path / "run", kind) == told(original, kind)


def test_finished_rows_are_sent_to_workers_and_not_computed_again(original, tmp_path):
    known = Path(shutil.copytree(original, tmp_path / "run"))
    again = fill(known, ray_executor.on_ray("auto", workers=1), methods=["genatt", "random", "rollout"])

    assert again.rows == 4 * (3 + 1)  # of the new method, its scores and its maps
