"""Robustness metrics, compared with a reference implementation that explains one image at a time."""

from __future__ import annotations

import math

import pytest
import torch

import vitreous
from vitreous.capture.probe import Probe, probe_of
from vitreous.core.errors import SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import Method
from vitreous.methods.random_control import generators
from vitreous.methods.register_method import make_method
from vitreous.methods.spec import resolve
from vitreous.metrics.ranks import spearman
from vitreous.metrics.robustness import group_parameters, max_sensitivity, parameter_randomisation
from vitreous.testing import fingerprint, randomise, tiny_vits

TARGETS = torch.tensor([[1, 0], [4, 2], [2, 6]])


@pytest.fixture(scope="module")
def vit():
    return tiny_vits()["class token"]


@pytest.fixture(scope="module")
def images(vit):
    return torch.randn(3, 3, *vit.size, generator=torch.Generator().manual_seed(1)).double()


# ── noise on the image ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("spec", ["genatt", "ixg(space='pixels')", "decompx+skipplus"])
def test_sensitivity_is_the_largest_change_among_the_samples(vit, images, spec):
    method = resolve(spec)
    probe = Probe(vit, images, TARGETS)
    found = method(probe)
    ours = max_sensitivity.with_options(samples=3, radius=0.1)(found, probe=probe, method=method).scores

    for row, target in enumerate(TARGETS.flatten()):
        picture = images[row // 2][None]
        source = generators(picture, 0)[0]
        noise = (torch.rand(3, *picture.shape[1:], generator=source) * 2 - 1) * 0.1
        before = flat(method(Probe(vit, picture, target[None])))
        changes = [
            math.dist(flat(method(Probe(vit, picture + one.double(), target[None]))), before) / math.hypot(*before)
            for one in noise
        ]
        assert ours[row].item() == pytest.approx(max(changes), rel=1e-6)


def flat(found: Attribution) -> list[float]:
    return (found.patches if found.native_pixels is None else found.native_pixels).flatten().tolist()


def test_many_samples_are_explained_in_pieces(vit, images):
    method, probe = resolve("genatt"), Probe(vit, images, TARGETS)
    few = max_sensitivity.with_options(samples=12)(method(probe), probe=probe, method=method).scores
    more = max_sensitivity.with_options(samples=25)(method(probe), probe=probe, method=method).scores

    assert (more >= few - 1e-12).all()  # the first samples are the same: those of an image come one after the other
    assert (few > 0).all()


def made(function, signed: bool = True) -> Method:
    return make_method("made", function, signed=signed, class_specific=True)


def test_a_constant_map_has_sensitivity_zero_and_zero_length_is_divided_by_one(vit, images):
    still = made(lambda probe: torch.ones(probe.rows, 16, dtype=torch.float64))
    nothing = made(lambda probe: torch.zeros(probe.rows, 16, dtype=torch.float64))
    follows = made(lambda probe: probe.images.mean((1, 2, 3), keepdim=True)[:, 0, 0].expand(-1, 16).contiguous())
    probe = Probe(vit, images)
    of = {name: method(probe) for name, method in (("still", still), ("nothing", nothing))}

    assert (max_sensitivity(of["still"], probe=probe, method=still).scores == 0).all()
    assert (max_sensitivity(of["nothing"], probe=probe, method=nothing).scores == 0).all()
    assert (max_sensitivity(of["still"], probe=probe, method=follows).scores > 0).all()


def test_a_map_of_another_method_is_not_compared_with_this_ones(vit, images):
    probe, genatt = Probe(vit, images), resolve("genatt")
    own = max_sensitivity(genatt(probe), probe=probe, method=genatt).scores
    given = Attribution(torch.rand(3, 16).double(), probe.layout, probe.targets, "given")

    torch.testing.assert_close(max_sensitivity(given, probe=probe, method=genatt).scores, own)


def test_any_classifier_will_do():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 5))
    box = vitreous.wrap(net, black_box=True)
    pictures = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    found = vitreous.explain(box, pictures, [1, 2], "occlusion(space='pixels', window=7)")
    results = vitreous.evaluate(box, pictures, found, ["max_sensitivity(samples=2)", "parameter_randomisation"])

    assert (results[0].scores > 0).all()
    assert (results[1].scores.abs() < 1).all()
    probe = probe_of(box, pictures, torch.tensor([1, 2]))
    assert probe.black_box


def test_settings_that_make_no_sense_are_refused(vit, images):
    probe, method = Probe(vit, images), resolve("genatt")
    with pytest.raises(SpecError, match="samples=0; expected at least 1"):
        max_sensitivity.with_options(samples=0)(method(probe), probe=probe, method=method)
    with pytest.raises(SpecError, match="order='up'; known: 'all', 'cascade'"):
        parameter_randomisation.with_options(order="up")(method(probe), probe=probe, method=method)
    with pytest.raises(SpecError, match="'max_sensitivity' needs an attribution that a method of the registry made"):
        vitreous.evaluate(vit, images, torch.rand(3, 16).double(), "max_sensitivity", target=[1, 2, 3])


