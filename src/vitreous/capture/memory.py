"""How much room there is, and how much one block's graph takes: measured, not guessed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn


def free_bytes(device: torch.device) -> float:
    """Memory that a new tensor may still take on this device; infinite where nobody says."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(machine_bytes(), container_bytes()) if device.type == "cpu" else float("inf")


def machine_bytes() -> float:
    """What the machine says is available."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return float(lines["MemAvailable"].split()[0]) * 1024
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    return float("inf")


def container_bytes(group: Path = Path("/sys/fs/cgroup")) -> float:
    """What is left of a container's limit; without one, as much as one likes."""
    try:
        limit = (group / "memory.max").read_text().strip()
        return (
            float("inf") if limit == "max" else max(0.0, float(limit) - float((group / "memory.current").read_text()))
        )
    except (OSError, ValueError):
        return float("inf")


@contextmanager
def weighing(weigh: bool) -> Iterator[Callable[[], int]]:
    """Counts the bytes that autograd keeps for the backward pass while the context is open."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    if not weigh:
        yield lambda: 0
        return
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(kept.values())


def rows_that_fit(tokens: int, width: int, itemsize: int, device: torch.device) -> int:
    """How many sequences of this length to run at once, forward only: a quarter of what is free, or what a CPU has at hand."""
    room = free_bytes(device) / 4
    room = min(room, 2**26) if device.type == "cpu" else room  # 16 rows of ViT-Tiny take 0.6 of the time of 256
    per_row = max(tokens, 1) * width * itemsize * 24  # residual stream, qkv, MLP hidden units and their copies
    return max(1, int(min(room, 2**40) // per_row))
