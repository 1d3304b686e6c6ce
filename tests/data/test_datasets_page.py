"""The page on datasets: every spec on it opens on a toy copy that has the files listed beside it."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.toy_data import MAKERS, OTHER_MAKERS
from vitreous.data import READERS, open_dataset

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "datasets.md").read_text()
LINES = [line for block in re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
SPECS = [line for line in LINES if not line.startswith("/")]


@pytest.fixture(scope="module")
def toys(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for key, make in {**MAKERS, **OTHER_MAKERS}.items():
        if key == "hf":
            pytest.importorskip("datasets")
        make(folder / key)
    return folder


@pytest.mark.parametrize("spec", SPECS)
def test_every_spec_opens(spec, toys):
    dataset = open_dataset(spec.replace("/data/", f"{toys}/"))

    assert len(dataset)
    sample = dataset[0]
    assert sample.key == dataset.keys[0]
    if not spec.startswith("imagenet-seg"):
        assert sample.label is not None


@pytest.mark.parametrize("path", [line for line in LINES if line.startswith("/")])
def test_every_file_is_one_of_the_copies(path, toys):
    assert Path(path.replace("/data/", f"{toys}/")).exists()


def test_every_kind_has_specs_on_the_page():
    kinds = {spec.split(":")[0] for spec in SPECS}

    assert kinds == {*MAKERS, *OTHER_MAKERS, "scenes"} - {"imagenet-flat"}  # another layout of imagenet-val
    built_in = {kind for kind in READERS if READERS.owner(kind).startswith("vitreous.")}
    assert kinds == built_in, "give the docstring of the reader specs, and toy_data.py a copy to open"


def test_the_page_agrees_with_the_readers(monkeypatch):
    script = DOCS / "datasets_page.py"
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.setattr(sys, "argv", [str(script), "--check"])

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
