"""Child processes that send messages to this process, and do not outlive it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from vitreous.bench.pool import become_worker, choose_process_context
from vitreous.bench.signals import children_ignore_terminal, deferred_signals

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
        self.children: dict[Any, tuple[int, Any]] = {}  # number and process, by pipe

    def start(
        self, number: int, body: Callable[..., None], *arguments: Any, threads: int = 1, daemon: bool = True
    ) -> None:
        """Start a process that calls `body(send, *arguments)`, where `send` sends a message to this process."""
        receiver, sender = self.context.Pipe(duplex=False)
        call = (threads, dict(os.environ), sender, body, *arguments)
        process: Any = self.context.Process(target=run_child, args=call, daemon=daemon)
        with deferred_signals(), children_ignore_terminal():
            process.start()
            self.children[receiver] = number, process
        sender.close()  # so that the pipe ends with the process

    def messages(self) -> Iterator[tuple[int, Any]]:
        """Number of a child and its message, `LOST` if it died, until all have ended; their errors are raised."""
        while self.children:
            for pipe in wait([*self.children]):
                number, process = self.children[pipe]
                try:
                    message = pipe.recv()
                except EOFError:
                    message = LOST
                if isinstance(message, Exception):
                    raise message
                if message is None or message is LOST:
                    del self.children[pipe]
                    process.join()
                if message is not None:
                    yield number, message

    def __enter__(self) -> ChildProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for _, process in self.children.values():
            process.terminate()
        for _, process in self.children.values():
            process.join()


def run_child(
    threads: int, environment: Mapping[str, str], pipe: Connection, body: Callable[..., None], *arguments: Any
) -> None:
    """Call `body` in a child process, with the environment variables of its parent; send an error, or None at the end."""
    become_worker(threads, environment)
    try:
        body(pipe.send, *arguments)
        pipe.send(None)
    except KeyboardInterrupt:
        return
    except Exception as problem:  # noqa: BLE001 - raised again in the parent
        pipe.send(problem)
