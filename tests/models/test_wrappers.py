"""Modules that contain a ViT: described as a ViT whose head is the rest, or else as a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import vitreous
from tests.models.families import SIZE, SMALL, build, pictures, shaken
from vitreous.capture.probe import Probe
from vitreous.draw.captions import remarks
from vitreous.draw.overlay import overlay_image
from vitreous.models.model import call_module, image_keyword
from vitreous.models.vit import ViT
from vitreous.testing import fingerprint
from vitreous.wrapping import as_network


class WithHead(nn.Module):
    """A backbone and a head of the user."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


class Normalising(WithHead):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x - 0.3) / 0.7)


class MeanOfPatches(WithHead):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone.forward_features((x - 0.3) / 0.7)[:, 1:].mean(1))


class Scaled(WithHead):
    """A function and not a module receives the features."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(2 * self.backbone(x) + 1)


class ClassTokenAndMean(WithHead):
    def forward(self, x: Tensor) -> Any:
        states = self.backbone(pixel_values=x).last_hidden_state
        return {"logits": self.head(torch.cat([states[:, 0], states[:, 1:].mean(1)], -1))}["logits"]


class LastState(WithHead):
    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(self.backbone(pixel_values).last_hidden_state[:, 0])


class BesidesTheImage(WithHead):
    """The head also reads the image directly, so patches cannot be removed."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean((1, 2, 3))[:, None]


