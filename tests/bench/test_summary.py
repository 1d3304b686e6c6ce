"""Means, intervals and ties, compared with a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from vitreous.bench.rows import to_table
from vitreous.bench.summary import summarise
from vitreous.metrics.metric import METRICS, metric


def rows_of(values: dict[str, list], name: str = "sparseness", parts: dict | None = None, **more) -> list[dict]:
    return [
        {
            "key": f"{method}{place}",
            "model": "m",
            "dataset": "d",
            "image": str(place),
            "index": place,
            "role": "predicted",
            "target": 0,
            "method": method,
            "metric": name,
            "value": float("nan") if isinstance(value, str) else value,
            "error": value if isinstance(value, str) else None,
            "higher_is_better": True,
            "parts": [] if parts is None else [(part, held[method][place]) for part, held in parts.items()],
            "map_seconds": 0.5,
            **more,
        }
        for method, own in values.items()
        for place, value in enumerate(own)
    ]


def told(rows: list[dict], **options):
    (column,) = summarise(to_table("scores", rows), **options)
    return column, {entry.method: entry for entry in column.entries}


def test_means_intervals_and_ties_equal_those_of_a_plain_loop():
    draw = np.random.default_rng(3)
    base = draw.normal(size=40)
    values = {"good": base + 1, "close": base + 1 + draw.normal(size=40) * 0.5 - 0.05, "bad": base + 0.5}

    column, found = told(rows_of({name: own.tolist() for name, own in values.items()}), draws=300, seed=5)

    again = np.random.default_rng(5)
    chosen = np.concatenate([again.integers(40, size=(100, 40)) for _ in range(3)])
    for name, own in values.items():
        loop = [np.mean([own[i] for i in one]) for one in chosen]
        assert found[name].value == pytest.approx(np.mean(own))
        assert (found[name].low, found[name].high) == pytest.approx(tuple(np.quantile(loop, [0.025, 0.975])))
        apart = [np.mean([own[i] - values["good"][i] for i in one]) for one in chosen]
        low, high = np.quantile(apart, [0.025, 0.975])
        assert found[name].tied == (low <= 0 <= high)
    # unpaired, the worst and the best are not significantly different; paired, they are
    assert found["bad"].high > found["good"].low
    assert [found[name].tied for name in values] == [True, True, False]
    assert [found[name].rank for name in values] == sorted(found[name].rank for name in values)
    assert column.best is found["good"] or column.best is found["close"]


def test_lower_may_be_better_and_descriptive_metrics_have_no_rank():
    values = {"low": [0.1, 0.2], "high": [0.8, 0.9]}

    _, less = told(rows_of(values, higher_is_better=False))
    _, neither = told(rows_of(values, higher_is_better=None))

    assert (less["low"].rank, less["high"].rank) == (1, 2)
    assert neither["low"].rank is neither["high"].rank is None


def test_undefined_is_counted_and_left_out_of_the_mean():
    _, found = told(rows_of({"a": [1.0, float("nan"), 3.0], "b": [float("nan")] * 3}))

    assert (found["a"].value, found["a"].undefined, found["a"].rows) == (2.0, 1, 3)
    assert np.isnan(found["b"].value)
    assert found["b"].rank is None


def test_images_on_which_a_method_failed_are_left_out_for_all():
    _, found = told(rows_of({"a": [1.0, 5.0, 3.0], "b": [2.0, "no room", 2.0], "c": ["refused"] * 3}))

    assert (found["a"].value, found["a"].rows) == (2.0, 2)
    assert (found["b"].value, found["b"].errors, found["b"].error) == (2.0, 1, "no room")
    assert (found["c"].rows, found["c"].errors, found["c"].error) == (0, 3, "refused")
    assert found["c"].rank is None


def test_one_image_has_no_interval_and_no_significant_differences():
    column, found = told(rows_of({"a": [0.9], "b": [0.1]}))

    assert column.image_count == 1
    assert [entry.rank for entry in found.values()] == [1, 2]
    assert all(np.isnan([entry.low, entry.high]).all() and entry.tied for entry in found.values())


def test_a_figure_that_rests_on_one_of_many_images_has_no_interval():
    nan = float("nan")
    _, found = told(rows_of({"a": [nan, 0.9, nan, nan], "b": [0.1, 0.2, 0.1, 0.2]}))

    assert np.isnan([found["a"].low, found["a"].high]).all()
    assert found["b"].low < found["b"].high
    assert found["b"].tied  # on the only image that both define, nothing is significant


def test_ties_are_determined_on_rows_that_both_define():
    """Undefined on the hard half, a method seems far ahead; where both are defined it is behind, and not by chance."""
    easy, hard = np.linspace(0.8, 0.9, 20), np.linspace(0.1, 0.2, 20)
    flat = np.where(np.arange(40) % 2, 0.01, -0.01)
    whole = np.concatenate([easy, hard])
    values = {"some": [*(easy + 0.02), *[float("nan")] * 20], "same": [*(easy + 0.02), *hard], "less": whole.tolist()}
    _, found = told(rows_of({**values, "near": [*(easy + 0.02 + flat[:20]), *hard]}))

    assert (found["some"].rank, found["some"].undefined) == (1, 20)
    assert [found[name].tied for name in ("same", "near", "less")] == [True, True, False]


def test_methods_without_common_rows_are_tied():
    nan = float("nan")
    _, found = told(rows_of({"a": [0.9, 0.8, nan, nan], "b": [nan, nan, 0.1, 0.2]}))

    assert [found[name].rank for name in "ab"] == [1, 2]
    assert found["b"].tied


def test_parts_are_pooled_and_not_averaged():
    def pooled(parts):
        return parts["hit"].sum(-1) / parts["seen"].sum(-1)

    @metric("pooled_for_a_test", higher_is_better=True, reduce=pooled)
    def pooled_for_a_test(attribution):
        """Share of hits."""

    parts = {"hit": {"a": [1.0, 90.0], "b": [9.0, 0.0]}, "seen": {"a": [10.0, 90.0], "b": [10.0, 90.0]}}
    try:
        _, found = told(rows_of({"a": [0.1, 1.0], "b": [0.9, 0.0]}, "pooled_for_a_test", parts), draws=100)
    finally:
        METRICS.discard("pooled_for_a_test")

    assert found["a"].value == pytest.approx(0.91)  # the mean would be 0.55
    assert found["b"].value == pytest.approx(0.09)
    assert (found["a"].low, found["a"].high) == pytest.approx((0.1, 1.0))


@pytest.mark.parametrize("lengths", [(2, 2, 2, 2), (2, 1, 2, 1)])
def test_rows_of_one_image_are_drawn_together(lengths):
    """Two identical rows of an image do not narrow the interval."""
    values = [0.0, 1.0, 0.0, 1.0]
    rows = [
        {**row, "image": str(place), "index": place, "role": role}
        for place, (value, length) in enumerate(zip(values, lengths, strict=True))
        for role, row in zip(("label", "rival")[:length], rows_of({"a": [value] * length}), strict=True)
    ]

    _, found = told(rows, draws=2000)

    assert found["a"].rows == sum(lengths)
    spread = found["a"].high - found["a"].low
    assert spread == 1.0  # of eight independent rows it would be 0.75


def test_predicted_and_true_classes_have_separate_columns():
    rows = rows_of({"a": [0.0, 1.0]}) + rows_of({"a": [1.0, 1.0]}, role="label")
    unread = [{**row, "image": "lost", "index": 9, "role": ""} for row in rows_of({"a": ["not read"]})]

    columns = summarise(to_table("scores", rows + unread))

    assert [(one.role, one.entries[0].value, one.entries[0].errors) for one in columns] == [
        ("predicted", 0.5, 1),
        ("label", 1.0, 1),
    ]


def test_a_summary_is_plain_data():
    import json

    column, _ = told(rows_of({"a": [1.0, 2.0]}))

    again = json.loads(json.dumps(column.plain()))
    assert again["entries"][0]["method"] == "a"
    assert again["entries"][0]["map_seconds"] == 0.5
