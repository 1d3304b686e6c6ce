"""Checks of the shapes and types that functions annotate, while tests run."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, get_args

import jaxtyping
from jaxtyping import AbstractArray, config, install_import_hook, jaxtyped

from tests.optional_packages import is_installed

CHECKED_PACKAGES = ("capture", "methods", "metrics", "models", "front", "measure")  # where tensors are

CHECKED_CALLS = 20  # of a function in a case: later calls of the same case repeat the same checks
CALLS: Counter[tuple[str, str]] = Counter()  # calls in the case that runs, by module and name of the function


def install_shape_checks() -> None:
    """Decorate the functions of the checked packages when they are imported, unless the environment declines.

    Without beartype nothing is checked.
    """
    if os.environ.get("VITREOUS_CHECK_SHAPES", "1") != "0" and is_installed("beartype"):
        jaxtyping.jaxtyped = check_when_called  # the hook's decorator, which modules look up when they are imported
        install_import_hook([f"vitreous.{package}" for package in CHECKED_PACKAGES], "beartype.beartype")


def check_when_called(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate as `jaxtyping.jaxtyped` does, but compile the checks of a function at its first checked call.

    A function's checks take milliseconds to compile. Most functions are never called while checks are enabled, and a
    function that is defined inside another one is decorated anew each time.
    """

    def decorate(decorated: Any) -> Any:
        if not inspect.isclass(decorated):
            return defer_checks(decorated, typechecker)
        own = vars(decorated).get("__init__")
        if dataclasses.is_dataclass(decorated) and own is not None and own.__globals__ is not globals():
            decorated.__init__ = defer_checks(own, typechecker)
        return decorated

    return decorate


def defer_checks(function: Callable[..., Any], typechecker: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function`, with its checks where they are enabled."""
    checked: Callable[..., Any] | None = None
    key = (function.__module__, function.__qualname__)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checked
        if config.jaxtyping_disable or CALLS[key] == CHECKED_CALLS:
            return function(*args, **kwargs)
        CALLS[key] += 1
        if checked is None:
            arrays = has_array_annotations(function)
            checked = jaxtyped(function, typechecker=typechecker) if arrays else function
        return checked(*args, **kwargs)

    return call


def has_array_annotations(function: Callable[..., Any]) -> bool:
    """Whether a function annotates shapes, or may: of a function inside another one that is not examined.

    Types of the other functions are checked by pyright: there are no axes to compare. A function inside another one may
    name types that are known there only.
    """
    if "<locals>" in function.__qualname__:
        return True
    try:
        hints = inspect.get_annotations(function, eval_str=True)
    except (NameError, AttributeError, TypeError):  # names that exist for type checkers alone
        return True
    return any(contains_array(hint) for hint in hints.values())


def contains_array(hint: Any) -> bool:
    if isinstance(hint, (list, tuple)):  # parameters of a Callable
        return any(contains_array(part) for part in hint)
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or contains_array(get_args(hint))


@contextmanager
def check_shapes(enabled: bool) -> Iterator[None]:
    """Check the first calls of every decorated function inside the block, or leave them unchecked."""
    CALLS.clear()
    disabled_before = config.jaxtyping_disable
    config.update("jaxtyping_disable", not enabled)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", disabled_before)