class Masked(VisionTransformer):
    """As MAE and RETFound have it: a boolean `global_pool`, and a norm of the mean in place of the mean of the norm."""

    def __init__(self, global_pool: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.global_pool: Any = global_pool
        if global_pool:
            self.fc_norm = nn.LayerNorm(self.embed_dim)
            del self.norm

    def forward(self, x: Tensor, attn_mask: Any = None) -> Tensor:
        x = self.norm_pre(self._pos_embed(self.patch_embed(x)))
        x = self.blocks(x)
        return self.head(self.fc_norm(x[:, 1:].mean(1)) if self.global_pool else self.norm(x)[:, 0])


def huggingface(kind: str, **changes: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    widths = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 40}
    config = getattr(transformers, f"{kind}Config")(image_size=24, patch_size=8, **widths, **changes)
    return getattr(transformers, f"{kind}Model")(config)


def linear(inputs: int = 24) -> nn.Module:
    return nn.Linear(inputs, 4)


WRAPPERS: dict[str, Callable[[], nn.Module]] = {
    "logits and a layer": lambda: nn.Sequential(build("vit"), nn.Linear(5, 4)),
    "features and a layer": lambda: nn.Sequential(build("vit", num_classes=0), linear()),
    "features, norm and a layer": lambda: nn.Sequential(
        build("deit-3", num_classes=0), nn.Sequential(nn.LayerNorm(24), nn.Dropout(0.5), linear())
    ),
    "backbone and head": lambda: WithHead(build("dinov2-registers", num_classes=0), linear()),
    "attention pooling": lambda: WithHead(build("siglip", num_classes=0), linear()),
    "normalised inside": lambda: Normalising(build("vit", num_classes=0), linear()),
    "pooled outside": lambda: MeanOfPatches(build("vit", num_classes=0), linear()),
    "scaled outside": lambda: Scaled(build("vit", num_classes=0), linear()),
    "mae, class token": lambda: Masked(False, **SMALL),
    "mae, mean": lambda: Masked(True, **SMALL),
    "huggingface class token": lambda: LastState(huggingface("ViT"), linear()),
    "huggingface both": lambda: ClassTokenAndMean(huggingface("Dinov2"), linear(48)),
}
NOT_FROZEN = {"features, norm and a layer"}  # a norm inside the head is not held fixed by a ViT


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_vit_inside_a_module_is_found_and_its_tokens_can_be_removed(name):
    module = shaken(WRAPPERS[name]())
    before = fingerprint(module)
    vit = vitreous.wrap(module)
    images = pictures(2, vit.size)

    assert isinstance(vit, ViT)
    assert vit.module is module
    torch.testing.assert_close(vitreous.explain(vit, images, 1, "ixg").logits, module(images).detach())
    by_parts = vitreous.explain(vit, images, 1, "ixg+plus")
    by_operation = vitreous.explain(as_network(module, size=vit.size), images, 1, "ixg+plus")
    torch.testing.assert_close(by_parts.patches, by_operation.patches, rtol=1e-9, atol=1e-12)
    keep = torch.ones(2, 1, vit.layout(vit.size).patches, dtype=torch.bool)
    probe = Probe(vit, images, torch.tensor([1, 1]))
    torch.testing.assert_close(probe.logits(keep)[:, 0], probe.full_logits)
    keep[..., 3:] = False
    assert (probe.logits(keep)[:, 0] - probe.full_logits).abs().max() > 1e-3
    assert fingerprint(module) == before


def test_removing_patches_of_a_wrapper_removes_them_from_the_inner_vit():
    backbone, head = build("vit-mean", num_classes=0), linear().double()
    inside, outside = vitreous.wrap(backbone), vitreous.wrap(nn.Sequential(backbone, head))
    keep = torch.rand(2, 5, 12, generator=torch.Generator().manual_seed(0)) < 0.5

    features = Probe(inside, pictures(), torch.tensor([0, 0])).logits(keep)
    logits = Probe(outside, pictures(), torch.tensor([0, 0])).logits(keep)

    torch.testing.assert_close(logits, head(features).detach())


def test_a_module_whose_rest_reads_the_image_is_a_network():
    module = shaken(BesidesTheImage(build("vit", num_classes=0), linear()))

    network = vitreous.wrap(module)

    assert type(network) is vitreous.Network
    with pytest.warns(vitreous.Caveat, match="cells of the image itself"):
        attribution = vitreous.explain(network, pictures(), 1, "ixg+plus")
    torch.testing.assert_close(attribution.logits, module(pictures()).detach())


def test_a_head_that_is_not_affine_is_reported():
    head = nn.Sequential(nn.Linear(24, 8), nn.GELU(), nn.Linear(8, 4))

    with pytest.warns(vitreous.Caveat, match="not affine"):
        vitreous.explain(shaken(nn.Sequential(build("vit", num_classes=0), head)), pictures(), 1, "decompx")


@pytest.mark.parametrize("kind", ["ViT", "Dinov2", "DINOv3ViT"])
def test_a_backbone_without_a_head_is_explained_by_a_score(kind):
    module = shaken(huggingface(kind, **({"num_register_tokens": 2} if kind == "DINOv3ViT" else {})))
    images = pictures(2, (24, 24))
    with torch.no_grad():
        reference = module(pixel_values=images[:1]).last_hidden_state[0, 0]

    attribution = vitreous.explain(
        module, images, method="decompx+plus", score=vitreous.scores.cosine(reference, of="last_hidden_state")
    )

    assert attribution.maps().shape == (2, 3, 3)
    torch.testing.assert_close(attribution.score[0], torch.ones((), dtype=torch.float64))
    with pytest.raises(vitreous.VitreousError, match=r"score=…|text_target"):
        vitreous.explain(module, images, method="ixg")


@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_modules_are_supported(dtype):
    module = shaken(nn.Sequential(build("vit", num_classes=0), linear())).to(dtype)

    vit = vitreous.wrap(module)
    half = vitreous.explain(vit, pictures(), 1, "ixg").patches

    assert isinstance(vit, ViT)
    assert vit.dtype == dtype
    expected = vitreous.explain(module.double(), pictures(), 1, "ixg").patches
    assert torch.nn.functional.cosine_similarity(half.double(), expected).min() > 0.9


def test_weights_of_a_wrapper_are_randomised_as_those_of_a_vit():
    module = shaken(nn.Sequential(build("vit", num_classes=0), linear()))
    attribution = vitreous.explain(module, pictures(), 1, "ixg")

    result = vitreous.evaluate(vitreous.wrap(module), pictures(), attribution, "parameter_randomisation")

    assert result.scores.isfinite().all()


class OwnTower(nn.Module):
    """The structure of open_clip: an image tower with a projection, and a text tower that does not depend on images."""

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual
        self.text = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.logit_scale = nn.Parameter(torch.ones(()))

    def forward(self, image: Tensor) -> Tensor:
        return nn.functional.normalize(self.visual(image), dim=-1)


def test_a_tower_in_the_structure_of_open_clip_is_explained_by_a_cosine():
    module = shaken(OwnTower(nn.Sequential(build("clip", num_classes=0), linear())))
    reference = torch.randn(4, generator=torch.Generator().manual_seed(0)).double()

    vit = vitreous.wrap(module)
    attribution = vitreous.explain(module, pictures(), method="decompx+plus", score=vitreous.scores.cosine(reference))

    assert isinstance(vit, ViT)
    assert not vit.affine
    expected = nn.functional.cosine_similarity(module(pictures()), reference[None]).detach()
    torch.testing.assert_close(attribution.score, expected)


def test_the_drawn_channels_are_stated():
    for channels, words in ((1, "its channel in grey"), (4, "the first 3 of 4 channels")):
        vit = vitreous.wrap(build("vit", in_chans=channels))
        inputs = torch.randn(1, channels, *vit.size, generator=torch.Generator().manual_seed(0)).double()
        attribution = vitreous.explain(vit, inputs, 1, "ixg")

        assert words in remarks(attribution)
        assert overlay_image(attribution).mode == "RGB"
    shown = replace(attribution, images=pictures(1))
    assert "channel" not in remarks(shown)


# ── other ways to be called and to answer ────────────────────────────────────────────────────────


class PlainDict(WithHead):
    """By keyword only, and logits in a plain dictionary, as training code has it."""

    def forward(self, *, pixel_values: Tensor, labels: Any = None) -> dict[str, Any]:
        logits = self.head(self.backbone(pixel_values))
        return {"loss": None, "hidden": logits[:, :1], "logits": logits}


class Keywords(nn.Module):
    def forward(self, *, labels=None, images=None): ...


class Positional(nn.Module):
    def forward(self, images, *, labels): ...


class AnyKeywords(nn.Module):
    def forward(self, **kwargs): ...


@pytest.mark.parametrize("kind", ["vit", "network", "black box"])
def test_logits_in_a_dictionary_of_a_module_that_is_called_by_keyword_are_explained(kind):
    backbone = build("vit", num_classes=0)
    module = shaken(PlainDict(backbone, nn.Linear(24, 4))).eval()
    plain = WithHead(backbone, module.head).eval()
    method = "occlusion(window=8, stride=8)" if kind == "black box" else "ixg"

    def describe(module: nn.Module) -> vitreous.BlackBox:
        return as_network(module, size=SIZE) if kind == "network" else vitreous.wrap(module, black_box=kind != "vit")

    model = describe(module)
    found = vitreous.explain(model, pictures(), [0, 3], method)
    own = vitreous.explain(describe(plain), pictures(), [0, 3], method)

    assert isinstance(model, ViT) == (kind == "vit")
    torch.testing.assert_close(found.logits, module(pixel_values=pictures())["logits"].detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.maps(), own.maps(), rtol=1e-9, atol=1e-12)


def test_the_argument_of_the_images_is_found():
    module = Keywords()
    module.forward = lambda *, x: x

    class Short(nn.Module):
        def forward(s, *, pixel_values):
            return pixel_values

    kinds = (Keywords, Positional, AnyKeywords, Short)
    assert [image_keyword(kind) for kind in kinds] == ["images", None, None, "pixel_values"]
    assert call_module(module, None, pictures()) is pictures()


def test_a_dictionary_without_logits_is_refused_with_its_entries():
    class Scores(WithHead):
        def forward(self, x):
            return {"scores": self.head(self.backbone(x)), "boxes": x}

    box = vitreous.wrap(Scores(build("vit", num_classes=0), nn.Linear(24, 4).double()), black_box=True)
    with pytest.raises(
        vitreous.ShapeError, match=r"answers with 'dict' of 'scores', 'boxes', in which no logits were found"
    ):
        vitreous.explain(box, pictures(), method="rise(masks=4)")
