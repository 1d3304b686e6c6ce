"""Estimates of free memory."""

from __future__ import annotations

import pytest
import torch

from vitreous.capture.memory import container_bytes, free_bytes


def test_a_containers_limit_counts(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")

    assert container_bytes(tmp_path) == 600


def test_without_limits_the_memory_of_the_machine_counts(tmp_path):
    assert container_bytes(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("max\n")

    assert container_bytes(tmp_path) == float("inf")
    assert 0 < free_bytes(torch.device("cpu")) < float("inf")


@pytest.mark.parametrize(("fraction", "expected"), [(1.0, 700 + 90 - 40), (0.25, 250 - 40), (0.01, 0)])
def test_the_share_of_a_gpu_that_a_process_may_use_counts(monkeypatch, fraction, expected):
    """A GPU of 1000 bytes, of which others use 210 and this process has reserved 90."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (700, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 90)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 40)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: fraction)

    assert free_bytes(torch.device("cuda")) == expected
