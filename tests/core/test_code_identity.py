"""Identities of code change with everything that a function computes with, and with nothing else."""

from __future__ import annotations

import functools
import importlib
import linecache
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases import each
from vitreous.core.code_identity import identify_code, identify_library
from vitreous.methods.folds import plus
from vitreous.methods.method import METHODS
from vitreous.metrics.metric import METRICS

PACKAGE = {
    "__init__.py": "from .first import signal\n",
    "helpers.py": "SCALE = 2\n\ndef double(x):\n    return x * SCALE\n\ndef other(x):\n    return x\n",
    "tables.py": "TABLE = {}\n\ndef keep(function):\n    TABLE[function.__name__] = function\n    return function\n",
    "first.py": (
        "from .helpers import double\nfrom .tables import TABLE, keep\nimport torch\n\nPOWER = 3\nLEVELS = [1, 2]\nLEVELS.append(3)\n\n"
        "@keep\ndef kept(x):\n    return x\n\n"
        "def signal(x):\n    '''What it computes.'''\n    return double(x) ** POWER + LEVELS[0] + len(TABLE)\n\n"
        "def neighbour(x):\n    return x + 1\n"
    ),
}


def write_package(folder: Path, **changes: tuple[str, str]) -> None:
    """Write the package with a text of some files replaced."""
    (folder / "plugin_code").mkdir(exist_ok=True)
    for name, text in PACKAGE.items():
        old, new = changes.get(name.removesuffix(".py"), ("", ""))
        assert old in text
        (folder / "plugin_code" / name).write_text(text.replace(old, new) if old else text)


def import_package() -> Any:
    for name in [name for name in sys.modules if name.split(".")[0] == "plugin_code"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    return importlib.import_module("plugin_code.first")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files are rewritten within a second
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "plugin_code"]:
        del sys.modules[name]


def identity(folder: Path, **changes: tuple[str, str]) -> str:
    write_package(folder, **changes)
    (found,) = identify_code(import_package().signal)
    assert found.name == "plugin_code.first.signal"
    return found.digest


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({"first": ("'''What it computes.'''", "'''Other words.'''\n    # a comment")}, True),
        ({"first": ("return x + 1", "return x + 2")}, True),
        ({"helpers": ("def other(x):\n    return x", "def other(x):\n    return -x")}, True),
        ({"first": ("double(x) **", "double(x) *")}, False),
        ({"first": ("POWER = 3", "POWER = 4")}, False),
        ({"first": ("LEVELS.append(3)", "LEVELS.insert(0, 3)")}, False),
        ({"first": ("@keep\ndef kept(x):\n    return x", "@keep\ndef kept(x):\n    return -x")}, False),
        ({"helpers": ("SCALE = 2", "SCALE = 5")}, False),
        ({"helpers": ("x * SCALE", "x / SCALE")}, False),
        ({"tables": ("= function", "= None")}, False),
    ],
)
def test_what_a_function_needs_determines_its_identity(changes, is_same, folder):
    assert (identity(folder) == identity(folder, **changes)) == is_same


def test_a_file_that_was_edited_after_it_was_imported_is_another_code(folder):
    """Else the numbers of the old code would be stored under the identity of the new one."""
    before = identity(folder)
    loaded = import_package()
    write_package(folder, first=("double(x) **", "double(x) *"))

    (stale,) = identify_code(loaded.signal)

    assert len({before, stale.digest, identity(folder, first=("double(x) **", "double(x) *"))}) == 3


def make(power: int, extra: Any = None) -> Any:
    return lambda x: (x**power, extra)


def run_cell(text: str) -> Any:
    """The function `f` of a notebook cell: code of `__main__` that is in no file."""
    names: dict[str, Any] = {"__name__": "__main__"}
    linecache.cache["<cell>"] = (len(text), None, text.splitlines(keepends=True), "<cell>")
    exec(compile(text, "<cell>", "exec"), names)
    return names["f"]


CELL = "scale = [2, 3]\ndef g(x):\n    return x * scale[0]\ndef f(x):\n    return g(x) + 1\n"


@each(
    "first, second, is_same",
    [
        (make(2), make(2), True),
        (make(2), make(3), False),
        (make(2, make(4)), make(2, make(5)), False),
        (functools.partial(make, 2), functools.partial(make, 3), False),
        (run_cell(CELL), run_cell(CELL), True),
        (run_cell(CELL), run_cell(CELL.replace("x * scale", "x / scale")), False),
        (run_cell(CELL), run_cell(CELL.replace("[2, 3]", "[4, 3]")), False),
        (run_cell(CELL), run_cell("# a comment\n" + CELL), True),
    ],
)
def test_closures_and_notebooks_count(first, second, is_same):
    assert (identify_code(first) == identify_code(second)) == is_same


def test_the_library_is_identified_by_its_version_and_its_files(monkeypatch, tmp_path):
    import vitreous
    from vitreous.core import code_identity

    assert identify_library().startswith(f"{vitreous.__version__} ")
    assert not any(identify_code(METHODS[name]) for name in ("genatt", "gradcam", "random", "tis"))
    assert not any(identify_code(METRICS[name]) for name in ("insertion", "sparseness"))
    for name in ("methods", "cli"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(code_identity, "OWN_PACKAGE", tmp_path)
    identities = [identify_library.__wrapped__()]
    for name in ("cli", "methods"):
        (tmp_path / name / "a.py").write_text("x = 2\n")
        identities.append(identify_library.__wrapped__())
    assert identities[0] == identities[1] != identities[2]


def test_outside_code_inside_the_librarys_objects_is_found():
    def score(logits, targets):
        return logits[:, 0]

    method = METHODS["genatt"].with_fold(plus)
    assert [found.name for found in identify_code(method.with_options(question=score))] == [
        f"{__name__}.{score.__qualname__}"
    ]
    assert identify_code(method) == ()
