"""Triton kernels against torch's operations, in Triton's interpreter; `benchmarks/precision.py kernels` does it on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitreous
from vitreous.capture import fused
from vitreous.testing import tiny_vits

ROOT = Path(__file__).parents[2]
SPECS = [
    *((spec, precision) for spec in ("temper", "tokentm") for precision in ("float32", "bf16")),
    *((spec, "bf16") for spec in ("genatt", "presence", "genatt(variant='bt')")),
]
TILE = {"ROWS": 16, "COLUMNS": 16, "num_warps": 1, "num_stages": 1}  # several tiles of few tokens
BOUNDS = {"float32": 1e-5, "bf16": 0.1}  # in bfloat16 both round
INTERPRETED = """
import json, sys
sys.path.insert(0, "benchmarks")
import precision
from tests.capture.test_kernels import SPECS, TILE, maps_of

precision.compute_all_in_bfloat16()
rows = list(precision.measure_kernel_differences("cpu", tokens=3, widths=(5, 8)))
rows += precision.measure_attention_differences("cpu", tokens=18, widths=(12,), tile=TILE)
print(json.dumps(rows))
for spec, precision in SPECS:
    print(json.dumps(maps_of(spec, precision).tolist()))
"""


def maps_of(spec: str, precision: str) -> Tensor:
    """Maps of two classes of an image: rows of the gradients and of the forward states differ."""
    vit = tiny_vits(torch.float32)["class token"]
    image = torch.randn(1, 3, *vit.size, generator=torch.Generator().manual_seed(0))
    return vitreous.explain(vit, image, [[1, 0]], spec, precision=precision).patches


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_agree_with_torch():
    """Each kernel by itself, and the maps of a process that uses kernels with those of this one, which does not."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-c", INTERPRETED]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    rows, *maps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(rows) > 40
    assert not [row for row in rows if not row["agrees"]]
    for (spec, precision), ours in zip(SPECS, maps, strict=True):
        reference = maps_of(spec, precision)
        assert float((torch.tensor(ours) - reference).abs().max() / reference.abs().max()) < BOUNDS[precision]


def test_torch_is_used_where_kernels_cannot_be():
    assert fused.kernels_for(torch.zeros(2, 3)) is None  # on a CPU
    assert fused.kernels_for(torch.zeros(2, 3, dtype=torch.float64)) is None


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_a_compiler_that_does_not_work_is_reported():
    with pytest.warns(UserWarning, match="torch's operations are used"):
        assert fused.load_kernels.__wrapped__(torch.device("cpu")) is None
