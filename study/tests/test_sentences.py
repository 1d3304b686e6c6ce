"""Answers and numbers are formatted from effects and intervals."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from study.effects import Effect
from study.fill_beyond import classify_method, count_passes
from study.sentences import (
    FEW,
    count_digits,
    describe_agreement,
    describe_difference,
    format_answer,
    format_count,
    format_effect,
    format_metric,
    format_number,
    format_tally,
    format_tally_by_model,
    format_tau,
    join_words,
    judge,
    swap_methods,
)
from study.special import Order


def an(effect, low, high, model="ViT-Tiny", metric="faithfulness"):
    return Effect(model, "val", "", metric, "a", "b", 50, effect, low, high, 0.01)


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ([an(0.031, 0.024, 0.038)], "Yes, by +0.031 [0.024, 0.038] on ViT-Tiny."),
        ([an(-0.02, -0.03, -0.01)], "No, it is worse by 0.020 [0.010, 0.030] on ViT-Tiny."),
        ([an(0.001, -0.003, 0.005)], "No significant difference on ViT-Tiny (+0.001 [−0.003, 0.005])."),
        ([an(nan, nan, nan)], "Unknown on ViT-Tiny."),
        ([an(0.2, nan, nan)], "Unknown on ViT-Tiny."),
        ([], "Not measured yet."),
        (
            [an(0.031, 0.024, 0.038), an(0.001, -0.003, 0.005, "DeiT-Tiny")],
            "Yes, by +0.031 [0.024, 0.038] on ViT-Tiny; no significant difference on DeiT-Tiny (+0.001 [−0.003, 0.005]).",
        ),
        (
            [an(3.14, 2.4, 3.8, metric="mean_aopc"), an(-3.14, -3.8, -2.4, "DeiT-Tiny", "mean_aopc")],
            "Yes, by +3.1 [2.4, 3.8] on ViT-Tiny; no, it is worse by 3.1 [2.4, 3.8] on DeiT-Tiny.",
        ),
    ],
)
def test_answers_are_formatted(effects, said):
    assert format_answer(effects) == said


def test_an_interval_that_touches_0_is_open():
    assert [judge(an(0.1, low, 0.2)) for low in (0.001, 0.0, -0.1)] == ["better", "open", "open"]
    assert judge(an(-0.1, -0.2, -0.01)) == "worse"


def test_several_comparisons_are_counted():
    rows = [an(1, 0.5, 2), an(1, 0.5, 2), an(-1, -2, -0.5), an(0, -1, 1), an(nan, nan, nan)]

    assert format_tally(rows) == "better in 2, worse in 1 of 4"
    assert format_tally([an(0, -1, 1)]) == "no significant difference in 1"
    assert format_tally([]) == format_tally([an(nan, nan, nan)]) == "unknown"
    assert (
        format_tally_by_model([an(1, 0.5, 2), an(0, -1, 1, "DeiT-Tiny")], "measures")
        == "ViT-Tiny: better in 1 of 1 measures; DeiT-Tiny: no significant difference in 1 measures."
    )


def test_the_other_side_of_an_effect():
    one = swap_methods(an(0.031, 0.024, 0.038))

    assert (one.effect, one.low, one.high, one.method, one.against) == (-0.031, -0.038, -0.024, "b", "a")
    assert swap_methods(one) == an(0.031, 0.024, 0.038)


def test_orders_are_described_correctly():
    where = ("ViT-Tiny", "val", "x", "y", "all", 9, 50, 0.5, 0.4, 0.6)

    assert describe_agreement(Order(*where, 0.7, 0.6, 0.8)).startswith("positively correlated (ρ = 0.70 [0.60, 0.80]")
    assert describe_agreement(Order(*where, -0.7, -0.8, -0.6)).startswith("negatively correlated")
    assert describe_agreement(Order(*where, 0.1, -0.1, 0.3)).startswith("no significant correlation")
    assert describe_agreement(Order(*where, nan, nan, nan)) == "unknown"


def test_numbers_and_names_are_formatted_for_reading():
    assert [format_number(value, 2, plus=True) for value in (0.5, -0.5, -0.001, nan)] == ["+0.50", "−0.50", "0.00", "–"]
    assert format_metric("insertion(preset='tis', baseline='blur', steps=28)") == "insertion, blur"
    assert format_metric("deletion_aopc(preset='skipplus')") == "deletion AOPC"
    assert [
        count_digits(metric)
        for metric in (
            "deletion_aopc(preset='skipplus')",
            "ap(preset='skipplus')",
            "aopc(preset='tokentm')",
            "positive_auc(preset='tokentm')",
            "ap",
        )
    ] == [1, 3, 3, 1, 3]


def test_formatting_of_counts_and_lists():
    assert [format_count(count, "image") for count in (0, 1, 3)] == ["0 images", "1 image", "3 images"]
    assert [join_words(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert describe_difference(an(-0.12, -0.16, -0.08)) == "0.120 [0.080, 0.160] below"
    assert describe_difference(an(0.12, -0.01, 0.2)) == "0.120 [−0.010, 0.200] above"
    assert describe_difference(an(nan, nan, nan)) == "unknown relative to"
    where = ("ViT-Tiny", "val", "x", "y", "all", 9, 50)
    assert format_tau(Order(*where, -0.5, -0.6, 0.1, 0, 0, 0)) == "−0.50 [−0.60, 0.10]"
    assert format_tau(Order(*where, nan, nan, nan, 0, 0, 0)) == format_tau(None) == "–"


def test_a_map_costs_its_passes_by_the_patches_in_them():
    assert count_passes("decompx+skipplus") == count_passes("temper") == 3  # one forward, and a backward is two
    assert count_passes("tis") == 1 + 1024 / 2
    assert count_passes("tis(masks=512, kept=0.1)") == pytest.approx(1 + 512 * 0.1)
    assert count_passes("anneal(of='temper', coalitions=32)") == 3 + 32 * 3 / 2
    assert count_passes("anneal(kept=0.25)") == count_passes("anneal")  # a quarter and its complement are half each
    assert count_passes("anneal(of='temper', coalitions=32, kept=0.75, complements=False)") == 3 + 32 * 3 * 0.75
    assert count_passes("anneal(of='ixg@libra+plus', coalitions=4)") == 3 + 4 * 3 / 2
    assert count_passes("rise(masks=256)") == 257
    assert count_passes("cat") == 3
    assert count_passes("pami") > 100  # its regions are counted


def test_methods_are_classified_as_ours_or_published():
    assert [classify_method(one) for one in ("temper", "presence", "anneal", "fullgrad@tempered+plus")] == ["ours"] * 4
    assert [classify_method(one) for one in ("decompx+plus", "tokentm", "tis(masks=256)")] == ["published"] * 3
    assert classify_method("attnlrp(question='probability')+plus") == "new score"
    assert classify_method("random") == "control"


def test_an_end_near_0_shows_its_side_and_equal_differences_have_no_interval():
    assert format_effect(an(0.006, 0.0004, 0.012)) == "+0.006 [0.0004, 0.012]"
    assert format_effect(an(0.006, -0.00003, 0.012)) == "+0.006 [−0.00003, 0.012]"
    assert format_effect(an(0.1, 0.0, 0.2)) == "+0.100 [0.000, 0.200]"
    assert format_effect(an(0.0, 0.0, 0.0)) == "0.000 (all equal)"


def test_few_images_have_no_verdict():
    sure = an(0.1, 0.05, 0.2)
    assert [judge(replace(sure, n=n)) for n in (FEW - 1, FEW)] == ["unknown", "better"]
    assert format_answer([replace(sure, n=5)]) == "Too few images on ViT-Tiny (+0.100 on 5 images)."
