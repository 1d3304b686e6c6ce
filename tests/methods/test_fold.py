"""Folds of mixings that grow: what would end in inf keeps its order, row by row."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from vitreous.methods.fold import plus, rollout

LAYERS, TOKENS = 30, 5


def rolled(fold, dtype: torch.dtype, sizes: list[float], **options: object) -> Tensor:
    """Of rows whose mixings grow by so much at every layer."""
    source = torch.Generator().manual_seed(0)
    grown = torch.rand(LAYERS, 1, TOKENS, TOKENS, dtype=torch.float64, generator=source)
    mixings = (grown * torch.tensor(sizes, dtype=torch.float64)[:, None, None]).to(dtype)
    one = SimpleNamespace(readout=torch.eye(TOKENS, dtype=dtype)[:1].expand(len(sizes), -1), index=0)
    walk = iter([SimpleNamespace(**vars(one), mixing=mixing) for mixing in mixings])
    return fold.function(walk, lambda layer: layer.mixing, **options)


@pytest.mark.parametrize(("fold", "options"), [(rollout, {"form": "half"}), (plus, {"mode": "restart"})])
def test_what_would_overflow_is_scaled(fold, options):
    single = rolled(fold, torch.float32, [1.0, 1e3], **options).double()
    double = rolled(fold, torch.float64, [1.0, 1e3], **options)

    assert double[1].max() > torch.finfo(torch.float32).max
    assert single.isfinite().all()
    torch.testing.assert_close(single[0], double[0], rtol=1e-4, atol=0)  # a row that fits is left as it is
    torch.testing.assert_close(single[1] / single[1].sum(), double[1] / double[1].sum(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("fold", "options"), [(rollout, {}), (plus, {"mode": "restart"})])
def test_a_row_is_scaled_for_itself(fold, options):
    together = rolled(fold, torch.float32, [1.0, 1e3], **options)
    for place, size in enumerate([1.0, 1e3]):
        assert (rolled(fold, torch.float32, [size], **options)[0] == together[place]).all()
