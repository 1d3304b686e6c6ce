"""Random small networks are explained rightly, with a caution, or refused; networks that compute the same have the same maps.

`python -m tests.capture.judge_networks --draws 2000` judges more of them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

import vitreous
from tests.capture.judge_networks import expect, images, judge, misplaced_tokens
from tests.capture.random_blocks import SIDE, Body, prepare
from tests.capture.random_modules import build
from tests.capture.random_networks import (
    Augmented,
    Description,
    Exchange,
    Guarded,
    Join,
    Step,
    Trunk,
    Vit,
    descriptions,
)
from tests.cases import each

LEVELS = ("ixg+first", "ixg+last", "gradcam", "decompx+plus")


@pytest.mark.slow
@settings(max_examples=50, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(descriptions())
def test_no_map_of_a_random_network_is_wrong(description: Description) -> None:
    verdict = judge(description)

    assert verdict.kind != "wrong", verdict.why


PLAIN = Trunk((Step("mlp"), Step("attention")))


@pytest.mark.slow
@each(
    "description",
    [
        PLAIN,
        Vit(),
        Vit(after="middle too", registers=2, pool="avg"),
        Trunk((Step("conv"), Step("excite", scale="down")), form="channels first", read="pyramid"),
        Trunk((Step("swiglu", order="flipped"), Step("attention", order="permuted"))),
        Trunk((Step("mlp"), Step("attention")), layout="pairs"),
        Trunk((Step("mlp"), Step("attention")), layout="shared", others=3),
        Trunk((Step("context"), Step("parallel")), read="stem too"),
        Trunk(PLAIN.steps, prepare="mirrored"),
        Join((PLAIN, Trunk((Step("conv"), Step("conv")), stem="convolutions", form="channels first"))),
        Augmented(PLAIN, "mirrored"),
        Exchange((PLAIN, Trunk((Step("conv"),), stem="small patches"))),
    ],
)
def test_networks_without_a_trap_are_explained_rightly(description: Description) -> None:
    """Not refused: a generator whose networks are all refused would find nothing."""
    verdict = judge(description)

    assert verdict.kind == "right", verdict.why


@pytest.mark.slow
@each(
    "description",
    [
        Guarded(PLAIN, "pixels"),
        Guarded(Vit(), "head"),
        Guarded(Trunk(PLAIN.steps, layout="pairs"), "other trunk"),
        Trunk((Step("experts"),)),
        Trunk(PLAIN.steps, prepare="cropped"),
        Trunk(PLAIN.steps, prepare="resized"),
        Trunk((Step("parallel"),), layout="constant first", others=3),
        Trunk((Step("excite", "scaled"),), stem="unfolded", layout="outside", others=3, read="pixels too"),
        Vit("cropped"),
        Vit("resized", aliased=True, nested=1),
    ],
)
def test_a_network_with_a_trap_is_not_explained_wrongly(description: Description) -> None:
    verdict = judge(description)

    assert verdict.kind != "wrong", verdict.why


@pytest.mark.slow
def test_tokens_that_are_moved_for_the_explained_image_only_are_not_misplaced() -> None:
    assert judge(Guarded(PLAIN, "flipped tokens")).kind != "wrong"


# ── networks that compute the same ───────────────────────────────────────────────────────────────


def maps(module: nn.Module, image: Tensor, spec: str) -> Tensor:
    return vitreous.explain(vitreous.wrap(module, size=(SIDE, SIDE)), image, 1, spec).maps()


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * float(theirs.abs().max()))


@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
@each("order", ["flipped", "rolled", "transposed", "permuted", "left flipped"])
def test_blocks_on_tokens_in_another_order_have_the_maps_of_the_same_network(order: str) -> None:
    """Without convolutions, blocks compute the same in any order of their tokens."""
    image = images()["image"]
    kinds = ("attention", "swiglu", "excite", "mlp")
    plain = build(Trunk(tuple(Step(kind) for kind in kinds)))
    reordered = build(
        Trunk(tuple(Step(kind, order=order if number % 2 else "same") for number, kind in enumerate(kinds)))
    )

    torch.testing.assert_close(reordered(image), plain(image))
    for spec in LEVELS:
        assert_close(maps(reordered, image, spec), maps(plain, image, spec))


@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
@each("description, kind", product([PLAIN, Vit(), Vit(nested=2, registers=2)], ["mirrored", "transposed"]))
def test_an_image_that_is_moved_inside_the_module_has_the_moved_map(description: Description, kind: str) -> None:
    image = images()["image"]
    plain, moved = build(description), build(replace(description, prepare=kind))

    for spec in LEVELS:
        assert_close(maps(moved, image, spec), prepare(kind, maps(plain, prepare(kind, image), spec)))


class WithSkips(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) + x
        return self.second(x) + x


class Layers(nn.Module):
    """Attention and feed-forward branches in the layout of vit-pytorch, or in blocks."""

    def __init__(self, pairs: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Conv2d(3, 6, 8, 8), nn.Linear(6, 3)
        made = [(Body("attention"), Body("mlp")) for _ in range(3)]
        self.layers = nn.ModuleList(nn.ModuleList(pair) if pairs else WithSkips(*pair) for pair in made)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).mT
        for layer in self.layers:
            if isinstance(layer, WithSkips):
                x = layer(x)
            else:
                first, second = layer
                x = first(x) + x
                x = second(x) + x
        return self.head(x.mean(1))


@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
@each("spec", ["ixg", "decompx", "ixg@libra+first", "temper+first"])
def test_branches_in_the_layout_of_vit_pytorch_have_the_map_of_blocks(spec: str) -> None:
    image = images()["image"]
    blocks, pairs = (Layers(pairs).double().eval() for pairs in (False, True))

    assert_close(maps(pairs, image, spec), maps(blocks, image, spec))


# ── the oracle itself ────────────────────────────────────────────────────────────────────────────


def test_the_oracle_finds_what_passes_by_and_what_is_misplaced() -> None:
    image = images()["image"]
    module = build(Join((PLAIN, PLAIN)))
    network = vitreous.wrap(module, size=(SIDE, SIDE))
    half = replace(network, blocks=tuple(block for block in network.blocks if block.trunk == 0))
    first = network.blocks[0]
    moved = replace(first, tokens=replace(first.tokens, order=torch.arange(15, -1, -1)))
    turned = replace(network, blocks=(moved, *network.blocks[1:]))

    def check(described: vitreous.Network) -> tuple[bool, int, int]:
        expected = expect(described, image, lambda part, x: part(x), lambda logits: logits[:, 1])
        return expected.bypass > 0.1, expected.misplaced, sum(n for _, n in misplaced_tokens(module, described, image))

    assert check(network) == (False, 0, 0)
    assert check(half) == (True, 0, 0)
    assert check(turned) == (False, 2, 16)  # two of the four that are examined lie in the middle
