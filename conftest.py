"""Fixtures of the whole suite.

Reference outputs of the small models are in `tests/goldens`. Real weights, photographs and the reference outputs of the
real model lie outside the repository: `VITREOUS_ASSETS` and `VITREOUS_GOLDENS` name their folders, and tests that need
them are skipped without.

Annotated shapes and types of tensors are checked in the first case of every test that is not slow, of the packages that
annotate them, and in every case of a test that is marked `shapes` (every method, metric and model family). Checking all
calls of all cases takes three times as long as the tests themselves and repeats the same checks;
`VITREOUS_CHECK_SHAPES=0` switches them off.

Nothing heavy is imported here: the process that distributes tests to others reads this file too.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.optional_packages import (
    pytest_make_collect_report,  # noqa: F401 - a hook
    pytest_runtest_makereport,  # noqa: F401 - a hook
    skip_folders,
)
from tests.shapes import check_shapes, install_shape_checks

install_shape_checks()  # before anything imports vitreous
for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
    os.environ.pop(variable, None)  # output is compared, so it must not depend on the terminal
os.environ["TERM"] = "xterm-256color"
gc.disable()  # until all tests are collected: imported modules are not garbage, and scanning them takes a quarter of the time

# also for the processes that tests start: threads of two processes on the same cores wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # virtual machines may announce AMX tiles and lack them

# Folders of the tests of what only uses the checked packages: their calls are checked in the tests of those packages.
UNCHECKED = {
    "bench",
    "benchmarks",
    "cluster",
    "data",
    "front_ends",
    "mapping",
    "report",
    "scenes",
    "study",
    "training",
    "web",
}
ROOT = Path(__file__).parent
FIRST_CASE = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--first-case", action="store_true", help="run only the first case of every parametrised test (make quick)"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules whose tests are all left out by `-m "not slow and not browser and not ray"`."""
    left_out = [name for name in ("slow", "browser", "ray") if f"not {name}" in config.option.markexpr]
    if not left_out or collection_path.suffix != ".py":
        return None
    lines = collection_path.read_text(encoding="utf-8").splitlines()
    return True if any(f"pytestmark = pytest.mark.{name}" in lines for name in left_out) else None


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and tests stay until the end: no collection has to go through them again
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


# libraries look for leaks when Python ends; earlier, pytest's own collections at the end would go through all modules
atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_folders(items)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "browser" in used:
            item.add_marker("browser")
        if "[real" in item.name or ({"real", "assets"} & set(used) and "golden" not in used):
            item.add_marker("slow")  # real weights: seconds a test
        cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    for function_cases in cases.values():
        function_cases[0].stash[FIRST_CASE] = True
    if config.getoption("first_case"):
        config.hook.pytest_deselected(items=[item for function_cases in cases.values() for item in function_cases[1:]])
        items[:] = [function_cases[0] for function_cases in cases.values()]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Run tensor operations of every test process on one core: the processes share the machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def shape_checks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check shapes in the first case of a quick test of a checked package, and in every case of a test marked `shapes`."""
    marked = request.node.get_closest_marker("shapes") is not None
    quick = not any(request.node.get_closest_marker(name) for name in ("slow", "browser", "ray"))
    quick = quick and not UNCHECKED.intersection(request.path.relative_to(ROOT).parts)
    with check_shapes(marked or (quick and request.node.stash.get(FIRST_CASE, False))):
        yield


if not hasattr(pytest, "Subtests"):  # before pytest 9

    class Subtests:
        """Cases of one test without reports of their own: the first that fails ends the test."""

        def test(self, msg: str | None = None, **case: object) -> AbstractContextManager[None]:
            return nullcontext()

    @pytest.fixture
    def subtests() -> Subtests:
        return Subtests()


def folder(variable: str) -> Path:
    place = os.environ.get(variable)
    if not place or not Path(place).is_dir():
        pytest.skip(f"{variable} does not name a folder")
    return Path(place)


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real weights and real images."""
    return folder("VITREOUS_ASSETS")


@pytest.fixture(scope="session")
def goldens() -> Path:
    """Reference outputs of public implementations on the two small models."""
    return ROOT / "tests" / "goldens"


@pytest.fixture(scope="session")
def real_goldens() -> Path:
    """Reference outputs of public implementations on the real model."""
    return folder("VITREOUS_GOLDENS")


@pytest.fixture
def as_users_run_it() -> Iterator[None]:
    """Arguments of wrong types reach the library, as they do where nothing checks its annotations."""
    with check_shapes(False):
        yield


@pytest.fixture(autouse=True)
def no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that take long on a busy machine print progress into pipes; tests read what else is printed."""
    monkeypatch.setattr("vitreous.cli.console.INTERVAL", 3600.0)
