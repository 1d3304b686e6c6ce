"""Stop a run on SIGINT, SIGTERM or SIGHUP without losing finished work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has no SIGHUP
DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)


class Stopped(KeyboardInterrupt):
    """Raised in the main thread when the process receives a stop signal.

    Attributes
    ----------
    number
        The signal.
    kept
        Message for the user about finished work and where it is; empty if not set yet.
    resumable
        Whether running the same command again continues the work.
    """

    def __init__(self, number: int = signal.SIGINT, kept: str = "", *, resumable: bool = False) -> None:
        super().__init__(number)
        self.number, self.kept, self.resumable = number, kept, resumable

    @classmethod
    def with_kept(cls, problem: KeyboardInterrupt, kept: str, *, resumable: bool = False) -> Stopped:
        """Copy of the interruption `problem` with the message `kept`."""
        return cls(getattr(problem, "number", signal.SIGINT), kept, resumable=resumable)

    @property
    def exit_status(self) -> int:
        """128 + the signal's number, as shells report it."""
        return 128 + self.number


class Deferral:
    """Nesting depth of `deferred_signals`, and the signal that arrived inside."""

    depth: int = 0
    pending: int | None = None


def raise_stopped(number: int, _frame: Any) -> None:
    """Signal handler: raise `Stopped`, or record the signal inside `deferred_signals`."""
    if Deferral.depth:
        Deferral.pending = number
    else:
        raise Stopped(number)


@contextmanager
def stop_signals() -> Iterator[None]:
    """Context manager in which stop signals raise `Stopped` in the main thread.

    Signals that are ignored (as under nohup) or handled by the calling program keep their handlers.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    default_handlers = {number: handler for number, handler in previous.items() if handler in DEFAULT_HANDLERS}
    try:
        for number in default_handlers:
            signal.signal(number, raise_stopped)
        yield
    finally:
        for number, handler in default_handlers.items():
            signal.signal(number, handler)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Context manager that delays stop signals: one that arrives inside raises `Stopped` at the end of the block.

    It has an effect inside `stop_signals` only.
    """
    Deferral.depth += 1
    try:
        yield
    finally:
        Deferral.depth -= 1
        number = None if Deferral.depth else Deferral.pending
        if not Deferral.depth:
            Deferral.pending = None
    if number is not None:
        raise Stopped(number)


@contextmanager
def children_ignore_terminal() -> Iterator[None]:
    """Context manager in which started processes block SIGINT and SIGHUP.

    A terminal sends these signals to child processes as well as to their parent. The mask is inherited, so it is in
    effect from a child's first instruction on.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    terminal = {number for number in STOP_SIGNALS if number != signal.SIGTERM}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, terminal)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
