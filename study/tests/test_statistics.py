"""Figures, effects and orders, compared with loops over resamples."""

from __future__ import annotations

import numpy as np
import pytest

from study.effects import (
    Effect,
    Figure,
    compute_effect,
    compute_figures,
    compute_p_value,
    load_rows,
    select_rows,
    write_rows,
)
from study.published import METHODS, TABLES, compare_with_tables
from study.special import (
    GAPS,
    compare_by_probability,
    compare_orders,
    compute_ceiling,
    compute_gap_effects,
    compute_gap_figures,
    compute_regret,
    confirm_selection,
    correlate_ranks,
)
from study.tests.made_up import sheet
from tests.lazy import LazyModule
from vitreous.bench.resample import compute_difference_interval

stats = LazyModule("scipy.stats")


@pytest.fixture
def draw():
    return np.random.default_rng(5)


def resamples(images, draws, seed=0):
    """Row indices of resamples, as drawn by `vitreous.bench.resample`."""
    names = list(dict.fromkeys(images))
    generator, done = np.random.default_rng(seed), 0
    while done < draws:
        count = min(100, draws - done)
        for row in generator.integers(len(names), size=(count, len(names))):
            yield [place for at in row for place, name in enumerate(images) if name == names[at]]
        done += count


def slow_mean(values):
    known = [value for value in values if not np.isnan(value)]
    return sum(known) / len(known) if known else float("nan")


def quantiles(values):
    values = np.sort([value for value in values if not np.isnan(value)])
    return [float(np.interp(q * (len(values) - 1), np.arange(len(values)), values)) for q in (0.025, 0.975)]


def test_figures_equal_the_reference_implementation(draw):
    scores = draw.normal(size=(3, 14))
    scores[1, 4] = np.nan
    made = sheet(scores, images=[f"p{k // 2}" for k in range(14)])  # two rows an image

    for row, found in zip(scores, compute_figures(made, draws=300), strict=True):
        drawn = [slow_mean([row[place] for place in places]) for places in resamples(made.images, 300)]
        assert [found.mean, found.low, found.high] == pytest.approx([slow_mean(row), *quantiles(drawn)], abs=1e-12)
    assert [found.n for found in compute_figures(made, draws=2)] == [7, 7, 7]
    assert [found.undefined for found in compute_figures(made, draws=2)] == [0, 1, 0]


@pytest.mark.parametrize("higher", [True, False])
def test_an_effect_equals_the_reference_implementation_and_the_library(draw, higher):
    scores = draw.normal(size=(2, 12)) + np.array([[0.4], [0.0]])
    scores[0, 3] = np.nan  # a row that is undefined for one method is left out of both
    made = sheet(scores, higher)
    found = compute_effect(made, "m0", "m1", draws=500)

    kept = [place for place in range(12) if place != 3]
    a, b = scores[:, kept]
    sign = 1 if higher else -1
    drawn = [
        sign * (slow_mean(a[places]) - slow_mean(b[places]))
        for places in resamples([made.images[k] for k in kept], 500)
    ]
    worse, better = sum(one <= 0 for one in drawn), sum(one >= 0 for one in drawn)
    assert (found.effect, found.n) == (pytest.approx(sign * (slow_mean(a) - slow_mean(b))), 11)
    assert [found.low, found.high] == pytest.approx(quantiles(drawn), abs=1e-12)
    assert found.p == pytest.approx(min(1, 2 * (1 + min(worse, better)) / 501))
    theirs = compute_difference_interval(
        {"score": scores[1]}, {"score": scores[0]}, made.reduce, made.images, draws=500
    )
    ours = (found.effect, found.low, found.high) if higher else (-found.effect, -found.high, -found.low)
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_intervals_of_undefined_effects_are_nan():
    alone = compute_effect(sheet([[1.0], [0.5]]), "m0", "m1")
    never = compute_effect(sheet([[np.nan, np.nan], [0.5, 0.1]]), "m0", "m1")

    assert alone.effect == 0.5
    assert np.isnan([alone.low, alone.p, never.effect, never.low]).all()
    assert compute_p_value(np.full(99, 0.3)) == pytest.approx(0.02)  # never 0
    assert compute_p_value(np.zeros(99)) == 1


def test_agreement_is_scipys(draw):
    for _ in range(20):
        a, b = draw.integers(0, 6, size=(2, 15)).astype(float)  # with ties
        assert correlate_ranks(a, b) == pytest.approx(
            (stats.kendalltau(a, b).statistic, stats.spearmanr(a, b).statistic)
        )
    assert np.isnan(correlate_ranks(np.ones(5), np.arange(5.0))).all()


