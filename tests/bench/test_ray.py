"""A run on Ray without a cluster; `tests/cluster` has one."""

from __future__ import annotations

import pytest

from tests.bench.fixture import fill
from vitreous.bench import ray as cluster
from vitreous.core.errors import SpecError


def test_a_missing_cluster_gives_an_error_message(tmp_path, monkeypatch):
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
