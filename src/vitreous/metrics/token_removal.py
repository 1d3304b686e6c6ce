"""Faithfulness by token masking: the model is evaluated without the tokens of removed patches (SkipPLUS)."""

from __future__ import annotations

from collections.abc import Sequence

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.methods.attribution import Attribution
from vitreous.methods.options import choice
from vitreous.metrics.metric import metric
from vitreous.metrics.metric_result import Measured
from vitreous.metrics.model_outputs import Answers, Class, Labels, Memo, PerturbedModel
from vitreous.metrics.order import ORDERS, TENTHS, Area, Grid, Order, Ratios, Show, checked_levels, count_of, summed_up

FACTS = {
    "family": "faithfulness",
    "affine_invariant": True,
    "forwards": "1 + ratios",
    "paper": "mehri2024skipplus",
    "trial": {"ratios": (0.25, 0.5, 0.75)},
}
# settings of the released code: trapezoids over a grid 0.9 wide, in percent; presets add the label as class
RELEASED = {"area": "trapezoid", "show": "percent"}


def deletion(model: PerturbedModel, ratios: Grid, order: str) -> tuple[Answers, tuple[float, ...]]:
    """Model outputs and levels as patches are removed; levels are the removed fractions, 0 included."""
    choice("order", order, ORDERS)
    levels = checked_levels("ratios", ratios)
    levels = levels if levels[0] == 0 else (0.0, *levels)
    total = model.probe.layout.patches
    counts = [total - count_of(level, total) for level in levels]
    return model.shown_tokens("bottom" if order == "descending" else "top", counts), levels


def insertion(model: PerturbedModel, ratios: Grid, order: str) -> tuple[Answers, tuple[float, ...]]:
    """Model outputs and levels as patches are added; levels are the visible fractions, 1 included."""
    choice("order", order, ORDERS)
    levels = checked_levels("ratios", ratios)
    levels = levels if levels[-1] == 1 else (*levels, 1.0)
    counts = [count_of(level, model.probe.layout.patches) for level in levels]
    return model.shown_tokens("top" if order == "descending" else "bottom", counts), levels


@metric(
    higher_is_better=False,
    formula="area under r ↦ [arg max f(x without the top r of patches) = label]",
    bounds=(0, 1),
    presets={"skipplus": {"judge": "label", "show": "complement"}, "released": {"judge": "label", **RELEASED}},
    **FACTS,
)
def deletion_accuracy(
    attribution: Attribution,
    probe: BlackBoxProbe,
    labels: Labels = None,
    memo: Memo | None = None,
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
    model = PerturbedModel(attribution, probe, labels, memo)
    answers, levels = deletion(model, ratios, order)
    curve = model.hits(answers, judge)
    return summed_up(attribution, curve, levels, area, show, turned=order == "ascending")


@metric(
    higher_is_better=True,
    formula="area under r ↦ [arg max f(the top r of patches alone) = label]",
    bounds=(0, 1),
    presets={"skipplus": {"judge": "label", "show": "percent"}, "released": {"judge": "label", **RELEASED}},
    **FACTS,
)
def insertion_accuracy(
    attribution: Attribution,
    probe: BlackBoxProbe,
    labels: Labels = None,
    memo: Memo | None = None,
    ratios: Ratios = TENTHS,
    judge: Class = "label",
    order: Order = "descending",
    area: Area = "normalised",
    show: Show = "fraction",
) -> Measured:
    """Accuracy when only the highest patches enter the encoder; options as for `deletion_accuracy`."""
    model = PerturbedModel(attribution, probe, labels, memo)
    answers, levels = insertion(model, ratios, order)
    curve = model.hits(answers, judge)
    return summed_up(attribution, curve, levels, area, show, turned=order == "ascending")


@metric(
    higher_is_better=True,
    formula="area under r ↦ p(x) − p(x without the top r of patches)",
    bounds=(-1, 1),
    presets={
        "skipplus": {"track": "predicted", "show": "percent"},
        "released": {"track": "label", **RELEASED},
    },
    **FACTS,
)
def deletion_aopc(
    attribution: Attribution,
    probe: BlackBoxProbe,
    labels: Labels = None,
    memo: Memo | None = None,
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
    answers, levels = deletion(PerturbedModel(attribution, probe, labels, memo), ratios, order)
    return drop(attribution, answers, levels, track, area, show, order == "ascending")


@metric(
    higher_is_better=False,
    formula="area under r ↦ p(x) − p(the top r of patches alone)",
    bounds=(-1, 1),
    presets={
        "skipplus": {"track": "predicted", "show": "complement"},
        "released": {"track": "label", **RELEASED},
    },
    **FACTS,
)
def insertion_aopc(
    attribution: Attribution,
    probe: BlackBoxProbe,
    labels: Labels = None,
    memo: Memo | None = None,
    ratios: Ratios = TENTHS,
    track: Class = "explained",
    order: Order = "descending",
    area: Area = "normalised",
    show: Show = "fraction",
) -> Measured:
    """How far the probability lies below that of the whole image when only the highest patches enter the encoder.

    Options and parts as for `deletion_aopc`.
    """
    answers, levels = insertion(PerturbedModel(attribution, probe, labels, memo), ratios, order)
    return drop(attribution, answers, levels, track, area, show, order == "ascending")


def drop(
    attribution: Attribution, answers: Answers, levels: Sequence[float], track: str, area: str, show: str, turned: bool
) -> Measured:
    """Area under p(x) − p(visible part of x), with the mean log-probability drop as part `lodds`."""
    (visible, whole), (log_visible, log_whole) = answers.probability(track), answers.log_p(track)
    parts = {"lodds": log_whole - log_visible}
    return summed_up(attribution, whole - visible, levels, area, show, turned, parts)
