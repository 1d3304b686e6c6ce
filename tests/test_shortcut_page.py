"""The page about the shortcut: its script runs from end to end, and the page has the stored numbers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "docs" / "shortcut_page.py"


def script():
    spec = importlib.util.spec_from_file_location("shortcut_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_stored_numbers():
    page = script()
    results = json.loads(page.RESULTS.read_text())

    assert page.PAGE.read_text() == page.filled(page.PAGE.read_text(), results)
    before, labels, masks = (results["rows"][name] for name in ("before", "labels", "masks"))
    assert before["follows"] > 0.9
    assert labels["follows"] > 0.5  # labels alone do not remove the shortcut
    assert masks["follows"] < 0.2 < masks["moved"]


@pytest.mark.slow
def test_a_few_steps_run_from_end_to_end(tmp_path):
    page = script()
    sizes = {"steps": 2, "batch": 2, "images": 2, "count": 2, "explained": 1}
    arguments = [f"--{name}={value}" for name, value in sizes.items()]

    assert page.main([*arguments, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "shortcut.json").read_text())
    assert set(results["rows"]) == {"before", "labels", "masks", "scenes"}
    assert results["rows"]["masks"] != results["rows"]["before"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "shortcut.json",
        "shortcut.png",
        "masks.safetensors",
        "labels.safetensors",
    }