# ── random weights ────────────────────────────────────────────────────────────────────────────────


def slow_spearman(a: list[float], b: list[float]) -> float:
    def ranks(values: list[float]) -> list[float]:
        return [sum(v > w for v in values) + (sum(v == w for v in values) + 1) / 2 for w in values]

    x, y = ranks(a), ranks(b)
    middle = (len(a) + 1) / 2
    x, y = [r - middle for r in x], [r - middle for r in y]
    return sum(p * q for p, q in zip(x, y, strict=True)) / (math.hypot(*x) * math.hypot(*y))


def test_rank_correlation_shares_ranks_between_equals():
    draw = torch.Generator().manual_seed(0)
    first, second = torch.randint(0, 5, (2, 10, 16), generator=draw).double()
    ours = spearman(first, second)

    for row in range(10):
        assert ours[row].item() == pytest.approx(slow_spearman(first[row].tolist(), second[row].tolist()), abs=1e-12)
    assert spearman(first, torch.ones_like(first)).isnan().all()
    assert spearman(first, 2 * first + 1).allclose(torch.ones(10).double())


@pytest.mark.parametrize("sign", ["signed", "abs"])
def test_the_map_is_compared_with_that_of_a_copy_with_random_weights(vit, images, sign):
    method, probe = resolve("ixg"), Probe(vit, images, TARGETS)
    before = fingerprint(vit.module)
    found = method(probe)
    result = parameter_randomisation.with_options(sign=sign)(found, probe=probe, method=method)
    again = parameter_randomisation.with_options(sign=sign)(
        found[:2], probe=Probe(vit, images[:1], TARGETS[:1]), method=method
    )

    assert fingerprint(vit.module) == before
    assert (result.scores.abs() < 0.9).all()
    assert result.curve is None
    torch.testing.assert_close(again.scores, result.scores[:2])  # the random model does not depend on the images
    other = parameter_randomisation.with_options(sign=sign, seed=1)(found, probe=probe, method=method)
    assert not other.scores.allclose(result.scores)


def test_maps_that_ignore_the_model_or_the_head_do_not_change_with_them(vit, images):
    probe = Probe(vit, images)
    random, rollout = resolve("random"), resolve("rollout")
    all_at_once = parameter_randomisation(random(probe), probe=probe, method=random)
    steps = parameter_randomisation.with_options(order="cascade")(rollout(probe), probe=probe, method=rollout)

    assert all_at_once.scores.allclose(torch.ones(3).double())
    parts = list(group_parameters(vit.module))
    assert parts[:3] == ["head", "norm", "blocks.3"]
    assert parts[-1] == "cls_token"
    assert steps.levels == pytest.approx([(i + 1) / len(parts) for i in range(len(parts))])
    assert steps.curve[:, :2].allclose(torch.ones(3, 2).double())  # head and last norm are not read by it
    assert (steps.curve[:, -1] < 0.99).all()
    torch.testing.assert_close(steps.scores, steps.curve.mean(1))


def test_the_last_stage_of_the_cascade_is_the_whole_model_at_once(vit, images):
    method, probe = resolve("genatt"), Probe(vit, images)
    found = method(probe)
    stages = parameter_randomisation.with_options(order="cascade", stages=2)(found, probe=probe, method=method)
    whole = parameter_randomisation(found, probe=probe, method=method)

    assert stages.curve.shape == (3, 2)
    torch.testing.assert_close(stages.curve[:, -1], whole.scores)


def test_a_map_that_becomes_constant_scores_zero_and_a_constant_map_is_undefined(vit, images):
    weight = vit.module.head.weight.detach().clone()

    def only_on_this_model(probe):
        same = torch.equal(probe.vit.module.head.weight, weight)
        ramp = torch.arange(16).double().expand(probe.rows, -1)
        return ramp.clone() if same else torch.zeros_like(ramp)

    probe, method, never = Probe(vit, images), made(only_on_this_model), made(lambda probe: torch.ones(3, 16).double())

    assert (parameter_randomisation(method(probe), probe=probe, method=method).scores == 0).all()
    assert parameter_randomisation(never(probe), probe=probe, method=never).scores.isnan().all()


def test_a_torchvision_model_forgets_from_its_head_down():
    from torchvision.models import VisionTransformer

    model = VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5).eval()
    randomise(model)  # as it is built, its head is 0
    parts = list(group_parameters(model))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    result = vitreous.evaluate(
        model, images, vitreous.explain(model, images, [1, 2], "genatt"), "parameter_randomisation"
    )

    layers = [f"encoder.layers.encoder_layer_{i}" for i in (1, 0)]
    assert parts == ["heads.head", "encoder.ln", *layers, "encoder", "conv_proj", "class_token"]
    assert (result.scores < 1).all()
