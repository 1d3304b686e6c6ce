"""Child processes: their messages, errors and deaths."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.forked import forked_context, run_forked
from vitreous.bench import child_processes
from vitreous.bench.child_processes import LOST, ChildProcesses
from vitreous.bench.signals import Stopped, stop_signals
from vitreous.core.errors import DataError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def forked_children():
    """Children are forked from a process that has imported what tests need."""
    forked_context()


def count_up(pipe, count):
    for number in range(count):
        pipe.send(number)


def die(pipe):
    pipe.send("before")
    os.kill(os.getpid(), signal.SIGKILL)


def fail(pipe):
    raise DataError("no luck")


def send_number_and_wait(pipe):
    pipe.send(os.getpid())
    time.sleep(600)


def test_messages_of_a_child_are_in_order_and_a_death_does_not_end_the_others():
    with ChildProcesses() as children:
        children.start(0, die)
        children.start(1, count_up, 1000)
        messages = list(children.messages())

    assert [message for number, message in messages if number == 0] == ["before", LOST]
    assert [message for number, message in messages if number == 1] == list(range(1000))


def test_an_error_of_a_child_is_raised_with_its_traceback():
    with ChildProcesses() as children:
        children.start(0, fail)
        with pytest.raises(DataError, match="no luck") as caught:
            next(children.messages())

    assert "in fail" in "".join(caught.value.__notes__)


class TwoArgumentsError(Exception):
    """It is pickled with one argument, so it cannot be unpickled."""

    def __init__(self, reason, code):
        super().__init__(f"{reason} ({code})")


class LocalFunctionError(Exception):
    def __init__(self, reason, code):
        super().__init__(f"{reason} ({code})")
        self.retry = lambda: None


def fail_with(pipe, kind):
    raise kind("no luck", 7)


@pytest.mark.parametrize("kind", [TwoArgumentsError, LocalFunctionError])
def test_an_error_that_cannot_be_pickled_keeps_its_type_message_and_traceback(kind):
    with ChildProcesses() as children:
        children.start(0, fail_with, kind)
        with pytest.raises(RuntimeError, match=rf"{kind.__name__}: no luck \(7\)") as caught:
            next(children.messages())

    assert "in fail_with" in "".join(caught.value.__notes__)


def answer(pipe):
    while True:
        pipe.send(pipe.recv() + 1)


def test_a_child_answers_until_it_dies_and_can_be_replaced():
    with ChildProcesses() as children:
        children.start(0, answer)
        assert [children.call(0, number) for number in (1, 5)] == [2, 6]
        children.children[0][1].kill()
        with pytest.raises(EOFError):
            children.call(0, 1)
        children.start(0, answer)
        assert children.call(0, 7) == 8

    with pytest.raises(EOFError):  # nothing is started after the end
        children.start(0, answer)


def test_children_are_ended_on_exit():
    with ChildProcesses() as children:
        children.start(0, send_number_and_wait)
        _, process = next(children.messages())

    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def send_large_messages_when_stopped(pipe, end: Path):
    try:
        with stop_signals():
            pipe.send("started")
            time.sleep(600)
    except KeyboardInterrupt:
        for _ in range(3):
            pipe.send(bytes(2**20))  # more than a pipe holds
        end.touch()


def test_a_child_that_still_sends_when_it_is_stopped_comes_to_its_end(tmp_path):
    with ChildProcesses() as children:
        children.start(0, send_large_messages_when_stopped, tmp_path / "end")
        assert next(children.messages()) == (0, "started")

    assert (tmp_path / "end").exists()


def test_the_pipe_of_a_child_ends_with_it_if_a_signal_arrives_while_it_starts(monkeypatch):
    """The traceback of the interruption keeps the variables of the function that starts children."""

    @contextmanager
    def interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        yield

    with ChildProcesses() as children:
        monkeypatch.setattr(child_processes, "children_ignore_terminal", interrupted)
        with stop_signals(), pytest.raises(Stopped) as interruption:
            children.start(0, count_up, 1)
        pipe, process = children.children.pop(0)
        process.join()
        assert [pipe.recv(), pipe.recv()] == [0, None]
        assert pipe.poll(), "the pipe is still open"
    assert interruption.value.number == signal.SIGTERM


def test_a_signal_that_ends_the_server_of_children_too_is_raised(monkeypatch):
    """As by `kill %1` in a shell, or a service manager: each process of a command gets the signal."""

    def start_without_server(process):
        os.kill(os.getpid(), signal.SIGTERM)
        raise EOFError("unexpected EOF")

    with ChildProcesses() as children:
        monkeypatch.setattr(children.context.Process, "start", start_without_server)
        with stop_signals(), pytest.raises(Stopped):
            children.start(0, count_up, 1)


def send_part_of_a_message_and_wait(pipe):
    pipe.send("started")
    os.write(pipe.fileno(), b"\xff" * 12)  # as a length, more than any message has
    time.sleep(600)


def test_children_are_ended_if_another_thread_has_read_a_part_of_their_last_message():
    with ChildProcesses() as children:
        children.start(0, send_part_of_a_message_and_wait)
        pipe, process = children.children[0]
        assert next(children.messages()) == (0, "started")
        assert pipe.poll(600)

    assert not process.is_alive()


def start_child_and_die(report: Path) -> None:
    with ChildProcesses() as children:
        children.start(0, send_number_and_wait)
        report.write_text(str(next(children.messages())[1]))
        os.kill(os.getpid(), signal.SIGKILL)


def gone(process: int) -> bool:
    """Wait until a process has ended, however busy the machine is."""
    for _ in range(30000):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_children_do_not_outlive_a_killed_parent(tmp_path):
    assert run_forked(start_child_and_die, tmp_path / "child") == -signal.SIGKILL
    assert gone(int((tmp_path / "child").read_text()))
