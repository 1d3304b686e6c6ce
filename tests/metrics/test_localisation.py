"""Localisation metrics, compared with their reference implementations on maps with known evidence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import vitreous
from vitreous.core.errors import ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.metrics.localisation import (
    ap,
    energy_pointing,
    f1,
    f1_rows,
    map_two_channel,
    miou,
    pixel_accuracy,
    pointing_game,
)
from vitreous.metrics.metric import resolve_metric
from vitreous.metrics.robustness import class_discrimination
from vitreous.models.vit import Layout

SIDE = 6


def attribution(patches: torch.Tensor, patch: int = 1) -> Attribution:
    side = int(patches.shape[-1] ** 0.5)
    targets = torch.zeros(len(patches), dtype=torch.long)
    return Attribution(patches, Layout((side, side), (patch, patch), 1), targets, "x")


@pytest.fixture(scope="module")
def drawn():
    """Twenty maps with ties and signs, and masks with pixels that do not count."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.randint(-3, 5, (20, SIDE**2), generator=draw).double()
    masks = torch.randint(-1, 2, (20, SIDE, SIDE), generator=draw).to(torch.int8)
    return attribution(scores), masks


def pairs(found: Attribution, masks: torch.Tensor, row: int, background: bool = False) -> list[tuple[float, bool]]:
    """Score and side of every pixel that counts."""
    flat = zip(found.patches[row].tolist(), masks[row].flatten().tolist(), strict=True)
    return [(score, side == 1) for score, side in flat if background or side >= 0]


def marked(found: Attribution, row: int) -> list[bool]:
    scores = found.patches[row].tolist()
    mean = sum(scores) / len(scores)
    return [score > mean for score in scores]


def slow_average_precision(scored: list[tuple[float, bool]]) -> float:
    area, recall, total = 0.0, 0.0, sum(inside for _, inside in scored)
    for threshold in sorted({score for score, _ in scored}, reverse=True):
        chosen = [inside for score, inside in scored if score >= threshold]
        now = sum(chosen) / total
        area, recall = area + (now - recall) * sum(chosen) / len(chosen), now
    return area


def slow_f1(right: int, chosen: int, inside: int) -> float:
    return 0.0 if right == 0 else 2 * (right / chosen) * (right / inside) / (right / chosen + right / inside)


# ── reference implementations ────────────────────────────────────────────────────────────────────────────────────────


def test_average_precision_is_the_area_over_distinct_scores(drawn):
    found, masks = drawn
    ours = ap(found, objects=masks).scores
    published = ap.with_options(preset="skipplus")(found, objects=masks).scores

    for row in range(20):
        assert ours[row].item() == pytest.approx(slow_average_precision(pairs(found, masks, row)), abs=1e-9)
        everything = slow_average_precision(pairs(found, masks, row, background=True))
        assert published[row].item() == pytest.approx(everything, abs=1e-9)


def test_two_channels_are_one_list(drawn):
    found, masks = drawn
    ours = map_two_channel(found, objects=masks).scores

    for row in range(20):
        low, high = found.patches[row].min().item(), found.patches[row].max().item()
        scored = [((score - low) / (high - low), inside) for score, inside in pairs(found, masks, row)]
        both = scored + [(1 - score, not inside) for score, inside in scored]
        assert ours[row].item() == pytest.approx(slow_average_precision(both), abs=1e-9)


def test_accuracy_and_overlap_are_counted_pixel_by_pixel_and_pooled(drawn):
    found, masks = drawn
    accuracy, iou = pixel_accuracy(found, objects=masks), miou(found, objects=masks)
    total = np.zeros(6)

    for row in range(20):
        sides = [
            (mark, side == 1)
            for mark, side in zip(marked(found, row), masks[row].flatten().tolist(), strict=True)
            if side >= 0
        ]
        right = sum(mark == inside for mark, inside in sides)
        ious = []
        for wanted in (False, True):
            both = sum(mark == wanted and inside == wanted for mark, inside in sides)
            either = sum(mark == wanted or inside == wanted for mark, inside in sides)
            ious.append((both, either))
        total += [right, len(sides), *ious[0], *ious[1]]
        assert accuracy.scores[row].item() == pytest.approx(right / len(sides), abs=1e-12)
        assert iou.scores[row].item() == pytest.approx(sum(a / b for a, b in ious) / 2, abs=1e-12)
    assert accuracy.value == pytest.approx(total[0] / total[1], abs=1e-12)
    assert iou.value == pytest.approx((total[2] / total[3] + total[4] / total[5]) / 2, abs=1e-12)
    low, high = iou.interval()
    assert low < iou.value < high
    assert accuracy.value != pytest.approx(accuracy.scores.mean().item(), abs=1e-6)  # masks count differently


