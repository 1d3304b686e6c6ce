"""A run that is stopped by a signal keeps its rows, ends its workers and prints how to continue."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.bench.fixture import SMALL, told
from tests.forked import forked_context
from vitreous.bench import run_plan
from vitreous.bench.signals import STOP_SIGNALS, Stopped, deferred_signals, stop_signals
from vitreous.cli.main import main
from vitreous.mapping.explain import MapExplainer

pytestmark = pytest.mark.slow

BENCH = ["bench", "--model", "scenes", "--data", SMALL["datasets"][0], "--device", "cpu", "--slice", "2"]
BENCH += [word for name in SMALL["methods"] for word in ("--method", name)]
BENCH += [word for name in SMALL["metrics"] for word in ("--metric", name)]


class PausedRun:
    """A command, in a session of its own, that has written its first rows and waits; it cannot end before a signal comes."""

    def __init__(self, folder: Path, command: list[str], ignored: tuple[int, ...] = ()):
        self.stderr = folder / "stderr"
        os.mkfifo(folder / "stdout")
        self.process = forked_context().Process(target=run_paused, args=(command, folder, ignored))
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid
        self.stdout = (folder / "stdout").open()
        assert self.stdout.readline() == "written\n", self.wait()

    def wait(self) -> tuple[int | None, str]:
        """Exit status and standard error, when it has ended."""
        self.process.join()
        self.stdout.close()
        return self.process.exitcode, self.stderr.read_text()


def run_paused(command: list[str], folder: Path, ignored: tuple[int, ...]) -> None:
    """Run a command as a new process would: no signal is blocked or handled."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    for descriptor, name in enumerate(["stdout", "stderr"], start=1):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), descriptor)
        setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115 - open until the process ends
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # rows are equal to the bit for equal threads
    pause_after_first_rows()
    sys.exit(main(command))


def pause_after_first_rows() -> None:
    """Replace what writes rows by functions that report the first rows and wait."""
    write, launch, pauses = run_plan.write_outcomes, MapExplainer.launch, [600]

    def pause() -> None:
        print("written", flush=True)
        time.sleep(pauses.pop())

    def write_and_pause(store, run, held, *rest):
        rows = len(held)
        write(store, run, held, *rest)
        if rows and pauses:
            pause()

    def pause_before_second(explainer, batch):
        if batch.range.start:
            pause()
        return launch(explainer, batch)

    MapExplainer.launch = pause_before_second
    run_plan.write_outcomes = write_and_pause
    run_plan.execute = partial(run_plan.execute, patience=0)


def group_is_gone(group: int) -> bool:
    for _ in range(6000):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("number", "send", "workers", "ignored"),
    [
        # the parent alone: it ends its workers
        (signal.SIGTERM, os.kill, 2, ()),
        # Ctrl-C: the workers receive it too
        (signal.SIGINT, os.killpg, 2, ()),
        # without workers; a signal that is ignored at the start stays so
        (signal.SIGHUP, os.killpg, 1, (signal.SIGINT,)),
    ],
    ids=["parent", "group", "alone"],
)
def test_a_stopped_run_keeps_its_rows_and_continues(
    tmp_path: Path,
    original: Path,
    number: int,
    send: Callable[[int, int], None],
    workers: int,
    ignored: tuple[int, ...],
) -> None:
    folder = tmp_path / "run"
    command = [*BENCH, "--workers", str(workers), "--out", str(folder)]
    paused = PausedRun(tmp_path, command, ignored)

    for ignored_number in ignored:  # the exit status would be that of the first signal that is not ignored
        os.kill(paused.pid, ignored_number)
    send(paused.pid, number)
    returncode, stderr = paused.wait()

    assert returncode == 128 + number, stderr
    *before, interrupted, resume = stderr.splitlines()
    of_finished, rows = interrupted.removesuffix(" new rows").rsplit(", ", 1)
    assert of_finished == f"interrupted; 2 of 4 images are done and kept in {folder}"
    assert int(rows) >= 16  # and what was finished of the other images
    assert resume.startswith("to go on: vitreous bench --model scenes --data 'scenes:single?count=4' --device cpu")
    assert all(line.endswith(" so far)") for line in before), stderr  # progress, and no warning or traceback
    assert group_is_gone(paused.pid)
    assert main([*BENCH, "--out", str(folder)]) == 0
    assert all(told(folder, kind) == told(original, kind) for kind in ("scores", "maps"))


def test_a_stopped_map_run_is_reported(tmp_path: Path) -> None:
    command = ["map", "scenes:single?count=2", "--model", "scenes", "-x", "genatt", "--slice", "1"]
    paused = PausedRun(tmp_path, [*command, "--out", str(tmp_path / "maps")])

    os.kill(paused.pid, signal.SIGTERM)
    returncode, stderr = paused.wait()

    assert returncode == 143
    assert f"interrupted; 1 of 2 images are done and kept in {tmp_path / 'maps'}, 1 new rows" in stderr
    assert "to go on: vitreous map 'scenes:single?count=2' --model scenes" in stderr


# ── in this process ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def defaults() -> Iterator[None]:
    previous = {number: signal.signal(number, signal.SIG_DFL) for number in STOP_SIGNALS}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.usefixtures("defaults")
def test_a_signal_raises_inside_and_the_handlers_come_back(number: int) -> None:
    with pytest.raises(Stopped) as stopped, stop_signals():
        signal.raise_signal(number)

    assert stopped.value.exit_status == 128 + number
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == [signal.SIG_DFL] * len(STOP_SIGNALS)


@pytest.mark.usefixtures("defaults")
def test_signal_handlers_of_the_caller_are_restored() -> None:
    received = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))

    with stop_signals():
        signal.raise_signal(signal.SIGTERM)

    assert received == [signal.SIGTERM]


@pytest.mark.usefixtures("defaults")
def test_a_deferred_signal_raises_after_the_outermost_block() -> None:
    steps = []

    def interrupted_steps() -> None:
        with stop_signals():
            with deferred_signals():
                with deferred_signals():
                    signal.raise_signal(signal.SIGTERM)
                    steps.append("inner")
                steps.append("outer")
            steps.append("after")

    with pytest.raises(Stopped):
        interrupted_steps()

    assert steps == ["inner", "outer"]
