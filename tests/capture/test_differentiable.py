"""Maps with a graph: the same numbers as without, and gradients that finite differences confirm."""

from __future__ import annotations

import pytest
import timm
import torch

import vitreous
from tests.cases import each
from tests.models.families import seen
from vitreous.capture.differentiable import DifferentiableProbe
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, SpecError
from vitreous.methods.spec import resolve
from vitreous.testing import tiny_vits

SPECS = (
    "ixg",
    "decompx",
    "ixg@libra+plus",
    "attnlrp+skipplus",
    "temper",
    "gim+plus",
    "reslrp+plus",
    "ixg@linear(norm='fixed', qk=0.3, v=0.7)+plus",
    "conservativelrp",
    "gradcam",
    "genatt",
    "presence",
    "fuse",
    "cat",
    "rollout",
)
TARGETS = torch.tensor([[1, 2], [0, 3]])


def images_for(vit, count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, 3, *vit.size, generator=generator, dtype=vit.dtype)


@pytest.fixture(scope="module")
def vits():
    vits = tiny_vits()
    for vit in vits.values():
        vit.module.requires_grad_()
    return vits


@each("spec", SPECS)
def test_maps_are_those_of_the_ordinary_backward_pass(spec, vits):
    method = resolve(spec)
    for vit in vits.values():
        images = images_for(vit)
        expected = method(Probe(vit, images, TARGETS, "probability")).patches
        patches = method(DifferentiableProbe(vit, images, TARGETS, "probability")).patches

        assert patches.requires_grad
        torch.testing.assert_close(patches.detach(), expected, rtol=1e-9, atol=1e-11 * expected.abs().max().item())


@pytest.mark.parametrize("family", ["eva02", "beit", "beit-3", "deit-3", "dinov3"])
def test_gates_rotations_biases_and_layer_scales_of_other_families(family):
    vit = seen(family)
    vit.module.requires_grad_()
    images = images_for(vit)
    for spec in ("temper", "attnlrp+plus", "ixg"):
        expected = resolve(spec)(Probe(vit, images, TARGETS)).patches
        patches = resolve(spec)(DifferentiableProbe(vit, images, TARGETS)).patches
        torch.testing.assert_close(patches.detach(), expected, rtol=1e-9, atol=1e-11 * expected.abs().max().item())


@pytest.mark.parametrize("spec", ["decompx+plus", "temper", "attnlrp", "reslrp+plus", "genatt", "gradcam"])
def test_gradients_of_maps_agree_with_finite_differences(spec, vits):
    """Of a random projection of the map, in parameters of every kind and in the image."""
    vit = next(iter(vits.values()))
    images = images_for(vit, 1).requires_grad_()
    module = vit.module
    parameters = [module.blocks[1].attn.qkv.weight, module.blocks[0].norm1.weight, module.blocks[2].mlp.fc1.bias]
    parameters += [module.head.weight, module.norm.weight, images]
    method = resolve(spec)

    def loss(probe_of=DifferentiableProbe) -> torch.Tensor:
        patches = method(probe_of(vit, images, torch.tensor([1]), "probability")).patches
        weights = torch.randn(patches.shape, generator=torch.Generator().manual_seed(1), dtype=patches.dtype)
        return (patches * weights).sum()

    gradients = torch.autograd.grad(loss(), parameters)
    for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index), dtype=parameter.dtype)
        step, values = 1e-5, []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step * direction
            values.append(loss(Probe).item())
            with torch.no_grad():
                parameter -= sign * step * direction
        numeric = (values[0] - values[1]) / (2 * step)
        assert (gradient * direction).sum().item() == pytest.approx(numeric, rel=1e-5, abs=1e-9), f"parameter {index}"


def test_explain_keeps_the_graph_and_losses_reach_the_parameters():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=2, num_classes=3)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    masks = torch.zeros(2, 32, 32, dtype=torch.bool)
    masks[:, :16] = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    values = []
    for _ in range(12):
        attribution = vitreous.explain(model, images, target=1, method="decompx+plus", differentiable=True)
        loss = vitreous.losses.mass_outside(attribution, masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())

    assert values[-1] < 0.8 * values[0]
    assert model.training  # as it was
    plain = vitreous.explain(model, images, target=1, method="decompx+plus")
    assert not plain.patches.requires_grad


def test_losses_of_known_maps():
    vit = next(iter(tiny_vits().values()))
    attribution = vitreous.explain(vit, images_for(vit), target=1, method="ixg")
    rows, columns = attribution.layout.grid
    half = torch.zeros(2, rows, columns, dtype=torch.bool)
    half[:, : rows // 2] = True
    maps = attribution.maps().abs()
    outside = maps[:, rows // 2 :].sum((1, 2)) / maps.sum((1, 2))

    torch.testing.assert_close(vitreous.losses.mass_outside(attribution, half), outside.mean())
    assert vitreous.losses.inconsistency(attribution, attribution).item() == pytest.approx(0, abs=1e-12)
    neighbours = [maps_diff(attribution.maps()[row]) / attribution.maps()[row].abs().mean() for row in range(2)]
    torch.testing.assert_close(vitreous.losses.roughness(attribution), torch.stack(neighbours).mean())


def maps_diff(scores: torch.Tensor) -> torch.Tensor:
    rows, columns = scores.shape
    steps = [(scores[i, j] - scores[i + 1, j]).abs() for i in range(rows - 1) for j in range(columns)]
    steps += [(scores[i, j] - scores[i, j + 1]).abs() for i in range(rows) for j in range(columns - 1)]
    return torch.stack(steps).mean()


def test_methods_without_a_graph_are_refused(vits):
    frozen = next(iter(tiny_vits().values()))
    frozen.module.requires_grad_(False)
    images = images_for(frozen)
    with pytest.raises(ModelError, match="requires gradients"):
        vitreous.explain(frozen, images, method="temper", differentiable=True)
    vit = next(iter(vits.values()))
    with pytest.raises(SpecError, match="does not keep the graph"):
        vitreous.explain(vit, images, method="legrad", differentiable=True)
    with pytest.raises(SpecError, match="shares of biases"):
        vitreous.explain(vit, images, method="fullgrad", differentiable=True)
    black_box = vitreous.wrap(vit.module, black_box=True)
    with pytest.raises(ModelError, match="black box"):
        vitreous.explain(black_box, images, method="rise(masks=4)", differentiable=True)
