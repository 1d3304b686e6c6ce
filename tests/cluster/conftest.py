"""A Ray cluster on this machine, started once. Its workers are forked from a process that has imported torch and timm."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import arbitrary_address
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.worker_server import serve_workers
from tests.forked import forked_context

ROOT = str(Path(__file__).parents[2])
CLIENT = str(Path(__file__).with_name("worker_client.py"))
RAY_SETTINGS = {  # Ray's own notice a lost node after 15 s, and end workers, which have loaded models, after 1 s of idleness
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
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
        address = arbitrary_address("AF_UNIX")  # of few characters
        patch.setenv("VITREOUS_WORKER_SERVER", address)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            server = forked_context().Process(target=serve_workers, args=(listener,))
            server.start()
        options = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20, "setup_worker_path": CLIENT}
        ray_cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **options}
        )
        nodes = [ray_cluster.add_node(num_cpus=1, **options)]
        ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
        yield ray_cluster, nodes
        ray.shutdown()
        ray_cluster.shutdown()
        server.terminate()
        server.join()
