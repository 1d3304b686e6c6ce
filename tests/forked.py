"""Processes that start at once: forked from one that has imported what the tests of processes need.

A process of its own takes five seconds to import it. What a test runs in such a process does not depend on that.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from multiprocessing import forkserver, util
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any, NoReturn

from tests.shapes import remove_shape_checks
from vitreous.bench.pool import choose_process_context

ROOT = Path(__file__).parents[1]
START_PROCESS = util.spawnv_passfds  # starts a new Python process


def forked_context() -> ForkServerContext | SpawnContext:
    """Context whose processes are forked from the process that has imported `tests.preloaded`, which is started here.

    Workers of the library are then forked from it, too.
    """
    return choose_process_context("tests.preloaded")


@contextmanager
def server_is_forked() -> Iterator[None]:
    """Context manager in which the fork server of multiprocessing starts as a fork of this process.

    It has imported what this process has. Otherwise, it behaves as the new Python process that it replaces: it has the
    standard descriptors and those passed to it, signals are ignored or have their default action, and the mask of
    blocked signals is inherited. Servers that its processes start are forks, too.
    """

    def fork_or_start(path: Any, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        command = arguments[-1]
        if not command.startswith("from multiprocessing.forkserver import main"):
            return START_PROCESS(path, arguments, descriptors)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads of pytest do nothing that tests need
            process = os.fork()
        if not process:
            serve_forks(command, descriptors)
        return process

    util.spawnv_passfds = fork_or_start
    try:
        yield
    finally:
        util.spawnv_passfds = START_PROCESS


def serve_forks(command: str, descriptors: Sequence[int]) -> NoReturn:
    """Run the command of a fork server, once a process is requested from it, and exit."""
    status = 1
    forkserver._forkserver.__init__()  # its lock is held by the caller
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        empty = os.open(os.devnull, os.O_RDWR)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in (*descriptors, empty) and is_open(descriptor):
                os.dup2(empty, descriptor)  # not closed: an object of the parent may still close that number
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, "w" if number else "r", closefd=False)  # noqa: SIM115 - open until the process ends
            for number in range(3)
        )
        remove_shape_checks()
        for name, module in list(sys.modules.items()):
            if is_script(getattr(module, "__file__", None)):
                del sys.modules[name]
        listener, parent_is_alive = descriptors[:2]
        if listener in select.select([listener, parent_is_alive], [], [])[0]:
            exec(command, {"__name__": "__main__"})
        status = 0
    except SystemExit:
        status = 0
    except BaseException:  # noqa: BLE001 - it would continue as the parent
        traceback.print_exc()
    finally:
        os._exit(status)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def is_script(file: str | None) -> bool:
    """Whether a module belongs to a script of the repository, which finds such modules by its own path only."""
    return file is not None and any(folder in Path(file).parents for folder in (ROOT / "docs", ROOT / "benchmarks"))


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
    added_by_tests = {str(ROOT / "docs"), str(ROOT / "benchmarks")}
    sys.path[:] = [str(script.parent), *(entry for entry in sys.path if entry not in added_by_tests)]
    sys.argv[:] = [str(script), *arguments]
    with output.open("w", encoding="utf-8") as file, redirect_stdout(file):
        runpy.run_path(str(script), run_name="__main__")
