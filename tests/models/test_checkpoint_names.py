"""Weights of training code around timm's models, of DeiT and of MAE load under their own names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor

import vitreous
from vitreous.core.errors import ModelError

NAME = "vit_tiny_patch16_224"
SMALL = {"img_size": 32, "depth": 2, "num_classes": 5}
State = dict[str, Tensor]


def weights_of(name: str = NAME, **changes: object) -> State:
    torch.manual_seed(0)
    model = timm.create_model(name, **{**SMALL, **changes})
    return {key: torch.randn_like(value) * 0.02 for key, value in model.state_dict().items()}


def prefixed(prefix: str, head: str = "head") -> Callable[[State], State]:
    """Everything under a prefix but the classifier, which has another name."""

    def rename(state: State) -> State:
        return {
            f"{head}.{key.removeprefix('head.')}" if key.startswith("head.") else f"{prefix}{key}": value
            for key, value in state.items()
        }

    return rename


STYLES: dict[str, Callable[[State], State]] = {
    "data-parallel": lambda s: {f"module.{k}": v for k, v in s.items()},
    "backbone alone": lambda s: {f"backbone.{k}": v for k, v in s.items()},
    "backbone in a Lightning module": lambda s: {f"model.backbone.{k}": v for k, v in s.items()},
    "backbone and head": prefixed("backbone."),
    "module, backbone and classifier": prefixed("module.backbone.", "module.classifier"),
    "encoder and fc": prefixed("encoder.", "fc"),
    "head.fc": prefixed("", "head.fc"),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("nest", ["model", "state_dict", None])
def test_prefixes_and_names_of_the_classifier_are_understood(tmp_path, style, nest):
    state = weights_of()
    content = STYLES[style](state)
    torch.save(content if nest is None else {nest: content, "epoch": 3}, tmp_path / "weights.pth")

    vit = vitreous.load(f"timm:{NAME}", checkpoint=tmp_path / "weights.pth", img_size=32, depth=2)

    own = vit.module.state_dict()
    assert own.keys() == state.keys()
    assert all(torch.equal(own[key], state[key]) for key in state)


def test_a_fine_tuned_masked_autoencoder_pools_the_mean(tmp_path):
    """MAE's models have `fc_norm` behind the pooling in place of `norm`."""
    state = weights_of(global_pool="avg")
    assert "fc_norm.weight" in state
    assert "norm.weight" not in state
    torch.save({"model": state}, tmp_path / "mae.pth")

    vit = vitreous.load(f"timm:{NAME}", checkpoint=tmp_path / "mae.pth", img_size=32, depth=2)

    assert vit.module.global_pool == "avg"
    assert torch.equal(vit.module.fc_norm.weight, state["fc_norm.weight"])


def test_a_masked_autoencoder_without_classifier_is_recognised(tmp_path):
    state = {key: value for key, value in weights_of().items() if not key.startswith("head.")}
    state |= {"mask_token": torch.zeros(1, 1, 8), "decoder_embed.weight": torch.zeros(8, 192)}
    torch.save({"model": state}, tmp_path / "mae.pth")

    with pytest.raises(ModelError, match="masked autoencoder, which has no classifier; fine-tune it first"):
        vitreous.load(f"timm:{NAME}", checkpoint=tmp_path / "mae.pth", img_size=32, depth=2)


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_original_deit_checkpoints_load(tmp_path, name):
    state = weights_of(name)
    torch.save({"model": state}, tmp_path / "deit.pth")

    vit = vitreous.load(f"timm:{name}", checkpoint=tmp_path / "deit.pth", img_size=32, depth=2)

    assert all(torch.equal(vit.module.state_dict()[key], state[key]) for key in state)


def test_layer_scales_of_deit_iii_are_renamed(tmp_path):
    name = "deit3_small_patch16_224"
    state = weights_of(name)
    published = {k.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): v for k, v in state.items()}
    assert published.keys() != state.keys()
    torch.save({"model": published}, tmp_path / "deit3.pth")

    vit = vitreous.load(f"timm:{name}", checkpoint=tmp_path / "deit3.pth", img_size=32, depth=2)

    assert all(torch.equal(vit.module.state_dict()[key], state[key]) for key in state)


def test_two_backbones_or_classifiers_are_not_guessed_between(tmp_path):
    state = weights_of()
    both = {f"{who}.{key}": value for who in ("student", "teacher") for key, value in state.items()}
    torch.save(both, tmp_path / "both.pth")
    with pytest.raises(ModelError, match=r"2 backbones \('student\.', 'teacher\.'\)"):
        vitreous.load(f"timm:{NAME}", checkpoint=tmp_path / "both.pth", img_size=32, depth=2)

    heads = {key: value for key, value in state.items() if not key.startswith("head.")}
    heads |= {"classifier.weight": torch.zeros(5, 192), "fc.weight": torch.zeros(5, 192)}
    torch.save(heads, tmp_path / "heads.pth")
    with pytest.raises(ModelError, match=r"several classifiers \(classifier, fc\)"):
        vitreous.load(f"timm:{NAME}", checkpoint=tmp_path / "heads.pth", img_size=32, depth=2)
