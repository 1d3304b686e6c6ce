"""Work for the CPU while a GPU waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import torch

Found = TypeVar("Found")
MOST = 16


def by_threads(work: Callable[..., Found], *rows: Iterable[Any]) -> list[Found]:
    """`work` of every row, by several threads where there is a GPU; on a CPU the model takes them all."""
    return list((crew(os.getpid()).map if torch.cuda.is_available() else map)(work, *rows))


@cache
def crew(process: int) -> ThreadPoolExecutor:
    """Threads that stay, since beginning them takes longer than their work; a process that was forked begins its own."""
    return ThreadPoolExecutor(min(MOST, given_cores()), thread_name_prefix="vitreous")


def given_cores() -> int:
    """Cores that the system gives us."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
