"""Charts are well-formed, and outward, upward and gaps mean what they should."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.report.stores import put, row, rows_of
from vitreous.report.chart import INNER, Series, legend, lines, marker, outward, radar, ticks
from vitreous.report.gallery import chosen, margins
from vitreous.report.plots import curves, families, radars, started, sweep_families, sweeps, unfolded
from vitreous.report.read import read_run
from vitreous.report.stats import standings_of


def test_outward_is_better_whatever_the_metric_says() -> None:
    radii, ends = outward(np.array([[0.9, 0.9, 1.0], [0.1, 0.1, 1.0], [np.nan, 0.5, 1.0]]), [1, -1, 1])

    assert radii[:, 0].tolist()[:2] == [1.0, pytest.approx(INNER)]
    assert radii[:, 1].tolist() == pytest.approx([INNER, 1.0, (1 + INNER) / 2])
    assert np.isnan(radii[2, 0])
    assert radii[:, 2].tolist() == [1, 1, 1]
    assert ends == [(0.1, 0.9), (0.9, 0.1), (1.0, 1.0)]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.02, 0.93), (0.001, 0.0017), (-5, 130), (2, 2)])
def test_ticks_are_round_and_hold_the_range(low: float, high: float) -> None:
    found = ticks(low, high)

    assert found[0] <= low
    assert found[-1] >= high or low == high
    assert len(found) <= 8


def test_a_missing_point_is_a_gap_and_names_are_escaped() -> None:
    series = [Series("<b>&", 0, [0.0, 0.5, 1.0, 1.5], np.array([0.1, np.nan, 0.3, 0.4]), np.zeros(4), np.ones(4))]
    tree = ElementTree.fromstring(lines(series, "x", "<y>"))
    (path,) = [one for one in tree.iter("path") if "line" in one.get("class", "")]

    assert path.get("d", "").count("M") == 2
    assert next(tree.iter("title")).text == "<b>&"
    assert tree.get("aria-label") == "<y> over x"
    assert lines([], "x", "y") == ""


def test_radars_and_legends_are_well_formed_for_any_name() -> None:
    names = [("<script>", 0), ("a&b", 9)]
    drawn = radar(names, [("m<1>", "↑"), ("b", "↓"), ("c", "↑")], np.array([[1.0, 2, 3], [np.nan, 1, 2]]), [1, -1, 1])
    tree = ElementTree.fromstring(drawn)

    assert len(list(tree.iter("polyline"))) == 1  # the one that lacks an axis is left open
    ElementTree.fromstring(legend(names))


def test_markers_differ_without_colour() -> None:
    shapes = {marker(style, 0, 0).replace(f"c{style}", "") for style in range(5)}

    assert len(shapes) == 5


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

    assert [unfolded(one) for one in methods] == [
        "decompx",
        "decompx",
        "decompx",
        "genatt@libra",
        "gradcampp",
        "x(a='b+c')",
    ]
    assert families(methods) == {"decompx": [0, 1, 2]}
    assert started("a+skipplus(mode='layers', start=3)") == ("a+skipplus(mode='layers')", 3)
    assert started("a+skipplus(start=3)") == ("a+skipplus", 3)
    assert started("a") is None
    swept = (*(f"a+skipplus(start={n})" for n in (4, 0, 2)), "b(start=1)", "b(start=2)")
    assert sweep_families(swept) == {"a+skipplus": [(0, 1), (2, 2), (4, 0)]}


def test_a_sweep_is_drawn_when_methods_differ_by_their_start_alone(tmp_path: Path) -> None:
    values = {f"decompx+skipplus(start={n})": [0.1 * n, 0.1 * n + 0.05] for n in (0, 3, 6)}
    block = read_run(put(tmp_path, rows_of({"ap": values}))).blocks[0]
    drawn = sweeps(block, standings_of(block), depth=12)

    assert "decompx+skipplus</li>" in drawn
    assert "SkipPLUS" in drawn
    assert drawn.count('class="band') == 1
    assert radars(block, standings_of(block)) == ""  # one metric makes no radar
    other = read_run(put(tmp_path / "other", rows_of({"ap": {"a": [1.0], "b": [0.5]}}))).blocks[0]
    assert sweeps(other, standings_of(other)) == ""


def test_radars_show_all_methods_and_every_family(tmp_path: Path) -> None:
    methods = {"decompx+plus": [0.5, 0.6], "decompx+skipplus": [0.7, 0.8], "genatt": [0.1, 0.2]}
    block = read_run(put(tmp_path, rows_of(dict.fromkeys(("ap", "f1", "deletion_accuracy"), methods)))).blocks[0]
    drawn = radars(block, standings_of(block))

    assert drawn.count('<svg class="chart"') == 2
    assert "decompx and its folds" in drawn
    assert "accuracy\u00a0↓" in drawn  # the axis says which way its metric points


def test_curves_come_with_bands(tmp_path: Path) -> None:
    rows = [
        row(
            metric="deletion_aopc",
            method=method,
            picture=f"p{n}",
            index=n,
            value=0.5,
            curve=[0.0, 0.1 * n],
            levels=[0.0, 0.5],
        )
        for method in ("genatt", "ixg")
        for n in range(3)
    ]
    block = read_run(put(tmp_path, rows)).blocks[0]
    drawn = curves(block, standings_of(block))

    assert drawn.count('class="band') == 2
    assert "share removed, highest scores first" in drawn


# ── the gallery's order ──────────────────────────────────────────────────────────────────────────


def test_the_gallery_begins_with_the_best_and_the_worst_disagreement(tmp_path: Path) -> None:
    scores = {"ap": {"a": [0.9, 0.5, 0.1, 0.95, 0.6], "b": [0.1, 0.5, 0.5, 0.5, 0.5], "c": [0.1, 0.5, 0.5, 0.5, 0.5]}}
    block = read_run(put(tmp_path, rows_of(scores))).blocks[0]
    found = standings_of(block)

    gap = margins(found, 0)
    assert np.sign(gap).tolist() == [1, 0, -1, 1, 1]
    assert [place for place, _ in chosen(block, found, 3)] == [0, 2, 3]  # furthest ahead, furthest behind, next
    assert chosen(block, found, 0) == []
    assert len(chosen(block, found, 99)) == 5


def test_a_picture_is_in_the_gallery_once(tmp_path: Path) -> None:
    rows = [
        row(
            metric="ap",
            method=method,
            picture=f"p{n}",
            index=n,
            target=target,
            role=f"top {target}",
            value=0.1 * n * target,
        )
        for method in ("a", "b")
        for n in range(3)
        for target in (1, 2)
    ]
    block = read_run(put(tmp_path, rows)).blocks[0]

    assert len(block.questions) == 6
    assert len(block.clusters) == 3
    assert len(chosen(block, standings_of(block), 9)) == 3
