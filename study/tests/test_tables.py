"""Tables: the best value is bold, unknown values are dashes, and undefined scores are counted."""

from __future__ import annotations

from math import nan

from study.effects import Effect, Figure
from study.special import Order
from study.tables import NOTHING, format_agreements, format_cell, format_differences, format_ranking, match_effects


def a(method, value, better="more", undefined=0, metric="ap", model="ViT-Tiny"):
    return Figure(model, "val", "", metric, better, method, 9, undefined, value, value - 0.1, value + 0.1)


def rows_of(text):
    return [[one.strip().replace("\u00a0", " ") for one in line.strip("|").split("|")] for line in text.splitlines()]


def test_methods_are_sorted_and_the_best_is_bold():
    rows = [a("x", 0.2), a("y", 0.4), a("x", 0.9, "less", metric="lodds"), a("y", 0.8, "less", metric="lodds")]
    head, _, first, second = rows_of(format_ranking(rows, ["ap", "lodds"], by="ap"))

    assert head == ["method", "AP ↑", "LOdds ↓"]
    assert first == ["y", "**0.400 ± 0.100**", "**0.800 ± 0.100**"]
    assert second == ["x", "0.200 ± 0.100", "0.900 ± 0.100"]


def test_less_is_first_where_less_is_better():
    rows = [a("x", 0.9, "less"), a("y", 0.2, "less"), a("z", nan, "less")]

    assert [line[0] for line in rows_of(format_ranking(rows, ["ap"], by="ap"))[2:]] == ["y", "x", "z"]


def test_undefined_scores_are_counted():
    rows = [a("x", 0.2, undefined=2), a("y", 0.4, undefined=5), a("z", nan, undefined=9)]
    cells = [line[1] for line in rows_of(format_ranking(rows, ["ap"]))[2:]]

    assert cells == ["0.200 ± 0.100", "**0.400 ± 0.100 (3 undefined)**", "–"]


def test_metrics_without_a_direction_have_no_best_method():
    assert "**" not in format_ranking(
        [a("x", 0.2, "", metric="entropy"), a("y", 0.4, "", metric="entropy")], ["entropy"]
    )


def test_two_models_have_separate_columns():
    head = rows_of(format_ranking([a("x", 0.2), a("x", 0.3, model="DeiT-Tiny")], ["ap"]))[0]

    assert head == ["method", "AP ↑<br>ViT-Tiny", "AP ↑<br>DeiT-Tiny"]


def test_an_empty_result_is_reported():
    assert (
        format_ranking([], ["ap"])
        == format_differences([], {}, {})
        == format_agreements([], [("val", "ap")], "all")
        == NOTHING
    )


def test_effects_are_marked_by_their_interval():
    def an(low, high, model="ViT-Tiny"):
        return Effect(model, "val", "", "ap", "x", "y", 9, (low + high) / 2, low, high, 0.1)

    assert [format_cell(one).replace("\u00a0", " ") for one in (an(0.1, 0.3), an(-0.3, -0.1), an(-0.1, 0.3), None)] == [
        "**+0.200 [0.100, 0.300]**", "*−0.200 [−0.300, −0.100]*", "+0.100 [−0.100, 0.300]", "–",
    ]  # fmt: skip
    text = format_differences(
        [an(0.1, 0.3), an(-0.3, -0.1, "DeiT-Tiny")],
        {"X": ("x", "y"), "Z": ("z", "y")},
        {"V": match_effects("ViT-Tiny", "ap"), "D": match_effects("DeiT-Tiny", "ap")},
    )
    assert rows_of(text)[2:] == [["X", "**+0.200 [0.100, 0.300]**", "*−0.200 [−0.300, −0.100]*"], ["Z", "–", "–"]]


def test_the_metric_closest_to_ground_truth_is_bold_and_the_ceiling_is_last():
    def an(metric, tau):
        return Order("Scenes", "pair", metric, "ap", "all", 9, 9, tau, tau - 0.1, tau + 0.1, tau, tau, tau)

    text = format_agreements(
        [an("the same truth, other images", 0.9), an("aopc", 0.2), an("lodds", 0.5)], [("pair", "ap")], "all"
    )
    assert rows_of(text)[2:] == [
        ["LOdds", "**0.50 [0.40, 0.60]**"], ["AOPC", "0.20 [0.10, 0.30]"], ["the same truth, other images", "0.90 [0.80, 1.00]"],
    ]  # fmt: skip
