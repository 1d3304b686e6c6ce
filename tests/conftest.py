"""Shapes and types are enforced while tests run; assets and goldens are found through the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

HOOK = install_import_hook("vitreous", "beartype.beartype")  # before anything imports vitreous
torch.set_num_threads(1)


def folder(variable: str) -> Path:
    place = os.environ.get(variable)
    if not place or not Path(place).is_dir():
        pytest.skip(f"{variable} does not name a folder")
    return Path(place)


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real weights and real pictures."""
    return folder("VITREOUS_ASSETS")


@pytest.fixture(scope="session")
def goldens() -> Path:
    """Reference outputs of public implementations."""
    return folder("VITREOUS_GOLDENS")


@pytest.fixture
def as_users_run_it():
    """Arguments of wrong types reach the library, as they do where nothing checks its annotations."""
    from jaxtyping import config

    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