def test_f1_is_over_pixels_and_published_f1_over_rows_of_the_image(drawn):
    found, masks = drawn
    ours, rows = f1(found, objects=masks).scores, f1_rows(found, objects=masks).scores

    for row in range(20):
        marks, sides = marked(found, row), masks[row].flatten().tolist()
        both = [(mark, side == 1) for mark, side in zip(marks, sides, strict=True) if side >= 0]
        counts = [sum(a and b for a, b in both), sum(a for a, _ in both), sum(b for _, b in both)]
        assert ours[row].item() == pytest.approx(slow_f1(*counts), abs=1e-12)
        lines = []
        for line in range(SIDE):
            part = slice(line * SIDE, (line + 1) * SIDE)
            both = [(a, b == 1) for a, b in zip(marks[part], sides[part], strict=True) if b >= 0]
            if both:
                lines.append(slow_f1(sum(a and b for a, b in both), sum(a for a, _ in both), sum(b for _, b in both)))
        assert rows[row].item() == pytest.approx(sum(lines) / len(lines), abs=1e-12)


@pytest.mark.parametrize("tolerance", [0, 1, 2])
def test_a_peak_points_within_a_circle(drawn, tolerance):
    found, masks = drawn
    ours = pointing_game.with_options(tolerance=tolerance)(found, objects=masks).scores

    for row in range(20):
        scores, sides = found.patches[row].tolist(), masks[row].flatten().tolist()
        counted = [place for place in range(SIDE**2) if sides[place] >= 0]
        highest = max(scores[place] for place in counted)
        peaks = [place for place in counted if scores[place] == highest]
        inside = [divmod(place, SIDE) for place in counted if sides[place] == 1]
        hits = sum(any(math.dist(divmod(peak, SIDE), spot) <= tolerance for spot in inside) for peak in peaks)
        assert ours[row].item() == pytest.approx(hits / len(peaks), abs=1e-12)


@pytest.mark.parametrize("part", ["positive", "abs"])
def test_energy_is_the_share_of_the_mass(drawn, part):
    found, masks = drawn
    ours = energy_pointing.with_options(part=part)(found, objects=masks).scores

    for row in range(20):
        mass = [(max(s, 0) if part == "positive" else abs(s), inside) for s, inside in pairs(found, masks, row)]
        share = sum(m for m, inside in mass if inside) / sum(m for m, _ in mass)
        assert ours[row].item() == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("by", ["rank", "mass"])
def test_discrimination_compares_every_pair_of_pixels(drawn, by):
    found, masks = drawn
    rivals = torch.randint(-1, 2, masks.shape, generator=torch.Generator().manual_seed(1)).to(torch.int8)
    ours = class_discrimination.with_options(by=by)(found, objects=masks, rivals=rivals).scores

    for row in range(20):
        spots = list(
            zip(*(t.tolist() for t in (found.patches[row], masks[row].ravel(), rivals[row].ravel())), strict=True)
        )
        own = [s for s, a, b in spots if (a, b) == (1, 0)]
        other = [s for s, a, b in spots if (a, b) == (0, 1)]
        if by == "rank":
            wins = sum((s > t) + (s == t) / 2 for s in own for t in other) / (len(own) * len(other))
        else:
            a, b = (sum(max(s, 0) for s in side) / len(side) for side in (own, other))
            wins = a / (a + b)
        assert ours[row].item() == pytest.approx(wins, abs=1e-12)


# ── closed-form results ───────────────────────────────────────────────────────────────────────────


def half() -> torch.Tensor:
    objects = torch.zeros(1, 4, 4, dtype=torch.bool)
    objects[:, :2] = True
    return objects


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        ("ap", 0.5),
        ("pointing_game", 0.5),
        ("map_two_channel", 0.5),
        ("pixel_accuracy", 0.5),
        ("miou", 0.25),
        ("f1", 0.0),
    ],
)
def test_a_perfect_map_scores_one_and_a_constant_map_scores_chance(name, constant):
    objects = half()
    metric = resolve_metric(name)

    assert metric(attribution(objects.flatten(1).double()), objects=objects).value == 1
    assert metric(attribution(torch.full((1, 16), 0.1).double()), objects=objects).value == pytest.approx(constant)


def test_a_constant_map_stays_constant_when_it_is_enlarged():
    constant = attribution(torch.full((1, 16), 0.1), patch=7)
    objects = torch.zeros(1, 28, 28, dtype=torch.bool)
    objects[:, 3:8, 5:9] = True

    assert miou(constant, objects=objects).parts["union_object"].item() == 20  # nothing is marked
    assert map_two_channel(constant, objects=objects).value == 0.5
    assert pointing_game(constant, objects=objects).value == pytest.approx(20 / 28**2)


def test_an_image_without_its_object_has_no_score(drawn):
    found, masks = drawn
    nothing = masks.clone()
    nothing[3] = nothing[3].clamp(max=0)

    for metric in (ap, pixel_accuracy, miou, map_two_channel, f1, f1_rows, pointing_game, energy_pointing):
        result = metric(found, objects=nothing)
        assert result.undefined == 1, metric.name
        assert result.value == pytest.approx(without(metric(found, objects=masks), 3), abs=1e-12)


