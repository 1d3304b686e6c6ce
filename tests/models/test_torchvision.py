"""torchvision's ViT: the described parts reproduce its logits, also at other image sizes."""

from __future__ import annotations

import copy
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.models import get_model
from torchvision.models import vision_transformer as tv

import vitreous
from tests.cases import each
from tests.models.families import described
from tests.models.runner import run_parts
from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.eval_mode import evaluating
from vitreous.models.torchvision import from_torchvision
from vitreous.testing import check_model

BODY = {"patch_size": 8, "num_layers": 3, "num_heads": 3, "hidden_dim": 24, "mlp_dim": 40, "num_classes": 5}
STEM = [tv.ConvStemConfig(6, 3, 2), tv.ConvStemConfig(6, 3, 2), tv.ConvStemConfig(6, 3, 2)]


def tiny(image_size: int = 24, **changes) -> tv.VisionTransformer:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = tv.VisionTransformer(image_size=image_size, **{**BODY, "dropout": 0.5, "attention_dropout": 0.5, **changes})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double().train()


def pictures(size: int = 24) -> torch.Tensor:
    return torch.randn(2, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def small_b_16(monkeypatch):
    """A smaller `vit_b_16`, which is built quickly."""

    def small(*, patch_size, num_layers, num_heads, hidden_dim, mlp_dim, weights, progress, **kwargs):
        kwargs = {"image_size": 32, "num_classes": 5, **kwargs}
        return tv.VisionTransformer(patch_size=16, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16, **kwargs)

    monkeypatch.setattr(tv, "_vision_transformer", small)


@pytest.mark.parametrize("changes", [{}, {"conv_stem_configs": STEM}])
def test_the_adapter_passes_the_contract_tests(changes):
    assert float(check_model(tiny(**changes), method=None)["handshake"]) < 1e-10


@pytest.mark.parametrize("changes", [{}, {"conv_stem_configs": STEM}])
@pytest.mark.parametrize("size", [24, 40])
def test_the_parts_reproduce_the_logits_of_the_model(changes, size):
    model = tiny(size, **changes)
    vit = from_torchvision(model)

    ours, own = run_parts(vit, pictures(size)), vit.forward(pictures(size))

    torch.testing.assert_close(ours, own, atol=1e-10, rtol=1e-10)
    with torch.no_grad(), evaluating(model):
        torch.testing.assert_close(model(pictures(size)), own, atol=1e-10, rtol=1e-10)
    assert vit.layout((size, size)).grid == (size // 8, size // 8)


def test_a_model_is_not_modified():
    model = tiny(conv_stem_configs=STEM)
    model.encoder.layers[1].eval()
    flags, state = [part.training for part in model.modules()], copy.deepcopy(model.state_dict())

    vit = from_torchvision(model)
    run_parts(vit, pictures())
    vit.forward(pictures())
    with pytest.raises(RuntimeError):
        vit.embed(pictures()[..., :2].float())

    assert [part.training for part in model.modules()] == flags
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_removed_tokens_equal_masked_keys():
    vit = from_torchvision(tiny())
    kept = torch.tensor([0, 1, 5, 8])
    hidden = torch.ones(10, dtype=torch.bool)
    hidden[kept] = False

    left = run_parts(vit, pictures(), index=kept.expand(2, -1))

    torch.testing.assert_close(left, run_parts(vit, pictures(), hidden_keys=hidden), atol=1e-10, rtol=1e-10)


def test_a_replaced_head_is_supported_if_it_is_linear():
    model = tiny()
    for head in (nn.Linear(24, 2).double(), nn.Sequential(nn.Dropout(0.5), nn.Linear(24, 2).double())):
        model.heads = head
        vit = from_torchvision(model)
        torch.testing.assert_close(run_parts(vit, pictures()), vit.forward(pictures()))


def test_unknown_models_are_refused_by_name():
    with pytest.raises(ModelError, match=r"Linear, Tanh, Linear \(representation_size\)"):
        from_torchvision(tiny(representation_size=8))
    with pytest.raises(ModelError, match=r"'Linear'.*known in torchvision: VisionTransformer"):
        from_torchvision(nn.Linear(3, 3))
    with pytest.raises(ModelError, match="torchvision has no model 'vit_b_61'; did you mean 'vit_b_16'"):
        described("torchvision:vit_b_61")
    with pytest.raises(ModelError, match=r"no model 'nothing like it'; .*vit_b_16"):
        described("torchvision:nothing like it")
    with pytest.raises(ModelError, match=r"'AlexNet'.*known in torchvision: VisionTransformer"):
        described("torchvision:alexnet", pretrained=False)
    with pytest.raises(ModelError, match="no weights 'V9' for 'vit_b_16'; known: IMAGENET1K_V1"):
        described("torchvision:vit_b_16", weights="V9")
    with pytest.raises(ShapeError, match="takes 24x24 images, not 24x32; load it with image_size"):
        from_torchvision(tiny()).layout((24, 32))


def test_models_with_random_weights_have_preprocessing_and_size(small_b_16):
    vit = described("torchvision:vit_b_16", pretrained=False, image_size=48)

    assert vit.size == (48, 48)
    assert not vit.module.training
    assert vit.preprocess(Image.new("RGB", (90, 70))).shape == (3, 48, 48)
    assert vit.preprocess.resize == (55, 55)  # 256 for 224
    assert vit.classes is None
    assert vit.origin.weights == "random"


def test_a_checkpoint_determines_size_and_classes(small_b_16, tmp_path):
    made = tv.vit_b_16(image_size=64, num_classes=7)
    torch.save(
        {"state_dict": {f"module.{key}": value for key, value in made.state_dict().items()}}, tmp_path / "made.pth"
    )

    same = described("torchvision:vit_b_16", checkpoint=tmp_path / "made.pth")
    larger = described("torchvision:vit_b_16", checkpoint=tmp_path / "made.pth", image_size=96)

    assert same.size == (64, 64)
    assert all(torch.equal(a, b) for a, b in zip(same.module.parameters(), made.parameters(), strict=True))
    assert larger.size == (96, 96)
    assert larger.module.heads.head.out_features == 7
    expected = tv.interpolate_embeddings(96, 16, dict(made.state_dict()))["encoder.pos_embedding"]
    assert torch.equal(larger.module.encoder.pos_embedding, expected)


def test_weights_that_do_not_fit_are_refused(small_b_16, tmp_path):
    torch.save(tiny(32, patch_size=16).state_dict(), tmp_path / "odd.pth")
    torch.save(tiny(24).state_dict(), tmp_path / "patches.pth")

    with pytest.raises(ModelError, match=r"do not fit 'vit_b_16': \d+ mis-shaped \(.* for .*unexpected"):
        described("torchvision:vit_b_16", checkpoint=tmp_path / "odd.pth")
    with pytest.raises(ModelError, match=r"cannot build 'vit_b_16' with .*24.*indivisible by patch"):
        described("torchvision:vit_b_16", checkpoint=tmp_path / "patches.pth")


def test_pretrained_weights_are_never_unpickled(small_b_16, monkeypatch):
    made, asked = tv.vit_b_16(image_size=32, num_classes=1000), {}

    def fetched(entry, **options):
        asked.update(options)
        return made.state_dict()

    monkeypatch.setattr(tv.ViT_B_16_Weights, "get_state_dict", fetched)
    vit = described("torchvision:vit_b_16", weights="IMAGENET1K_SWAG_E2E_V1")

    assert asked == {"progress": False, "check_hash": True, "weights_only": True}
    assert vit.classes[0] == "tench"
    assert vit.preprocess.resize == (32, 32)
    assert torch.equal(vit.module.heads.head.weight, made.heads.head.weight)


def test_a_missing_network_connection_gives_an_error_message(monkeypatch):
    def unreachable(*_, **__):
        raise URLError("[Errno -2] Name or service not known")

    monkeypatch.setattr(tv.ViT_B_16_Weights, "get_state_dict", unreachable)
    with pytest.raises(ModelError, match=r"'vit_b_16' could not be fetched .*checkpoint=") as caught:
        described("torchvision:vit_b_16")

    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


@each("name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"])
def test_detectors_are_refused_with_the_recipe_for_them(name):
    detector = get_model(name, weights=None, weights_backbone=None, num_classes=3)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "detector.md").read_text()

    for call in (lambda: vitreous.wrap(detector), lambda: vitreous.explain(detector, torch.zeros(1, 3, 64, 64))):
        with pytest.raises(ModelError, match=r"lists of boxes.*docs/how-to/detector.md, 'Detectors of torchvision'\)"):
            call()
    assert "## Detectors of torchvision" in page
