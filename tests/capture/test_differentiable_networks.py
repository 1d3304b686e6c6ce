"""Maps of networks with a graph: the numbers of the ordinary pass, and gradients that finite differences confirm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitreous
from tests.capture.test_operations import Gated, convnext, plain_vit, randomise, swiglu_eva, swin, torchvision_vit
from tests.models.families import FAMILIES, is_available, seen
from vitreous.capture.backward_functions import Phase, ResidualSum
from vitreous.capture.differentiable import DifferentiableForward, DifferentiableNetworkProbe, DifferentiableProbe
from vitreous.capture.linearise import LINEARISATIONS, Linearisation
from vitreous.capture.network_probe import NetworkProbe
from vitreous.capture.operation_registry import RULES, Call
from vitreous.capture.operations import LinearisedForward, operation_rule
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError
from vitreous.methods.spec import resolve
from vitreous.models.vit import LinearPool


class InPlaceBlock(nn.Module):
    """A convolution with batch norm and activation, in place, whose result is added to a copy of the input, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        total = x.clone()
        total += self.branch(x)
        return F.hardswish(total, inplace=True)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
        self.blocks = nn.ModuleList(InPlaceBlock() for _ in range(3))

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "swin": swin,
    "convnext": convnext,
    "gated": Gated,
    "in place": InPlace,
    "swiglu": swiglu_eva,
    "torchvision": torchvision_vit,
    "vit": plain_vit,
}
TARGETS = torch.tensor([[1, 2], [0, 3]])
SPECS = ("ixg", "decompx+plus", "temper", "attnlrp+skipplus", "gim+plus", "gradcam")


def network(name: str):
    torch.manual_seed(0)
    module = randomise(NETWORKS[name]())
    named = ["blocks.*"] if name == "in place" else None  # its convolutions are no blocks: a sum passes by them
    described = vitreous.see_through(module, size=(32, 32), blocks=named)
    module.requires_grad_()
    return described


def images(count: int = 2, size: tuple[int, int] = (32, 32)) -> Tensor:
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(3)).double()


@pytest.mark.parametrize("name", NETWORKS)
def test_maps_of_networks_are_those_of_the_ordinary_backward_pass(name, subtests):
    model = network(name)
    for spec in SPECS:
        with subtests.test(spec=spec):
            method = resolve(spec).for_model(model)
            expected = method(NetworkProbe(model, images(), TARGETS, "probability")).patches
            patches = method(DifferentiableNetworkProbe(model, images(), TARGETS, "probability")).patches

            assert patches.requires_grad
            torch.testing.assert_close(patches.detach(), expected, rtol=1e-9, atol=1e-11 * expected.abs().max().item())


def test_a_complete_method_keeps_its_graph_for_a_logit():
    """Without a graph, the shares of biases are computed with the map; with a graph, only the map."""
    model = network("convnext")
    expected = vitreous.explain(model, images(), TARGETS, "decompx+first", "logit")

    tracked = vitreous.explain(model, images(), TARGETS, "decompx+first", "logit", differentiable=True)

    assert expected.bias is not None
    assert tracked.bias is None
    assert tracked.patches.requires_grad
    torch.testing.assert_close(tracked.patches.detach(), expected.patches, rtol=1e-9, atol=1e-11)


def check_by_finite_differences(loss: Callable[[bool], Tensor], parameters: list[Tensor]) -> None:
    """Compare gradients of `loss(True)`, which keeps a graph, with differences of `loss(False)`, which does not."""
    gradients = torch.autograd.grad(loss(True), parameters, allow_unused=True)
    for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index), dtype=parameter.dtype)
        step, values = 1e-6, []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step * direction
            values.append(loss(False).item())
            with torch.no_grad():
                parameter -= sign * step * direction
        numeric = (values[0] - values[1]) / (2 * step)
        analytic = 0.0 if gradient is None else (gradient * direction).sum().item()
        assert analytic == pytest.approx(numeric, rel=1e-5, abs=1e-8), f"parameter {index}"


