"""Measure free memory and the memory of an autograd graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn


def free_bytes(device: torch.device) -> float:
    """Return the free memory of a device in bytes; infinite if it is not known.

    The share that `torch.cuda.set_per_process_memory_fraction` allows this process is respected, so that several
    processes can use one GPU.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)  # torch 2.6 has none
        return float(max(0, min(free + reserved, fraction(device) * total) - allocated))
    return min(machine_bytes(), container_bytes()) if device.type == "cpu" else float("inf")


def machine_bytes() -> float:
    """Available memory of the machine; infinite if it is not known."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return float(lines["MemAvailable"].split()[0]) * 1024
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    return float("inf")


def container_bytes(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Remaining memory under the cgroup limit of a container; infinite without a limit."""
    try:
        limit = (group / "memory.max").read_text().strip()
        return (
            float("inf") if limit == "max" else max(0.0, float(limit) - float((group / "memory.current").read_text()))
        )
    except (OSError, ValueError):
        return float("inf")


@contextmanager
def weighing(weigh: bool) -> Iterator[Callable[[], int]]:
    """Context in which the bytes that autograd saves for the backward pass are counted.

    Yields a function that returns the count; it returns 0 if `weigh` is False. Parameters are not counted.
    """
    bytes_by_storage: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            bytes_by_storage[storage.data_ptr()] = storage.nbytes()
        return tensor

    if not weigh:
        yield lambda: 0
        return
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(bytes_by_storage.values())


def rows_that_fit(tokens: int, width: int, itemsize: int, device: torch.device) -> int:
    """Return how many sequences to run at once without gradients.

    Uses a quarter of the free memory, and at most 64 MiB on a CPU, where smaller batches are faster.

    Parameters
    ----------
    tokens
        Length of a sequence.
    width
        Numbers per token.
    itemsize
        Bytes per number.
    device
        Device of the model.
    """
    room = free_bytes(device) / 4
    room = min(room, 2**26) if device.type == "cpu" else room  # ViT-Tiny: 16 rows at once take 0.6 of the time of 256
    per_row = max(tokens, 1) * width * itemsize * 24  # residual stream, qkv, MLP hidden units and their copies
    return max(1, int(min(room, 2**40) // per_row))
