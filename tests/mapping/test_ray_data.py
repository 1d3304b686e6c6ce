"""The same rows from Ray Data on three nodes of which one is lost, and a run that goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mapping.images import assert_same_rows, encoded_images, job, rows_in, run, write_tars
from vitreous.mapping.ray_data import run_on_ray
from vitreous.mapping.run import check_job

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings
ROOT = str(Path(__file__).parents[2])
IMAGES = 72
RAY_SETTINGS = {  # Ray's own notice a lost node after 15 s, and end workers, which import torch anew, after 1 s of idleness
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
}


@pytest.fixture(scope="module")
def cluster():
    """Three nodes on this machine, bound to 127.0.0.1."""
    from ray.cluster_utils import Cluster

    paths = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("OMP_NUM_THREADS", "1")
        for name, value in RAY_SETTINGS.items():
            patch.setenv(name, value)
        # Ray replaces 127.0.0.1 by the machine's other address, unless clusters are said to be local only.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
        options = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20, "include_dashboard": False}
        ray_cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **options})
        nodes = [
            ray_cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=100 * 2**20)
            for _ in range(2)
        ]
        ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
        yield ray_cluster, nodes
        ray.shutdown()
        ray_cluster.shutdown()


def test_a_lost_node_loses_and_doubles_no_row(cluster, tmp_path):
    ray_cluster, nodes = cluster
    spec = write_tars(tmp_path / "tars", encoded_images() * (IMAGES // 12), per_tar=36)
    run(spec, tmp_path / "unbroken", batch_size=4, shard_size=20)
    lost = []

    def lose_a_node(progress):
        if progress.rows and not lost:
            lost.append(nodes.pop())
            ray_cluster.remove_node(lost[0], allow_graceful=False)

    checked = check_job(job(spec, shard_size=20), "cpu")[0]
    done = run_on_ray(
        checked, tmp_path / "maps", address="auto", workers=2, device="cpu", batch_size=4, report=lose_a_node
    )

    assert lost
    assert (done.done_images, done.rows) == (IMAGES, IMAGES)
    assert_same_rows(rows_in(tmp_path / "maps"), rows_in(tmp_path / "unbroken"))

    again = sorted((tmp_path / "maps").glob("*.parquet"))
    again[1].unlink()
    assert run_on_ray(checked, tmp_path / "maps", address="auto", device="cpu", batch_size=4).rows == 16  # of one file
    assert_same_rows(rows_in(tmp_path / "maps"), rows_in(tmp_path / "unbroken"))
