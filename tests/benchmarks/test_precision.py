"""The benchmark of precisions: ranks, tables, and floors of the suite."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import vitreous
from vitreous.capture.precision import Flags

ROOT = Path(__file__).parents[2]
SPEED = {"size": "b", "ms": 0.3, "floor_ms": 0.25, "ratio": 1.2, "spread": [1.1, 1.3]}
ROWS = [
    {**SPEED, "method": "temper", "precision": "float32"},
    {**SPEED, "method": "temper", "precision": "bf16", "eager_ratio": 1.6},
    {**SPEED, "method": "temper+skipplus", "precision": "bf16", "eager_ratio": 1.5},
    {
        **SPEED,
        "method": "gradcam",
        "precision": "bf16",
        "graph_ms": 0.2,
        "graph_ratio": 0.8,
        "graph_floor_ms": 0.16,
        "ratio": 2.0,
    },
    {**SPEED, "method": "fuse", "precision": "bf16", "eager_ratio": 3.1},
    {"size": "b", "method": "genatt", "precision": "bf16", "error": "left out: the time is up"},
    {"size": "b", "method": "floor", "precision": "autocast", "floor_ms": 0.4},
]


def module(path: str):
    spec = importlib.util.spec_from_file_location(f"script_{Path(path).stem}", ROOT / path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # dataclasses look their module up
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def script():
    return module("benchmarks/precision.py")


def test_correlations_are_of_ranks(script):
    scores = torch.tensor([[3.0, 1.0, 2.0, 2.0], [1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 0.0]])
    others = torch.tensor([[9.0, 0.0, 1.0, 1.0], [4.0, 3.0, 2.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    assert script.correlate_ranks(scores, scores).tolist() == pytest.approx([1, 1, 1])
    assert script.correlate_ranks(others, scores).tolist() == pytest.approx([1, -1, -1 / 3])


def test_only_missing_methods_are_measured(script, tmp_path, monkeypatch):
    """Rows of earlier results are kept; methods of many passes come last."""
    import json
    from argparse import Namespace

    names = ["temper", "rise", "ixg", "gradcam"]
    monkeypatch.setattr(script, "VARIANTS", ())
    monkeypatch.setattr(script.vitreous, "list_methods", lambda: [{"name": name} for name in names])
    (tmp_path / "known.json").write_text(json.dumps({"ranks": [{"method": "temper", "tf32": {}}]}))
    given = Namespace(assets=tmp_path, device="cpu", images=1, method=None, known=[tmp_path / "known.json"])
    rows = list(script.measure_ranks(given, deadline=0))
    assert [row["method"] for row in rows] == ["ixg", "gradcam", "rise"]
    assert rows[0]["error"] == "left out: the time is up"


def test_tables_mark_missing_measurements(script):
    ranks = {"method": "temper", "on": "a model", "bf16": {"median": 0.9994, "min": 0.99, "nan": 0}, "seconds": 1.0}
    text = script.format_markdown(
        {"machine": "A GPU", "speed": ROWS, "ranks": [ranks, {"method": "lime", "error": "too slow"}]}
    )
    assert "| b | `temper` | bf16 | 0.300 | 0.250 | 1.20 | 1.10–1.30 | – | 1.60 |" in text
    assert "| b | `gradcam` | bf16 | 0.300 | 0.250 | 2.00 | 1.10–1.30 | 0.80 |  |" in text
    assert "left out: the time is up" in text
    assert "0.99940 / 0.9900" in text
    assert "too slow" in text


def test_the_page_judges_bfloat16_by_its_targets():
    page = module("docs/performance_page.py").precisions({"machine": "A GPU", "speed": ROWS})
    assert "| `temper` | 0.300 (1.20) | – | 0.300 (1.20) | – | ≤ 1.25 met | 1.60 |" in page
    assert "| `gradcam` | – | – | 0.300 (2.00) | 0.200 (0.80; 1.25) | ≤ 1.25 met | – |" in page
    assert "| `temper+skipplus` | – | – | 0.300 (1.20) | – | ≤ 1 **missed** | 1.50 |" in page
    assert "| `fuse` | – | – | 0.300 (1.20) | – | – | 3.10 |" in page
    assert "| `genatt` | – | – | – | – | ≤ 1.6 | – |" in page
    assert "autocast" not in page


def test_a_bed_in_bfloat16_has_a_converted_floor(script):
    before = Flags.read()
    try:
        from suite import peers

        workload = script.make_workload("test", batch=2, arithmetic="bf16")
        rows = {case.what.split("(")[0]: case for case in peers.cases(workload)}
        assert [*rows] == ["ig", "smoothgrad", "ixg", "gradcam", "attnlrp"]
        assert "ours is in TF32" in rows["ixg"].note  # and the peer explains a converted module
        assert "TF32" not in rows["attnlrp"].note
        assert (
            peers.get_peer_images(workload).dtype
            == next(peers.get_peer_module(workload).parameters()).dtype
            == torch.bfloat16
        )
        assert (workload.precision, workload.vit.dtype, workload.one_backward().dtype) == (
            "bf16",
            torch.float32,
            torch.bfloat16,
        )
        from suite.whitebox import cases

        names = {case.what for case in cases(workload)}
    finally:
        before.apply()
    assert {"decompx+skipplus", "genatt", "tokentm"} <= names
    assert not [name for name in names if "bf16" not in vitreous.resolve(name).facts.precision]
