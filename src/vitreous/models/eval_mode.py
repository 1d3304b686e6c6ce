"""Evaluation mode and hooks for the time of a forward, and an early end of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn

SCOPES: dict[nn.Module, int] = {}  # open scopes of `evaluating` in all threads, of modules that were in training mode
LOCK = threading.Lock()
INNERMOST: ContextVar[object] = ContextVar("vitreous_hooks", default=None)  # the hooks that act in this context


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Context manager: all submodules of `module` are in eval mode; their flags are restored on exit.

    With scopes of several threads, the last one to end restores a flag.
    """
    # Set the flag directly: some models override `train()`, and it would overwrite flags of submodules that differ.
    with LOCK:
        training = [part for part in parts(module) if part.training or (SCOPES and part in SCOPES)]
        for part in training:
            part.training = False
            SCOPES[part] = SCOPES.get(part, 0) + 1
    try:
        yield
    finally:
        with LOCK:
            for part in training:
                SCOPES[part] -= 1
                if not SCOPES[part]:
                    del SCOPES[part]
                    part.training = True


class OwnHook:
    """A hook of `hooking`, which does not change what a module computes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


@contextmanager
def hooking(
    modules: Iterable[nn.Module],
    enter: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any],
    leave: Callable[[nn.Module, Any, Any], None],
) -> Iterator[None]:
    """Context manager: hooks before and after every call of modules, as long as no inner scope has hooks of its own.

    They act in this context only. Other threads that call the modules meanwhile run them too, as hooks without
    keywords if they are just being registered or removed.
    """
    own = object()

    def before(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        return None if kwargs is None or INNERMOST.get() is not own else enter(part, args, kwargs)

    def after(part: nn.Module, args: Any, output: Any) -> None:
        if INNERMOST.get() is own:
            leave(part, args, output)

    distinct = dict.fromkeys(modules)
    handles = [part.register_forward_pre_hook(OwnHook(before), prepend=True, with_kwargs=True) for part in distinct]
    handles += [part.register_forward_hook(OwnHook(after)) for part in distinct]
    token = INNERMOST.set(own)
    try:
        yield
    finally:
        INNERMOST.reset(token)
        for handle in handles:
            handle.remove()


class StopForward(Exception):  # noqa: N818 - not an error
    """Raised by a hook to end a forward whose rest is not needed."""


def parts(module: nn.Module) -> set[nn.Module]:
    """`module` and all its submodules. Cheaper than `module.modules()`; called on every head forward."""
    visited: set[nn.Module] = set()
    more: list[nn.Module | None] = [module]
    while more:
        part = more.pop()
        if part is not None and part not in visited:
            visited.add(part)
            more.extend(part._modules.values())
    return visited
