"""Complexity metrics, compared with reference implementations and with closed-form results."""

from __future__ import annotations

import math

import pytest
import torch

import vitreous
from vitreous.core.errors import SpecError
from vitreous.methods.attribution import Attribution
from vitreous.metrics.complexity import completeness_error, entropy, sparseness
from vitreous.models.vit import Layout
from vitreous.testing import tiny_vits


def attribution(patches: torch.Tensor, patch: int = 1, **fields) -> Attribution:
    side = int(patches.shape[-1] ** 0.5)
    targets = torch.zeros(len(patches), dtype=torch.long)
    return Attribution(patches, Layout((side, side), (patch, patch), 1), targets, "x", **fields)


@pytest.fixture(scope="module")
def drawn() -> Attribution:
    return attribution(torch.randn(10, 25, generator=torch.Generator().manual_seed(0)).double())


def slow_gini(values: list[float]) -> float:
    """Mean difference of all pairs, over twice the mean."""
    count, mean = len(values), sum(values) / len(values)
    return sum(abs(a - b) for a in values for b in values) / (2 * count**2 * mean)


@pytest.mark.parametrize("shift", ["always", "negative"])
@pytest.mark.parametrize("part", ["signed", "abs"])
def test_sparseness_is_the_mean_difference_of_all_pairs(drawn, shift, part):
    ours = sparseness.with_options(shift=shift, part=part)(drawn).scores

    for row in range(10):
        values = [abs(v) if part == "abs" else v for v in drawn.patches[row].tolist()]
        low = min(values) if shift == "always" else min(0, *values)
        assert ours[row].item() == pytest.approx(slow_gini([v - low for v in values]), abs=1e-9)


def test_the_published_epsilon_is_felt_by_tiny_maps_only(drawn):
    published = sparseness.with_options(preset="tis-released")
    tiny = attribution(drawn.patches * 1e-7)

    assert published(drawn).scores.allclose(sparseness(drawn).scores, atol=1e-6)
    assert (published(tiny).scores < sparseness(tiny).scores - 0.01).all()
    assert sparseness(tiny).scores.allclose(sparseness(drawn).scores)


def test_the_papers_preset_shifts_negative_maps_only(drawn):
    paper, released = (sparseness.with_options(preset=name) for name in ("tis", "tis-released"))
    positive = attribution(drawn.patches - drawn.patches.amin(-1, keepdim=True) + 1)

    torch.testing.assert_close(paper(drawn).scores, sparseness(drawn).scores)  # every drawn map has a negative score
    assert (paper(positive).scores < released(positive).scores - 0.01).all()


def test_complexity_of_one_patch_and_of_a_constant_map():
    one, all_same = torch.zeros(1, 16), torch.full((1, 16), 0.1)
    one[0, 3] = 5

    assert sparseness(attribution(one)).value == pytest.approx(15 / 16)
    assert sparseness(attribution(all_same, patch=7)).value == 0
    assert sparseness(attribution(torch.zeros(1, 16))).value == 0
    assert entropy(attribution(one)).value == 0
    assert entropy(attribution(all_same, patch=7)).value == pytest.approx(1)
    assert math.isnan(entropy(attribution(torch.zeros(1, 16))).value)
    assert math.isnan(sparseness.with_options(shift="none")(attribution(-one)).value)


def test_entropy_is_that_of_the_magnitudes(drawn):
    nats = entropy.with_options(preset="quantus")(drawn).scores
    share = entropy(drawn).scores

    for row in range(10):
        mass = [abs(v) for v in drawn.patches[row].tolist()]
        reference = -sum(m / sum(mass) * math.log(m / sum(mass)) for m in mass)
        assert nats[row].item() == pytest.approx(reference, abs=1e-9)
        assert share[row].item() == pytest.approx(reference / math.log(25), abs=1e-9)


def test_pixels_and_patches_are_two_maps():
    found = attribution(torch.rand(1, 16, generator=torch.Generator().manual_seed(0)), patch=4)

    assert sparseness(found).value != pytest.approx(sparseness.with_options(of="native")(found).value, abs=1e-3)
    with pytest.raises(SpecError, match="of='patch'; known: 'pixels', 'native'"):
        sparseness.with_options(of="patch")(found)


def test_completeness_error_is_zero_or_undefined():
    vit = tiny_vits()["mean pool, registers, LayerScale"]
    images = torch.randn(2, 3, *vit.size, generator=torch.Generator().manual_seed(0)).double()
    complete, walked, silent = (
        vitreous.explain(vit, images, [1, 2], spec) for spec in ("decompx", "ig(steps=4)", "genatt")
    )
    missed = [vitreous.evaluate(vit, images, found, "completeness_error") for found in (complete, walked, silent)]

    assert (missed[0].scores < 1e-9).all()
    assert (missed[1].scores > 1e-3).all()
    reference = walked.score - walked.bias - walked.native_pixels.sum((1, 2))
    torch.testing.assert_close(missed[1].scores, reference.abs())
    assert missed[2].undefined == 2
    shares = completeness_error.with_options(relative=True)(walked).scores
    torch.testing.assert_close(shares, reference.abs() / walked.score.abs())


@pytest.mark.parametrize("fold", ["plus", "skipplus"])
def test_fullgrad_under_libra_is_complete_from_every_layer_that_is_summed(fold):
    for vit in tiny_vits().values():
        images = torch.randn(2, 3, *vit.size, generator=torch.Generator().manual_seed(0)).double()
        found = vitreous.explain(vit, images, [1, 2], f"fullgrad@libra+{fold}(biases='repeat')")
        layers = vit.depth if fold == "plus" else vit.depth // 2
        total = found.patches.sum(1) + found.prefix.sum(1) + layers * found.bias
        torch.testing.assert_close(total, layers * found.score, rtol=1e-10, atol=1e-10)
        once = vitreous.explain(vit, images, [1, 2], f"fullgrad@libra+{fold}")
        assert not torch.allclose(once.patches, found.patches)  # a bias counts once there, and the sum is no multiple
