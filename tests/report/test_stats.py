"""Means, ranks, ties and paired differences of stores with known results."""

from __future__ import annotations

from math import isnan, nan
from pathlib import Path

import numpy as np
import pytest

from tests.report.stores import put, row, rows_of
from vitreous.bench.resample import compute_curve_band, compute_difference_interval
from vitreous.bench.scores import ScoreSection
from vitreous.bench.summary import MetricSummary, compute_mean_ranks, order_by_rank, summarise_metric
from vitreous.metrics.localisation import pool_accuracy
from vitreous.metrics.metric_result import mean
from vitreous.report.stored_run import read_run


def block_of(folder: Path, rows: list) -> ScoreSection:
    return read_run(put(folder, rows)).sections[0]


def standings_of(section: ScoreSection) -> list[MetricSummary]:
    return [summarise_metric(scores) for scores in section.metrics]


def fields(summary: MetricSummary, name: str) -> list:
    return [getattr(entry, name) for entry in summary.aligned]


def spans(summary: MetricSummary) -> list[tuple[float, float]]:
    return [(entry.low, entry.high) for entry in summary.aligned]


def only(folder: Path, rows: list) -> MetricSummary:
    (one,) = standings_of(block_of(folder, rows))
    return one


def test_a_mean_is_over_images_with_a_defined_score(tmp_path: Path) -> None:
    one = only(tmp_path, rows_of({"ap": {"genatt": [0.2, nan, 0.4], "ixg": [0.5, 0.5, 0.5]}}))

    assert one.values.tolist() == pytest.approx([0.3, 0.5])
    assert fields(one, "undefined") == [1, 0]
    assert fields(one, "rank") == [2, 1]


def test_a_pooled_figure_is_pooled_and_its_interval_is_of_the_pooled_figure(tmp_path: Path) -> None:
    counts = {"genatt": [(1, 1), (1, 99)], "ixg": [(0, 1), (99, 99)]}
    rows = [
        row(
            metric="pixel_accuracy",
            method=method,
            image=f"p{place}",
            index=place,
            value=right / all_,
            parts=[("correct", float(right)), ("labelled", float(all_))],
        )
        for method, several in counts.items()
        for place, (right, all_) in enumerate(several)
    ]
    one = only(tmp_path, rows)

    assert one.values.tolist() == pytest.approx([2 / 100, 99 / 100])  # means over images would be 0.505 and 0.5
    assert fields(one, "rank") == [2, 1]
    assert spans(one)[0] == pytest.approx((1 / 99, 1.0))  # two images: both, or one of them twice


def test_ranks_follow_the_direction_of_the_metric_and_ties_share_a_rank(tmp_path: Path) -> None:
    one = only(tmp_path, rows_of({"deletion_accuracy": {"a": [0.1, 0.3], "b": [0.3, 0.1], "c": [0.9, 0.8]}}))

    assert fields(one, "rank") == [1, 1, 3]
    assert fields(one, "tied") == [True, True, False]


def test_a_metric_that_does_not_judge_gives_no_ranks(tmp_path: Path) -> None:
    block = block_of(tmp_path, rows_of({"sparseness": {"a": [0.1, 0.3], "b": [0.3, 0.1]}}))
    found = standings_of(block)

    assert fields(found[0], "rank") == [None, None]
    assert all(isnan(rank) for rank in compute_mean_ranks(found))
    assert order_by_rank(found) == [0, 1]


def test_ties_are_determined_by_paired_differences(tmp_path: Path) -> None:
    """Images differ by far more than methods do, yet on every image the first is ahead."""
    hard = np.linspace(0, 0.9, 40)
    one = only(tmp_path, rows_of({"ap": {"a": hard + 0.02, "b": hard, "c": hard + 0.02 * (-1) ** np.arange(40)}}))
    (low, high), (other_low, other_high), _ = spans(one)

    assert low < other_high  # unpaired intervals overlap,
    assert high > other_low
    assert fields(one, "rank") == [1, 2, 2]
    assert fields(one, "tied") == [True, False, False]


def test_one_image_has_no_interval_and_no_significant_differences(tmp_path: Path) -> None:
    one = only(tmp_path, rows_of({"ap": {"a": [0.9], "b": [0.1]}}))

    assert all(isnan(end) for span in spans(one) for end in span)
    assert fields(one, "tied") == [True, True]


def test_an_unreadable_image_has_no_rows(tmp_path: Path) -> None:
    rows = rows_of({"ap": {"a": [0.9, 0.8], "b": [0.1, 0.2]}})
    rows += [row(method=m, image="bad", index=2, target=-1, error="'bad' is damaged") for m in ("a", "b")]
    block = block_of(tmp_path, rows)

    assert [question.image for question in block.questions] == ["p0", "p1"]
    assert block.failures == {"'bad' is damaged": 2}
    assert standings_of(block)[0].values.tolist() == pytest.approx([0.85, 0.15])


