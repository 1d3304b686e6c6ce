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
from vitreous.core.errors import ModelError
from vitreous.models.model import Network
from vitreous.wrapping import as_network

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from architecture_case import randomise
from architecture_cases import SMALL

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
    score = network.read(network.call(leaf * 1))[:, target].sum()
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


def test_layers_of_several_trunks_have_no_common_order():
    network = vitreous.see_through(Sum(small_vit(3, 0), small_vit(2, 1)), size=(32, 32))

    with pytest.raises(vitreous.SpecError, match="several chains of blocks beside each other"):
        vitreous.inside(network, images(), 1, "decompx+plus")


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


# ── residual connections outside of blocks ───────────────────────────────────────────────────────


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Pairs(nn.Module):
    """The layout of vit-pytorch: pairs of attention and MLP, whose inputs are added to their outputs outside of them."""

    def __init__(self, width: int = 16, in_place: bool = False) -> None:
        super().__init__()
        self.embed, self.in_place = nn.Conv2d(3, width, 8, 8), in_place
        mlps = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in "ab"]
        self.layers = nn.ModuleList(nn.ModuleList([Attention(width), mlp]) for mlp in mlps)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)
        self.position = nn.Parameter(torch.zeros(16, width))

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).mT + self.position
        for attention, mlp in self.layers:
            if self.in_place:
                x += attention(x)
                x += mlp(x)
            else:
                x = attention(x) + x
                x = mlp(x) + x
        return self.head(self.norm(x).mean(1))


class Unbranched(Pairs):
    """The same function with blocks that add their inputs themselves."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__()
        self.embed, self.norm, self.head, self.position = pairs.embed, pairs.norm, pairs.head, pairs.position
        self.layers = nn.ModuleList(Residual(module) for pair in pairs.layers for module in pair)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).mT + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class Residual(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


@pytest.mark.parametrize("in_place", [False, True])
def test_residual_connections_may_be_outside_of_blocks(in_place, subtests):
    torch.manual_seed(0)
    module = randomise(Pairs(in_place=in_place)).double().eval()
    network = vitreous.see_through(module, size=(32, 32))
    usual = vitreous.see_through(Unbranched(module).eval(), size=(32, 32), blocks="layers.*")

    assert [block.name for block in network.blocks] == ["layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1"]
    assert network.outside
    assert not usual.outside
    for spec in ("ixg", "decompx", "decompx+plus", "gradcam", "fullgrad@libra+plus", "ixg@attnlrp+at(layer=1)"):
        with subtests.test(spec=spec):
            ours, theirs = (vitreous.explain(model, images(), [[1, 2]] * 2, spec) for model in (network, usual))
            atol = 1e-9 * theirs.patches.abs().max().item()
            torch.testing.assert_close(ours.patches, theirs.patches, rtol=0, atol=atol)
            assert (ours.residual is None) == (theirs.residual is None)
    if not in_place:  # autograd cannot follow a norm whose input is changed
        check_by_oracle(network, images())
    check_shares(network, images())
    module.requires_grad_()
    tracked = vitreous.explain(network, images(), 1, "decompx+plus", differentiable=True).patches
    expected = vitreous.explain(usual, images(), 1, "decompx+plus").patches
    torch.testing.assert_close(tracked.detach(), expected, rtol=1e-9, atol=1e-12)
    (by_loss,) = torch.autograd.grad(tracked.square().sum(), module.layers[0][0].out.weight)
    usual_loss = vitreous.explain(usual, images(), 1, "decompx+plus", differentiable=True).patches.square().sum()
    torch.testing.assert_close(by_loss, torch.autograd.grad(usual_loss, module.layers[0][0].out.weight)[0])


# ── skips past later blocks ──────────────────────────────────────────────────────────────────────


def conv_block(width: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(width, width, 3, stride, 1), nn.ReLU(), nn.Conv2d(width, width, 1))


class Pyramid(nn.Module):
    """A decoder that reads several stages, as in SegFormer and feature pyramids."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
        self.stages = nn.ModuleList(conv_block(8, stride) for stride in (1, 2, 2))
        self.laterals = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in "abc")

    def forward(self, images: Tensor) -> Tensor:
        x, total = self.stem(images), 0
        for stage, lateral in zip(self.stages, self.laterals, strict=True):
            x = stage(x)
            total = total + nn.functional.interpolate(lateral(x), size=(8, 8))
        return self.head(total.mean((2, 3)))


