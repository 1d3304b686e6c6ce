"""Modules that are imported when a test first uses them: collecting tests need not wait for them."""

from __future__ import annotations

from typing import Any

import pytest


class LazyModule:
    """Stand-in for a module; a test that uses it is skipped where the module is not installed.

    Parameters
    ----------
    name : str
        Full name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for marks of its own on every object of a test module
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name), attribute)
