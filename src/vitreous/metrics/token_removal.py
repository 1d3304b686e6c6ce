"""Faithfulness by token masking: the model is evaluated without the tokens of removed patches (SkipPLUS)."""

from __future__ import annotations

from typing import Any

from vitreous.metrics.metric import Metric
from vitreous.metrics.metric_result import Measured
from vitreous.metrics.model_outputs import Class, PerturbedModel, PerturbedOutputs, perturbation_metric
from vitreous.metrics.order import TENTHS, Area, Grid, Order, Ratios, Show, check_levels, count_of, summarise_curve

FACTS: dict[str, Any] = {
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
) -> tuple[PerturbedOutputs, tuple[float, ...]]:
    """Model outputs and levels as patches are removed, or added with `insert`.

    Levels are the removed fractions, 0 included, or the visible fractions, 1 included.
    """
    levels, total = check_levels("ratios", ratios), model.probe.layout.patches
    if insert:
        levels = levels if levels[-1] == 1 else (*levels, 1.0)
        counts = [count_of(level, total) for level in levels]
    else:
        levels = levels if levels[0] == 0 else (0.0, *levels)
        counts = [total - count_of(level, total) for level in levels]
    return model.outputs_with_tokens("top" if insert == (order == "descending") else "bottom", counts), levels


def accuracy_metric(name: str, description: str, *, insert: bool, **facts: Any) -> Metric:
    """Register the area under the accuracy as patches are removed, or added with `insert`."""

    def accuracy(
        model: PerturbedModel,
        ratios: Ratios = TENTHS,
        judge: Class = "label",
        order: Order = "descending",
        area: Area = "normalised",
        show: Show = "fraction",
    ) -> Measured:
        outputs, levels = outputs_by_ratio(model, ratios, order, insert)
        return summarise_curve(model.attribution, outputs.hits(judge), levels, area, show, order == "ascending")

    return perturbation_metric(name, description, bounds=(0, 1), **FACTS, **facts)(accuracy)


def probability_metric(name: str, description: str, *, insert: bool, **facts: Any) -> Metric:
    """Register the area under p(x) − p(visible part of x) as patches are removed, or added with `insert`."""

    def probability_drop(
        model: PerturbedModel,
        ratios: Ratios = TENTHS,
        track: Class = "explained",
        order: Order = "descending",
        area: Area = "normalised",
        show: Show = "fraction",
    ) -> Measured:
        outputs, levels = outputs_by_ratio(model, ratios, order, insert)
        (visible, whole), (log_visible, log_whole) = outputs.probability(track), outputs.log_p(track)
        parts = {"lodds": log_whole - log_visible}
        return summarise_curve(model.attribution, whole - visible, levels, area, show, order == "ascending", parts)

    return perturbation_metric(name, description, bounds=(-1, 1), **FACTS, **facts)(probability_drop)


deletion_accuracy = accuracy_metric(
    "deletion_accuracy",
    """Accuracy as the highest patches are removed from the encoder.

    `judge`: the class that counts as right ("label", "predicted", "explained"). `order="ascending"`: the lowest patches are removed.
    `area`: trapezoids over the width ("normalised"), as they are ("trapezoid"), or the "mean" of the points, the whole image
    among them. `show`: "fraction", "percent", or "complement", 100 − x.
    """,
    insert=False,
    higher_is_better=False,
    formula="area under r ↦ [arg max f(x without the top r of patches) = label]",
    presets={"skipplus": {"judge": "label", "show": "complement"}, "released": {"judge": "label", **RELEASED}},
)
insertion_accuracy = accuracy_metric(
    "insertion_accuracy",
    "Accuracy when only the highest patches enter the encoder; options as for `deletion_accuracy`.",
    insert=True,
    higher_is_better=True,
    formula="area under r ↦ [arg max f(the top r of patches alone) = label]",
    presets={"skipplus": {"judge": "label", "show": "percent"}, "released": {"judge": "label", **RELEASED}},
)
deletion_aopc = probability_metric(
    "deletion_aopc",
    """Decrease of the probability as the highest patches are removed from the encoder.

    `track`: the class whose probability it is ("explained", "predicted", "label"); the other options as for `deletion_accuracy`.
    The part `lodds` is the mean drop of the log-probability.
    """,
    insert=False,
    higher_is_better=True,
    formula="area under r ↦ p(x) − p(x without the top r of patches)",
    presets={"skipplus": {"track": "predicted", "show": "percent"}, "released": {"track": "label", **RELEASED}},
)
insertion_aopc = probability_metric(
    "insertion_aopc",
    """Difference between the probability of the whole image and that of the highest patches alone.

    Options and parts as for `deletion_aopc`.
    """,
    insert=True,
    higher_is_better=False,
    formula="area under r ↦ p(x) − p(the top r of patches alone)",
    presets={"skipplus": {"track": "predicted", "show": "complement"}, "released": {"track": "label", **RELEASED}},
)
