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

from vitreous.capture import fused

ROOT = Path(__file__).parents[2]
INTERPRETED = """
import json, sys, torch
sys.path.insert(0, "benchmarks")
from precision import kernel_differences
import vitreous
from vitreous.testing import tiny_vits

print(json.dumps(list(kernel_differences("cpu", tokens=3, widths=(5, 8)))))
vit = tiny_vits(torch.float32)["class token"]
images = torch.randn(1, 3, *vit.size, generator=torch.Generator().manual_seed(0))
for spec in ("temper", "tokentm"):
    for precision in ("float32", "bf16"):
        print(json.dumps(vitreous.explain(vit, images, [[0, 1]], spec, precision=precision).patches.tolist()))
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_agree_with_torch():
    maps = {}
    for interpret in ("0", "1"):
        environment = {**os.environ, "TRITON_INTERPRET": interpret}
        command = [sys.executable, "-W", "ignore", "-c", INTERPRETED if interpret == "1" else without_kernels()]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        maps[interpret] = [torch.tensor(line) for line in lines[-4:]]
        rows = lines[0]
    assert len(rows) > 40
    assert not [row for row in rows if not row["agrees"]]
    bounds = (1e-5, 0.1, 1e-5, 0.1)  # float32, then bfloat16, in which both round
    for ours, reference, bound in zip(maps["1"], maps["0"], bounds, strict=True):
        assert float((ours - reference).abs().max() / reference.abs().max()) < bound


def without_kernels() -> str:
    """The script without the part that needs the interpreter."""
    return "\n".join(line for line in INTERPRETED.splitlines() if "kernel_differences(" not in line)


def test_torch_is_used_where_kernels_cannot_be():
    assert fused.kernels_for(torch.zeros(2, 3)) is None  # on a CPU
    assert fused.kernels_for(torch.zeros(2, 3, dtype=torch.float64)) is None


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_a_compiler_that_does_not_work_is_reported():
    with pytest.warns(UserWarning, match="torch's operations are used"):
        assert fused.load_kernels.__wrapped__(torch.device("cpu")) is None
