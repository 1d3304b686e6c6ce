"""A classifier that was never trained is named in provenance and figures, and no trained one is."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from torch import nn

import vitreous
from tests.cases import each
from vitreous.models.random_weights import RANDOM_HEAD, RANDOM_MODEL, is_fresh, weights_caution

TINY = {"img_size": 32, "depth": 1}
IMAGE = torch.zeros(1, 3, 32, 32)
NEW = {
    "torch": lambda: nn.Linear(192, 7),
    "timm vit": lambda: timm.create_model("vit_tiny_patch16_224", num_classes=7, **TINY).head,
    "timm efficientnet": lambda: timm.create_model("mobilenetv3_small_050", num_classes=7).classifier,
    "timm beit": lambda: timm.create_model("beit_base_patch16_224", num_classes=7, **TINY).head,
    "torchvision vit": lambda: torchvision.models.get_model("vit_b_16", num_classes=7, image_size=32).heads.head,
    "bfloat16": lambda: nn.Linear(192, 7).bfloat16(),
}


@each("kind", NEW)
def test_a_new_classifier_is_recognised_until_it_is_trained(kind):
    torch.manual_seed(0)
    layer = NEW[kind]()
    trained = nn.Linear(layer.in_features, 7).requires_grad_(False)
    trained.load_state_dict(layer.state_dict())
    generator = torch.Generator().manual_seed(0)
    trained.weight += 0.02 * torch.randn(trained.weight.shape, generator=generator)
    trained.bias += 0.02 * torch.randn(7, generator=generator)

    assert is_fresh(layer)
    assert not is_fresh(trained)


@each("distribution", ["wide", "narrow", "two values"])
def test_other_distributions_are_not_those_of_a_new_classifier(distribution):
    layer = nn.Linear(192, 7)
    noise = torch.randn(7, 192, generator=torch.Generator().manual_seed(0))
    layer.weight.data = {"wide": 0.05 * noise, "narrow": 0.015 * noise, "two values": 0.02 * noise.sign()}[distribution]
    layer.bias.data.zero_()

    assert not is_fresh(layer)
    assert not is_fresh(nn.Linear(16, 2))  # too few weights to tell
    assert not is_fresh(nn.Linear(192, 7, bias=False))


@each("name", ["scenes", "scenes-swin"])
def test_trained_models_have_no_caution(name):
    model = vitreous.load(name)

    assert weights_caution(model) == ""
    assert not any(is_fresh(layer) for layer in model.module.modules() if isinstance(layer, nn.Linear))


def test_a_new_head_is_named_in_provenance_and_figure():
    module = timm.create_model("vit_tiny_patch16_224", num_classes=5, **TINY).eval()
    vit = vitreous.wrap(module)

    found = vitreous.explain(vit, IMAGE, 1, "temper")
    module.head.load_state_dict({"weight": torch.randn(5, 192), "bias": torch.randn(5)})
    later = vitreous.explain(vit, IMAGE, 1, "temper")

    assert found.provenance["caveat"] == RANDOM_HEAD
    assert "the classifier has the values that a new layer starts with" in page_of(found)
    assert RANDOM_HEAD in vitreous.draw.html(found)
    assert "caveat" not in later.provenance
    assert "new layer" not in page_of(later)


@each("name", ["timm:vit_tiny_patch16_224", "torchvision:resnet18"])
def test_a_model_without_weights_from_anywhere_is_named(name):
    options = TINY if name.startswith("timm") else {"size": (64, 64)}
    model = vitreous.load(name, pretrained=False, num_classes=5, **options)

    assert weights_caution(model) == RANDOM_MODEL
    assert model.origin.weights == "random"
    classifier = [layer for layer in model.module.modules() if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        classifier.weight.copy_(torch.randn(classifier.weight.shape))
    assert weights_caution(model) == ""


@pytest.mark.slow
@each("file", ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "deit_tiny_patch16_224.wvfunc-lnq8"])
def test_real_weights_have_no_caution(file, assets):
    model = vitreous.load(f"timm:{file.split('.')[0]}", checkpoint=assets / "weights" / f"{file}.safetensors")

    assert weights_caution(model) == ""


def page_of(attribution: vitreous.Attribution) -> str:
    return " ".join(" ".join(text.get_text() for text in attribution.plot().texts).split())
