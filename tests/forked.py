"""Processes that start at once: forked from one that has imported what the tests of processes need.

A process of its own takes five seconds to import it. What a test runs in such a process does not depend on that.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

from vitreous.bench.pool import choose_process_context

ROOT = Path(__file__).parents[1]


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
    with output.open("w", encoding="utf-8") as file, redirect_stdout(file):
        run_as_main(script, arguments)


def run_as_main(script: Path, arguments: Sequence[str]) -> None:
    """Run a script as `__main__`; of the repository's folders, only its own is on the path, as in a new process."""
    added_by_tests = {str(ROOT / "docs"), str(ROOT / "benchmarks")}
    sys.path[:] = [str(script.parent), *(entry for entry in sys.path if entry not in added_by_tests)]
    sys.argv[:] = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


class ForkedScript:
    """In place of `subprocess.Popen` in code that starts Python scripts and reads their output: the scripts are forked."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], encoding: str, **_: Any) -> None:
        interpreter, script, *arguments = command
        assert interpreter == sys.executable
        context = forked_context()
        self.reader, writer = context.Pipe(duplex=False)
        self.process = context.Process(target=print_to_pipe, args=(writer, Path(script), arguments, dict(env)))
        self.process.start()
        writer.close()
        self.stdout = open(self.reader.fileno(), encoding=encoding, closefd=False)  # noqa: SIM115 - closed at the exit
        self.returncode: int | None = None

    def __enter__(self) -> ForkedScript:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.join()
        self.returncode = self.process.exitcode
        self.stdout.close()
        self.reader.close()


def print_to_pipe(writer: Any, script: Path, arguments: Sequence[str], environment: dict[str, str]) -> None:
    """Run a script with its output and its errors in a pipe."""
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, name in enumerate(["stdout", "stderr"], start=1):
        os.dup2(writer.fileno(), descriptor)
        setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - open until the end
    writer.close()
    run_as_main(script, arguments)
