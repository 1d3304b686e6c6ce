"""Faithfulness by replacing pixels.

Insertion and deletion of pixels against a baseline image, as in RISE and TIS. Blackening the highest or the lowest pixels
first: accuracy and probability (Chefer, TokenTM). Imputing pixels: ROAD. Removing one cell of the image at a time: IDSDS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from jaxtyping import Float
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.pixels import ImageVariants
from vitreous.core.errors import SpecError
from vitreous.methods.options import Count, Positive, Range, Seed, Share
from vitreous.methods.regions import number_rectangles
from vitreous.metrics.metric import CurveAxes
from vitreous.metrics.metric_result import Measured
from vitreous.metrics.model_outputs import (
    Class,
    CurveAndParts,
    Index,
    OutputsAndLevels,
    PerturbedModel,
    PerturbedOutputs,
    curve_metric,
    perturbation_metric,
)
from vitreous.metrics.order import (
    TENTHS,
    TWENTIETHS,
    Area,
    Levels,
    Order,
    Show,
    check_levels,
    pixel_scores,
    summarise_curve,
)
from vitreous.metrics.pixel_fills import Baseline, Space, paint_baseline, paint_imputed
from vitreous.metrics.ranks import spearman
from vitreous.models.tensor_types import Images

FLOOR = math.log(1e-12)  # lower limit of log-probabilities, so that lodds stays bounded
BLACKENING = {"forwards": "1 + levels", "trial": {"levels": (0.25, 0.5, 0.75)}}
ACCURACY = {
    **BLACKENING,
    "bounds": (0, 1),
    "paper": "chefer2021transformer",
    "presets": {
        "chefer": {"levels": TENTHS, "clean": False, "judge": "label"},
        "transformerinterp": {"levels": TENTHS, "clean": True, "empty": 0.0, "judge": "label", "area": "trapezoid"},
        "tokentm": {"levels": TWENTIETHS, "judge": "label", "area": "trapezoid", "show": "percent"},
    },
}
CHANGE = {
    **BLACKENING,
    "paper": "wu2024token",
    "presets": {"tokentm": {"levels": TWENTIETHS, "track": "predicted"}},
}
INSERTION: dict[str, Any] = {"paper": "petsiuk2018rise", "trial": {"steps": 8, "baseline": "black"}}
TIS = {"steps": 224, "start": False, "area": "mean", "space": "normalised", "track": "label"}
RISE = {"steps": 224, "start": True, "area": "normalised", "space": "normalised", "track": "predicted"}


# ── a baseline image ─────────────────────────────────────────────────────────────────────────────


def count_replaced_pixels(pixels: int, steps: int, start: bool) -> list[int]:
    """Number of replaced pixels after every step.

    Steps have ceil(pixels / steps) pixels, the last one the remainder, so there may be fewer than `steps`. `start` adds
    0 as the first point.
    """
    if steps > pixels:
        raise SpecError(f"steps={steps!r}; an image of {pixels} pixels goes in 1 to {pixels} steps")
    per_step = -(-pixels // steps)
    gone = [min(per_step * step, pixels) for step in range(1, -(-pixels // per_step) + 1)]
    return [0, *gone] if start else gone


def replace_pixels(default: Baseline, *, insert: bool) -> Callable[..., OutputsAndLevels]:
    """Function that returns outputs as pixels enter a baseline image (`insert`) or give way to it, and their fraction."""

    def outputs_by_step(
        model: PerturbedModel,
        baseline: Baseline = default,
        space: Space = "normalised",
        steps: Count = 224,
        start: bool = False,
        seed: Seed = 0,
    ) -> OutputsAndLevels:
        pixels = model.probe.images.shape[-2] * model.probe.images.shape[-1]
        gone = count_replaced_pixels(pixels, steps, start)
        counts, side = (gone, "top") if insert else ([pixels - count for count in gone], "bottom")
        outputs = model.outputs_with_pixels(side, counts, paint_baseline(model, baseline, space, seed))
        return outputs, [count / pixels for count in gone]

    return outputs_by_step


insert_pixels, delete_pixels = replace_pixels("blur", insert=True), replace_pixels("black", insert=False)


@curve_metric(
    insert_pixels,
    area="mean",
    higher_is_better=True,
    bounds=(0, 1),
    formula="mean over k of p(the baseline with the top k pixels of x)",
    axes=CurveAxes("shown", "probability"),
    forwards="1 + steps",
    presets={"tis": TIS, "rise": {**RISE, "baseline": "blur-rise"}},
    **INSERTION,
)
def insertion(outputs: PerturbedOutputs, track: Class = "explained") -> CurveAndParts:
    """Probability of a class as the highest pixels enter a baseline image.

    `baseline`: "blur", "black", "mean", "random", or "blur-rise", RISE's blur; `space`: "normalised", as published, or "pixels",
    before normalisation. `start`: whether the first point is the baseline itself (RISE), or the image after one step (TIS).
    `track`: "explained", "predicted" or "label". `area`: "mean" of the points, or trapezoids ("normalised", "trapezoid").
    """
    return outputs.probability(track)[0], {}


@curve_metric(
    delete_pixels,
    area="mean",
    higher_is_better=False,
    bounds=(0, 1),
    formula="mean over k of p(x with its top k pixels from the baseline)",
    axes=CurveAxes("removed", "probability"),
    forwards="1 + steps",
    presets={"tis": TIS, "rise": {**RISE, "baseline": "black"}},
    **INSERTION,
)
def deletion(outputs: PerturbedOutputs, track: Class = "explained") -> CurveAndParts:
    """Probability of a class as the highest pixels are replaced by a baseline image; options as for `insertion`."""
    return outputs.probability(track)[0], {}


@perturbation_metric(
    higher_is_better=True,
    formula="insertion − deletion",
    bounds=(-1, 1),
    axes=CurveAxes("shown"),
    forwards="1 + 2 steps",
    presets={"tis": TIS, "rise": {**RISE, "baseline": ("blur-rise", "black")}},
    **INSERTION,
)
def insertion_minus_deletion(
    model: PerturbedModel,
    baseline: Baseline | tuple[Baseline, ...] = "blur",
    space: Space = "normalised",
    steps: Count = 224,
    start: bool = False,
    track: Class = "explained",
    area: Area = "mean",
    show: Show = "fraction",
    seed: Seed = 0,
) -> Measured:
    """Insertion minus deletion; options as for `insertion`, and `baseline` may be a pair, ("blur", "black")."""
    if show == "complement":
        raise SpecError(f"show={show!r} has no meaning for a difference; known: 'fraction', 'percent'")
    pair = (baseline, baseline) if isinstance(baseline, str) else tuple(baseline)
    if len(pair) != 2:
        raise SpecError(f"baseline={baseline!r}; give one baseline, or one for insertion and one for deletion")
    inserted, levels = insert_pixels(model, pair[0], space, steps, start, seed)
    deleted, _ = delete_pixels(model, pair[1], space, steps, start, seed)
    parts = {"insertion": inserted.probability(track)[0], "deletion": deleted.probability(track)[0]}
    return summarise_curve(parts["insertion"] - parts["deletion"], levels, area, show, parts=parts)


# ── black pixels ─────────────────────────────────────────────────────────────────────────────────


def outputs_with_black_pixels(model: PerturbedModel, levels: Sequence[float], order: str) -> PerturbedOutputs:
    """Model outputs with the given fractions of pixels set to black (0 before normalisation)."""
    return model.outputs_without_pixels(levels, order, paint_baseline(model, "black"))


# ── accuracy with black pixels ───────────────────────────────────────────────────────────────────


def blacken_first(order: Order) -> Callable[..., OutputsAndLevels]:
    """Function that returns outputs as the first pixels of an order become black, and their fractions."""

    def outputs_by_level(
        model: PerturbedModel, levels: Levels = TENTHS, clean: bool = True, empty: Share | None = None
    ) -> OutputsAndLevels:
        levels = check_levels("levels", levels)
        levels = (0.0, *levels) if clean and levels[0] > 0 else levels
        outputs = outputs_with_black_pixels(model, levels, order)
        if empty is None or levels[-1] == 1:
            return outputs, levels
        return replace(outputs, empty=empty), (*levels, 1.0)

    return outputs_by_level


@curve_metric(
    blacken_first("descending"),
    higher_is_better=False,
    formula="area under r ↦ [arg max f(x, the top r of pixels black) = label]",
    axes=CurveAxes("removed", "accuracy"),
    **ACCURACY,
)
def positive_auc(outputs: PerturbedOutputs, judge: Class = "label") -> CurveAndParts:
    """Accuracy as the highest pixels become black.

    `judge`: the class that counts as right ("label", as published also where the predicted class is explained; "predicted",
    "explained"). `clean`: the original image is a point of the curve. `empty`: the accuracy assumed for the black image.
    The parts are what published code stores beside the hits: how the largest probability and logit change, and
    log p(right class) − log p(second class), 0 where the right class is second.
    """
    return outputs.hits(judge), output_changes(outputs, judge)


@curve_metric(
    blacken_first("ascending"),
    higher_is_better=True,
    formula="area under r ↦ [arg max f(x, the lowest r of pixels black) = label]",
    axes=CurveAxes("removed", "accuracy", "ascending"),
    **ACCURACY,
)
def negative_auc(outputs: PerturbedOutputs, judge: Class = "label") -> CurveAndParts:
    """Accuracy as the lowest pixels become black; options and parts as for `positive_auc`."""
    return outputs.hits(judge), output_changes(outputs, judge)


def output_changes(outputs: PerturbedOutputs, judge: str) -> dict[str, Float[Tensor, "r s"]]:
    """Changes of the largest probability and the largest logit, whichever class they belong to, and the lead.

    The lead is log p of the class `judge` minus log p of the second class.
    """
    table, whole = outputs.table, outputs.whole[:, None]
    return {
        "probability_change": table[..., 3].exp() - whole[..., 3].exp(),
        "logit_change": (table[..., 3] + table[..., 5]) - (whole[..., 3] + whole[..., 5]),
        "lead": outputs.log_p(judge)[0] - table[..., 4],
    }


# ── probability with black pixels ────────────────────────────────────────────────────────────────


def blacken_pixels(model: PerturbedModel, levels: Levels = TWENTIETHS, order: Order = "descending") -> OutputsAndLevels:
    """Model outputs as pixels become black, and their fractions."""
    levels = check_levels("levels", levels)
    return outputs_with_black_pixels(model, levels, order), levels


@curve_metric(
    blacken_pixels,
    area="mean",
    show=False,
    higher_is_better=True,
    formula="mean over r of p(x) − p(x, the top r of pixels black)",
    bounds=(-1, 1),
    axes=CurveAxes("removed", "drop"),
    **CHANGE,
)
def aopc(outputs: PerturbedOutputs, track: Class = "explained") -> CurveAndParts:
    """Decrease of the probability as the highest pixels become black, averaged over the levels.

    `track`: the class whose probability it is ("predicted", "label", "explained"). `order="ascending"`: the lowest pixels first.
    """
    visible, whole = outputs.probability(track)
    return whole - visible, {}


@curve_metric(
    blacken_pixels,
    area="mean",
    show=False,
    higher_is_better=False,
    formula="mean over r of ln p(x, the top r of pixels black) − ln p(x)",
    bounds=(FLOOR, -FLOOR),
    axes=CurveAxes("removed"),
    **CHANGE,
)
def lodds(outputs: PerturbedOutputs, track: Class = "explained") -> CurveAndParts:
    """Change of the log-probability as the highest pixels become black, averaged over the levels; options as for `aopc`."""
    visible, whole = outputs.log_p(track)
    return visible.clamp(min=FLOOR) - whole.clamp(min=FLOOR), {}


# ── imputed pixels ───────────────────────────────────────────────────────────────────────────────


def fill_in_pixels(
    model: PerturbedModel, levels: Levels = TENTHS, order: Order = "descending", noise: Positive = 0.01, seed: Seed = 0
) -> OutputsAndLevels:
    """Model outputs as pixels are filled in from their neighbours, and their fractions."""
    levels = check_levels("levels", levels)
    if levels[-1] == 1:
        raise SpecError("levels end below 1: of an image without a pixel nothing can be filled in")
    return model.outputs_without_pixels(levels, order, paint_imputed(model.probe, noise, seed)), levels


@curve_metric(
    fill_in_pixels,
    higher_is_better=False,
    formula="area under r ↦ [arg max f(x, the top r of pixels filled in from their neighbours) = label]",
    bounds=(0, 1),
    axes=CurveAxes("removed", "accuracy"),
    forwards="1 + levels",
    paper="rong2022consistent",
    trial={"levels": (0.25, 0.5, 0.75)},
    presets={"released": {"levels": (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9), "noise": 0.01, "judge": "label"}},
)
def road(outputs: PerturbedOutputs, judge: Class = "label") -> CurveAndParts:
    """Accuracy as the highest pixels are filled in from their neighbours.

    Every missing pixel is the weighted mean of its eight neighbours, all of them at once, and noise of deviation `noise` (of
    values in [0, 1]) hides which pixels they are. `judge`: "label", "predicted" or "explained"; `order="ascending"`:
    the lowest pixels first. The part `probability` is the mean probability of the predicted class.
    """
    return outputs.hits(judge), {"probability": outputs.probability("predicted")[0]}


# ── single cells ─────────────────────────────────────────────────────────────────────────────────


@perturbation_metric(
    higher_is_better=True,
    formula="Spearman ρ over cells of Σ_cell S and f(x) − f(x without the cell)",
    bounds=(-1, 1),
    forwards="1 + cells²",
    paper="hesse2024benchmarking",
    trial={"cells": 2},
)
def idsds(
    model: PerturbedModel,
    cells: Annotated[int, Range(2, 256)] = 4,
    baseline: Baseline = "black",
    space: Space = "normalised",
    track: Class = "explained",
    seed: Seed = 0,
) -> Measured:
    """Rank correlation between the score of an image cell and the decrease of the logit without it.

    In-domain in the authors' sense for a model that was trained on images with missing cells; for others it is their
    single-deletion score. NaN if all cells have the same score or the same effect.
    """
    attribution, probe = model.attribution, model.probe
    cell = number_cells(probe, cells)
    paint = paint_baseline(model, baseline, space, seed)

    def make(row: Index, subset: Index) -> Images:
        return paint.fill(cell != subset[:, None, None], row, subset)

    logits = probe.pixel_logits(ImageVariants(len(probe.images), cells**2, make))
    left, whole = model.outputs_of_logits(logits.repeat_interleave(probe.targets_per_image, 0)).logit(track)
    drop = whole - left
    scores = pixel_scores(attribution, probe)
    sums = scores.new_zeros(len(scores), cells**2).index_add_(1, cell.flatten(), scores)
    return Measured(spearman(sums, drop.to(sums)).to(sums), curve=drop, levels=range(cells**2))


def number_cells(probe: BlackBoxProbe, cells: int) -> Tensor:
    """Index of the cell at every pixel [H W]; SpecError if `cells` x `cells` do not divide the image evenly."""
    height, width = probe.images.shape[-2:]
    if height % cells or width % cells:
        raise SpecError(f"cells={cells!r}; at least 2 x 2 cells must divide an image of {height} x {width} evenly")
    return number_rectangles((height, width), (cells, cells)).to(probe.images.device)
