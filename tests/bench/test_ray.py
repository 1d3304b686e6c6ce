"""The same rows from a Ray cluster, also when a worker is killed on the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.bench.fixture import fill, told
from vitreous.bench import ray as cluster
from vitreous.core.errors import SpecError

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray
ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def here():
    """A real cluster of two workers on this machine, heard on 127.0.0.1 alone."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    paths = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_that_loses_a_worker_says_what_one_process_says(here, tmp_path, original, monkeypatch):
    mark = tmp_path / "mark"

    def mortal(held, name, cell, threads, gpus):
        if cell.number == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        from vitreous.bench.ray import run_in_worker  # a worker's own, which nobody replaced

        return run_in_worker(held, name, cell, threads, gpus)

    monkeypatch.setattr(cluster, "run_in_worker", mortal)

    done = fill(tmp_path / "run", cluster.on_ray("auto"))

    assert mark.exists()
    assert (done.failed, done.done_cells) == ({}, 2)
    for kind in ("scores", "maps"):
        assert told(tmp_path / "run", kind) == told(original, kind)


@pytest.mark.filterwarnings("ignore")
def test_what_is_known_travels_and_is_not_computed(here, filled):
    again = fill(filled, cluster.on_ray("auto", workers=1), methods=["genatt", "random", "rollout"])

    assert again.rows == 4 * (3 + 1)  # of the new method, its scores and its maps


def test_no_cluster_is_one_sentence(tmp_path, monkeypatch):
    class Absent:
        @staticmethod
        def is_initialized():
            return False

        @staticmethod
        def init(**_):
            raise ConnectionError("Could not find any running Ray instance.\nmore")

    monkeypatch.setattr(cluster, "need_ray", lambda: Absent)

    with pytest.raises(SpecError, match=r"--ray auto: no Ray cluster answers there .* --ray local needs none"):
        fill(tmp_path, cluster.on_ray("auto"))
