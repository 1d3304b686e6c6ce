"""Triton kernels against torch's operations, in Triton's interpreter; `benchmarks/precision.py kernels` does it on a GPU."""

from __future__ import annotations

import json
import os
import sys
import warnings
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch import Tensor

import vitreous
from tests.forked import run_forked
from vitreous.capture import fused
from vitreous.testing import randomise

ROOT = Path(__file__).parents[2]
SPECS = [
    *((spec, precision) for spec in ("temper", "tokentm") for precision in ("float32", "bf16")),
    *((spec, "bf16") for spec in ("genatt", "presence", "genatt(variant='bt')")),
]
SHAPE: dict[str, Any] = {
    "img_size": (16, 24),
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 3,
    "num_classes": 7,
}
TILE = {"ROWS": 16, "COLUMNS": 16, "num_warps": 1, "num_stages": 1}  # several tiles of few tokens
BOUNDS = {"float32": 1e-5, "bf16": 0.1}  # in bfloat16 both round


@cache
def small_vit() -> vitreous.ViT:
    """A ViT of two blocks and seven tokens: the interpreter takes milliseconds per token and kernel."""
    vit = vitreous.load("timm:vit_tiny_patch16_224", pretrained=False, **SHAPE)
    randomise(vit.module)
    return vit


def maps_of(spec: str, precision: str) -> Tensor:
    """Maps of two classes of an image: rows of the gradients and of the forward states differ."""
    vit = small_vit()
    image = torch.randn(1, 3, *vit.size, generator=torch.Generator().manual_seed(0))
    return vitreous.explain(vit, image, [[1, 0]], spec, precision=precision).patches


def write_interpreted(file: Path) -> None:
    """Write the differences of each kernel, and maps computed with kernels. Runs in a process of its own."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    for name in [name for name in sys.modules if name.startswith("triton") and not name.startswith("triton._C")]:
        del sys.modules[name]
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import precision

    warnings.simplefilter("ignore")
    precision.compute_all_in_bfloat16()
    rows = list(precision.measure_kernel_differences("cpu", tokens=3, widths=(5, 8)))
    rows += precision.measure_attention_differences("cpu", tokens=18, widths=(12,), tile=TILE)
    maps = [maps_of(spec, precision).tolist() for spec, precision in SPECS]
    file.write_text(json.dumps([rows, maps]))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_agree_with_torch(tmp_path):
    """Each kernel by itself, and the maps of a process that uses kernels with those of this one, which does not."""
    if Version(version("triton")) < Version("3.3") and Version(np.__version__) >= Version("2.4"):
        pytest.skip("the interpreter of Triton 3.2 cannot run loops with NumPy 2.4")
    assert run_forked(write_interpreted, tmp_path / "interpreted.json") == 0
    rows, maps = json.loads((tmp_path / "interpreted.json").read_text())
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
