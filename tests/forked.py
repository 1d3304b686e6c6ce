"""Processes that start at once: forked from one that has imported what the tests of processes need.

A process of its own takes five seconds to import it. What a test runs in such a process does not depend on that.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

from vitreous.bench.child_processes import choose_process_context


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


def run_script(script: Path, *arguments: str, output: Path) -> int | None:
    """Run a script in a forked process, as `python SCRIPT` would; return the exit status. Its output is written to a file."""
    return run_forked(execute_script, script, arguments, output)


def execute_script(script: Path, arguments: Sequence[str], output: Path) -> None:
    """Run a script as `__main__`; of the repository's folders, only its own is on the path, as in a new process."""
    root = Path(__file__).parents[1]
    added_by_tests = {str(root / "docs"), str(root / "benchmarks")}
    sys.path[:] = [str(script.parent), *(entry for entry in sys.path if entry not in added_by_tests)]
    sys.argv[:] = [str(script), *arguments]
    with output.open("w", encoding="utf-8") as file, redirect_stdout(file):
        runpy.run_path(str(script), run_name="__main__")