def test_orders_equal_the_reference_implementation(draw):
    level = np.linspace(0, 1, 6)[:, None]
    metric = sheet(-(level + draw.normal(0, 0.5, size=(6, 10))), higher=False, metric="lodds")
    truth = sheet(level + draw.normal(0, 0.5, size=(6, 10)), metric="ap")

    found = compare_orders(metric, truth, draws=200, seed=3)

    counts = np.random.default_rng(3).multinomial(10, np.full(10, 0.1), size=200)
    drawn = []
    for row in counts:
        places = np.repeat(np.arange(10), row)
        one, other = (-metric.scores[:, places].mean(1), truth.scores[:, places].mean(1))
        drawn.append(stats.kendalltau(one, other).statistic)
    tau = stats.kendalltau(-metric.scores.mean(1), truth.scores.mean(1)).statistic
    moved = np.array(drawn) - np.mean(drawn) + tau
    low, high = quantiles(moved)
    assert (found.tau, found.tau_low, found.tau_high) == pytest.approx((tau, max(low, -1), min(high, 1)))
    assert (found.methods, found.n, found.metric, found.truth) == (6, 10, "lodds", "ap")
    assert found.tau_low <= found.tau <= found.tau_high


def test_the_better_half_is_selected_by_ground_truth():
    truth = sheet(np.arange(6.0)[:, None] + np.zeros((6, 4)), metric="ap")
    metric = sheet(np.array([9, 8, 7, 1, 2, 3.0])[:, None] + np.zeros((6, 4)), metric="aopc")

    assert compare_orders(metric, truth, draws=5).rho < 0  # methods that are bad by ground truth are best by the metric
    assert compare_orders(metric, truth, "better half", draws=5).rho == pytest.approx(1)
    assert compute_ceiling(truth, draws=5).tau == pytest.approx(1)


def test_other_images_are_not_compared(draw):
    with pytest.raises(LookupError, match="different images"):
        compare_orders(sheet(np.eye(3)), sheet(np.eye(3), images=["a", "b", "c"]))


def test_selection_on_noise_gains_nothing(draw):
    noise = sheet(draw.normal(size=(12, 400)))
    starts = {k: f"m{k}" for k in range(12)}
    real = sheet(draw.normal(0, 0.1, size=(12, 60)) + np.where(np.arange(12) == 2, 1.0, 0.0)[:, None])

    assert compute_regret(noise, starts, 6).low < 0 < compute_regret(noise, starts, 6).high
    assert compute_regret(real, starts, 6).effect == pytest.approx(-1, abs=0.1)
    assert compute_regret(real, starts, 2).effect == 0


def test_cells_are_selected_on_one_half_and_evaluated_on_the_other():
    choose = sheet(np.array([[0.9] * 4, [0.5] * 4, [0.8] * 4, [0.1] * 4]))
    confirm = sheet(np.array([[0.2] * 4, [0.9] * 4, [0.6, 0.7, 0.6, 0.7], [0.99] * 4]))

    here, there = confirm_selection(choose, confirm, ["m0", "m1"])

    assert (here.method, here.against) == (there.method, there.against) == ("m2", "m0")
    assert (here.effect, there.effect) == (pytest.approx(-0.1), pytest.approx(0.45))


def test_several_cells_are_confirmed_in_the_order_of_the_selection_half():
    choose = sheet(np.array([[0.9] * 4, [0.5] * 4, [0.8] * 4, [0.95] * 4]))
    confirm = sheet(np.array([[0.2] * 4, [0.9] * 4, [0.6] * 4, [0.1] * 4]))

    found = confirm_selection(choose, confirm, ["m0", "m1"], best=2)

    assert [(one.method, one.against) for one in found] == [("m3", "m0")] * 2 + [("m2", "m0")] * 2
    assert [one.effect for one in found] == pytest.approx([0.05, -0.1, -0.1, 0.4])


def test_classes_are_compared_image_by_image_within_a_gap(draw):
    scores, others = draw.normal(size=(2, 2, 9))
    label = sheet(scores, probability=np.full(9, 0.1), explained="label")
    order = draw.permutation(9)  # rows of the predicted class may be in another order
    predicted = sheet(
        others[:, order], probability=np.full(9, 0.95), explained="predicted", images=[f"p{k}" for k in order]
    )

    found = {
        (one.method, one.against): one for one in compute_gap_effects(label, predicted, [("m1", "m0"), ("m9", "m0")])
    }

    assert found.keys() == {("m0", "predicted class"), ("m1", "predicted class"), ("m1", "m0")}
    for row in (0, 1):
        assert found[f"m{row}", "predicted class"].effect == pytest.approx((scores[row] - others[row]).mean())
    drawn = [slow_mean((scores[0] - others[0])[places]) for places in resamples(label.images, 2000)]
    ours = found["m0", "predicted class"]
    assert [ours.low, ours.high] == pytest.approx(quantiles(drawn), abs=1e-12)
    assert found["m1", "m0"].effect == pytest.approx((scores[1] - scores[0]).mean())