class Hourglass(nn.Module):
    """A U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 5)
        self.down = nn.ModuleList(conv_block(8) for _ in "abc")
        self.up = nn.ModuleList(conv_block(16) for _ in "ab")
        self.reduce = nn.ModuleList(nn.Conv2d(16, 8, 1) for _ in "ab")

    def forward(self, images: Tensor) -> Tensor:
        x, skips = self.stem(images), []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        for block, reduce, skip in zip(self.up, self.reduce, skips[1::-1], strict=True):
            x = torch.cat([nn.functional.interpolate(x, size=skip.shape[2:]), skip], 1)
            x = reduce(block(x))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("kind", [Pyramid, Hourglass])
def test_shares_add_up_at_every_level_where_a_decoder_reads_several(kind):
    torch.manual_seed(0)
    module = randomise(kind()).double().eval()
    network = vitreous.see_through(module, size=(32, 32))

    assert network.skips
    assert len(network.blocks) == 3
    check_by_oracle(network, images())
    check_shares(network, images())
    for layer in range(3):
        attribution = vitreous.explain(network, images(), 1, f"fullgrad@decompx+at(layer={layer})")
        assert attribution.residual.abs().max() < 1e-9 * attribution.score.abs().max()
    module.requires_grad_()
    tracked = vitreous.explain(network, images(), 1, "ixg@libra+plus", differentiable=True).patches
    expected = vitreous.explain(network, images(), 1, "ixg@libra+plus").patches
    torch.testing.assert_close(tracked.detach(), expected, rtol=1e-9, atol=1e-12)


def test_ways_past_a_block_are_part_of_its_level():
    torch.manual_seed(0)
    module = randomise(Pyramid()).double().eval()
    network = vitreous.see_through(module, size=(32, 32))
    x, total, inputs = module.stem(images()), 0, []
    for stage, lateral in zip(module.stages, module.laterals, strict=True):
        inputs.append(x.detach().requires_grad_())
        x = stage(inputs[-1])
        total = total + nn.functional.interpolate(lateral(x), size=(8, 8))
    gradients = torch.autograd.grad(module.head(total.mean((2, 3)))[:, 1].sum(), inputs)

    expected = torch.zeros(2, 8, 8).double()
    for tokens, gradient in zip(inputs, gradients, strict=True):
        shares = (tokens * gradient).detach().sum(1)
        factor = 8 // shares.shape[-1]
        expected += shares.repeat_interleave(factor, 1).repeat_interleave(factor, 2) / factor**2
    maps = vitreous.explain(network, images(), 1, "ixg+last").maps()
    torch.testing.assert_close(maps, expected, rtol=0, atol=1e-12)


# ── pixels ───────────────────────────────────────────────────────────────────────────────────────


class Branches(nn.Module):
    """Paths of several kinds from the pixels to the output, none of which has blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.other = nn.Linear(3 * 32 * 32, 5), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)).tanh() + self.other(x.mean((2, 3)))


def test_a_network_without_blocks_is_explained_at_cells_of_pixels():
    torch.manual_seed(0)
    module = randomise(Branches()).double().eval()
    network = vitreous.see_through(module, size=(32, 32))
    leaf = images().requires_grad_()

    with pytest.warns(vitreous.Caveat, match="only tokens are cells of the image itself"):
        attribution = vitreous.explain(network, images(), 1, "ixg")

    (gradient,) = torch.autograd.grad(module(leaf)[:, 1].sum(), leaf)
    expected = (leaf * gradient).detach().sum(1).unfold(1, 2, 2).unfold(2, 2, 2).sum((3, 4))
    torch.testing.assert_close(attribution.maps(), expected, rtol=0, atol=1e-12)
    assert "only tokens are cells" in attribution.provenance["caveat"]


# ── what is refused, and cautions ────────────────────────────────────────────────────────────────


class Beside(nn.Module):
    """Blocks, and something that passes them by."""

    def __init__(self, beside: Callable[[Tensor], Tensor], scale: float = 1.0) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
        self.blocks = nn.ModuleList(conv_block(8) for _ in "ab")
        self.beside, self.scale = beside, scale

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean((2, 3))) + self.scale * self.beside(x)


def brightness(x: Tensor) -> Tensor:
    return x.mean((1, 2, 3))[:, None] * torch.arange(5).to(x)


