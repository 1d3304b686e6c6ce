"""Processes that start at once: forked from one that has imported what the tests of processes need.

A process of its own takes five seconds to import it. What a test runs in such a process does not depend on that.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

from vitreous.bench.pool import choose_process_context


def forked_context() -> ForkServerContext | SpawnContext:
    """Context whose processes are forked from the process that has imported `tests.preloaded`, which is started here.

    Workers of the library are then forked from it, too.
    """
    return choose_process_context("tests.preloaded")


def run_forked(function: Callable[..., Any], *arguments: Any) -> int | None:
    """Run a function of a test module in a forked process; return the exit status, that of a signal below 0."""
    process = forked_context().Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode
