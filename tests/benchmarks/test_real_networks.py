"""The numbers of real networks on the how-to pages are those that were recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import real_networks

RECORDED = [what for what in real_networks.PAGES if (real_networks.RESULTS / f"real-{what}.json").exists()]


@pytest.mark.parametrize("what", RECORDED)
def test_the_page_shows_the_recorded_results(what):
    rows = json.loads((real_networks.RESULTS / f"real-{what}.json").read_text())
    page = real_networks.PAGES[what].read_text()

    assert real_networks.fill_page(page, rows) == page
    assert "real_networks.py" in page


def test_undefined_values_stay_visible():
    row = {"score": "mask", "method": "gradcam", "ap": 0.5, "energy_pointing": float("nan"), "pointing_game": 1.0}

    assert "| mask | `gradcam` | 2 | 0.50 | – | 1.00 |" in real_networks.summarise(
        [row, row | {"energy_pointing": 0.5}]
    )
