"""Child processes that exchange messages with this process, and do not outlive it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

import torch

from vitreous.bench.signals import children_ignore_terminal, deferred_signals
from vitreous.core.errors import describe_error

LOST = object()  # message of a child that died


class ChildProcesses:
    """Context manager for child processes, which are terminated on exit.

    Each has a pipe of its own, so that one that dies is noticed and does not block the others.

    Parameters
    ----------
    modules
        Modules that are imported once for all of them, see `choose_process_context`.
    """

    def __init__(self, *modules: str) -> None:
        self.context = choose_process_context(*modules)
        self.children: dict[int, tuple[Connection, Any]] = {}  # pipe and process, by number
        self.lock, self.is_closed = threading.Lock(), False

    def start(
        self, number: int, body: Callable[..., None], *arguments: Any, threads: int = 1, daemon: bool = True
    ) -> None:
        """Start a process that calls `body(pipe, *arguments)`; it replaces one of the same number that has ended.

        Raises
        ------
        EOFError
            If the context manager has ended the children, or the server that they are forked from has ended.
        """
        own_end, other_end = self.context.Pipe()
        call = (threads, dict(os.environ), other_end, body, *arguments)
        process: Any = self.context.Process(target=run_child, args=call, daemon=daemon)
        # this process closes the child's end, so that the pipe ends with the child: also if a signal is raised here
        with deferred_signals(), children_ignore_terminal(), self.lock, other_end:
            if not self.is_closed:
                with suppress(EOFError, ConnectionError):  # the server is gone, as when a signal ends all processes
                    process.start()
                    self.children[number] = own_end, process
        if process.pid is None:
            raise EOFError

    def messages(self) -> Iterator[tuple[int, Any]]:
        """Number of a child and its message, `LOST` if it died, until all have ended; their errors are raised."""
        while self.children:
            numbers: dict[Any, int] = {pipe: number for number, (pipe, _) in self.children.items()}
            for pipe in wait([*numbers]):
                number = numbers[pipe]
                try:
                    message = receive(self.children[number][0])
                except EOFError:
                    message = LOST
                if message is None or message is LOST:
                    self.children.pop(number)[1].join()
                if message is not None:
                    yield number, message

    def call(self, number: int, message: Any) -> Any:
        """Send a message to a child and return its answer; its error is raised, and `EOFError` if it died."""
        pipe, _ = self.children[number]
        try:
            pipe.send(message)
        except OSError:
            raise EOFError from None
        return receive(pipe)

    def next_message(self, number: int) -> Any:
        """The next message of a child that answers in several; errors as for `call`."""
        return receive(self.children[number][0])

    def __enter__(self) -> ChildProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        with deferred_signals():
            with self.lock:
                self.is_closed = True
            children = list(self.children.values())
            for child in children:
                child[1].terminate()
        for pipe, process in children:
            with suppress(Exception):  # if another thread reads from the pipe, these are not whole messages
                while True:  # a child that saves what it has may still send, and would wait until it is read
                    pipe.recv_bytes()
            process.join()


def receive(pipe: Connection) -> Any:
    """The next message of a child; its error is raised, and `EOFError` if it died."""
    try:
        message = pipe.recv()
    except OSError:
        raise EOFError from None
    if isinstance(message, Exception):
        raise message
    return message


def run_child(
    threads: int, environment: Mapping[str, str], pipe: Connection, body: Callable[..., None], *arguments: Any
) -> None:
    """Call `body` in a child process, with the environment variables of its parent; send an error, or None at the end."""
    become_worker(threads, environment)
    try:
        body(pipe, *arguments)
        pipe.send(None)
    except KeyboardInterrupt:
        return
    except Exception as problem:  # noqa: BLE001 - raised again in the parent
        pipe.send(make_picklable(problem, traceback.format_exc()))


def make_picklable(problem: Exception, note: str) -> Exception:
    """The error with a note, or its type and message if the parent could not unpickle it."""
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:  # noqa: BLE001 - any, since pickling calls functions of the error's class
        problem = RuntimeError(describe_error(problem))
    problem.add_note(note)
    return problem


def become_worker(threads: int, environment: Mapping[str, str]) -> None:
    """Prepare a child process: it ignores SIGINT, has `threads` torch threads, and ends when its parent has died.

    `environment` has the environment variables of the parent, which may have changed since the server started.
    """
    set_environment(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles SIGINT and terminates the workers
    threading.Thread(target=exit_with_parent, args=(multiprocessing.parent_process(),), daemon=True).start()
    torch.set_num_threads(threads)


def set_environment(environment: Mapping[str, str]) -> None:
    """Replace the environment variables of this process."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def exit_with_parent(parent: Any) -> None:
    """Exit when the parent process has ended."""
    parent.join()
    os._exit(1)


# ── their start ──────────────────────────────────────────────────────────────────────────────────


def choose_process_context(*modules: str) -> ForkServerContext | SpawnContext:
    """Start method of worker processes.

    On Linux, workers are forked from a server process, which imports `modules` once for all of them and never uses a GPU.
    The server of the first call in a process serves all later ones, and keeps the environment variables of that time:
    `become_worker` sets those of the parent. Elsewhere every worker is a new process.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    with children_ignore_terminal():
        resource_tracker.ensure_running()  # its start ends with SIGINT unblocked in this process
    with children_ignore_terminal():  # workers inherit the mask of the server
        forkserver.ensure_running()
    return context
