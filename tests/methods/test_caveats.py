"""Maps that consist of rounding errors have a caveat, and no others."""

from __future__ import annotations

import warnings

import pytest
import torch

import vitreous
from vitreous.capture.probe import Probe
from vitreous.core.errors import Caveat
from vitreous.testing import tiny_vits

CLASS_TOKEN, MEAN = "class token", "mean pool, registers, LayerScale"


@pytest.fixture(scope="module")
def vits():
    return tiny_vits()


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("spec", ["hirescam", "ixg+last", "ixg+at(layer=-1)", "ixg+skipplus(start=3)", "attixg+last"])
def test_maps_that_a_norm_makes_zero_have_a_caveat(spec, vits, images):
    with pytest.warns(Caveat, match="'(hirescam|ixg|attixg)@libra'"):
        found = vitreous.explain(vits[CLASS_TOKEN], images, method=spec)

    layer = next(iter(Probe(vits[CLASS_TOKEN], images).layers()))
    size = (layer.hidden * layer.hidden_grad).abs().sum(-1)[:, 1:]
    assert (found.patches.abs() / size).max() < 1e-6  # the norm's ε is all that shows


@pytest.mark.parametrize("spec", ["ixg+plus(normalise='max')", "hirescam+skipplus(normalise='minmax')"])
def test_a_rescaled_layer_of_rounding_errors_has_a_caveat(spec, vits, images):
    with pytest.warns(Caveat, match="normalise enlarges"):
        vitreous.explain(vits[CLASS_TOKEN], images, method=spec)


@pytest.mark.parametrize(
    ("spec", "model"),
    [
        ("ixg", CLASS_TOKEN),
        ("ixg+plus", CLASS_TOKEN),
        ("hirescam@libra", CLASS_TOKEN),
        ("hirescam(preset='grad-cam')", CLASS_TOKEN),
        ("hirescam+plus", CLASS_TOKEN),
        ("elementwise+plus(normalise='tanh')", CLASS_TOKEN),
        ("gradcam", CLASS_TOKEN),
        ("hirescam", MEAN),
        ("ixg+last", MEAN),
    ],
)
def test_other_methods_have_no_caveat(spec, model, vits, images):
    with warnings.catch_warnings():
        warnings.simplefilter("error", Caveat)
        found = vitreous.explain(vits[model], images, method=spec)

    layer = next(iter(Probe(vits[model], images).layers()))
    size = (layer.hidden * layer.hidden_grad).abs().sum(-1)[:, vits[model].layout((32, 32)).prefix :]
    assert (found.patches.abs() / size).median() > 1e-3
