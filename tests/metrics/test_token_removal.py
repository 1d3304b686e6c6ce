"""Metrics by token removal, compared with a reference implementation; contract tests; properties."""

from __future__ import annotations

import math

import pytest
import torch

import vitreous
from tests.metrics.slow import (
    COUNT,
    LABELS,
    area,
    highest_first,
    images,
    maps,
    measured,
    model,
    probe,
    say_pixels,
    say_tokens,
    softmax,
    wanted,
)
from tests.models.families import tiny
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.metrics.metric import resolve_metric
from vitreous.models.black_box import with_observed_outputs

TENTHS = [tenth / 10 for tenth in range(1, 10)]
NAMES = ("deletion_accuracy", "deletion_aopc", "insertion_accuracy", "insertion_aopc")


def reference(family, attribution, row, image, name, which, order="descending", kind="normalised", ratios=TENTHS):
    """Score, curve and mean log-odds of one row."""
    patches = attribution.patches.shape[1]
    places = highest_first(attribution.patches[row])
    places = places if order == "descending" else places[::-1]
    whole = say_pixels(family, image)
    track = wanted(which, whole, int(LABELS[row // (len(attribution) // COUNT)]), int(attribution.targets[row]))
    delete = name.startswith("deletion")
    levels = [0.0, *ratios] if delete else [*ratios, 1.0]
    curve, odds = [], []
    for level in levels:
        count = int(level * patches)
        said = say_tokens(family, image, places[count:] if delete else places[:count], patches)
        drop = softmax(whole)[track] - softmax(said)[track]
        curve.append(float(said.index(max(said)) == track) if name.endswith("accuracy") else drop)
        odds.append(math.log(softmax(whole)[track]) - math.log(softmax(said)[track]))
    return area(levels, curve, kind), curve, sum(odds) / len(odds)


@pytest.mark.parametrize("family", ["vit", "vit-mean", "vit-one-output", "rope"])
@pytest.mark.parametrize("name", NAMES)
def test_each_metric_agrees_with_its_reference(family, name):
    asked = probe(family)
    attribution = maps(asked)
    option = "judge" if name.endswith("accuracy") else "track"

    for which, order, kind in (
        ("label", "descending", "normalised"),
        ("predicted", "ascending", "mean"),
        ("explained", "descending", "trapezoid"),
    ):
        found = measured(f"{name}({option}='{which}', order='{order}', area='{kind}')", attribution, asked)
        for row, image in enumerate(images()):
            score, curve, odds = reference(family, attribution, row, image, name, which, order, kind)
            assert found.scores[row].item() == pytest.approx(score, abs=1e-9)
            assert found.curve[row].tolist() == pytest.approx(curve, abs=1e-9)
            if "lodds" in found.parts:
                assert found.parts["lodds"][row].item() == pytest.approx(odds, abs=1e-8)


def test_the_three_classes_are_three_choices():
    asked = probe("vit")
    attribution = maps(asked)
    found = {
        which: measured(f"deletion_aopc(track='{which}')", attribution, asked)
        for which in ("predicted", "label", "explained")
    }
    classes = torch.stack([asked.full_logits.argmax(-1), LABELS, asked.targets])

    assert len(set(classes.T.tolist()[1])) > 1  # else the choice would not matter
    for name, column in zip(("predicted", "label", "explained"), classes, strict=True):
        whole = asked.full_logits.softmax(-1).gather(1, column[:, None])
        none = asked.logits(torch.zeros(COUNT, 1, 12, dtype=torch.bool))[:, 0].softmax(-1).gather(1, column[:, None])
        last = measured(f"deletion_aopc(track='{name}', ratios=(0.5, 1.0))", attribution, asked).curve[:, -1:]
        torch.testing.assert_close(last, whole - none)
        assert found[name].curve[:, 0].abs().max() == 0


def test_areas_and_presentations_are_as_published():
    asked, name = probe("vit"), "deletion_accuracy"
    attribution = maps(asked)
    plain = measured(name, attribution, asked)

    assert plain.higher_is_better is False
    released = measured(f"{name}(preset='released')", attribution, asked)
    torch.testing.assert_close(released.scores, 100 * 0.9 * plain.scores)  # the grid is 0.9 wide and not normalised
    shown = measured(f"{name}(preset='skipplus')", attribution, asked)
    torch.testing.assert_close(shown.scores, 100 - 100 * plain.scores)
    assert shown.higher_is_better is True
    assert measured(f"{name}(order='ascending')", attribution, asked).higher_is_better is True
    assert measured(f"{name}(order='ascending', show='complement')", attribution, asked).higher_is_better is False
    assert measured("insertion_aopc(preset='skipplus')", attribution, asked).higher_is_better is True
    assert plain.levels == (0.0, *TENTHS)
    assert measured("insertion_accuracy", attribution, asked).levels == (*TENTHS, 1.0)
    assert shown.protocol["show"] == "complement"


def test_metrics_of_one_map_share_their_forwards(monkeypatch):
    asked, memo, rows = probe("vit"), {}, []
    attribution = maps(asked)
    logits = Probe.logits
    monkeypatch.setattr(Probe, "logits", lambda self, keep: rows.append(keep.shape[1]) or logits(self, keep))

    measured("deletion_accuracy", attribution, asked, memo)
    measured("deletion_aopc(track='label')", attribution, asked, memo)
    measured("deletion_aopc(ratios=(0.2, 0.5))", attribution, asked, memo)

    assert rows == [9]  # the logits of the whole image are cached, the other nine subsets run once


@pytest.mark.parametrize("name", NAMES)
def test_an_image_scores_the_same_alone_in_a_batch_and_with_other_targets(name):
    several = probe("vit-mean", share=2)
    attribution = maps(several)
    together = measured(name, attribution, several)

    for row in range(2 * COUNT):
        one = slice(row // 2, row // 2 + 1)
        alone = Probe(model("vit-mean"), images()[one], attribution.targets[row : row + 1])
        found = resolve_metric(name)(attribution[row], probe=alone, labels=LABELS[one])
        torch.testing.assert_close(found.scores[0], together.scores[row], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_size_of_the_chunks_does_not_matter(name, monkeypatch):
    attribution = maps(probe("vit"))
    found = measured(name, attribution, probe("vit"))
    monkeypatch.setattr("vitreous.capture.probe.rows_that_fit", lambda *_: 1)

    torch.testing.assert_close(measured(name, attribution, probe("vit")).curve, found.curve, rtol=0, atol=1e-12)


def test_ties_are_ordered_by_the_image_content():
    asked = probe("vit")
    flat = Attribution(torch.full((COUNT, 12), 0.3, dtype=torch.float64), asked.layout, asked.targets, "given")
    found = measured("deletion_aopc", flat, asked)
    from vitreous.metrics.order import patch_ranks

    ranks = patch_ranks(flat, asked)
    assert (ranks.sort(-1).values == torch.arange(12)).all()
    assert len({tuple(row) for row in ranks.tolist()}) == COUNT  # and not from left to right
    alone = resolve_metric("deletion_aopc")(flat[1], probe=probe("vit", some=slice(1, 2)))
    torch.testing.assert_close(alone.scores[0], found.scores[1], rtol=0, atol=1e-12)
    half = flat.patches.clone()
    half[:, 3] = 1.0  # the patch with the highest score is removed first, the others as before
    moved = patch_ranks(Attribution(half, asked.layout, asked.targets, "given"), asked)
    assert (moved[:, 3] == 0).all()


def test_a_map_without_opinion_scores_between_the_best_and_the_worst_on_a_model_that_adds():
    """Over many images a constant map is the random map, and both lie half-way between an order and its reverse."""
    from vitreous.metrics.order import rank_scores

    draw = torch.Generator().manual_seed(0)
    weights = torch.rand(400, 12, generator=draw, dtype=torch.float64)
    drawn = torch.stack([torch.randperm(12, generator=draw) for _ in range(400)])

    def kept(scores):  # a model whose output is the sum of its visible inputs
        left = rank_scores(scores, lambda: drawn)[:, None] >= torch.arange(13)[:, None]
        return (left * weights[:, None]).sum((1, 2))

    best, worst, flat = (kept(scores).mean() for scores in (weights, -weights, torch.zeros_like(weights)))
    assert abs(flat - (best + worst) / 2) < 0.1 * (worst - best)


def test_a_map_with_a_hole_has_no_score():
    asked = probe("vit")
    attribution = maps(asked)
    attribution.patches[1, 4] = torch.nan
    found = measured("insertion_aopc", attribution, asked)

    assert found.scores.isnan().tolist() == [False, True, False]
    assert found.curve[1].isnan().all()
    assert found.undefined == 1


def test_a_pixel_map_is_measured_by_its_patches():
    asked = probe("vit")
    pixels = torch.randn(COUNT, 24, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    by_pixels = vitreous.evaluate(model("vit"), images(), pixels, "deletion_aopc", target=asked.targets)
    sums = pixels.view(COUNT, 3, 8, 4, 8).sum((2, 4)).flatten(1)
    by_patches = vitreous.evaluate(model("vit"), images(), sums, "deletion_aopc", target=asked.targets)

    torch.testing.assert_close(by_pixels.scores, by_patches.scores)


def test_affine_transformations_of_a_map_do_not_change_its_score():
    asked = probe("vit")
    attribution = maps(asked)
    stretched = Attribution(3 * attribution.patches - 7, asked.layout, asked.targets, "given")

    for name in NAMES:
        assert torch.equal(measured(name, attribution, asked).scores, measured(name, stretched, asked).scores)


def test_unsupported_evaluations_are_refused_with_a_message():
    asked = probe("vit")
    attribution = maps(asked)

    with pytest.raises(SpecError, match="judge='label' needs labels=…"):
        resolve_metric("deletion_accuracy")(attribution, probe=asked)
    with pytest.raises(SpecError, match="known: 'predicted', 'label', 'explained'"):
        measured("deletion_aopc(track='top')", attribution, asked)
    with pytest.raises(SpecError, match="shares must grow"):
        measured("deletion_aopc(ratios=(0.5, 0.2))", attribution, asked)
    with pytest.raises(SpecError, match="at least two levels"):
        measured("insertion_aopc(ratios=(1.0,))", attribution, asked)
    with pytest.raises(ShapeError, match="there is no class 9"):
        resolve_metric("deletion_accuracy")(attribution, probe=asked, labels=torch.tensor([0, 9, 0]))
    with pytest.raises(ShapeError, match="2 maps"):
        measured("deletion_aopc", attribution[:2], asked)
    box = vitreous.wrap(tiny("vit"), black_box=True)
    box = with_observed_outputs(box, images())
    with pytest.raises(ModelError, match="black box"):
        vitreous.evaluate(box, images(), torch.zeros(COUNT, 24, 32).double(), "deletion_aopc", target=[0, 0, 0])