def beside(function: Callable[[Tensor], Tensor], scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    return randomise(Beside(function, scale)).double().eval()


def test_named_blocks_that_a_part_of_the_image_passes_by_are_refused_with_the_share():
    with pytest.raises(
        ModelError, match=r"[\d.]+ of what 'Beside' makes of the image passes by its first block 'blocks.0'"
    ):
        vitreous.see_through(beside(brightness), size=(32, 32), blocks="blocks.*")


def test_a_small_bypass_of_named_blocks_is_a_caution():
    network = vitreous.see_through(beside(brightness, 1e-4), size=(32, 32), blocks="blocks.*")

    assert 1e-4 < network.bypass < 0.05
    with pytest.warns(
        vitreous.Caveat, match="of what the model makes of the image passes by its first block 'blocks.0'"
    ):
        attribution = vitreous.explain(network, images(), 1, "ixg")
    assert "passes by" in attribution.provenance["caveat"]


UNSEEN = {  # by autograd
    "detached": lambda x: brightness(x.detach()),
    "index": lambda x: torch.eye(5).to(x)[(x.std((1, 2, 3)) > 1.2).long()],
    "number": lambda x: torch.ones(len(x), 5).to(x) * x.mean().item(),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_passes_by_without_a_gradient_is_refused(name):
    with pytest.raises(ModelError, match="of what 'Beside' makes of the image passes by"):
        vitreous.see_through(beside(UNSEEN[name]), size=(32, 32))


def test_a_path_that_opens_for_the_explained_image_only_is_refused_there():
    network = vitreous.see_through(
        beside(lambda x: brightness(x) if x.abs().mean() > 2 else torch.zeros(len(x), 5).to(x)), size=(32, 32)
    )

    assert network.bypass == 0
    vitreous.explain(network, images(), 1, "ixg")
    with pytest.raises(ModelError, match=r"passes by its first block 'blocks\.0', so a map would leave it out"):
        vitreous.explain(network, 9 * images(), 1, "ixg")


def test_a_small_path_that_opens_for_the_explained_image_is_a_caution():
    def open_for_bright_images(x: Tensor) -> Tensor:
        return brightness(x) if x.abs().mean() > 2 else torch.zeros(len(x), 5).to(x)

    network = vitreous.see_through(beside(open_for_bright_images, 1e-3), size=(32, 32))

    attribution = vitreous.explain(network, 9 * images(), 1, "ixg")
    assert "passes by its first block 'blocks.0'" in attribution.provenance["caveat"]


class Shifted(nn.Module):
    """Blocks of which one adds a number that is computed of the image, without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
        self.blocks = nn.ModuleList(conv_block(8) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.stem(x))
        x = self.blocks[1](x + x.detach().mean((2, 3), keepdim=True))
        return self.head(x.mean((2, 3)))


def test_a_constant_that_changes_with_the_image_is_a_caution():
    torch.manual_seed(0)
    network = vitreous.see_through(randomise(Shifted()).double().eval(), size=(32, 32))

    assert network.varying > 1e-3
    with pytest.warns(vitreous.Caveat, match="is counted as a constant and changes with the image"):
        attribution = vitreous.explain(network, images(), 1, "decompx")
    assert "changes with the image" in attribution.provenance["caveat"]


# ── architectures ────────────────────────────────────────────────────────────────────────────────


def timm_module(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=7, **options)


def torchvision_module(name: str, **options: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(num_classes=7, **options)

    return build


def huggingface_regnet() -> nn.Module:
    import transformers

    widths = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "groups_width": 8}
    return transformers.RegNetForImageClassification(transformers.RegNetConfig(num_labels=7, **widths))


# Shares of 0.68 to 1 passed by the blocks that were found before.
PASSED_BY = {
    "vit_small_patch16_18x2_224": (timm_module("vit_small_patch16_18x2_224", img_size=64, depth=3), 64, 3),
    "xception41": (timm_module("xception41"), 64, 13),
    "cspresnet50": (timm_module("cspresnet50"), 64, 4),
    "cs3darknet_s": (timm_module("cs3darknet_s"), 64, 4),
    "cspdarknet53": (timm_module("cspdarknet53"), 64, 5),
    "maxvit_t": (torchvision_module("maxvit_t"), 224, 33),
    "regnet_y_400mf": (torchvision_module("regnet_y_400mf"), 64, 16),
    "googlenet": (torchvision_module("googlenet", init_weights=False, aux_logits=False), 64, 9),
    "RegNetForImageClassification": (huggingface_regnet, 64, 5),
    "hrnet_w18_small": (timm_module("hrnet_w18_small"), 64, 4),
    "dla34": (timm_module("dla34"), 64, 3),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
@pytest.mark.parametrize("name", PASSED_BY)
def test_the_first_level_of_an_architecture_is_the_gradient_of_the_untouched_module(name):
    build, size, blocks = PASSED_BY[name]
    torch.manual_seed(0)
    network = vitreous.see_through(randomise(build()).double().eval(), size=(size, size))

    assert 1 <= len(network.blocks) <= blocks  # fewer where a map is too small to be placed
    attribution = check_by_oracle(network, images(1, size))
    decomposed = vitreous.explain(network, images(1, size), 1, "decompx")
    assert decomposed.residual.abs().max() < 1e-8 * decomposed.score.abs().max()
    assert attribution.maps().shape[1:] == network.layout((size, size)).grid
