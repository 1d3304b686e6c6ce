"""The benchmark of networks reports a ratio for every method."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import network_overhead


@pytest.mark.slow
def test_every_method_is_compared_with_the_baseline(capsys):
    module = SwinTransformer(img_size=32, embed_dim=12, depths=(1, 1), num_heads=(1, 1), window_size=4, num_classes=5)

    network_overhead.report_ratios("a small Swin", module, (32, 32), 2, torch.device("cpu"), rounds=1)

    printed = capsys.readouterr().out
    assert "operations" in printed
    assert printed.count("of the baseline") == len(network_overhead.SPECS)
