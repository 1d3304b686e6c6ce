"""Linearisation by operation: the model's own forward, other backward rules, and shares that add up to the score."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.capture.linearise import LINEARISATIONS, linearisation
from vitreous.capture.operation_registry import RULES
from vitreous.capture.operations import LinearisedForward, operation_rule
from vitreous.capture.probe import Probe
from vitreous.capture.trace import backward, share, trace
from vitreous.core.errors import SpecError
from vitreous.models.layout import NetworkBlock, TokenGrid
from vitreous.models.timm import from_timm

COMPLETE = ("decompx", "libra")


def calls_of(modules: Iterable[nn.Module]) -> list[NetworkBlock]:
    """The only call of every module, as blocks of a network; where tokens lie does not matter here."""
    return [NetworkBlock("", module, TokenGrid("sequence", (1, 1))) for module in modules]


def randomise(model: nn.Module) -> nn.Module:
    """Non-trivial biases, gains and layer scales, as trained models have."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter + 0.1 * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


def plain_vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=3, num_classes=5, init_values=0.5, reg_tokens=2
    )


def swin() -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    return SwinTransformer(
        img_size=32, patch_size=4, embed_dim=12, depths=(2, 2), num_heads=(2, 4), window_size=4, num_classes=5
    )


def convnext() -> nn.Module:
    from timm.models.convnext import ConvNeXt

    return ConvNeXt(depths=(2, 1, 1, 1), dims=(8, 8, 16, 16), num_classes=5, use_grn=True)


def torchvision_vit() -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5
    )


def swiglu_eva() -> nn.Module:
    from timm.models.eva import Eva

    return Eva(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5, swiglu_mlp=True)


class Gated(nn.Module):
    """Squeeze and excite, group norm, an in-place activation and an RMS norm written out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 3, padding=1)])
        self.norm, self.squeeze, self.head = nn.GroupNorm(2, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.batch_norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.batch_norm(self.blocks[0](x)), inplace=True)
        y = self.blocks[1](self.norm(x))
        gate = self.squeeze(y.mean((2, 3))).sigmoid()
        x = x + y * gate[..., None, None]
        pooled = x.mean((2, 3))
        pooled = pooled * torch.rsqrt(pooled.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.head(pooled * torch.sigmoid(1.702 * pooled))


MODELS = {
    "ViT with registers": (plain_vit, "blocks"),
    "Swin": (swin, "layers.0.blocks"),
    "ConvNeXt with GRN": (convnext, "stages.0.blocks"),
    "torchvision ViT": (torchvision_vit, "encoder.layers"),
    "EVA with SwiGLU": (swiglu_eva, "blocks"),
    "gates": (Gated, "blocks"),
}


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("name", MODELS)
def test_shares_of_inputs_and_constants_add_up_to_the_score_at_every_block(name):
    build, where = MODELS[name]
    model, x = randomise(build()), images()
    blocks = list(model.get_submodule(where).children())

    for point in COMPLETE:
        traced = trace(
            model, lambda: model(x), calls_of(blocks), LinearisedForward(LINEARISATIONS[point], record_constants=True)
        )
        score = traced.output[:, 1].sum()
        steps = list(backward(traced, score, measure=True))

        with torch.no_grad():
            torch.testing.assert_close(traced.output.detach(), model(x), rtol=0, atol=1e-12)
        assert len(steps) == len(blocks)
        assert max(abs(step.missing) for step in steps) < 1e-9 * abs(score.item())
        total = (steps[-1].segment.leaf.detach() * steps[-1].gradient).sum()
        constants = [
            *(pair for step in steps for pair in step.added),
            *(c[1:] for step in steps for c in step.added_beside),
        ]
        total = total + sum(share(added.constant, grad).sum() for added, grad in constants)
        torch.testing.assert_close(total, score.detach(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("point", ["plain", "conservative", "decompx", "libra", "attnlrp", "tempered", "gim"])
@pytest.mark.parametrize("name", ["ViT with registers", "EVA with SwiGLU"])
def test_gradients_by_operation_are_those_of_the_adapter(name, point):
    model, x = randomise(MODELS[name][0]()), images()
    targets = torch.tensor([1, 3])
    layers = Probe(from_timm(model), x, targets).layers(LINEARISATIONS[point], attention=False)
    expected = {layer.index: layer.hidden_grad for layer in layers}

    traced = trace(model, lambda: model(x), calls_of(model.blocks), LinearisedForward(LINEARISATIONS[point]))
    steps = backward(traced, traced.output.gather(1, targets[:, None]).sum())

    for step in steps:
        torch.testing.assert_close(step.gradient, expected[step.segment.level], rtol=1e-9, atol=1e-12)


def test_the_rule_for_skip_connections_is_refused_by_name():
    with pytest.raises(SpecError, match=r"residual=1\.0 is a rule for skip connections"):
        LinearisedForward(LINEARISATIONS["reslrp"])


def test_written_out_attention_has_the_rules_of_the_fused_one():
    model, x = randomise(plain_vit()), images()
    lin = linearisation("linear", qk=0.3, v=0.7, norm="frozen", activation="ratio", softmax=2)
    gradients = []
    for fused in (True, False):
        for block in model.blocks:
            block.attn.fused_attn = fused
        traced = trace(model, lambda: model(x), calls_of(model.blocks), LinearisedForward(lin))
        gradients.append([step.gradient for step in backward(traced, traced.output[:, 1].sum())])

    for fused, written in zip(*gradients, strict=True):
        torch.testing.assert_close(written, fused, rtol=1e-9, atol=1e-12)


def test_a_trace_stops_at_the_given_block_and_restores_the_module():
    model, x = randomise(plain_vit()), images()
    model.train()
    for parameter in model.parameters():
        parameter.requires_grad_(True)

    traced = trace(
        model, lambda: model(x), calls_of(model.blocks), LinearisedForward(LINEARISATIONS["decompx"]), down_to=[2]
    )

    assert [segment.level for segment in traced.segments] == [2]
    assert traced.segments[0].entered.is_leaf
    assert all(not block._forward_hooks and not block._forward_pre_hooks for block in model.blocks)
    assert all(part.training for part in model.modules())
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_exception_in_the_forward_restores_the_module():
    model, x = randomise(plain_vit()), images()

    def fail() -> Tensor:
        model(x)
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        trace(model, fail, calls_of(model.blocks), LinearisedForward(LINEARISATIONS["decompx"]))

    assert all(not block._forward_hooks and not block._forward_pre_hooks for block in model.blocks)
    assert torch.is_grad_enabled()


def test_a_registered_rule_is_used():
    x = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert "erf" not in RULES

    @operation_rule(torch.erf)
    def hold(call):
        return call.run().detach() + 0 * call.args[0]

    try:
        with LinearisedForward(LINEARISATIONS["plain"]):
            y = torch.erf(x)
    finally:
        del RULES["erf"]

    torch.testing.assert_close(y.detach(), torch.erf(x.detach()))
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0, 0]