def without(result: vitreous.MetricResult, row: int) -> float:
    """The pooled value without one row."""
    return float(result.reduce({name: np.delete(part, row) for name, part in result.columns.items()}))


def test_boxes_are_half_open_and_the_published_rules_are_options():
    peak = torch.zeros(4, 16)
    peak[:, 5] = 1  # row 1, column 1
    found = attribution(peak)
    hit, miss, large, gone = [[1, 1, 2, 2]], [[0, 0, 1, 1]], [[0, 0, 4, 2]], []
    boxes = [torch.tensor(one).reshape(-1, 4) for one in (hit, miss, large, gone)]

    plain = pointing_game(found, boxes=boxes).scores.tolist()
    assert plain[:3] == [1, 0, 1]
    assert math.isnan(plain[3])
    published = pointing_game.with_options(preset="tis")(found, boxes=boxes).scores.tolist()
    assert published[:2] == [1, 0]
    assert math.isnan(published[2])  # it covers half
    assert published[3] == 0
    energy = energy_pointing.with_options(preset="tis")(found, boxes=boxes).scores.tolist()
    assert (energy[0], energy[1], energy[3]) == (1, 0, 0)


def test_the_first_of_equal_peaks_is_taken_where_published():
    found = attribution(torch.ones(1, 16))
    boxes = [torch.tensor([[0, 0, 1, 1]])]

    assert pointing_game.with_options(ties="first")(found, boxes=boxes).value == 1
    assert pointing_game(found, boxes=boxes).value == 1 / 16


def test_pixels_of_a_black_box_are_enough():
    pixels = half().double()
    found = Attribution(None, Layout((4, 4), (1, 1), 0), torch.zeros(1, dtype=torch.long), "x", "pixel", pixels)

    for metric in (ap, pixel_accuracy, miou, map_two_channel, f1, f1_rows, pointing_game, energy_pointing):
        assert 0.5 <= metric(found, objects=half()).value <= 1


def test_a_class_agnostic_method_is_at_chance_over_both_classes():
    draw = torch.Generator().manual_seed(2)
    found = attribution(torch.rand(1, 16, generator=draw))
    first, second = torch.zeros(2, 1, 4, 4, dtype=torch.bool)
    first[:, 0], second[:, 2:] = True, True
    asked = class_discrimination(found, objects=first, rivals=second).value
    other = class_discrimination(found, objects=second, rivals=first).value

    assert asked + other == pytest.approx(1)


def test_enlarging_follows_the_option():
    found = attribution(torch.tensor([[0.0, 0, 0, 1]]), patch=4)
    objects = torch.zeros(1, 8, 8, dtype=torch.bool)
    objects[:, 4:, 4:] = True

    assert ap(found, objects=objects).value == 1
    assert ap.with_options(interpolation="bilinear")(found, objects=objects).value == 1
    with pytest.raises(SpecError, match="interpolation='cubic'; known: 'nearest-exact'"):
        ap.with_options(interpolation="cubic")(found, objects=objects)


def test_invalid_arguments_are_refused_with_a_message():
    found = attribution(torch.rand(1, 16))

    with pytest.raises(ShapeError, match="1 maps and 2 masks"):
        ap(found, objects=torch.zeros(2, 4, 4, dtype=torch.bool))
    with pytest.raises(ShapeError, match="1 maps and boxes of 2 images"):
        pointing_game(found, boxes=[torch.zeros(1, 4), torch.zeros(1, 4)])
    with pytest.raises(SpecError, match=r"nothing to point at; give objects=… or boxes=…"):
        pointing_game(found)
    with pytest.raises(SpecError, match="metric 'ap' needs objects="):
        ap(found)
    with pytest.raises(ShapeError, match="they must be of one size"):
        class_discrimination(found, objects=half(), rivals=torch.zeros(1, 5, 5, dtype=torch.bool))


def test_other_names_lead_to_the_same_metric():
    assert resolve_metric("average_precision").name == "ap"
    assert resolve_metric("pixacc").name == "pixel_accuracy"


def test_measured_through_the_front_door():
    vit = vitreous.load("scenes")
    scene = vitreous.scenes.draw("pair", seed=1, index=1)
    images = vitreous.scenes.tensor(scene)[None]
    evidence = torch.stack([torch.from_numpy(thing.evidence) for thing in scene.objects])
    classes = [[thing.label for thing in scene.objects]]
    specs = ["ap", "pointing_game", "class_discrimination", "miou"]
    found = vitreous.explain(vit, images, classes, "decompx+skipplus", "probability")
    rolled = vitreous.explain(vit, images, classes, "rollout")
    good = vitreous.evaluate(vit, images, found, specs, objects=evidence, rivals=evidence.flip(0))
    blind = vitreous.evaluate(vit, images, rolled, specs, objects=evidence, rivals=evidence.flip(0))

    assert [result.metric for result in good] == specs
    assert good[2].value > 0.9
    assert blind[2].value == pytest.approx(0.5)
    assert good[0].protocol == {"metric": "ap", "interpolation": "nearest-exact", "ignored": "skip"}
