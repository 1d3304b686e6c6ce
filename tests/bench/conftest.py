"""A filled store, created once and copied for every test that needs one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench.fixture import fill


@pytest.fixture(scope="session")
def original(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "run"
    fill(folder)
    return folder


@pytest.fixture
def filled(original, tmp_path) -> Path:
    """A copy of a store with one run of the small plan."""
    return Path(shutil.copytree(original, tmp_path / "run"))
