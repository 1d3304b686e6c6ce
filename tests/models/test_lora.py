"""Models with LoRA layers are explained as their merged versions."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous
from tests.models.families import build, pictures
from vitreous.core.errors import ModelError
from vitreous.models.module_structure import base_layer, unwrap_peft

RANK = 3


class LoraLayer(nn.Module):
    """What PEFT's LoRA layers have in common: the layer itself as `base_layer`, adapters by name, no `weight` in old versions."""

    def __init__(self, inner: nn.Module, down: nn.Module, up: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.base_layer = inner
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(dropout) if dropout else nn.Identity()})
        self.lora_A, self.lora_B = nn.ModuleDict({"default": down}), nn.ModuleDict({"default": up})
        self.scaling = {"default": 2.0}

    def forward(self, x: Tensor) -> Tensor:
        added = self.lora_B["default"](self.lora_A["default"](self.lora_dropout["default"](x)))
        return self.base_layer(x) + self.scaling["default"] * added


class LoraLayerWithWeight(LoraLayer):
    """Recent versions expose the weight of the inner layer, without the adapter."""

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias


def adapter_of(layer: nn.Module, kind: type[LoraLayer], dropout: float) -> LoraLayer:
    if isinstance(layer, nn.Conv2d):
        down: nn.Module = nn.Conv2d(layer.in_channels, RANK, layer.kernel_size, layer.stride, bias=False)
        up: nn.Module = nn.Conv2d(RANK, layer.out_channels, 1, bias=False)
    else:
        down, up = nn.Linear(layer.in_features, RANK, bias=False), nn.Linear(RANK, layer.out_features, bias=False)
    return kind(layer, down.to(layer.weight.dtype), up.to(layer.weight.dtype), dropout)


def with_lora(model: nn.Module, ending: str, kind: type[LoraLayer] = LoraLayer, dropout: float = 0.0) -> nn.Module:
    """Adapters around every layer whose name ends so, as `target_modules=[ending]` does."""
    torch.manual_seed(0)
    chosen = [name for name, part in model.named_modules() if name.split(".")[-1] == ending]
    assert chosen
    for name in chosen:
        parent, _, own = name.rpartition(".")
        holder = model.get_submodule(parent)
        setattr(holder, own, adapter_of(getattr(holder, own), kind, dropout).train(model.training))
    return model


@torch.no_grad()
def merge(model: nn.Module) -> nn.Module:
    """Add the products of the adapters to the weights, and remove the adapters."""
    for name, part in list(model.named_modules()):
        if isinstance(part, LoraLayer):
            down, up, inner = part.lora_A["default"].weight, part.lora_B["default"].weight, part.base_layer
            inner.weight += part.scaling["default"] * (up.flatten(1) @ down.flatten(1)).view_as(inner.weight)
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, inner)
    return model


def same_maps(adapted: Any, merged: nn.Module, images: Tensor, spec: str) -> None:
    found, expected = (vitreous.explain(model, images, [1, 2], spec) for model in (adapted, merged))
    largest = expected.patches.abs().max()
    assert (found.patches - expected.patches).abs().max() <= 1e-9 * largest
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spec", ["temper", "decompx+plus", "ixg(space='pixels')"])
@pytest.mark.parametrize("kind", [LoraLayer, LoraLayerWithWeight])
@pytest.mark.parametrize("ending", ["qkv", "proj", "fc1", "fc2", "head"])
def test_a_timm_model_with_lora_is_explained_as_merged(ending, kind, spec):
    adapted, merged = (with_lora(build("vit"), ending, kind) for _ in range(2))

    same_maps(adapted, merge(merged), pictures(), spec)


@pytest.mark.parametrize("ending", ["q_proj", "v_proj", "o_proj", "fc1", "fc2", "projection", "classifier"])
def test_a_hugging_face_model_with_lora_is_explained_as_merged(ending):
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    config = transformers.ViTConfig(**small, image_size=24, patch_size=8, num_labels=5)

    def made() -> nn.Module:
        torch.manual_seed(1)
        return with_lora(transformers.ViTForImageClassification(config).double().eval(), ending, LoraLayerWithWeight)

    same_maps(made(), merge(made()), torch.randn(2, 3, 24, 24, dtype=torch.float64), "temper")


@pytest.mark.parametrize("ending", ["0", "3", "head"])
def test_a_torchvision_model_with_lora_is_explained_as_merged(ending):
    torchvision = pytest.importorskip("torchvision")

    def made() -> nn.Module:
        torch.manual_seed(1)
        model = torchvision.models.VisionTransformer(32, 8, 2, 2, 24, 40, num_classes=5).double().eval()
        nn.init.normal_(model.heads.head.weight)
        return with_lora(model, ending)

    same_maps(made(), merge(made()), torch.randn(2, 3, 32, 32, dtype=torch.float64), "temper")


def test_lora_layers_that_the_forward_bypasses_are_refused():
    """torch's attention reads `out_proj.weight` and never calls the layer: what the model computes is a network."""
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.VisionTransformer(32, 8, 2, 2, 24, 40, num_classes=5).double().eval()
    nn.init.normal_(model.heads.head.weight)

    wrapped = vitreous.wrap(with_lora(model, "out_proj", LoraLayerWithWeight))

    assert not isinstance(wrapped, vitreous.ViT)
    assert "disagree by" in wrapped.reason


def test_a_failing_forward_gives_an_error_message():
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.VisionTransformer(32, 8, 2, 2, 24, 40, num_classes=5).double().eval()

    with pytest.raises(ModelError, match=r"cannot be run on a random image of 32x32 \(AttributeError: "):
        vitreous.wrap(with_lora(model, "out_proj"))


def test_dropout_inside_an_adapter_is_off_while_a_model_in_training_is_explained():
    adapted, merged = (with_lora(build("vit"), "proj", dropout=0.5) for _ in range(2))

    same_maps(adapted.train(), merge(merged), pictures(), "ixg")
    assert all(part.training for part in adapted.modules())
    found = vitreous.explain(adapted, pictures(), [1, 2], "ixg")
    torch.testing.assert_close(
        vitreous.evaluate(adapted, pictures(), found, "deletion_aopc").scores,
        vitreous.evaluate(adapted.eval(), pictures(), found, "deletion_aopc").scores,
    )


# ── wrappers of PEFT ──────────────────────────────────────────────────────────────────────────────


def peft_shell(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A model inside a tuner inside a PEFT model, each of which forwards unknown attributes."""

    class Shell(nn.Module):
        inside: str

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            setattr(self, self.inside, inner)

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name == self.inside:
                    raise
                return getattr(getattr(self, self.inside), name)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(self, self.inside)(*args, **kwargs)

    monkeypatch.setitem(sys.modules, "peft", ModuleType("peft"))
    tuner = type("LoraModel", (Shell,), {"__module__": "peft.tuners.lora.model", "inside": "model"})
    peft = type("PeftModel", (Shell,), {"__module__": "peft.peft_model", "inside": "base_model"})
    return peft(tuner(model))


def test_a_peft_model_is_supported(monkeypatch):
    adapted, merged = (with_lora(build("vit"), "qkv") for _ in range(2))
    shell = peft_shell(adapted, monkeypatch)

    assert unwrap_peft(shell) is adapted
    assert unwrap_peft(adapted) is adapted
    same_maps(shell, merge(merged), pictures(), "temper")


def test_the_inner_layer_has_its_sizes():
    linear = nn.Linear(4, 5)

    assert base_layer(linear) is linear
    assert base_layer(adapter_of(adapter_of(linear, LoraLayer, 0.0).base_layer, LoraLayer, 0.0)) is linear
