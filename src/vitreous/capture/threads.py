"""Threads for CPU work between GPU computations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import torch

Found = TypeVar("Found")
MOST = 16


def map_in_threads(work: Callable[..., Found], *rows: Iterable[Any]) -> list[Found]:
    """Apply `work` to every row: in threads if there is a GPU, else serially, since the model uses all CPU cores."""
    return list((thread_pool(os.getpid()).map if torch.cuda.is_available() else map)(work, *rows))


@cache
def thread_pool(process: int) -> ThreadPoolExecutor:
    """Return the thread pool of a process; a forked process gets its own.

    The pool is reused, since starting threads takes longer than their work.
    """
    return ThreadPoolExecutor(min(MOST, given_cores()), thread_name_prefix="vitreous")


def given_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