def test_mean_ranks_and_order(tmp_path: Path) -> None:
    scores = {"ap": {"a": [0.9, 0.8], "b": [0.1, 0.2]}, "deletion_accuracy": {"a": [0.9, 0.8], "b": [0.1, 0.2]}}
    rows = rows_of(scores)
    found = standings_of(block_of(tmp_path, rows))

    assert compute_mean_ranks(found) == [1.5, 1.5]
    assert order_by_rank(found) == [0, 1]


def test_predicted_and_true_classes_have_separate_sections(tmp_path: Path) -> None:
    rows = rows_of({"ap": {"a": [0.9, 0.9], "b": [0.1, 0.1]}})
    rows += rows_of({"ap": {"a": [0.2, 0.2], "b": [0.3, 0.3]}}, role="label", target=5)
    run = read_run(put(tmp_path, rows))

    assert [block.explained for block in run.sections] == ["predicted", "label"]
    assert run.sections[1].title == "m on d, the true class explained"
    assert [standings_of(block)[0].values.tolist() for block in run.sections] == [[0.9, 0.1], [0.2, 0.3]]
    assert len(run.whole_sections) == 1
    assert len(run.whole_sections[0].questions) == 4


def test_two_classes_of_an_image_share_a_section_and_are_resampled_together(tmp_path: Path) -> None:
    rows = rows_of({"ap": {"a": [0.0, 1.0]}}, role="label", target=3) + rows_of(
        {"ap": {"a": [0.0, 1.0]}}, role="rival", target=4
    )
    block = block_of(tmp_path, rows)
    one = standings_of(block)[0]

    assert len(block.clusters) == 2
    assert spans(one)[0] == (0.0, 1.0)  # one image twice; four rows drawn apart would give a narrower one
    assert [standings_of(block.of_role(role))[0].values.tolist() for role in block.roles] == [[0.5], [0.5]]


# ── curves ───────────────────────────────────────────────────────────────────────────────────────


def test_the_band_of_two_images_spans_both() -> None:
    middle, low, high = compute_curve_band(
        np.array([[0.0, 1.0], [1.0, 1.0]], np.float32), [np.array([0]), np.array([1])]
    )

    assert middle.tolist() == [0.5, 1.0]
    assert (low.tolist(), high.tolist()) == ([0.0, 1.0], [1.0, 1.0])


def test_a_band_ignores_missing_values_and_one_image_has_none() -> None:
    middle, low, _ = compute_curve_band(np.array([[0.0, np.nan], [1.0, 0.5]], np.float32), [np.array([0, 1])])

    assert middle.tolist() == [0.5, 0.5]
    assert np.isnan(low).all()


def test_a_band_is_the_bootstrap_of_its_reference() -> None:
    draw = np.random.default_rng(1)
    curve = draw.normal(size=(30, 1))
    clusters = [np.array([2 * n, 2 * n + 1]) for n in range(15)]
    _, low, high = compute_curve_band(curve, clusters, draws=4000)
    sampled = []
    for _ in range(4000):
        pictures = draw.integers(15, size=15)
        sampled.append(np.mean([curve[2 * p : 2 * p + 2].mean() for p in pictures]))
    reference = np.quantile(sampled, [0.025, 0.975])

    assert [low[0], high[0]] == pytest.approx(reference, abs=0.03)


# ── differences ──────────────────────────────────────────────────────────────────────────────────


def test_a_difference_is_paired() -> None:
    before = np.linspace(0, 1, 30)
    change, low, high = compute_difference_interval(
        {"score": before}, {"score": before + 0.1}, mean, [f"p{n}" for n in range(30)]
    )

    assert (change, low, high) == pytest.approx((0.1, 0.1, 0.1))


def test_a_difference_is_over_rows_that_both_define() -> None:
    before, after = np.array([0.0, nan, 1.0, 5.0]), np.array([0.5, 9.0, 1.5, nan])
    change, low, high = compute_difference_interval({"score": before}, {"score": after}, mean, ["a", "b", "c", "d"])

    assert (change, low, high) == pytest.approx((0.5, 0.5, 0.5))


def test_a_difference_of_pooled_figures_is_pooled() -> None:
    before = {"score": np.array([1.0, 0.0]), "correct": np.array([1.0, 0.0]), "labelled": np.array([1.0, 99.0])}
    after = {"score": np.array([0.0, 1.0]), "correct": np.array([0.0, 99.0]), "labelled": np.array([1.0, 99.0])}
    change, _, _ = compute_difference_interval(before, after, pool_accuracy, ["a", "b"])

    assert change == pytest.approx(0.98)  # means over images would be 0


def test_no_common_number_is_no_difference_interval() -> None:
    change, low, high = compute_difference_interval(
        {"score": np.array([nan, 1.0])}, {"score": np.array([1.0, nan])}, mean, ["a", "b"]
    )

    assert all(isnan(one) for one in (change, low, high))
