"""Nothing of the image passes by the first blocks of a network: they are chosen so, checked, and named where it does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

import vitreous
from vitreous.capture.call_inputs import entering_tensors, replace_tensors
from vitreous.capture.network_probe import NetworkProbe, spread
from vitreous.models.model import Network
from vitreous.wrapping import as_network

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from architecture_cases import SMALL, randomise

CASES = {case.name: case for case in SMALL}


def images(count: int = 2, size: int = 32) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1)).double()


def small_vit(depth: int = 2, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=depth, num_heads=2, num_classes=5
    )
    return randomise(vit).double().eval()


def small_cnn() -> nn.Module:
    torch.manual_seed(3)
    stages = [[nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)] for _ in range(2)]
    layers = [nn.Sequential(*stage) for stage in stages]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    return randomise(nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Sequential(*layers), *head)).double().eval()


class Sum(nn.Module):
    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


class Mirrored(nn.Module):
    """Test-time augmentation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) + self.model(x.flip(-1))


# ── oracle ───────────────────────────────────────────────────────────────────────────────────────


def entry_shares(network: Network, image: Tensor, target: int) -> tuple[Tensor, Tensor | None]:
    """Input times gradient at the first blocks by hooks on the untouched module; the image's gradient beside them."""
    first = {block.trunk: block for block in reversed(network.blocks)}
    entries = {(block.module, block.repeat): block for block in first.values()}
    calls: dict[nn.Module, int] = {}
    parts: list[tuple[Tensor, Tensor, object]] = []

    def enter(module: nn.Module, args: tuple, kwargs: dict) -> object:
        calls[module] = calls.get(module, -1) + 1
        block = entries.get((module, calls[module]))
        if block is None:
            return None
        tensors, leaves = entering_tensors(args, kwargs), {}
        for place, grid in zip(block.inputs, block.grids, strict=True):
            value = tensors[place].detach().clone()
            held = tensors[place] if network.outside else value.requires_grad_()
            leaves[id(tensors[place])] = held
            parts.append((held, value.detach(), grid))
        return replace_tensors(args, leaves), replace_tensors(kwargs, leaves)

    handles = [module.register_forward_pre_hook(enter, with_kwargs=True) for module in {m for m, _ in entries}]
    leaf = image.clone().requires_grad_()
    score = network.call(leaf * 1)[:, target].sum()
    for handle in handles:
        handle.remove()
    beside = [] if network.outside else [leaf]
    gradients = torch.autograd.grad(score, [*(held for held, _, _ in parts), *beside], allow_unused=True)
    probe, total = NetworkProbe(network, image), torch.zeros(())
    for (_, value, grid), gradient in zip(parts, gradients, strict=False):
        shares = (grid.tokens(value) * grid.tokens(gradient)).sum(-1)
        total = total + spread(shares, probe._own_layout(grid), probe.layout)
    return total, None if network.outside else gradients[-1]


def check_by_oracle(network: Network, image: Tensor, target: int = 1) -> vitreous.Attribution:
    """Compare the map of the first level with autograd on the untouched module, and the bypass with zero."""
    expected, beside = entry_shares(network, image, target)
    attribution = vitreous.explain(network, image, target, "ixg+first")
    prefix = attribution.patches[:, :0] if attribution.prefix is None else attribution.prefix
    scores = torch.cat([prefix, attribution.patches], 1)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-9 * expected.abs().max().item())
    assert beside is None or not beside.any()
    assert network.bypass == 0
    assert expected.abs().max() > 0
    return attribution


def check_shares(network: Network, image: Tensor, target: int = 1) -> None:
    """From every level on, tokens and constants make up the score."""
    for spec in ("decompx", "fullgrad@decompx+plus(biases='repeat')", "fullgrad@libra+last"):
        attribution = vitreous.explain(network, image, target, spec)
        assert attribution.residual is not None
        assert attribution.residual.abs().max() < 1e-9 * attribution.score.abs().max()


# ── several trunks ───────────────────────────────────────────────────────────────────────────────

FOLDED = (
    "ixg",
    "decompx",
    "ixg@libra+plus",
    "ixg@tempered+skipplus",
    "gradcam",
    "cat(of='output')",
    "ixg+at(layer=-1)",
)


@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
def test_the_map_of_an_ensemble_is_the_sum_of_the_maps_of_its_models(subtests):
    a, b = small_vit(3, 0), small_vit(2, 1)
    network = vitreous.see_through(Sum(a, b), size=(32, 32))

    assert network.trunks == (3, 2)
    assert [block.name for block in network.blocks] == [
        *(f"a.blocks.{i}" for i in range(3)),
        "b.blocks.0",
        "b.blocks.1",
    ]
    for spec in FOLDED:
        with subtests.test(spec=spec):
            whole, *parts = (
                vitreous.explain(m, images(), [[1, 2]] * 2, spec) for m in (network, *map(as_small, (a, b)))
            )
            expected = parts[0].patches + parts[1].patches
            torch.testing.assert_close(whole.patches, expected, rtol=0, atol=1e-9 * expected.abs().max().item())
    check_by_oracle(network, images())


def as_small(module: nn.Module) -> Network:
    return as_network(module, size=(32, 32))


@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
def test_test_time_augmentation_adds_the_mirrored_map(subtests):
    model = small_vit()
    network = vitreous.see_through(Mirrored(model), size=(32, 32))

    assert network.trunks == (2, 2)
    for spec in ("ixg", "decompx+plus", "gradcam"):
        with subtests.test(spec=spec):
            plain, mirrored = (
                vitreous.explain(as_small(model), x, 1, spec).maps() for x in (images(), images().flip(-1))
            )
            maps = vitreous.explain(network, images(), 1, spec).maps()
            torch.testing.assert_close(maps, plain + mirrored.flip(-1), rtol=0, atol=1e-9 * plain.abs().max().item())


def test_a_network_beside_a_transformer_is_part_of_the_map():
    network = vitreous.see_through(Sum(small_vit(), small_cnn()), size=(32, 32))

    assert network.trunks == (2, 2)
    check_by_oracle(network, images())
    attribution = vitreous.explain(network, images(), 1, "decompx")
    assert attribution.residual.abs().max() < 1e-9 * attribution.score.abs().max()
