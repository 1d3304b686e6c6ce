"""Networks of any architecture: blocks found, tokens placed, shares complete, maps equal to the adapter's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vitreous
from tests.models.families import FAMILIES, pictures, seen, tiny
from vitreous.capture.blocks import find_blocks
from vitreous.capture.gate_rules import ratio_activation
from vitreous.capture.linearise import PLAIN
from vitreous.capture.network_probe import NetworkProbe, spread
from vitreous.capture.operation_registry import RULES
from vitreous.capture.operations import LinearisedForward
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.methods.method import METHODS
from vitreous.models.model import Layout, Network
from vitreous.testing import fingerprint, tiny_vits
from vitreous.wrapping import as_network, with_declared_outputs

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from architecture_case import randomise
from architecture_cases import SMALL
from architecture_table import examine

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
CASES = {case.name: case for case in SMALL}
QUICK = {"swin_tiny_patch4_window7_224", "SegformerForSemanticSegmentation", "VideoMAEForVideoClassification"}
REFUSED = {"pit_ti_224": "images of 64x64 do not divide into the 7x7 tokens"}


def images(size: int = 32, count: int = 2) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1)).double()


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return randomise(CASES[name].build()).double().eval()


@cache
def shared(name: str) -> Network:
    """A network that several tests use and must not modify."""
    return CASES[name].see_through()


SHARED = {
    "hiera_tiny_224",
    "nest_tiny_jx",
    "resnet18",
    "swin_tiny_patch4_window7_224",
    "SegformerForSemanticSegmentation",
    "YolosForObjectDetection",
}


@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_an_architecture_is_explained_as_by_plain_autograd_or_refused(name):
    case = CASES[name]

    if name in REFUSED:
        with pytest.raises(ModelError, match=REFUSED[name]):
            case.see_through()
        return

    network = shared(name) if name in SHARED else case.see_through()
    finding = examine(case, network)

    assert network.missing < 1e-5
    assert finding.complete, finding
    assert f"| `{name}` | {case.library} | {finding.blocks} | {finding.grid} |" in PAGE.read_text()


def test_the_table_of_architectures_is_wide_and_complete():
    """The table contains popular families, and the page lists the results."""
    page = PAGE.read_text()
    libraries = [case.library for case in SMALL]
    wanted = (
        "Swin Swinv2 Segformer Detr Yolos Mask2Former DPT Sam VideoMAE Timesformer Vivit CLIP Siglip Blip Llava Qwen2VL"
    )

    assert libraries.count("timm") >= 40
    assert libraries.count("transformers") >= 20
    assert all(any(name.startswith(start) for name in CASES) for start in wanted.split())
    assert all(f"| `{name}` |" in page for name in CASES)
    assert page.count("| refused: ") == len(REFUSED)


GRADIENT_FAMILY = [name for name in METHODS if METHODS[name].works_on_networks and METHODS[name].class_specific]
FOLDS = ("first", "last", "at(layer=1)", "plus", "skipplus")


# Every linearisation, every fold, and every part of a layer that a method reads.
AGREEING = (
    "ixg+first",
    "ixg@conservative+last",
    "decompx",
    "ixg@libra+skipplus",
    "ixg@attnlrp+at(layer=1)",
    "temper",
    "gim+plus",
    "fullgrad@libra+plus",
    "gradcam",
    "cat(of='output')",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_by_operation_is_that_of_its_adapter(family):
    vit = seen(family)
    network = as_network(tiny(family), size=vit.size)
    network = with_declared_outputs(network, None, "binary" if vit.binary else None)

    for spec in AGREEING:
        by_operation = vitreous.explain(network, pictures(), 1, spec)
        by_adapter = vitreous.explain(vit, pictures(), 1, spec)
        if (family, spec) in UNPLACED:
            torch.testing.assert_close(total(by_operation), total(by_adapter), rtol=1e-9, atol=1e-12)
        else:
            assert_same_maps(by_operation, by_adapter, spec)


# The pooler leaves the prefix out: by operation, a bias of its tokens is at a tensor whose place is not known.
UNPLACED = {("map-skips-prefix", "fullgrad@libra+plus")}


def total(attribution: vitreous.Attribution) -> Tensor:
    prefix = 0 if attribution.prefix is None else attribution.prefix.sum(-1)
    return attribution.patches.sum(-1) + prefix + (0 if attribution.bias is None else attribution.bias)


def assert_same_maps(by_operation: vitreous.Attribution, by_adapter: vitreous.Attribution, spec: str) -> None:
    for part in ("patches", "prefix", "bias"):
        ours, theirs = getattr(by_operation, part), getattr(by_adapter, part)
        if theirs is not None and theirs.numel() and (part != "bias" or ours is not None):
            tolerance = 1e-9 * max(float(theirs.abs().max()), 1e-9)
            torch.testing.assert_close(
                ours, theirs, rtol=0, atol=tolerance, msg=lambda m, what=f"{part} of {spec}": f"{what}: {m}"
            )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
@pytest.mark.parametrize("name", ["class token"])  # all cells; every family above has a few
def test_maps_by_operation_are_those_of_the_adapter(name):
    vit = tiny_vits(torch.float64)[name]
    network = vitreous.see_through(vit.module, size=vit.size)
    inputs = torch.randn(2, 3, *vit.size, generator=torch.Generator().manual_seed(2)).double()
    specs = list(GRADIENT_FAMILY)
    specs += [
        f"ixg@{point}+{fold}"
        for point in ("plain", "conservative", "decompx", "libra", "attnlrp", "tempered")
        for fold in FOLDS
    ]
    specs += [f"{method}+{fold}" for method in ("fullgrad", "gradcam", "decompx", "gim") for fold in FOLDS]
    specs += ["fullgrad@libra+plus(biases='repeat')", "decompx(space='pixels')", "cat(of='output')"]

    for spec in specs:
        ours = vitreous.explain(network, inputs, [[0, 2], [1, 0]], spec)
        theirs = vitreous.explain(vit, inputs, [[0, 2], [1, 0]], spec)
        assert_same_maps(ours, theirs, spec)


def test_shares_of_tokens_and_constants_make_up_the_score_of_a_swin():
    network = shared("swin_tiny_patch4_window7_224")

    attribution = vitreous.explain(network, images(64), method="decompx")

    total = attribution.patches.sum(-1) + attribution.bias
    torch.testing.assert_close(total, attribution.score, rtol=1e-9, atol=1e-12)
    assert attribution.residual.abs().max() < 1e-9 * attribution.score.abs().max()


def test_layers_of_a_network_have_gradients_where_gradients_are_disabled():
    vit = tiny_vits(torch.float64)["class token"]
    probe = NetworkProbe(vitreous.see_through(vit.module, size=vit.size), torch.randn(1, 3, *vit.size))

    expected = next(probe.layers()).hidden_grad
    with torch.no_grad():
        gradient = next(probe.layers()).hidden_grad

    assert expected.abs().sum() > 0
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)


@pytest.mark.slow
def test_token_positions_are_measured_by_their_reaction_to_the_image():
    """Hiera's tokens are in the order of its windows, as are NesT's, which have the shape of a map [b 16 16 d].

    YOLOS' detection tokens come after the patches.
    """
    nest = shared("nest_tiny_jx")
    hiera = shared("hiera_tiny_224")
    yolos = shared("YolosForObjectDetection")

    assert [block.tokens.form for block in nest.blocks] == ["windows"] * 12
    for network, size, (row, column) in ((hiera, 96, (13, 20)), (yolos, 64, (2, 1)), (nest, 64, (5, 9))):
        tokens = network.blocks[0].tokens
        base = images(size, 1)
        changed = base.clone()
        step = size // tokens.grid[0]
        changed[..., row * step : (row + 1) * step, column * step : (column + 1) * step] += 3
        states = []
        handle = network.blocks[0].module.register_forward_pre_hook(lambda _, args: states.append(args[0].detach()))
        with torch.no_grad():
            network.call(base), network.call(changed)
        handle.remove()
        reaction = (tokens.tokens(states[1]) - tokens.tokens(states[0])).norm(dim=-1)[0]
        strongest = int(reaction[tokens.others :].argmax())
        assert abs(strongest // tokens.grid[1] - row) <= 1
        assert abs(strongest % tokens.grid[1] - column) <= 1
        assert reaction[: tokens.others].max() == 0 if tokens.others else True


def test_a_coarse_grid_is_spread_with_its_sum():
    coarse, fine = Layout((2, 3), (8, 8), 1), Layout((5, 6), (4, 4), 2)
    scores = torch.randn(4, coarse.tokens, generator=torch.Generator().manual_seed(0)).double()

    spreaded = spread(scores, coarse, fine)

    assert spreaded.shape == (4, fine.tokens)
    torch.testing.assert_close(spreaded.sum(-1), scores.sum(-1))
    torch.testing.assert_close(spreaded[:, 2], scores[:, 1] / 6)  # the first cell covers 3 x 2 fine cells


class Waves(nn.Module):
    """A network with an operation that has no rule."""

    def __init__(self, function: str = "sin") -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 1)),
                nn.Sequential(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)),
            ]
        )
        self.head, self.function = nn.Linear(8, 5), function

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = getattr(torch, self.function)(block(x)) + 0.1
        return self.head(x.mean((2, 3)))


def test_an_operation_without_a_rule_is_named_and_a_rule_can_be_added(monkeypatch):
    module = randomise(Waves()).double().eval()
    before = fingerprint(module)

    with pytest.raises(ModelError, match=r"of a score is lost after block .* \('sin' has no rule that keeps it\)"):
        vitreous.see_through(module, size=(32, 32), blocks="blocks.1")
    assert fingerprint(module) == before

    monkeypatch.setitem(RULES, "sin", ratio_activation)
    assert vitreous.see_through(module, size=(32, 32), blocks="blocks.1").missing < 1e-9


class OfBatches(Waves):
    """A network that treats batches of images in its own way."""

    def __init__(self, treat: Callable[[Tensor], Tensor]) -> None:
        super().__init__("relu")
        self.treat = treat

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.treat(x))


def one_at_a_time(x: Tensor) -> Tensor:
    assert len(x) == 1
    return x


def at_most_four(x: Tensor) -> Tensor:
    if len(x) > 4:
        raise torch.OutOfMemoryError("CUDA out of memory (on purpose)")
    return x


def numbered(x: Tensor) -> Tensor:
    """Every image is marked with its number, as the frames of a clip would be."""
    return x + 100 * torch.arange(len(x)).view(-1, 1, 1, 1) * torch.ones(4, 4).triu().repeat(8, 8)


def mixed(x: Tensor) -> Tensor:
    return x * x.flip(0)


TREATMENTS = {
    "view": lambda x: x.view(1, 3, *x.shape[2:]),
    "first": lambda x: x[:1],
    "last": lambda x: x[-1:],
    "assert": one_at_a_time,
    "memory": at_most_four,
    "numbered": numbered,
    "mixed": mixed,
}


@pytest.mark.parametrize("name", TREATMENTS)
def test_tokens_of_a_network_that_does_not_take_batches_are_placed(name):
    network = vitreous.see_through(randomise(OfBatches(TREATMENTS[name])).double().eval(), size=(32, 32))

    assert [block.tokens.grid for block in network.blocks] == [(32, 32), (8, 8)]
    assert vitreous.explain(network, images(32, 1), method="ixg@libra+plus").maps().shape == (1, 32, 32)


def test_batches_are_tried_once_where_they_are_refused():
    refused = []

    def refuse(x: Tensor) -> Tensor:
        refused.extend([x] * (len(x) > 1))
        return one_at_a_time(x)

    assert len(vitreous.see_through(randomise(Sequences(refuse)).double().eval(), size=(32, 32)).blocks) == 2
    assert len(refused) == 2  # for the places of tokens, and for whether images of a batch mix


def test_images_that_are_a_batch_of_their_own_are_run_without_another(monkeypatch):
    sizes = []

    def count(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x

    module = randomise(OfBatches(count)).double().eval()
    monkeypatch.setattr("vitreous.capture.token_places.PIXELS_TOGETHER", 3 * 32 * 32)
    vitreous.see_through(module, size=(32, 32))
    assert max(sizes) == 2  # only to see whether images of a batch mix


class Sequences(nn.Module):
    """Patches in a fixed order of their own, after which batches are treated in a way of their own."""

    def __init__(self, treat: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.treat = nn.Conv2d(3, 8, 4, 4), treat
        self.register_buffer("order", torch.randperm(64, generator=torch.Generator().manual_seed(3)))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.treat(self.embed(images).flatten(2).mT[:, self.order])
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(1))


def moved_by_number(x: Tensor) -> Tensor:
    return torch.stack([tokens.roll(number, 0) for number, tokens in enumerate(x)])


@pytest.mark.parametrize("treat", [moved_by_number, lambda x: x.roll(1, 0), lambda x: x + 9 * x.roll(1, 0)])
def test_places_of_tokens_do_not_depend_on_other_images_of_a_batch(treat):
    expected, measured = (
        vitreous.see_through(randomise(Sequences(f)).double().eval(), size=(32, 32)).blocks[0].tokens
        for f in (lambda x: x, treat)
    )

    assert expected.order is not None
    assert torch.equal(measured.order, expected.order)


def test_too_little_memory_for_one_image_is_not_taken_for_tokens_without_places():
    calls = []

    def run_out(x: Tensor) -> Tensor:
        calls.append(len(x))
        if len(calls) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory (on purpose)")
        return x

    with pytest.raises(torch.OutOfMemoryError):
        vitreous.see_through(randomise(OfBatches(run_out)).double().eval(), size=(32, 32))
    assert calls[-2] > 1 == calls[-1]


class Noisy(Waves):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


class Cut(Waves):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning", "ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 4))), "scripted model"),
        (lambda: Noisy("relu"), "draws random numbers"),
        (lambda: Cut("relu"), "no gradient path to the images"),
        (nn.Identity, "no parameters"),
    ],
)
def test_unsupported_modules_are_refused_with_a_message(make, said):
    with pytest.raises(ModelError, match=said):
        vitreous.see_through(make().double().eval(), size=(32, 32))


def test_methods_that_need_more_are_refused_with_those_that_work():
    network = shared("resnet18")

    for spec in ("genatt", "tis", "gradcam(of='norm1')"):
        with pytest.raises(SpecError, match=r"of a network ask one of: .*ixg"):
            vitreous.explain(network, images(64), method=spec)


def test_scores_must_be_one_number_per_image_with_a_gradient():
    network = shared("resnet18")

    with pytest.raises(ShapeError, match="one number per image"):
        vitreous.explain(network, images(64), method="ixg", score=lambda output: output)
    with pytest.raises(ShapeError, match="no gradient path"):
        vitreous.explain(network, images(64), method="ixg", score=lambda output: output[:, 0].detach())
    with pytest.raises(ShapeError, match="failed on the model's output"):
        vitreous.explain(network, images(64), method="ixg", score=lambda output: output["boxes"])
    with pytest.raises(SpecError, match="callable"):
        vitreous.explain(network, images(64), method="ixg", score="logit")


def test_maps_of_a_score_are_measured_with_that_score():
    case = CASES["SegformerForSemanticSegmentation"]
    network, image = shared(case.name), case.random_input()
    attribution = vitreous.explain(network, image, method="ixg", score=case.score)
    order = attribution.pixels(mode="nearest").flatten().argsort(descending=True)
    objects = (
        torch.zeros(64 * 64, dtype=torch.int8).index_fill(0, order[:512], 1).view(1, 64, 64)
    )  # the pixels of the highest scores

    assert float(vitreous.evaluate(network, image, attribution, "ap", objects=objects, score=case.score).scores) > 0.8
    sensitivity = vitreous.evaluate(network, image, attribution, "max_sensitivity(samples=1)", score=case.score)
    assert sensitivity.scores.isfinite().all()  # explains the same score again
    with pytest.raises((ShapeError, ModelError), match="score="):
        vitreous.evaluate(network, image, attribution, "max_sensitivity(samples=1)")


def test_a_score_of_the_output_equals_a_score_function_of_the_logits():
    network = shared("resnet18")

    by_score = vitreous.explain(network, images(64), method="temper", score=vitreous.scores.probability(2))
    by_question = vitreous.explain(network, images(64), 2, "temper", "probability")

    torch.testing.assert_close(by_score.patches, by_question.patches, rtol=1e-9, atol=1e-15)
    assert by_score.names == ("probability of class 2",) * 2


def test_the_gradient_of_batch_norm_is_right_for_channels_last_images():
    norm = randomise(nn.BatchNorm2d(4)).double().eval()
    x = (
        torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(0))
        .double()
        .mT.reshape(1, 4, 3, 3)
        .requires_grad_()
    )
    upstream = torch.randn(1, 4, 3, 3, generator=torch.Generator().manual_seed(1)).double()

    with LinearisedForward(PLAIN):
        output = norm(x)
    (gradient,) = torch.autograd.grad(output, x, upstream)

    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach().view(-1, 1, 1)
    torch.testing.assert_close(gradient, upstream * scale)
    torch.testing.assert_close(output.detach(), norm(x).detach(), rtol=0, atol=0)


def test_named_blocks_are_used_and_a_wrong_name_is_refused():
    module = shared("resnet18").module

    assert [b.name for b in vitreous.see_through(module, size=(64, 64), blocks="layer[23].*").blocks] == [
        "layer2.0", "layer2.1", "layer3.0", "layer3.1",
    ]  # fmt: skip
    with pytest.raises(ModelError, match=r"no module is called 'stages\.\*'; 'layer1\.0' is one"):
        vitreous.see_through(module, size=(64, 64), blocks="stages.*")


def test_text_encoders_are_not_among_the_blocks():
    case = CASES["CLIPModel"]

    blocks = find_blocks(
        module := build("CLIPModel"),
        lambda x: module(pixel_values=x, **case.others),
        images(64, 1),
    ).blocks

    assert [block.name for block in blocks] == ["vision_model.encoder.layers.0", "vision_model.encoder.layers.1"]


class CalledTwice(nn.Module):
    """One block for the tokens before and after pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))])
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.stem(images).flatten(2).mT
        fine = fine + self.blocks[0](fine)
        coarse = nn.functional.avg_pool2d(fine.mT.unflatten(2, (8, 8)), 2).flatten(2).mT
        return self.head((coarse + self.blocks[0](coarse)).mean(1))


def test_every_call_of_a_block_has_its_own_grid():
    module = randomise(CalledTwice()).double().eval()

    blocks = find_blocks(module, module, images(32, 1)).blocks

    assert [(block.name, block.tokens.grid) for block in blocks] == [("blocks.0", (8, 8)), ("blocks.0", (4, 4))]
