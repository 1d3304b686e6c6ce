"""How much room there is."""

from __future__ import annotations

import torch

from vitreous.capture.memory import container_bytes, free_bytes


def test_a_containers_limit_counts(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")

    assert container_bytes(tmp_path) == 600


def test_no_limit_and_no_container_leave_the_machine_to_say(tmp_path):
    assert container_bytes(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("max\n")

    assert container_bytes(tmp_path) == float("inf")
    assert 0 < free_bytes(torch.device("cpu")) < float("inf")
