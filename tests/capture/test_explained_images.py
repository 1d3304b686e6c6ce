"""What is checked on the images that are explained, and on a module that was changed after it had been described."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn

import vitreous
from tests.cases import each
from vitreous.core.errors import ModelError
from vitreous.testing.contract import SHAPE

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1)).double()
BRIGHT = 1 + 9 * torch.tensor([0.0, 1.0, 0.0])[:, None, None, None]  # the second image


class Branching(nn.Module):
    """A network that computes something without a rule if an image of the batch has large values."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 4)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1)) for _ in range(3)
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for layer in self.layers:
            x = x + layer(x)
        x = x.mean((2, 3))
        if images.abs().mean() > 2:
            x = x + x.sin()
        return self.head(x)


class BranchingViT(timm.models.VisionTransformer):
    """A ViT whose own forward squares what it returns if an image has large values."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        logits = super().forward(x)
        return torch.where(x.abs().mean((1, 2, 3)).gt(2)[:, None], logits**2, logits)


def tiny_vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **SHAPE).double().eval()


@each("spec", ["decompx", "ixg", "gradcam", "temper"])
def test_a_network_that_takes_another_way_for_an_image_is_checked_on_that_way(spec):
    torch.manual_seed(0)
    network = vitreous.see_through(Branching().double().eval(), size=(32, 32))
    assert len(vitreous.explain(network, IMAGES, 1, spec)) == 3

    with pytest.raises(ModelError, match=r"another way through 'Branching'.*'sin' has no rule"):
        vitreous.explain(network, 10 * IMAGES, 1, spec)


def test_a_vit_whose_forward_depends_on_the_image_is_refused_where_it_does():
    torch.manual_seed(0)
    sizes = {key: SHAPE[key] for key in SHAPE if key != "num_classes"}
    vit = vitreous.wrap(BranchingViT(**sizes, num_classes=7).double().eval())
    assert isinstance(vit, vitreous.ViT)
    assert len(vitreous.explain(vit, IMAGES)) == 3

    with pytest.raises(ModelError, match=r"disagree by .* on this image") as refused:
        vitreous.explain(vit, BRIGHT * IMAGES, torch.tensor([[1, 2]] * 3))
    assert sorted(refused.value.row_errors) == [2, 3]  # of the second image


def test_shares_that_miss_a_part_of_the_score_get_a_caution_and_are_refused_above_a_tenth(monkeypatch):
    torch.manual_seed(0)
    network = vitreous.see_through(Branching().double().eval(), size=(32, 32))
    monkeypatch.setattr("vitreous.capture.network_probe.check_way", lambda *_: None)  # the branch is not noticed

    with pytest.raises(ModelError, match=r"the shares of 'decompx' miss \d+% of the score"):
        vitreous.explain(network, 10 * IMAGES, 1, "decompx")

    monkeypatch.setattr("vitreous.map_findings.REFUSED", 1e9)
    attribution = vitreous.explain(network, 10 * IMAGES, 1, "decompx")
    assert "miss more than 0.0001 % of the score" in attribution.provenance["caveat"]
    assert "caveat" not in vitreous.explain(network, IMAGES, 1, "decompx").provenance


def test_a_vit_whose_head_was_swapped_is_not_explained_as_it_was():
    module = tiny_vit()
    vit = vitreous.wrap(module)
    module.get_submodule("head").register_forward_pre_hook(lambda part, args: None)  # changes nothing
    assert len(vitreous.explain(vit, IMAGES)) == 3

    module.get_submodule("blocks.1").register_forward_hook(lambda part, args, output: 2 * output)
    with pytest.raises(ModelError, match=r"has changed since it was described .* disagree by"):
        vitreous.explain(vit, IMAGES)
    assert vitreous.wrap(tiny_vit()).outputs == 7

    module = tiny_vit()
    vit = vitreous.wrap(module)
    module.head = nn.Linear(48, 3).double()
    with pytest.raises(ModelError, match=r"has changed since it was described .* it has 3 outputs, and not 7"):
        vitreous.explain(vit, IMAGES)


def test_a_network_that_was_changed_is_described_again_or_refused():
    torch.manual_seed(0)
    module = Branching().double().eval()
    network = vitreous.see_through(module, size=(32, 32))
    module.layers[1] = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1)).double()

    attribution = vitreous.explain(network, IMAGES, 1, "decompx")
    expected = vitreous.explain(vitreous.see_through(module, size=(32, 32)), IMAGES, 1, "decompx")
    assert torch.equal(attribution.maps(), expected.maps())

    module.layers[2] = nn.Sequential(nn.Conv2d(8, 8, 1), Sine(), nn.Conv2d(8, 8, 1)).double()
    with pytest.raises(ModelError, match="has changed since it was described"):
        vitreous.explain(network, IMAGES, 1, "decompx")


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin() + x.cos()


class Experts(nn.Module):
    """A mixture of experts: the tokens of all images of a batch are sorted by the expert that they are sent to."""

    def __init__(self, width: int = 8, count: int = 3) -> None:
        super().__init__()
        self.norm, self.route = nn.LayerNorm(width), nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        chosen, total = self.route(tokens).argmax(-1), torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero()[:, 0]
            if len(places):
                total = total.index_add(0, places, expert(tokens[places]))
        return x + total.view_as(x)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 4)
        self.layers = nn.ModuleList(Experts() for _ in range(3))

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).mT
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


@each("spec", ["decompx", "fullgrad", "fullgrad@libra", "ixg+plus"])
def test_images_of_a_mixture_of_experts_are_not_mixed(spec):
    torch.manual_seed(0)
    network = vitreous.see_through(Mixture().double().eval(), size=(32, 32))
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2)).double()

    for count in (3, 4):
        together = vitreous.explain(network, images[:count], 1, spec)
        alone = [vitreous.explain(network, image[None], 1, spec) for image in images[:count]]
        assert torch.allclose(together.maps(), torch.cat([single.maps() for single in alone]), rtol=1e-9)
        if together.bias is not None:
            assert torch.allclose(together.bias, torch.cat([single.bias for single in alone]), rtol=1e-9)
    assert network.separate
    assert not vitreous.see_through(Branching().double().eval(), size=(32, 32)).separate


def test_a_batch_whose_tokens_are_sorted_unexpectedly_is_explained_one_by_one(monkeypatch):
    monkeypatch.setattr("vitreous.capture.see_through.mixes_images", lambda *_: False)  # not seen on random images
    torch.manual_seed(0)
    network = vitreous.see_through(Mixture().double().eval(), size=(32, 32))
    alone = [vitreous.explain(network, image[None], 1, "fullgrad").bias for image in IMAGES]

    assert torch.allclose(vitreous.explain(network, IMAGES, 1, "fullgrad").bias, torch.cat(alone), rtol=1e-9)
