"""Described models are pickled, as workers of a DataLoader and processes started by spawn need, and give the same maps."""

from __future__ import annotations

import pickle

import pytest
import timm
import torch
from torch import nn

import vitreous
from tests.cases import each
from tests.models import families, test_huggingface, test_torchvision
from vitreous.models.huggingface import from_huggingface
from vitreous.models.timm import from_timm
from vitreous.models.torchvision import from_torchvision
from vitreous.models.vit import ViT


def copied(model):
    return pickle.loads(pickle.dumps(model))


def check_copy(model, images, method="ixg"):
    copy = copied(model)
    target = [0] * len(images)
    own, found = (vitreous.explain(m, images, target, method) for m in (model, copy))
    assert type(copy) is type(model)
    assert copy.module is not model.module
    assert torch.equal(found.maps(), own.maps())
    assert found.provenance == own.provenance


@pytest.mark.slow
@each("family", families.FAMILIES)
def test_a_timm_vit_is_pickled(family):
    vit = from_timm(families.tiny(family), family)
    copy = copied(vit)

    tokens = copy.embed(families.pictures())
    assert torch.equal(tokens, vit.embed(families.pictures()))
    assert torch.equal(copy.forward(families.pictures()), vit.forward(families.pictures()))
    for own, block in zip(vit.blocks, copy.blocks, strict=True):
        assert block.attention.qkv.args[0] is not own.attention.qkv.args[0]
        queries = block.attention.qkv(tokens)[0]
        place = vitreous.models.vit.TokenPositions(vit.layout(vit.size))
        assert torch.equal(block.attention.rotate(queries, place), own.attention.rotate(queries, place))
        pairs = [(b.attention.bias(place), b.attention.layer_scale(), b.mlp.layer_scale()) for b in (block, own)]
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(*pairs, strict=True))
        assert all(map(torch.equal, block.mlp.expand(tokens), own.mlp.expand(tokens)))
        assert torch.equal(block.mlp.contract(own.mlp.expand(tokens)[-1]), own.mlp.contract(own.mlp.expand(tokens)[-1]))


@pytest.mark.parametrize("family", ["vit", "siglip", "beit", "eva02", "dinov2-giant", "deit-distilled"])
def test_a_timm_vit_that_was_pickled_gives_the_same_maps(family):
    check_copy(families.seen(family), families.pictures(), "decompx+plus")


@pytest.mark.slow
@each("family", test_huggingface.FAMILIES)
def test_a_hugging_face_vit_is_pickled(family):
    check_copy(from_huggingface(test_huggingface.tiny(family).eval(), family), test_huggingface.pictures())


def test_a_torchvision_vit_is_pickled():
    check_copy(from_torchvision(test_torchvision.tiny().eval()), test_torchvision.pictures())


class MeanHead(nn.Module):
    """A module around a ViT that normalises the image, pools and classifies by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = timm.create_model("vit_tiny_patch16_224", num_classes=0, depth=2, img_size=32)
        self.head = nn.Linear(192, 3)

    def forward(self, x):
        return self.head(self.backbone.forward_features((x - 0.5) / 0.25)[:, 1:].mean(1))


def inner_models():
    torch.manual_seed(0)
    backbone = timm.create_model("vit_tiny_patch16_224", num_classes=4, depth=2, img_size=32)
    return {"own pooling": MeanHead(), "own head": nn.Sequential(backbone, nn.Linear(4, 3))}


@each("kind", ["own pooling", "own head"])
def test_a_vit_inside_a_module_is_pickled(kind):
    vit = vitreous.wrap(inner_models()[kind].eval())

    assert isinstance(vit, ViT)
    check_copy(vit, torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))


def test_networks_and_black_boxes_are_pickled():
    torch.manual_seed(0)
    module = timm.create_model("resnet10t", pretrained=False, num_classes=3).eval()
    images = torch.randn(2, 3, 64, 64)

    check_copy(vitreous.wrap(module, size=(64, 64)), images)
    check_copy(
        vitreous.wrap(module, black_box=True, preprocess=vitreous.Preprocess.plain(64)), images, "smoothgrad(samples=2)"
    )


def test_a_model_compared_with_texts_is_pickled():
    vit = from_timm(families.tiny("clip"), "clip")
    texts = nn.functional.normalize(torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    compared = vitreous.models.outputs.compare_with_texts(vit, texts, 10.0)

    assert torch.equal(copied(compared).forward(families.pictures()), compared.forward(families.pictures()))
    assert torch.equal(
        copied(compared).length(torch.ones(1, 1, 24).double()), compared.length(torch.ones(1, 1, 24).double())
    )
