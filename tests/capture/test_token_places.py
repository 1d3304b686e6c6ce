"""Places of tokens at every block call: blocks on re-ordered tokens, and models that move their images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitreous
from tests.cases import each
from tests.models.families import build, shaken
from vitreous.capture.blocks import observe_calls
from vitreous.capture.place_measurement import match_tokens, measure_places, turned_orders
from vitreous.models.layout import TokenGrid
from vitreous.models.vit import ViT

SPECS = ("ixg+plus", "gradcam", "decompx+plus")
GRID = torch.arange(64).view(8, 8)
ORDERS = {
    "flipped": GRID.flip(1),
    "transposed": GRID.T,
    "rolled": GRID.roll(1, 1),
    "turned": GRID.rot90(),
    "windows": GRID.view(2, 4, 2, 4).transpose(1, 2),
    "back and forth": torch.where(torch.arange(8)[:, None] % 2 == 1, GRID.flip(1), GRID),
    "random": torch.randperm(64, generator=torch.Generator().manual_seed(0)),
}


def images(size: int = 64) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)).double()


def maps(model: vitreous.Network, inputs: Tensor) -> list[Tensor]:
    return [vitreous.explain(model, inputs, 1, spec).patches for spec in SPECS]


def assert_equal(maps: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(maps, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * float(theirs.abs().max()))


class Mixing(nn.Module):
    """Attention and a two-layer perceptron, whose result does not depend on the order of tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out((q @ k.mT / 5).softmax(-1) @ v)
        return x + self.mlp(x)


