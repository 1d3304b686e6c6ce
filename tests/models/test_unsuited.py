"""Models and scores that cannot be explained are refused with a message, and are bit-identical afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitreous
from tests.models.families import SMALL, build
from vitreous.core.errors import ModelError, ShapeError
from vitreous.testing import fingerprint


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Conv2d(6, 6, 1)),
                nn.Sequential(nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1)),
            ]
        )
        self.head = nn.Linear(6, 5)

    def features(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = F.relu(block(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class DrawsNoise(Convolutions):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


class AlwaysDrops(Convolutions):
    def features(self, x: Tensor) -> Tensor:
        return F.dropout(super().features(x), 0.5, training=True)


class TrainsOnly(Convolutions):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            raise RuntimeError("call .train() first")
        return super().forward(x)


class Detached(Convolutions):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Counts(Convolutions):
    """An argmax in the middle: the score has no gradient in the image."""

    def features(self, x: Tensor) -> Tensor:
        return F.one_hot(super().features(x).argmax(1), 6).movedim(-1, 1).to(x)


class NeedsSideEffect(Convolutions):
    """Reads what an operation wrote into its argument, which our rules do not do."""

    def features(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        F.relu(x, inplace=True)
        return F.relu(self.blocks[1](x))


class Probabilities(Convolutions):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(-1)


class IndependentProbabilities(Convolutions):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sigmoid()


class NeedsText(Convolutions):
    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        return super().forward(x) + words.sum()


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        return torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.Flatten(), nn.Linear(256, 3)).double())


def quantised() -> nn.Module:
    model = build("vit").float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao.quantization is deprecated
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


UNSUITED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "scripted": (scripted, r"is a scripted model \(torch.jit\).*the model it was made from would work"),
    "quantised": (quantised, r"has quantised layers \('.*'\).*before quantisation would work, and black_box=True"),
    "noise": (DrawsNoise, "draws random numbers in its forward; a model that does not would work"),
    "dropout": (AlwaysDrops, "draws random numbers in its forward"),
    "training only": (TrainsOnly, r"cannot be run .*call .train\(\) first"),
    "side effect": (NeedsSideEffect, "relies on a change in place"),
    "words": (NeedsText, r"cannot be run .*missing .* 'words'.*inputs=\{…\} to vitreous.see_through"),
    "softmax": (Probabilities, "seems to answer with probabilities; give it without its last sigmoid or softmax"),
    "sigmoid": (IndependentProbabilities, "seems to answer with probabilities"),
    "detached": (Detached, "have no gradient path to the images"),
    "argmax": (Counts, "no gradient path to the images|of a score is lost"),
}


@pytest.mark.parametrize("case", UNSUITED)
def test_an_unsuited_model_is_refused_and_not_modified(case):
    make, sentence = UNSUITED[case]
    module = make()
    before = fingerprint(module)

    for call in (
        lambda: vitreous.wrap(module, size=(32, 32)),
        lambda: vitreous.explain(module, torch.zeros(1, 3, 32, 32), method="ixg"),
    ):
        with pytest.raises(ModelError, match=sentence) as refusal:
            call()
        assert "\n" not in str(refusal.value)
    assert fingerprint(module) == before


def test_a_refused_model_is_a_black_box_on_demand_and_where_the_method_allows_it():
    module, images = quantised(), torch.zeros(1, 3, *SMALL["img_size"])

    for model in (module, vitreous.wrap(module, black_box=True)):
        attribution = vitreous.explain(model, images, 1, "rise(masks=4)")
        assert attribution.patches is None
        assert attribution.pixels().isfinite().all()


class InPlace(Convolutions):
    def features(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        state = F.relu(x, inplace=True)
        state += self.blocks[1](state)  # changes the input of the block in place
        return state.mul_(2)


class OutOfPlace(Convolutions):
    def features(self, x: Tensor) -> Tensor:
        state = F.relu(self.blocks[0](x))
        return (state + self.blocks[1](state)) * 2


def test_states_that_are_changed_in_place_are_copied():
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    changing, plain = InPlace().double(), OutOfPlace().double()
    before = fingerprint(changing)

    for spec in ("ixg+plus", "decompx", "fullgrad@libra+plus", "temper"):
        ours = vitreous.explain(changing, images, 1, spec)
        expected = vitreous.explain(plain, images, 1, spec)
        torch.testing.assert_close(ours.patches, expected.patches, rtol=1e-9, atol=1e-12)
    assert fingerprint(changing) == before


class TwoLayers(nn.Module):
    def __init__(self, inputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(inputs, 6, stride, stride), nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))))


class Numbered(nn.Module):
    """Stages and blocks that are children with numbers in their names and not elements of lists, as timm's RegNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 4, 4)
        self.s1, self.s2 = nn.Module(), nn.Module()
        self.s1.add_module("b1", TwoLayers(6, 1))
        self.s2.add_module("b1", TwoLayers(6, 2))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.s2.b1(self.s1.b1(self.stem(x))).mean((2, 3)))


def test_blocks_without_lists_are_found_by_the_numbers_in_their_names():
    network = vitreous.wrap(Numbered().double(), size=(32, 32))

    assert [block.name for block in network.blocks] == ["s1.b1", "s2.b1"]


class AddsToPart(Convolutions):
    """As the detectors that add a reference point to two of four numbers."""

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        output[:, :2] += 0.7
        return output


class Limited(Convolutions):
    """A regression whose values lie between bounds, as those of depth estimators do."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return 10 * getattr(F, self.function)(super().forward(x))


@pytest.mark.parametrize(
    "make",
    [AddsToPart, lambda: Limited("sigmoid"), lambda: Limited("softplus"), lambda: Limited("hardsigmoid")],
    ids=["adds to part", "sigmoid", "softplus", "hardsigmoid"],
)
def test_constants_of_outputs_have_their_share(make):
    module = make().double()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    images[1] = 0

    network = vitreous.wrap(module, size=(32, 32))
    attribution = vitreous.explain(network, images, method="decompx", score=vitreous.scores.value(1))

    torch.testing.assert_close(attribution.score, module(images)[:, 1].detach())
    total = attribution.patches.sum(-1) + attribution.bias
    torch.testing.assert_close(total, attribution.score, rtol=1e-9, atol=1e-12)


def test_a_score_is_one_differentiable_number_per_image():
    module, images = Convolutions().double(), torch.zeros(2, 3, 32, 32).double()
    before = fingerprint(module)

    for score, sentence in (
        (lambda output: output, r"must give one number per image \[images\], not torch.float64 of shape \[2, 5\]"),
        (lambda output: output.sum(), r"must give one number per image .* of shape \[\]"),
        (lambda output: output.argmax(-1), r"must give one number per image .*torch.int64"),
        (lambda output: output[:1, 0], r"must give one number per image \[2\], not 1"),
        (lambda output: output.detach().sum().item(), "must give one number per image .* float"),
        (lambda output: output[:, 0].detach(), "has no gradient path to the images"),
    ):
        with pytest.raises(ShapeError, match=sentence):
            vitreous.explain(module, images, method="ixg", score=score)
    assert fingerprint(module) == before
