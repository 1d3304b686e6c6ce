"""Charts are well-formed, and their directions and gaps are correct."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import vitreous
from tests.report.stores import put, row, rows_of
from tests.report.test_stats import standings_of
from vitreous.bench.scores import MetricScores
from vitreous.metrics.metric import METRICS
from vitreous.report.chart_groups import (
    draw_curves,
    draw_radars,
    draw_sweeps,
    group_folds,
    group_starts,
    split_start,
    strip_fold,
)
from vitreous.report.charts import INNER, ChartLine, draw_lines, draw_radar, draw_swatch, scale_outward
from vitreous.report.gallery import choose_questions, compute_margins
from vitreous.report.paper_figures import describe_curve_point, is_deletion, pick_two_methods
from vitreous.report.stored_run import read_run


def test_outward_on_a_radar_is_better_for_every_metric() -> None:
    radii, ends = scale_outward(np.array([[0.9, 0.9, 1.0], [0.1, 0.1, 1.0], [np.nan, 0.5, 1.0]]), [1, -1, 1])

    assert radii[:, 0].tolist()[:2] == [1.0, pytest.approx(INNER)]
    assert radii[:, 1].tolist() == pytest.approx([INNER, 1.0, (1 + INNER) / 2])
    assert np.isnan(radii[2, 0])
    assert radii[:, 2].tolist() == [1, 1, 1]
    assert ends == [(0.1, 0.9), (0.9, 0.1), (1.0, 1.0)]


def test_a_missing_point_is_a_gap_and_names_are_escaped() -> None:
    line = ChartLine("<b>&$x$", 0, [0.0, 0.5, 1.0, 1.5], np.array([0.1, np.nan, 0.3, 0.4]), np.zeros(4), np.ones(4))
    drawn = draw_lines([line], "x", "<y>")
    tree = ElementTree.fromstring(drawn)
    (group,) = [one for one in tree.iter("g") if one.get("class") == "line"]

    assert next(group.iter("path")).get("d", "").count("M") == 2
    assert next(group.iter("title")).text == "<b>&$x$"
    assert tree.get("aria-label") == "<y> over x"
    assert draw_lines([], "x", "y") == ""


def test_charts_are_deterministic_and_take_their_colours_from_the_page() -> None:
    """No ids, which would clash on a page with many charts; no colours of their own; no addresses."""
    lines = [ChartLine(f"m{n}", n, [0.0, 1.0], np.array([0.0, n]), np.zeros(2), np.ones(2)) for n in range(8)]
    drawn = draw_lines(lines, "x", "y", [(0.5, "here")])
    tree = ElementTree.fromstring(drawn)

    assert drawn == draw_lines(lines, "x", "y", [(0.5, "here")])
    assert not any("id" in one.attrib for one in tree.iter())
    assert "#" not in drawn
    assert "http" not in drawn
    assert all(f"var(--c{n})" in drawn for n in range(8))


def test_radars_are_well_formed_for_any_name() -> None:
    names = [("<script>", 0), ("a&b", 9)]
    drawn = draw_radar(
        names, [("m<1>", "↑"), ("b", "↓"), ("c", "↑")], np.array([[1.0, 2, 3], [np.nan, 1, 2]]), [1, -1, 1]
    )
    tree = ElementTree.fromstring(drawn)
    paths = [next(one.iter("path")).get("d", "") for one in tree.iter("g") if one.get("class") == "line"]

    assert [path.count("L") for path in paths] == [
        3,
        1,
    ]  # the polygon of the method without a value on one axis is open


def test_lines_differ_without_colour() -> None:
    import re

    assert len({re.sub(r"var\(--c\d\)", "", draw_swatch(style)) for style in range(20)}) == 20


# ── plots ────────────────────────────────────────────────────────────────────────────────────────


def test_folds_and_first_layers_make_families() -> None:
    methods = (
        "decompx",
        "decompx+plus",
        "decompx+skipplus(start=2)",
        "genatt@libra+plus",
        "gradcampp",
        "x(a='b+c')+at(layer=1)",
    )

    assert [strip_fold(one) for one in methods] == [
        "decompx",
        "decompx",
        "decompx",
        "genatt@libra",
        "gradcampp",
        "x(a='b+c')",
    ]
    assert group_folds(methods) == {"decompx": [0, 1, 2]}
    assert split_start("a+skipplus(mode='layers', start=3)") == ("a+skipplus(mode='layers')", 3)
    assert split_start("a+skipplus(start=3)") == ("a+skipplus", 3)
    assert split_start("a") is None
    swept = (*(f"a+skipplus(start={n})" for n in (4, 0, 2)), "b(start=1)", "b(start=2)")
    assert group_starts(swept) == {"a+skipplus": [(0, 1), (2, 2), (4, 0)]}


def test_a_sweep_is_drawn_when_methods_differ_by_their_start_alone(tmp_path: Path) -> None:
    values = {f"decompx+skipplus(start={n})": [0.1 * n, 0.1 * n + 0.05] for n in (0, 3, 6)}
    block = read_run(put(tmp_path, rows_of({"ap": values}))).sections[0]
    group = draw_sweeps(block, standings_of(block), depth=12)

    assert [entry.name for entry in group.legend] == ["decompx+skipplus"]
    assert "SkipPLUS" in group.cards[0].chart
    assert group.cards[0].chart.count('class="band') == 1
    assert draw_radars(block, standings_of(block)) is None  # one metric makes no radar
    other = read_run(put(tmp_path / "other", rows_of({"ap": {"a": [1.0], "b": [0.5]}}))).sections[0]
    assert draw_sweeps(other, standings_of(other)) is None


def test_radars_show_all_methods_and_every_family(tmp_path: Path) -> None:
    methods = {"decompx+plus": [0.5, 0.6], "decompx+skipplus": [0.7, 0.8], "genatt": [0.1, 0.2]}
    block = read_run(put(tmp_path, rows_of(dict.fromkeys(("ap", "f1", "deletion_accuracy"), methods)))).sections[0]
    group = draw_radars(block, standings_of(block))

    assert [card.title for card in group.cards] == ["Methods against each other", "decompx and its folds"]
    assert "accuracy\u00a0↓" in group.cards[0].chart  # the axis shows the direction of its metric


def test_curves_come_with_bands(tmp_path: Path) -> None:
    rows = [
        row(
            metric="deletion_aopc",
            method=method,
            image=f"p{n}",
            index=n,
            value=0.5,
            curve=[0.0, 0.1 * n],
            levels=[0.0, 0.5],
        )
        for method in ("genatt", "ixg")
        for n in range(3)
    ]
    block = read_run(put(tmp_path, rows)).sections[0]
    (card,) = draw_curves(block, standings_of(block)).cards

    assert card.chart.count('class="band') == 2
    assert "share removed, highest scores first" in card.chart


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("insertion(steps=28)", "share shown, highest scores first"),
        ("insertion_minus_deletion", "share shown, highest scores first"),
        ("deletion", "share removed, highest scores first"),
        ("deletion_aopc(order='ascending')", "share removed, lowest scores first"),
        ("positive_auc", "share removed, highest scores first"),
        ("negative_auc(preset='chefer')", "share removed, lowest scores first"),
        ("road", "share removed, highest scores first"),
        ("lodds", "share removed, highest scores first"),
        ("srg", "share removed"),
        ("parameter_randomisation", "level"),
    ],
)
def test_levels_are_labelled_by_the_axes_of_the_metric(metric, label, tmp_path):
    assert f">{label}<" in draw_curve(tmp_path, metric)


def test_a_metric_of_another_package_is_drawn_as_those_of_this_one(tmp_path):
    axes = vitreous.CurveAxes("removed", "accuracy", "ascending")
    registered = vitreous.metric("plugin_metric", higher_is_better=True, axes=axes)(lambda attribution: None)
    try:
        assert ">share removed, lowest scores first<" in draw_curve(tmp_path / "lowest", "plugin_metric")
        scores = read_scores(tmp_path / "scores", "plugin_metric")
        assert not is_deletion(scores)
        METRICS.discard("plugin_metric")
        METRICS.add("plugin_metric", replace(registered, axes=replace(axes, order="descending")), __name__)
        assert ">share removed, highest scores first<" in draw_curve(tmp_path / "highest", "plugin_metric")
        scores = read_scores(tmp_path / "other", "plugin_metric")
        assert is_deletion(scores)
        assert [describe_curve_point(scores, 0, 1, at) for at in (0, 1)] == ["no longer right", "still right"]
    finally:
        METRICS.discard("plugin_metric")


def read_scores(folder: Path, metric: str) -> MetricScores:
    """Scores and curves of two methods on two images."""
    same = {"value": 0.5, "curve": [0.0, 1.0], "levels": [0.0, 0.5]}
    rows = [
        row(metric=metric, method=method, image=f"p{n}", index=n, **same)
        for method in ("genatt", "ixg")
        for n in range(2)
    ]
    return read_run(put(folder, rows)).sections[0].metrics[0]


def draw_curve(folder: Path, metric: str) -> str:
    """The chart of a metric with curves."""
    section = read_scores(folder, metric).section
    (card,) = draw_curves(section, standings_of(section)).cards
    return card.chart


# ── the gallery's order ──────────────────────────────────────────────────────────────────────────


def test_the_gallery_begins_with_the_best_and_the_worst_disagreement(tmp_path: Path) -> None:
    scores = {"ap": {"a": [0.9, 0.5, 0.1, 0.95, 0.6], "b": [0.1, 0.5, 0.5, 0.5, 0.5], "c": [0.1, 0.5, 0.5, 0.5, 0.5]}}
    block = read_run(put(tmp_path, rows_of(scores))).sections[0]
    found = standings_of(block)

    gap = compute_margins(found, 0)
    assert np.sign(gap).tolist() == [1, 0, -1, 1, 1]
    assert [place for place, _ in choose_questions(block, found, 3)] == [
        0,
        2,
        3,
    ]  # furthest ahead, furthest behind, next
    assert choose_questions(block, found, 0) == []
    assert len(choose_questions(block, found, 99)) == 5


def test_an_image_is_in_the_gallery_once(tmp_path: Path) -> None:
    rows = [
        row(
            metric="ap",
            method=method,
            image=f"p{n}",
            index=n,
            target=target,
            role=f"top {target}",
            value=0.1 * n * target,
        )
        for method in ("a", "b")
        for n in range(3)
        for target in (1, 2)
    ]
    block = read_run(put(tmp_path, rows)).sections[0]

    assert len(block.questions) == 6
    assert len(block.clusters) == 3
    assert len(choose_questions(block, standings_of(block), 9)) == 3


def test_the_figure_of_deletion_compares_two_methods_and_no_control() -> None:
    methods = ["ixg+plus", "ixg", "random(seed=1)", "Random", "ixgram of another package", "genatt"]

    assert pick_two_methods(methods, [0, 1, 2, 3, 5, 4]) == (0, 5)
    assert pick_two_methods(methods, [0, 1, 2, 4]) == (0, 4)  # its name only begins alike
    assert pick_two_methods(methods[:3], [0, 2, 1]) == (0, 2)  # there is no other