def test_the_published_order_is_compared_measure_by_measure(draw):
    made, references = [], []
    for measure, higher in (("miou", True), ("pixel_accuracy", True)):
        theirs = np.array(TABLES[measure, ""])
        scores = theirs[:, None] + draw.normal(0, 12, size=(9, 8))
        made.append(sheet(scores, higher, measure, methods=METHODS))
        references.append((scores, theirs))

    found = compare_with_tables(made, TABLES, METHODS, "tokentm", draws=150)

    def tau(places):
        return np.mean([stats.kendalltau(scores[:, places].mean(1), theirs).statistic for scores, theirs in references])

    drawn = np.array([tau(places) for places in resamples(made[0].images, 150)])
    low, high = quantiles(drawn - drawn.mean() + tau(list(range(8))))
    assert (found.tau, found.tau_low, found.tau_high) == pytest.approx(
        (tau(list(range(8))), max(low, -1), min(high, 1))
    )
    assert (found.methods, found.n, found.among) == (9, 8, "2 measures")


def test_where_less_is_better_the_published_order_turns_too():
    theirs = np.array(TABLES["positive_auc(preset='tokentm')", "predicted"])
    made = sheet(
        theirs[:, None] + np.zeros((9, 3)),
        False,
        "positive_auc(preset='tokentm')",
        methods=METHODS,
        explained="predicted",
    )

    assert compare_with_tables([made], TABLES, METHODS, "tokentm", draws=5).tau == pytest.approx(1)


def test_gaps_hold_wrong_images_alone():
    scores = np.array([[1.0, 0.0, 1.0, 0.0]])
    label = sheet(scores, probability=np.array([0.9, 0.1, 0.2, 0.05]), explained="label")
    predicted = sheet(1 - scores, probability=np.array([0.9, 0.2, 0.9, 0.95]), explained="predicted")

    found = compute_gap_figures(label, predicted)

    assert {(one.dataset.split("gap ")[1], one.explained): (one.n, one.mean) for one in found} == {
        ("0–0.25", "label"): (1, 0.0), ("0–0.25", "predicted"): (1, 1.0),
        ("0.5–0.75", "label"): (1, 1.0), ("0.5–0.75", "predicted"): (1, 0.0),
        ("0.75–1", "label"): (1, 0.0), ("0.75–1", "predicted"): (1, 1.0),
    }  # fmt: skip
    assert len(GAPS) == 4


def test_every_image_is_in_one_range_of_probabilities():
    scores = np.array([[1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    made = sheet(scores, probability=np.array([0.0, 0.49, 0.5, 0.9, 1.0]))

    found = compare_by_probability(made, [("m0", "m1"), ("m0", "absent")])

    assert {one.dataset.split("p ")[1]: (one.n, one.effect) for one in found} == {
        "0–0.5": (2, 1.5), "0.5–0.9": (1, 3.0), "0.9–1": (2, 4.0),
    }  # fmt: skip


def test_tables_come_back_as_they_were(tmp_path):
    rows = [Effect("ViT-Tiny", "val", "", "ap", "a(x='1, 2')", "b", 4, 0.25, float("nan"), 0.5, 0.001)]
    write_rows(tmp_path / "pairs.csv", rows)
    figure = [Figure("ViT-Tiny", "val", "", "ap", "more", "a", 4, 1, 0.25, 0.125, 0.5)]
    write_rows(tmp_path / "means.csv", figure)

    (found,) = load_rows(tmp_path / "pairs.csv", Effect)
    assert np.isnan(found.low)
    assert (found.method, found.n, found.effect, found.p) == ("a(x='1, 2')", 4, 0.25, 0.001)
    assert load_rows(tmp_path / "means.csv", Figure) == figure
    assert load_rows(tmp_path / "none.csv", Figure) == []
    assert select_rows(figure, metric=("ap", "f1"), model="ViT-Tiny") == figure
    assert select_rows(figure, metric="f1") == []


def test_starts_are_compared_on_images_that_all_of_them_have():
    scores = np.tile(np.array([[0.2], [0.5]]), (1, 8))
    ragged = scores.copy()
    ragged[0, 4:] = np.nan  # one start was measured on half of the images, and easy ones at that
    ragged[1, 4:] = 9.0

    found = [compute_regret(sheet(one), {0: "m0", 6: "m1"}, 0) for one in (scores, ragged)]

    assert [one.effect for one in found] == pytest.approx([-0.3, -0.3])
    assert [one.n for one in found] == [8, 4]


def test_a_method_that_is_undefined_on_most_images_has_no_place_in_an_order():
    scores = np.arange(40.0).reshape(5, 8)
    few = scores.copy()
    few[0, 1:] = np.nan

    assert compare_orders(sheet(few), sheet(scores), draws=5).methods == 4
    assert compare_orders(sheet(scores), sheet(few), draws=5).methods == 4
