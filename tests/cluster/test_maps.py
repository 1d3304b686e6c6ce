"""The same rows from Ray Data on two nodes of which one is lost, and a run that is continued."""

from __future__ import annotations

import shutil

import pytest

from tests.mapping.images import assert_same_rows, encoded_images, job, rows_in, run, write_tars
from vitreous.mapping.ray_data import run_on_ray
from vitreous.mapping.run import check_job

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings
IMAGES = 72


def test_a_lost_node_loses_and_duplicates_no_row(cluster, tmp_path):
    """The run continues one of a single process, of which one file is left."""
    ray_cluster, nodes = cluster
    maps = tmp_path / "maps"
    spec = write_tars(tmp_path / "tars", encoded_images() * (IMAGES // 12), per_tar=36)
    run(spec, tmp_path / "unbroken", batch_size=4, shard_size=20)
    shutil.copytree(tmp_path / "unbroken", maps)
    for file in sorted(maps.glob("*.parquet"))[1:]:
        file.unlink()
    lost = []

    def lose_a_node(progress):
        if progress.rows and not lost:
            lost.append(nodes.pop())
            ray_cluster.remove_node(lost[0], allow_graceful=False)

    checked = check_job(job(spec, shard_size=20), "cpu")[0]
    done = run_on_ray(checked, maps, address="auto", workers=2, device="cpu", batch_size=4, report=lose_a_node)

    assert lost
    assert (done.done_images, done.rows) == (IMAGES, IMAGES - 20)  # without those of one file
    assert_same_rows(rows_in(maps), rows_in(tmp_path / "unbroken"))
    assert run(spec, maps, batch_size=4, shard_size=20).rows == 0
