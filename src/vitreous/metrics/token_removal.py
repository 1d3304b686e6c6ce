"""Faithfulness by token masking: the model is evaluated without the tokens of removed patches (SkipPLUS)."""

from __future__ import annotations

from vitreous.metrics.metric_result import Measured
from vitreous.metrics.model_outputs import Answers, Class, PerturbedModel, perturbation_metric
from vitreous.metrics.order import TENTHS, Area, Grid, Order, Ratios, Show, checked_levels, count_of, summed_up

FACTS = {
    "family": "faithfulness",
    "affine_invariant": True,
    "forwards": "1 + ratios",
    "paper": "mehri2024skipplus",
    "trial": {"ratios": (0.25, 0.5, 0.75)},
}
# settings of the released code: trapezoids over a grid 0.9 wide, in percent; presets add the label as class
RELEASED = {"area": "trapezoid", "show": "percent"}


def outputs_by_ratio(
    model: PerturbedModel, ratios: Grid, order: str, insert: bool
) -> tuple[Answers, tuple[float, ...]]:
    """Model outputs and levels as patches are removed, or added with `insert`.

    Levels are the removed fractions, 0 included, or the visible fractions, 1 included.
    """
    levels, total = checked_levels("ratios", ratios), model.probe.layout.patches
    if insert:
        levels = levels if levels[-1] == 1 else (*levels, 1.0)
        counts = [count_of(level, total) for level in levels]
    else:
        levels = levels if levels[0] == 0 else (0.0, *levels)
        counts = [total - count_of(level, total) for level in levels]
    return model.shown_tokens("top" if insert == (order == "descending") else "bottom", counts), levels


def accuracy(
    model: PerturbedModel, ratios: Grid, judge: str, order: str, area: str, show: str, *, insert: bool
) -> Measured:
    """Area under the accuracy of the class `judge`."""
    answers, levels = outputs_by_ratio(model, ratios, order, insert)
    return summed_up(model.attribution, model.hits(answers, judge), levels, area, show, order == "ascending")


def probability_drop(
    model: PerturbedModel, ratios: Grid, track: str, order: str, area: str, show: str, *, insert: bool
) -> Measured:
    """Area under p(x) − p(visible part of x), with the mean log-probability drop as part `lodds`."""
    answers, levels = outputs_by_ratio(model, ratios, order, insert)
    (visible, whole), (log_visible, log_whole) = answers.probability(track), answers.log_p(track)
    parts = {"lodds": log_whole - log_visible}
    return summed_up(model.attribution, whole - visible, levels, area, show, order == "ascending", parts)


@perturbation_metric(
    higher_is_better=False,
    formula="area under r ↦ [arg max f(x without the top r of patches) = label]",
    bounds=(0, 1),
    presets={"skipplus": {"judge": "label", "show": "complement"}, "released": {"judge": "label", **RELEASED}},
    **FACTS,
)
def deletion_accuracy(
    model: PerturbedModel,
    ratios: Ratios = TENTHS,
    judge: Class = "label",
    order: Order = "descending",
    area: Area = "normalised",
    show: Show = "fraction",
) -> Measured:
    """Accuracy as the highest patches leave the encoder.

    `judge`: the class that counts as right ("label", "predicted", "explained"). `order="ascending"`: the lowest patches leave.
    `area`: trapezoids over the width ("normalised"), as they are ("trapezoid"), or the "mean" of the points, the whole image
    among them. `show`: "fraction", "percent", or "complement", 100 − x.
    """
    return accuracy(model, ratios, judge, order, area, show, insert=False)


@perturbation_metric(
    higher_is_better=True,
    formula="area under r ↦ [arg max f(the top r of patches alone) = label]",
    bounds=(0, 1),
    presets={"skipplus": {"judge": "label", "show": "percent"}, "released": {"judge": "label", **RELEASED}},
    **FACTS,
)
def insertion_accuracy(
    model: PerturbedModel,
    ratios: Ratios = TENTHS,
    judge: Class = "label",
    order: Order = "descending",
    area: Area = "normalised",
    show: Show = "fraction",
) -> Measured:
    """Accuracy when only the highest patches enter the encoder; options as for `deletion_accuracy`."""
    return accuracy(model, ratios, judge, order, area, show, insert=True)


@perturbation_metric(
    higher_is_better=True,
    formula="area under r ↦ p(x) − p(x without the top r of patches)",
    bounds=(-1, 1),
    presets={"skipplus": {"track": "predicted", "show": "percent"}, "released": {"track": "label", **RELEASED}},
    **FACTS,
)
def deletion_aopc(
    model: PerturbedModel,
    ratios: Ratios = TENTHS,
    track: Class = "explained",
    order: Order = "descending",
    area: Area = "normalised",
    show: Show = "fraction",
) -> Measured:
    """How far the probability drops as the highest patches leave the encoder.

    `track`: the class whose probability it is ("explained", "predicted", "label"); the other options as for `deletion_accuracy`.
    The part `lodds` is the mean drop of the log-probability.
    """
    return probability_drop(model, ratios, track, order, area, show, insert=False)


@perturbation_metric(
    higher_is_better=False,
    formula="area under r ↦ p(x) − p(the top r of patches alone)",
    bounds=(-1, 1),
    presets={"skipplus": {"track": "predicted", "show": "complement"}, "released": {"track": "label", **RELEASED}},
    **FACTS,
)
def insertion_aopc(
    model: PerturbedModel,
    ratios: Ratios = TENTHS,
    track: Class = "explained",
    order: Order = "descending",
    area: Area = "normalised",
    show: Show = "fraction",
) -> Measured:
    """How far the probability lies below that of the whole image when only the highest patches enter the encoder.

    Options and parts as for `deletion_aopc`.
    """
    return probability_drop(model, ratios, track, order, area, show, insert=True)
