"""A Ray cluster on this machine, started once: a worker takes five seconds to import torch and timm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).parents[2])
RAY_SETTINGS = {  # Ray's own notice a lost node after 15 s, and end workers, which import torch anew, after 1 s of idleness
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "2",
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
}


@pytest.fixture(scope="package")
def cluster() -> Iterator[tuple[Any, list[Any]]]:
    """Two nodes on this machine, bound to 127.0.0.1, and those of them that may be lost: every node starts agents of its own."""
    import ray
    from ray.cluster_utils import Cluster

    paths = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("OMP_NUM_THREADS", "1")
        for name, value in RAY_SETTINGS.items():
            patch.setenv(name, value)
        # Ray replaces 127.0.0.1 by the machine's other address, unless clusters are said to be local only.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
        options = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20, "include_dashboard": False}
        ray_cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **options})
        nodes = [ray_cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=100 * 2**20)]
        ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
        yield ray_cluster, nodes
        ray.shutdown()
        ray_cluster.shutdown()
