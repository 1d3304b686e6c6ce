"""Pixel metrics work on every network; the error of metrics that remove tokens says that they need a ViT."""

from __future__ import annotations

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer

import vitreous
from vitreous.core.errors import ModelError

BY_PIXELS = (
    "deletion(steps=4)",
    "insertion(steps=4, baseline='blur')",
    "insertion_minus_deletion(steps=4)",
    "aopc",
    "max_sensitivity(samples=2)",
    "parameter_randomisation",
    "sparseness",
    "entropy",
)
BY_MASKS = ("pointing_game", "energy_pointing", "ap", "pixel_accuracy")
BY_TOKENS = ("deletion_aopc", "insertion_accuracy")


@pytest.fixture(scope="module")
def network() -> vitreous.Network:
    torch.manual_seed(0)
    swin = SwinTransformer(img_size=32, embed_dim=12, depths=(1, 1), num_heads=(1, 1), window_size=4, num_classes=5)
    return vitreous.wrap(swin.eval(), preprocess=vitreous.Preprocess.plain(32, 0.5, 0.5))


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("spec", ["temper", "rise(masks=8)"])
def test_pixels_and_masks_measure_maps_of_a_network(network, images, spec):
    attribution = vitreous.explain(network, images, [1, 2], spec)
    objects = torch.zeros(2, 32, 32, dtype=torch.bool)
    objects[:, 8:24, 8:24] = True

    for metric in BY_PIXELS:
        result = vitreous.evaluate(network, images, attribution, metric, labels=[1, 2])
        assert result.scores.shape == (2,), metric
        assert result.scores.isfinite().all(), metric
    for metric in BY_MASKS:
        assert vitreous.evaluate(network, images, attribution, metric, objects=objects).scores.shape == (2,), metric


@pytest.mark.parametrize("metric", BY_TOKENS)
def test_the_error_of_token_removal_says_that_it_needs_a_vit(network, images, metric):
    attribution = vitreous.explain(network, images, [1, 2], "temper")

    with pytest.raises(ModelError, match=r"need a ViT, and 'SwinTransformer' is a network without an adapter"):
        vitreous.evaluate(network, images, attribution, metric, labels=[1, 2])
