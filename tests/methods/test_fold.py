"""Folds of growing matrices: rows that would overflow keep their order."""

from __future__ import annotations

import math
import pydoc
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

import vitreous
from tests.models.families import pictures, tiny
from vitreous.capture.layer import Layer
from vitreous.core.errors import SpecError
from vitreous.methods.folds import plus, rescale_scores, rollout
from vitreous.methods.spec import resolve

LAYERS, TOKENS = 30, 5


def rolled(fold, dtype: torch.dtype, sizes: list[float], **options: object) -> Tensor:
    """Roll-out of matrices that grow by this factor at every layer."""
    source = torch.Generator().manual_seed(0)
    grown = torch.rand(LAYERS, 1, TOKENS, TOKENS, dtype=torch.float64, generator=source)
    mixings = (grown * torch.tensor(sizes, dtype=torch.float64)[:, None, None]).to(dtype)
    readout = torch.eye(TOKENS, dtype=dtype)[:1].expand(len(sizes), -1)
    layers = iter([Mock(spec=Layer, readout=readout, mixing=mixing) for mixing in mixings])
    return fold.function(layers, lambda layer: layer.mixing, **options)


@pytest.mark.parametrize(("fold", "options"), [(rollout, {"form": "half"}), (plus, {"mode": "restart"})])
def test_rows_that_would_overflow_are_scaled(fold, options):
    single = rolled(fold, torch.float32, [1.0, 1e3], **options).double()
    double = rolled(fold, torch.float64, [1.0, 1e3], **options)

    assert double[1].max() > torch.finfo(torch.float32).max
    assert single.isfinite().all()
    torch.testing.assert_close(single[0], double[0], rtol=1e-4, atol=0)  # a row that does not overflow is unchanged
    torch.testing.assert_close(single[1] / single[1].sum(), double[1] / double[1].sum(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("fold", "options"), [(rollout, {}), (plus, {"mode": "restart"})])
def test_every_row_is_scaled_separately(fold, options):
    together = rolled(fold, torch.float32, [1.0, 1e3], **options)
    for place, size in enumerate([1.0, 1e3]):
        assert (rolled(fold, torch.float32, [size], **options)[0] == together[place]).all()


def test_a_row_of_zeros_stays_zero_when_rows_are_normalised():
    mixing = torch.tensor([[[0.0, 2.0, 2.0], [0.0, 0.0, 0.0], [1.0, 0.0, 3.0]]], dtype=torch.float64)
    layer = Mock(spec=Layer, readout=torch.eye(3, dtype=torch.float64)[:1])
    scores = rollout.function(iter([layer, layer]), lambda _: mixing, form="half-normalised")

    normalised = torch.tensor([[0, 0.5, 0.5], [0, 0, 0], [0.25, 0, 0.75]], dtype=torch.float64)
    step = (torch.eye(3, dtype=torch.float64) + normalised) / 2
    torch.testing.assert_close(scores, (step @ step)[:1])


@pytest.mark.parametrize("normalise", ["sum", "max", "minmax", "tanh"])
def test_a_layer_of_zeros_adds_nothing_when_layers_are_rescaled(normalise):
    maps = torch.tensor([[0.0, 0.0, 0.0], [5.0, 1.0, 0.0]], dtype=torch.float64)  # a prefix token and two patches
    scores = rescale_scores(maps, 1, normalise)

    assert (scores[0] == 0).all()
    largest = math.tanh(2) if normalise == "tanh" else 1.0
    assert scores[1, 1:].tolist() == pytest.approx([largest, 0])


@pytest.mark.parametrize("spec", ["fullgrad+plus(normalise='max')", "fullgrad+(normalise='max')"])
def test_layers_with_bias_shares_are_not_rescaled(spec):
    with pytest.raises(SpecError, match=r"adds bias shares.*ixg\+plus\(normalise='max'\)"):
        resolve(spec)


def test_rescaled_layers_add_up_to_the_map_inside():
    inside = vitreous.inside(tiny("vit"), pictures(), method="elementwise+plus(normalise='tanh')")

    torch.testing.assert_close(inside.parts["signal"].sum(1), inside.whole.patches)


@pytest.mark.parametrize("fold", [plus, plus.with_options(normalise="max")])
def test_help_shows_the_docstring_of_the_function(fold):
    assert fold.__doc__ == fold.function.__doc__
    assert "PLUS: the sum over all layers." in pydoc.render_doc(fold)
    assert "A way to combine" in type(fold).__doc__
