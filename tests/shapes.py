"""Checks of the shapes and types that functions annotate, while tests run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from jaxtyping import config, install_import_hook

from tests.optional_packages import is_installed

CHECKED_PACKAGES = ("capture", "methods", "metrics", "models", "front", "measure")  # where tensors are


def install_shape_checks() -> None:
    """Decorate the functions of the checked packages when they are imported, unless the environment declines.

    Without beartype nothing is checked.
    """
    if os.environ.get("VITREOUS_CHECK_SHAPES", "1") != "0" and is_installed("beartype"):
        install_import_hook([f"vitreous.{package}" for package in CHECKED_PACKAGES], "beartype.beartype")


@contextmanager
def check_shapes(enabled: bool) -> Iterator[None]:
    """Check the calls of decorated functions inside the block, or leave them unchecked."""
    disabled_before = config.jaxtyping_disable
    config.update("jaxtyping_disable", not enabled)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", disabled_before)
