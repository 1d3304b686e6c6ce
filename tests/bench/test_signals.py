"""A run that is stopped by a signal keeps what it has, ends its workers and says how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.bench.fixture import SMALL, told
from vitreous.bench.signals import STOP_SIGNALS, Stopped, deferred_signals, stop_signals
from vitreous.cli.main import main

pytestmark = pytest.mark.slow

# after the first write the run waits, so that it cannot end before the signal comes
PAUSED_RUN = """
import sys, time
from functools import partial

from vitreous.bench import run_plan
from vitreous.cli.main import main

if __name__ == "__main__":
    from vitreous.mapping.explain import MapExplainer

    write, launch, pauses = run_plan.write_outcomes, MapExplainer.launch, [600]

    def write_and_pause(store, run, held, *rest):
        rows = len(held)
        write(store, run, held, *rest)
        if rows and pauses:
            print("written", flush=True)
            time.sleep(pauses.pop())

    def pause_before_second(explainer, batch):
        if batch.range.start:
            print("written", flush=True)
            time.sleep(600)
        return launch(explainer, batch)

    MapExplainer.launch = pause_before_second
    run_plan.write_outcomes = write_and_pause
    run_plan.execute = partial(run_plan.execute, patience=0)
    sys.exit(main(sys.argv[1:]))
"""
BENCH = ["bench", "--model", "scenes", "--data", SMALL["datasets"][0], "--device", "cpu", "--slice", "2"]
BENCH += [word for name in SMALL["methods"] for word in ("--method", name)]
BENCH += [word for name in SMALL["metrics"] for word in ("--metric", name)]


def start(tmp_path: Path, command: list[str], ignored: tuple[int, ...] = ()) -> subprocess.Popen[str]:
    """Start a run in a process group of its own, whatever signals this process ignores, and wait for its first rows."""
    script = tmp_path / "paused.py"
    script.write_text(PAUSED_RUN)

    def set_dispositions() -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, script, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        },  # rows are equal to the bit for equal threads
        start_new_session=True,
        preexec_fn=set_dispositions,  # noqa: PLW1509 - it only calls signal.signal
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n", process.communicate()[1]
    return process


def group_is_gone(group: int) -> bool:
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    ("number", "send", "workers", "ignored"),
    [
        (signal.SIGTERM, os.kill, 2, ()),  # the parent alone: it ends its workers
        (signal.SIGINT, os.killpg, 2, ()),  # Ctrl-C: the workers receive it too
        (
            signal.SIGHUP,
            os.killpg,
            1,
            (signal.SIGINT,),
        ),  # without workers; a signal that is ignored at the start stays so
    ],
    ids=["parent", "group", "alone"],
)
def test_a_stopped_run_keeps_its_rows_and_goes_on(
    tmp_path: Path,
    original: Path,
    number: int,
    send: Callable[[int, int], None],
    workers: int,
    ignored: tuple[int, ...],
) -> None:
    folder = tmp_path / "run"
    command = [*BENCH, "--workers", str(workers), "--out", str(folder)]
    process = start(tmp_path, command, ignored)

    for ignored_number in ignored:  # the exit status would be that of the first signal that is not ignored
        process.send_signal(ignored_number)
    send(process.pid, number)
    stderr = process.communicate()[1]

    assert process.returncode == 128 + number, stderr
    *before, interrupted, resume = stderr.splitlines()
    assert interrupted == f"interrupted; 2 of 4 images are done and kept in {folder}, 16 new rows"
    assert resume.startswith("to go on: vitreous bench --model scenes --data 'scenes:single?count=4' --device cpu")
    assert all(line.endswith(" so far)") for line in before), stderr  # progress, and no warning or traceback
    assert group_is_gone(process.pid)
    assert main([*BENCH, "--out", str(folder)]) == 0
    assert all(told(folder, kind) == told(original, kind) for kind in ("scores", "maps"))


def test_a_map_that_is_stopped_says_so_too(tmp_path: Path) -> None:
    command = ["map", "scenes:single?count=2", "--model", "scenes", "-x", "genatt", "--slice", "1"]
    process = start(tmp_path, [*command, "--out", str(tmp_path / "maps")])

    process.terminate()
    stderr = process.communicate()[1]

    assert process.returncode == 143
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
def test_a_handler_of_the_caller_is_left_alone() -> None:
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
