"""Names of the methods that work for any classifier, for error messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vitreous.core.errors import NoGradientError
from vitreous.core.registry import Registry

if TYPE_CHECKING:
    from vitreous.methods.method import Method


def black_box_methods(methods: Registry[Method]) -> str:
    """Names of the methods that work for any classifier, separated by commas, and of those that need its gradients."""
    names = [name for name in sorted(methods) if methods[name].black_box is not None]
    gradients = [name for name in names if methods[name].facts.backwards != 0]
    return f"{gradient_free_methods(methods)}; if it passes gradients on to its images, also: {', '.join(gradients)}"


def gradient_free_methods(methods: Registry[Method]) -> str:
    """Names of the methods that only evaluate a model on images, separated by commas."""
    names = [name for name in sorted(methods) if methods[name].black_box is not None]
    return ", ".join(name for name in names if methods[name].facts.backwards == 0)


@contextmanager
def naming_gradient_free_methods(name: str, methods: Registry[Method]) -> Iterator[None]:
    """Context of a method called `name`: a model without gradients is refused with the methods that need none."""
    try:
        yield
    except NoGradientError as problem:
        raise NoGradientError(
            f"{problem}, and {name!r} computes gradients; methods that only evaluate it work: {gradient_free_methods(methods)}"
        ) from None