@pytest.mark.parametrize("spec", ["decompx+plus", "temper", "gim+plus"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_the_maps_of_networks_agree_with_finite_differences(name, spec):
    model = network(name)
    given = images(1).requires_grad_()
    method = resolve(spec).for_model(model)
    parameters = list(model.module.parameters())
    chosen = [
        parameters[index] for index in sorted({0, 1, len(parameters) // 3, len(parameters) // 2, -2 % len(parameters)})
    ]

    def loss(differentiable: bool) -> Tensor:
        kind = DifferentiableNetworkProbe if differentiable else NetworkProbe
        patches = method(kind(model, given, torch.tensor([1]), "probability")).patches
        weights = torch.randn(patches.shape, generator=torch.Generator().manual_seed(1), dtype=patches.dtype)
        return (patches * weights).sum()

    check_by_finite_differences(loss, [*chosen, given])


POOLED_BY_ATTENTION = ["siglip", "map-skips-prefix", "map-reads-prefix", "perception-encoder"]


def test_no_family_that_is_pooled_by_attention_is_forgotten():
    available = filter(is_available, FAMILIES)

    assert [name for name in available if not isinstance(seen(name).pool, LinearPool)] == POOLED_BY_ATTENTION


@pytest.mark.parametrize("name", POOLED_BY_ATTENTION)
def test_attention_pooling(name, subtests):
    vit = seen(name)
    vit.module.requires_grad_()
    for spec in ("temper", "gim+plus", "reslrp+plus", "genatt", "presence", "gradcam"):
        with subtests.test(spec=spec):
            method, given = resolve(spec), images(2, vit.size)
            expected = method(Probe(vit, given, TARGETS, "probability")).patches
            patches = method(DifferentiableProbe(vit, given, TARGETS, "probability")).patches
            torch.testing.assert_close(patches.detach(), expected, rtol=1e-9, atol=1e-11 * expected.abs().max().item())
    given = images(1, vit.size).requires_grad_()
    pool = [parameter for key, parameter in vit.module.named_parameters() if "attn_pool" in key]
    for spec in ("temper", "presence"):

        def loss(differentiable: bool, method=resolve(spec)) -> Tensor:
            patches = method((DifferentiableProbe if differentiable else Probe)(vit, given, torch.tensor([1]))).patches
            weights = torch.randn(patches.shape, generator=torch.Generator().manual_seed(1), dtype=patches.dtype)
            return (patches * weights).sum()

        check_by_finite_differences(loss, [pool[0], pool[-1], given])


# ── every rule: the derivative of its backward pass ──────────────────────────────────────────────

WEIGHT, BIAS = (torch.randn(6, generator=torch.Generator().manual_seed(seed)).double() + 1 for seed in (5, 6))
MATRIX = torch.randn(6, 6, generator=torch.Generator().manual_seed(7)).double()
RULE_CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "layer_norm": lambda x, w: F.layer_norm(x, (6,), w[0], w[1]),
    "layer_norm of two axes": lambda x, w: F.layer_norm(x, (4, 6), None, None),
    "rms_norm": lambda x, w: F.rms_norm(x, (6,), w[0], 1e-6),
    "group_norm": lambda x, w: F.group_norm(x, 2, w[0, :4], w[1, :4]),
    "batch_norm": lambda x, w: F.batch_norm(x, BIAS[:4], WEIGHT[:4].square(), w[0, :4], w[1, :4]),
    "statistic": lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * w[0],
    "std_mean": lambda x, w: (x - torch.std_mean(x, -1, keepdim=True)[1]) * w[0] / (1 + x.std(-1, keepdim=True)),
    "normalize": lambda x, w: F.normalize(x @ w.mT @ MATRIX[:3], dim=-1),
    "divide": lambda x, w: (x * w[0]) / (2 + x.square().sum(-1, keepdim=True)),
    "attention": lambda x, w: F.scaled_dot_product_attention(x * w[0], x @ MATRIX, x * w[1]),
    "attention with a mask": lambda x, w: F.scaled_dot_product_attention(x, x * w[1], x, is_causal=True),
    "softmax": lambda x, w: (x @ (x * w[0]).mT).softmax(-1) @ (x * w[1]),
    "einsum": lambda x, w: torch.einsum("bnm,bmd->bnd", torch.softmax(x @ x.mT, -1), x * w[0]),
    "multi_head_attention": lambda x, w: F.multi_head_attention_forward(
        x, x * w[0], x * w[1], 6, 2, torch.cat([MATRIX] * 3), torch.cat([BIAS] * 3), None, None, False, 0.0, MATRIX, BIAS,
        need_weights=False,
    )[0],
    "linear attention": lambda x, w: F.elu(x @ x.mT) @ (x * w[0]),
    "gate": lambda x, w: (x * w[0]) * F.silu(x @ MATRIX),
    "sigmoid gate": lambda x, w: (x * w[0]) * (x @ MATRIX).sigmoid(),
    "glu": lambda x, w: F.glu(torch.cat([x * w[0], x @ MATRIX], -1), -1),
    "power": lambda x, w: (x * w[0]).square() + (x * w[1]) ** 3,
    "sigmoid": lambda x, w: (x * w[0]) * torch.sigmoid(1.702 * (x * w[0])),
    "gelu": lambda x, w: F.gelu(x * w[0]),
    "in place": lambda x, w: F.silu(x * w[0], inplace=True) + (x * w[1]).tanh_(),
    "mish": lambda x, w: F.mish(x * w[0]),
    "linear": lambda x, w: F.linear(x, w, None) @ MATRIX[:3],
    "convolution": lambda x, w: F.conv1d(x, w[0, :4, None].expand(4, 4, 3) * WEIGHT[:3], w[1, :4], padding=1),
    "sums and selections": lambda x, w: torch.where(x > 0, x + w[0], torch.cat([x[..., :3], x[..., 3:] * w[1, 3:]], -1)),
}  # fmt: skip


@pytest.mark.parametrize("point", ["plain", "decompx", "attnlrp", "gim", "libra"])
@pytest.mark.parametrize("name", RULE_CASES)
def test_the_linearised_gradient_of_every_rule_can_be_differentiated(name, point):
    """gradcheck of the backward pass in input, parameters and upstream gradient, and equality with the ordinary one."""
    function, lin = RULE_CASES[name], LINEARISATIONS[point]
    generator = torch.Generator().manual_seed(4)
    x, weights, upstream = (
        torch.randn(shape, generator=generator).double() for shape in ((2, 4, 6), (3, 6), (2, 4, 6))
    )
    ordinary = x.clone().requires_grad_()
    with LinearisedForward(lin):
        output = function(ordinary, weights)
    upstream = upstream[..., : output.shape[-1]]
    (expected,) = torch.autograd.grad(output, ordinary, upstream)

    def gradient(x: Tensor, weights: Tensor, upstream: Tensor) -> Tensor:
        mode = DifferentiableForward(lin)
        parameters = nn.ParameterList([nn.Parameter(weights)])  # marks its inputs
        with mode.marking(parameters):
            held = weights.view_as(weights)
            held._vitreous_constant = True
            leaf = x.view_as(x)
            with mode:
                output = function(leaf, held)
        (found,) = mode.gradients((output * upstream).sum(), [leaf])
        return found

    given = [tensor.clone().requires_grad_() for tensor in (x, weights, upstream)]
    torch.testing.assert_close(gradient(*given), expected, rtol=1e-9, atol=1e-10)
    assert torch.autograd.gradcheck(gradient, given, atol=1e-6, rtol=1e-4, fast_mode=True)


def test_the_rule_for_skip_connections_can_be_differentiated():
    generator = torch.Generator().manual_seed(4)
    given = [torch.randn(2, 5, generator=generator).double().requires_grad_() for _ in range(3)]

    def gradients(stream: Tensor, update: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
        phase = Phase()
        total = ResidualSum.apply(stream, update, 1.0, phase)
        phase.linearised = True
        return torch.autograd.grad(total, (stream, update), upstream, create_graph=True)

    assert torch.autograd.gradcheck(gradients, given)


def test_a_registered_rule_must_be_declared_differentiable(monkeypatch):
    module = nn.Sequential(nn.Conv2d(3, 4, 8, 8), *[nn.Sequential(nn.Conv2d(4, 4, 1), nn.SELU()) for _ in range(2)])
    module = nn.Sequential(module, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).double().eval()
    described = vitreous.see_through(module, size=(32, 32), blocks=["0.1", "0.2"])
    module.requires_grad_()
    monkeypatch.setitem(RULES, "selu", lambda call: call.run())
    with pytest.raises(ModelError, match="'selu' is not known to be differentiable"):
        vitreous.explain(described, images(1), 1, "ixg", differentiable=True)

    @operation_rule("selu", differentiable=True)
    def rule(call: Call) -> Tensor:
        return call.damp(call.run(), 0.5)

    halved = vitreous.explain(described, images(1), 1, "ixg", differentiable=True).patches
    torch.testing.assert_close(halved.detach(), vitreous.explain(described, images(1), 1, "ixg").patches)
    assert halved.requires_grad


def test_an_operation_without_a_second_derivative_is_refused_by_name():
    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Conv2d(3, 4, 8, 8), nn.Linear(4, 3)
            self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            grid = F.affine_grid(torch.eye(2, 3).to(x).expand(len(x), 2, 3), list(x.shape), align_corners=False)
            return self.head(F.grid_sample(x, 0.9 * grid, align_corners=False).mean((2, 3)))

    torch.manual_seed(0)
    module = Sampled().double().eval()
    described = vitreous.see_through(module, size=(32, 32), blocks=["blocks.*"])
    module.requires_grad_()
    with pytest.raises(ModelError, match="has no second derivative"):
        vitreous.explain(described, images(1), 1, "ixg", differentiable=True)


def test_scores_and_texts_keep_their_graph():
    """Any score of a network, and texts of a ViT without classes."""
    model = network("swin")
    score = vitreous.scores.value(1)
    attribution = vitreous.explain(model, images(1), method="temper", score=score, differentiable=True)
    expected = vitreous.explain(model, images(1), method="temper", score=score)
    torch.testing.assert_close(attribution.patches.detach(), expected.patches)
    assert attribution.patches.requires_grad

    tower = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=2, num_classes=0)
    tower = tower.double().eval()
    texts = vitreous.text_target(torch.randn(1, 2, 24, generator=torch.Generator().manual_seed(2)).double())
    expected = vitreous.explain(tower, images(1), texts, "temper")
    attribution = vitreous.explain(tower, images(1), texts, "temper", differentiable=True)
    torch.testing.assert_close(attribution.patches.detach(), expected.patches, rtol=1e-9, atol=1e-12)
    attribution.patches.square().sum().backward()
    assert tower.blocks[0].attn.qkv.weight.grad.abs().sum() > 0


def test_every_built_in_rule_is_tested_here():
    """Rules by name; those that only record constants or roles, or merge names, are covered by the whole networks."""
    covered = {
        "layer_norm", "rms_norm", "group_norm", "batch_norm", "statistic", "l2_normalise", "divide", "attention", "softmax",
        "multi_head_attention", "matrix_product", "product", "power", "ratio_activation", "bounded_gate", "gated_linear_unit",
        "linear", "convolution", "affine", "keep_role",
    }  # fmt: skip
    built_in = {rule.__name__ for rule in RULES.values() if str(rule.__module__).startswith("vitreous.")}
    assert built_in - covered == {"sampling"}  # refused: no second derivative


def test_marks_are_removed_after_the_run():
    model = network("swin")
    vitreous.explain(model, images(1), 1, "temper", differentiable=True)
    assert not any(hasattr(parameter, "_vitreous_constant") for parameter in model.module.parameters())
    assert Linearisation() == LINEARISATIONS["plain"]
