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

# shapes of tensors are checked where tensors are; decorating every function would make up half of the start-up time
CHECKED = ("capture", "methods", "metrics", "models", "front", "measure")
if os.environ.get("VITREOUS_CHECK_SHAPES", "1") != "0":  # before anything imports vitreous
    HOOK = install_import_hook([f"vitreous.{package}" for package in CHECKED], "beartype.beartype")
torch.set_num_threads(1)
for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
    os.environ.pop(variable, None)  # output is compared: the terminal of whoever runs the tests must not change it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--first-case", action="store_true", help="run only the first case of every parametrised test (make quick)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "browser" in used:
            item.add_marker("browser")
        if "[real" in item.name or ({"real", "assets"} & set(used) and "golden" not in used):
            item.add_marker("slow")  # real weights: seconds a test
    if config.getoption("first_case"):
        cases: dict[str, list[pytest.Item]] = {}
        for item in items:
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
        config.hook.pytest_deselected(items=[item for function in cases.values() for item in function[1:]])
        items[:] = [function[0] for function in cases.values()]


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


@pytest.fixture
def as_users_run_it():
    """Arguments of wrong types reach the library, as they do where nothing checks its annotations."""
    from jaxtyping import config

    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that take long on a busy machine print progress into pipes; tests read what else is printed."""
    monkeypatch.setattr("vitreous.cli.console.INTERVAL", 3600.0)
