"""Fixtures of the whole suite; shapes and types are enforced while tests run.

Reference outputs of the small models are in `tests/goldens`. Real weights, photographs and the reference outputs of the
real model lie outside the repository: `VITREOUS_ASSETS` and `VITREOUS_GOLDENS` name their folders, and tests that need
them are skipped without.
"""

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
    """Reference outputs of public implementations on the two small models."""
    return Path(__file__).parent / "goldens"


@pytest.fixture(scope="session")
def real_goldens() -> Path:
    """Reference outputs of public implementations on the real model."""
    return folder("VITREOUS_GOLDENS")