class Reordering(nn.Module):
    """Every second block works on re-ordered tokens, as scans in several directions and windows do."""

    def __init__(self, order: Tensor, class_token: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 8, 8)
        self.position = nn.Parameter(torch.randn(1, 64 + class_token, 24))
        self.blocks = nn.ModuleList(Mixing(24) for _ in range(4))
        self.head, self.class_token = nn.Linear(24, 5), class_token
        order = order.flatten() + class_token
        self.register_buffer("order", torch.cat([torch.zeros(int(class_token)).long(), order]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).mT
        x = F.pad(x, (0, 0, int(self.class_token), 0)) + self.position
        for number, block in enumerate(self.blocks):
            x = block(x[:, self.order])[:, self.order.argsort()] if number % 2 else block(x)
        return self.head(x.mean(1))


def seen(make: Callable[[], nn.Module]) -> vitreous.Network:
    torch.manual_seed(0)
    return vitreous.see_through(make().double().eval(), size=(64, 64))


@each("class_token", [False, True])
def test_blocks_on_reordered_tokens_have_the_maps_of_the_network_without(class_token):
    expected = maps(seen(lambda: Reordering(GRID, class_token)), images())

    for name, order in ORDERS.items():
        network = seen(lambda order=order: Reordering(order, class_token))

        assert [block.tokens.order is None for block in network.blocks] == [True, False, True, False], name
        assert_equal(maps(network, images()), expected)


class Convolution(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.spread, self.mix = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.spread(x).relu())


class Turning(nn.Module):
    """Every second block works on a map that is turned; without `turn`, its kernels are turned the other way."""

    def __init__(self, turn: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], turned: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.ModuleList(Convolution(16) for _ in range(4))
        self.head, self.turn, self.back, self.turned = nn.Linear(16, 5), turn, back, turned
        if not turned:
            for block in list(self.blocks)[1::2]:
                block.spread.weight.data = back(block.spread.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            x = self.back(block(self.turn(x))) if number % 2 and self.turned else block(x)
        return self.head(x.mean((2, 3)))


TURNS = {
    "flipped": (lambda x: x.flip(-1), lambda x: x.flip(-1)),
    "transposed": (lambda x: x.mT, lambda x: x.mT),
    "turned": (lambda x: x.rot90(1, (2, 3)), lambda x: x.rot90(-1, (2, 3))),
}


@each("name", TURNS)
def test_convolutions_of_turned_maps_have_the_maps_of_turned_kernels(name):
    turned, plain = (
        seen(lambda with_turns=with_turns: Turning(*TURNS[name], with_turns)) for with_turns in (True, False)
    )

    assert turned.depth == plain.depth == 4
    assert [block.tokens.order is None for block in turned.blocks] == [True, False, True, False]
    assert_equal(maps(turned, images()), maps(plain, images()))


class Rolled(Turning):
    """The stem's map is rolled by one column, which an overlap of convolutions could be taken for."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).roll(1, -1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def test_a_map_that_is_rolled_by_one_column_is_not_taken_for_one_that_is_not():
    network = seen(lambda: Rolled(*TURNS["flipped"], True))

    expected = torch.arange(256).view(16, 16).roll(-1, 1).flatten()
    assert all(torch.equal(block.tokens.order, expected) for block in network.blocks)


# ── a ViT whose images are moved inside a module ─────────────────────────────────────────────────


class Moving(nn.Module):
    def __init__(self, vit: nn.Module, move: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.vit, self.move = vit, move

    def forward(self, x: Tensor) -> Tensor:
        return self.vit(self.move(x))


def vit() -> nn.Module:
    torch.manual_seed(0)
    return shaken(build("vit", img_size=32, patch_size=8)).double().eval()


def resized(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(32, 32), mode="bilinear")


PERMUTED = {
    "flip": (lambda x: x.flip(-1), lambda m: m.flip(-1)),
    "transpose": (lambda x: x.mT, lambda m: m.mT),
    "roll": (lambda x: x.roll(8, -1), lambda m: m.roll(-1, -1)),
    "turn": (lambda x: x.rot90(1, (2, 3)), lambda m: m.rot90(-1, (1, 2))),
}


@each("name", PERMUTED)
def test_a_vit_whose_images_are_moved_is_explained_where_the_pixels_are(name):
    move, back = PERMUTED[name]
    inputs = images(32)
    network = vitreous.wrap(Moving(vit(), move))

    assert type(network) is vitreous.Network
    plain = vitreous.wrap(vit())
    for spec in SPECS:
        ours = vitreous.explain(network, inputs, 1, spec).maps()
        theirs = back(vitreous.explain(plain, move(inputs), 1, spec).maps())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * float(theirs.abs().max()))


@each(
    "name",
    KEPT := {
        "same": lambda x: x,
        "normalised": lambda x: (x - 0.3) / 0.7,
        "normalised by image": lambda x: (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True),
        "other order of channels": lambda x: x.flip(1),
    },
)
def test_a_vit_whose_pixels_stay_in_place_remains_a_vit(name):
    assert isinstance(vitreous.wrap(Moving(vit(), KEPT[name])), ViT)


@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
@each(
    "name",
    PARTS := {
        "crop": lambda x: resized(x[..., 4:-4, 4:-4]),
        "half": lambda x: resized(x[..., 8:-8, 8:-8]),
        "corner": lambda x: resized(x[..., :24, :24]),
        "padded": lambda x: resized(F.pad(x, (8, 8, 8, 8))),
        "shifted": lambda x: F.pad(x, (8, 0))[..., :32],
        "rolled by half a patch": lambda x: x.roll(4, -1),
    },
)
def test_a_vit_that_sees_a_part_of_the_image_or_more_is_explained_at_the_pixels(name):
    network = vitreous.wrap(Moving(vit(), PARTS[name]))
    attribution = vitreous.explain(network, images(32), 1, "ixg")
    leaf = images(32).requires_grad_()
    (gradient,) = torch.autograd.grad(network.module(leaf)[:, 1].sum(), leaf)
    rows, columns = attribution.layout.grid
    cells = (leaf.detach() * gradient).sum(1).unflatten(1, (rows, -1)).unflatten(3, (columns, -1)).sum((2, 4))

    assert [block.tokens.form for block in network.blocks] == ["pixels"]
    torch.testing.assert_close(attribution.patches, cells.flatten(1), rtol=1e-9, atol=1e-12)
    assert "cells of the image itself" in attribution.provenance["caveat"]


def test_pixels_of_a_moved_image_change_the_token_of_their_place_and_no_other():
    network = vitreous.wrap(Moving(vit(), lambda x: x.flip(-1)))
    inputs = images(32)[:1]
    removed = inputs.clone()
    removed[..., :8, :8] = 0
    before, after = [], []
    for states, image in ((before, inputs), (after, removed)):
        handle = network.blocks[0].module.register_forward_pre_hook(
            lambda _, args, states=states: states.append(args[0])
        )
        with torch.no_grad():
            network.call(image)
        handle.remove()

    tokens = network.blocks[0].tokens
    change = (tokens.tokens(after[0]) - tokens.tokens(before[0])).norm(dim=-1)[0]

    assert change.nonzero().flatten().tolist() == [tokens.others]  # the upper left patch, and no other


# ── measuring calls ──────────────────────────────────────────────────────────────────────────────


class Twice(nn.Module):
    """The same blocks for the image and for its mirror image, as test-time augmentation has them."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = Reordering(GRID)

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(x) + self.plain(x.flip(-1))


def test_every_call_of_a_block_has_its_own_order():
    torch.manual_seed(0)
    module = Twice().double().eval()
    image = images()[:1]
    blocks = {f"plain.blocks.{number}": block for number, block in enumerate(module.plain.blocks)}
    with torch.no_grad():
        calls = observe_calls(module, lambda: module(image), blocks)

    places = measure_places(module, image, calls)

    assert [places[number].order is None for number in range(8)] == [True] * 4 + [False] * 4
    assert all(torch.equal(places[number].order, GRID.flip(1).flatten()) for number in range(4, 8))


def test_tokens_are_recognised_by_noise_only_if_it_tells_them_apart():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(64, 32, generator=generator)
    order = torch.randperm(64, generator=generator)
    other = torch.randn(64, 32, generator=generator)

    assert match_tokens(noise + 0.5 * other, noise) == (True, None)
    matched, positions = match_tokens(noise[order] + 0.5 * other, noise)
    assert matched
    assert torch.equal(positions, order)
    assert not match_tokens(other, noise)[0]
    assert not match_tokens(noise.mean(0).expand(64, 32), noise)[0]
    assert not match_tokens(noise[order][:, :4], noise[:, :4])[0]  # too few channels


def test_turned_orders_are_those_of_a_square_or_a_rectangle():
    assert len(turned_orders(TokenGrid("sequence", (4, 4)))) == 7
    assert len(turned_orders(TokenGrid("sequence", (4, 6), None, 1))) == 3
