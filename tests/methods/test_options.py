"""Options are validated when they are given, with a message, before anything runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vitreous
from vitreous.core.errors import SpecError
from vitreous.testing import tiny_vits


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("rise(masks=0)", "masks=0; expected at least 1"),
        ("rise(masks=2.5)", "masks=2.5; expected int"),
        ("tis(masks=True)", "masks=True; expected int"),
        ("kernelshap(samples=-1)", "samples=-1; expected at least 1"),
        ("hsic(cells=0)", "cells=0; expected at least 1"),
        ("pami(regions=0)", "regions=0; expected 'slic'"),
        ("ig(steps='many')", "steps='many'; expected int"),
        ("smoothgrad(abs=3)", "abs=3; expected bool"),
        ("smoothgrad(rel_sigma='x')", "rel_sigma='x'; expected float or None"),
        ("attcam(relu=1)", "relu=1; expected bool"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(spec, sentence):
    with pytest.raises(SpecError, match=sentence.replace("(", r"\(")):
        vitreous.resolve(spec)


@pytest.mark.parametrize("spec", ["smoothgrad(rel_sigma=None)", "smoothgrad(sigma=1)", "occlusion(window=8)"])
def test_a_value_that_can_be_meant_is_taken(spec):
    assert vitreous.resolve(spec)


@pytest.mark.parametrize(
    "spec", ["fullgrad@libra+plus", "fullgrad@libra+skipplus", "fullgrad@libra+plus(biases='repeat')"]
)
def test_a_complete_method_is_complete_at_every_start_of_a_sum(spec):
    for vit in tiny_vits().values():
        images = torch.randn(2, 3, *vit.size, dtype=vit.dtype, generator=torch.Generator().manual_seed(0))
        found = vitreous.explain(vit, images, [[0, 1], [2, 3]], spec)
        assert found.residual.abs().max() < 1e-10 * found.score.abs().max()
        assert vitreous.explain(vit, images, 0, spec.replace("@libra", "")).residual is None


def test_rescaling_a_constant_map_is_reported():
    from vitreous.methods.attention import rectify

    found = rectify(torch.tensor([[-1.0, -2.0, -3.0], [0.0, 1.0, 3.0]]), relu=True, minmax=True)

    assert found[0].isnan().all()
    assert found[1].tolist() == [0, pytest.approx(1 / 3), 1]


def test_the_control_of_a_black_box_is_a_map_of_cells():
    cnn = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    found = vitreous.explain(vitreous.wrap(cnn.eval(), black_box=True), torch.randn(2, 3, 56, 56), 1, "random")

    assert found.patches is None
    assert found.pixels().shape == (2, 56, 56)
    assert len(found.pixels()[0].unique()) == 14**2
