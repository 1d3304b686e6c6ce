"""Faithfulness by removing patches.

Their tokens leave the encoder (SkipPLUS). Both orders (SRG), one group at a time (SaCo), and between the best and the worst
order (NAOPC).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.core.errors import SpecError
from vitreous.methods.map_arrays import enlarge_patches, zero_to_one
from vitreous.methods.options import Range, Seed
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
    Levels,
    Order,
    Ratios,
    area_under,
    check_levels,
    count_of,
    pixel_scores,
    rank_cells,
)
from vitreous.metrics.pixel_fills import Baseline, Space, paint_baseline

Remove = Literal["pixels", "tokens"]
Subsets = Bool[Tensor, "r m p"]
Drops = Callable[[Bool[Tensor, "r m u"]], Float[Tensor, "r m"]]  # of the score, when units are removed
EXACT = 20  # most units whose subsets are all evaluated
PERCENT = tuple(step / 100 for step in range(101))
MASKING: dict[str, Any] = {
    "forwards": "1 + ratios",
    "paper": "mehri2024skipplus",
    "trial": {"ratios": (0.25, 0.5, 0.75)},
}
# settings of the released code: trapezoids over a grid 0.9 wide, in percent; presets add the label as class
RELEASED = {"area": "trapezoid", "show": "percent"}


# ── tokens leave the encoder ─────────────────────────────────────────────────────────────────────


def remove_patches(model: PerturbedModel, ratios: Ratios = TENTHS, order: Order = "descending") -> OutputsAndLevels:
    """Model outputs as patches leave the encoder, and the removed fractions, 0 included."""
    levels, total = check_levels("ratios", ratios), model.probe.layout.patches
    levels = levels if levels[0] == 0 else (0.0, *levels)
    counts = [total - count_of(level, total) for level in levels]
    return model.outputs_with_tokens("bottom" if order == "descending" else "top", counts), levels


def add_patches(model: PerturbedModel, ratios: Ratios = TENTHS, order: Order = "descending") -> OutputsAndLevels:
    """Model outputs as patches enter the encoder, and the visible fractions, 1 included."""
    levels, total = check_levels("ratios", ratios), model.probe.layout.patches
    levels = levels if levels[-1] == 1 else (*levels, 1.0)
    counts = [count_of(level, total) for level in levels]
    return model.outputs_with_tokens("top" if order == "descending" else "bottom", counts), levels


@curve_metric(
    remove_patches,
    higher_is_better=False,
    bounds=(0, 1),
    formula="area under r ↦ [arg max f(x without the top r of patches) = label]",
    presets={"skipplus": {"judge": "label", "show": "complement"}, "released": {"judge": "label", **RELEASED}},
    axes=CurveAxes("removed", "accuracy"),
    **MASKING,
)
def deletion_accuracy(outputs: PerturbedOutputs, judge: Class = "label") -> CurveAndParts:
    """Accuracy as the highest patches are removed from the encoder.

    `judge`: the class that counts as right ("label", "predicted", "explained"). `order="ascending"`: the lowest patches are removed.
    `area`: trapezoids over the width ("normalised"), as they are ("trapezoid"), or the "mean" of the points, the whole image
    among them. `show`: "fraction", "percent", or "complement", 100 − x.
    """
    return outputs.hits(judge), {}


@curve_metric(
    add_patches,
    higher_is_better=True,
    bounds=(0, 1),
    formula="area under r ↦ [arg max f(the top r of patches alone) = label]",
    presets={"skipplus": {"judge": "label", "show": "percent"}, "released": {"judge": "label", **RELEASED}},
    axes=CurveAxes("shown", "accuracy"),
    **MASKING,
)
def insertion_accuracy(outputs: PerturbedOutputs, judge: Class = "label") -> CurveAndParts:
    """Accuracy when only the highest patches enter the encoder; options as for `deletion_accuracy`."""
    return outputs.hits(judge), {}


def probability_drop(outputs: PerturbedOutputs, track: str) -> CurveAndParts:
    """p(x) − p(visible part of x), and the same of the log-probability."""
    (visible, whole), (log_visible, log_whole) = outputs.probability(track), outputs.log_p(track)
    return whole - visible, {"lodds": log_whole - log_visible}


@curve_metric(
    remove_patches,
    higher_is_better=True,
    bounds=(-1, 1),
    formula="area under r ↦ p(x) − p(x without the top r of patches)",
    presets={"skipplus": {"track": "predicted", "show": "percent"}, "released": {"track": "label", **RELEASED}},
    axes=CurveAxes("removed", "drop"),
    **MASKING,
)
def deletion_aopc(outputs: PerturbedOutputs, track: Class = "explained") -> CurveAndParts:
    """Decrease of the probability as the highest patches are removed from the encoder.

    `track`: the class whose probability it is ("explained", "predicted", "label"); the other options as for `deletion_accuracy`.
    The part `lodds` is the mean drop of the log-probability.
    """
    return probability_drop(outputs, track)


@curve_metric(
    add_patches,
    higher_is_better=False,
    bounds=(-1, 1),
    formula="area under r ↦ p(x) − p(the top r of patches alone)",
    presets={"skipplus": {"track": "predicted", "show": "complement"}, "released": {"track": "label", **RELEASED}},
    axes=CurveAxes("shown", "drop"),
    **MASKING,
)
def insertion_aopc(outputs: PerturbedOutputs, track: Class = "explained") -> CurveAndParts:
    """Difference between the probability of the whole image and that of the highest patches alone.

    Options and parts as for `deletion_aopc`.
    """
    return probability_drop(outputs, track)


# ── both orders ──────────────────────────────────────────────────────────────────────────────────


def outputs_with_patches(
    model: PerturbedModel, keep: Subsets, remove: Remove, baseline: Baseline, space: Space, seed: int
) -> PerturbedOutputs:
    """Model outputs when only the kept patches are there; the others leave the encoder, or get a baseline's pixels."""
    if remove == "tokens":
        return model.outputs_of_logits(model.probe.logits(keep))

    def visible(row: Index, subset: Index) -> Bool[Tensor, "k H W"]:
        return enlarge_patches(keep[row, subset], model.probe.layout)

    subsets = torch.arange(keep.shape[1], device=keep.device)
    return model.outputs_of_pixels(subsets, visible, paint_baseline(model, baseline, space, seed))


@perturbation_metric(
    higher_is_better=True,
    formula="∫ f(x without the lowest r of patches) − f(x without the top r of patches) dr",
    bounds=(-torch.inf, torch.inf),
    axes=CurveAxes("removed", order=None),
    forwards="1 + 2 levels",
    paper="bluecher2024decoupling",
    trial={"levels": (0.25, 0.5, 0.75)},
    presets={"reslrp": {"of": "logit", "track": "label", "levels": PERCENT}},
)
def srg(
    model: PerturbedModel,
    levels: Levels | None = None,
    of: Literal["probability", "logit"] = "probability",
    track: Class = "explained",
    remove: Remove = "pixels",
    baseline: Baseline = "black",
    space: Space = "normalised",
    seed: Seed = 0,
) -> Measured:
    """Symmetric relevance gain: area between the curves of removing the lowest and the highest patches first.

    `levels`: removed shares, 0 and 1 always among them; None removes one patch at a time. `of`: the probability or the
    logit of the class `track`; the logit's area has its scale and is not comparable across models. `remove`: the patches'
    "pixels" are replaced by the `baseline`, or their "tokens" are removed. The parts are the areas of both curves.
    """
    rank, total = model.patch_ranks, model.probe.layout.patches
    shares = (
        range(total + 1) if levels is None else [count_of(level, total) for level in check_levels("levels", levels)]
    )
    counts = torch.tensor(sorted({0, *shares, total}), device=rank.device)[:, None]
    keep = torch.cat([rank[:, None] >= counts, rank[:, None] < total - counts], 1)
    outputs = outputs_with_patches(model, keep, remove, baseline, space, seed)
    values, _ = outputs.probability(track) if of == "probability" else outputs.logit(track)
    highest_first, lowest_first = values.chunk(2, 1)
    fractions = (counts[:, 0].double() / total).tolist()
    areas = [area_under(curve, fractions, "trapezoid") for curve in (highest_first, lowest_first)]
    parts: dict[str, Tensor] = dict(zip(("highest_first", "lowest_first"), areas, strict=True))
    return Measured(areas[1] - areas[0], lowest_first - highest_first, fractions, parts)


# ── one group at a time ──────────────────────────────────────────────────────────────────────────


@perturbation_metric(
    higher_is_better=True,
    formula="Σ_{i<j} ±(s_i − s_j) / Σ_{i<j} |s_i − s_j|, + where removing group i alone costs no less than removing group j",
    bounds=(-1, 1),
    affine_invariant=False,
    forwards="1 + groups",
    paper="wu2024faithfulness",
    trial={"groups": 4},
    presets={"paper": {"unit": "pixels", "scaled": True, "track": "predicted"}},
)
def saco(
    model: PerturbedModel,
    groups: Annotated[int, Range(2, 1000)] = 10,
    unit: Literal["patches", "pixels"] = "patches",
    scaled: bool = False,
    track: Class = "explained",
    baseline: Baseline = "mean",
    space: Space = "pixels",
    seed: Seed = 0,
) -> Measured:
    """Salience-guided faithfulness coefficient: whether removing groups with higher scores changes the output more.

    Patches or pixels (`unit`) are cut into `groups` of nearly equal size by their score; s is a group's sum of scores, of the
    map rescaled to [0, 1] if `scaled`. Where groups differ in size, a constant added to the map changes the result. NaN
    where all groups score the same.
    """
    attribution, probe = model.attribution, model.probe
    if unit == "patches":
        rank, scores = model.patch_ranks, attribution.patches
    else:
        rank, scores = model.pixel_ranks.long(), pixel_scores(attribution, probe)
    assert scores is not None
    total = scores.shape[1]
    if groups > total:
        raise SpecError(f"groups={groups}; the map has {total} {unit}, so 2 to {total} would work")
    scores = zero_to_one(scores) if scaled else scores
    borders = torch.tensor([total * group // groups for group in range(1, groups)], device=rank.device)
    group = torch.bucketize(rank, borders, right=True)  # [r n]
    group_index = torch.arange(groups, device=rank.device)
    group_of_pixel = (
        enlarge_patches(group, probe.layout)
        if unit == "patches"
        else group.unflatten(1, tuple(probe.images.shape[-2:]))
    )

    def visible(row: Index, subset: Index) -> Bool[Tensor, "k H W"]:
        return group_of_pixel[row] != subset[:, None, None]

    outputs = model.outputs_of_pixels(group_index, visible, paint_baseline(model, baseline, space, seed))
    left, whole = outputs.probability(track)
    drop = whole - left
    sums = scores.new_zeros(len(scores), groups).scatter_add_(1, group, scores).to(drop)
    difference = sums[:, :, None] - sums[:, None]
    agreed = torch.where(drop[:, :, None] >= drop[:, None], 1.0, -1.0)
    pairs = torch.ones_like(difference[0]).triu(1)
    above, below = ((part * pairs).sum((1, 2)) for part in (agreed * difference, difference.abs()))
    return Measured((above / below).where(below > 0, torch.nan), curve=drop, levels=range(groups))


# ── between the best and the worst order ─────────────────────────────────────────────────────────


@perturbation_metric(
    higher_is_better=True,
    formula="(AOPC − L) / (U − L), AOPC = meanₖ p(x) − p(x without the first k), U and L its limits over all orders",
    bounds=(-torch.inf, torch.inf),  # a beam may miss the limits
    axes=CurveAxes("removed", "drop"),
    forwards="1 + about beam · patches²",
    paper="edin2025normalized",
    trial={"beam": 1, "cells": 2},
)
def naopc(
    model: PerturbedModel,
    beam: Annotated[int, Range(1, 1000)] | None = 5,
    cells: Annotated[int, Range(2, 64)] | None = None,
    order: Order = "descending",
    track: Class = "explained",
    remove: Remove = "pixels",
    baseline: Baseline = "black",
    space: Space = "normalised",
    seed: Seed = 0,
) -> Measured:
    """AOPC of single patches, scaled so that the worst order of removal is 0 and the best one is 1, image by image.

    `beam`: number of orders that the search for the limits keeps at each step; None searches all subsets, for at most 20
    units. `cells`: units are cells × cells blocks of patches, whose scores are added up; None: single patches. `order`:
    "descending" is comprehensiveness, "ascending" sufficiency (lower is better). The parts are the AOPC and both limits.
    0 where the limits are the same.
    """
    attribution, probe = model.attribution, model.probe
    unit = number_units(probe, cells)
    units = int(unit.max()) + 1
    if beam is None and units > EXACT:
        raise SpecError(
            f"beam=None evaluates all subsets of {units} units; give a beam, or cells for at most {EXACT} units"
        )
    assert attribution.patches is not None
    rank = model.patch_ranks
    if cells is not None:
        sums = attribution.patches.new_zeros(len(rank), units).index_add_(1, unit, attribution.patches)
        rank = rank_cells(sums, probe)
    rank = rank if order == "descending" else units - 1 - rank

    def drops(removed: Bool[Tensor, "r m u"]) -> Float[Tensor, "r m"]:
        outputs = outputs_with_patches(model, ~removed[..., unit], remove, baseline, space, seed)
        left, whole = outputs.probability(track)
        return whole - left

    steps = torch.arange(1, units + 1, device=rank.device)[:, None]
    curve = drops(rank[:, None] < steps)
    value = curve.mean(-1)
    lower, upper = exact_limits(drops, rank) if beam is None else beam_limits(drops, rank, beam)
    span = upper - lower
    scores = torch.where(span > 0, (value - lower) / torch.where(span > 0, span, 1), 0.0)
    parts = {"aopc": value, "lower": lower, "upper": upper}
    levels = (steps[:, 0].double() / units).tolist()
    return Measured(scores, curve, levels, parts, flipped=order == "ascending")


def number_units(probe: BlackBoxProbe, cells: int | None) -> Int[Tensor, " p"]:
    """Index of the unit of every patch; SpecError if `cells` x `cells` do not divide the patches evenly."""
    rows, columns = probe.layout.grid
    blocks = (rows, columns) if cells is None else (cells, cells)
    if rows % blocks[0] or columns % blocks[1]:
        raise SpecError(f"cells={cells}; {cells} x {cells} blocks do not divide the {rows} x {columns} patches evenly")
    return number_rectangles((rows, columns), blocks).flatten().to(probe.images.device)


def subsets_from_bits(subsets: list[int], units: int) -> np.ndarray:
    """Boolean rows of subsets that are stored as bits."""
    return np.array([[(subset >> unit) & 1 for unit in range(units)] for subset in subsets], dtype=bool)


def beam_limits(drops: Drops, rank: Int[Tensor, "r u"], beam: int) -> tuple[Float[Tensor, " r"], Float[Tensor, " r"]]:
    """Smallest and largest AOPC that a beam search finds; orders that removed the same set are one.

    Two beams run side by side, one of the smallest and one of the largest sums of drops so far.
    """
    rows, units = rank.shape
    chains_by_row = [[{0: 0.0}, {0: 0.0}] for _ in range(rows)]  # subset (as bits) → sum of drops along its best chain
    for _ in range(units):
        fresh: list[list[int]] = []
        for lowest, highest in chains_by_row:
            parents = sorted({*lowest, *highest})
            fresh.append(sorted({p | 1 << u for p in parents for u in range(units) if not p >> u & 1}))
        most = max(map(len, fresh))
        padded = [subsets + subsets[:1] * (most - len(subsets)) for subsets in fresh]
        removed = torch.from_numpy(np.stack([subsets_from_bits(subsets, units) for subsets in padded])).to(rank.device)
        drop_table = drops(removed).double().cpu().numpy()
        for row, subsets in enumerate(fresh):
            drop = dict(zip(subsets, drop_table[row].tolist(), strict=False))
            chains_by_row[row] = [
                extend_chains(chains, drop, units, beam, best)
                for chains, best in zip(chains_by_row[row], (min, max), strict=True)
            ]
    ends = [[next(iter(chains.values())) / units for chains in pair] for pair in chains_by_row]
    limits = torch.tensor(ends, dtype=torch.float64, device=rank.device)
    return limits[:, 0], limits[:, 1]


def extend_chains(
    chains: dict[int, float], drop: dict[int, float], units: int, beam: int, best: Callable[[float, float], float]
) -> dict[int, float]:
    """Chains with one more unit removed: the `beam` smallest or largest sums (`best` is min or max)."""
    longer: dict[int, float] = {}
    for subset, total in chains.items():
        for unit in range(units):
            if not subset >> unit & 1:
                larger = subset | 1 << unit
                value = total + drop[larger]
                longer[larger] = best(longer.get(larger, value), value)
    order = sorted(longer.items(), key=lambda item: (item[1] if best is min else -item[1], item[0]))
    return dict(order[:beam])


def exact_limits(
    drops: Drops, rank: Int[Tensor, "r u"], chunk: int = 4096
) -> tuple[Float[Tensor, " r"], Float[Tensor, " r"]]:
    """Smallest and largest AOPC over all orders, as shortest and longest paths through all subsets."""
    rows, units = rank.shape
    subsets = torch.arange(2**units, device=rank.device)
    inside = (subsets[:, None] >> torch.arange(units, device=rank.device)) & 1 == 1
    parts = [drops(part.expand(rows, -1, -1)).double() for part in inside.split(chunk)]
    drop = torch.cat(parts, 1).cpu()
    inside, size = inside.cpu(), inside.sum(-1).cpu()
    limits = []
    for best, worst in ((torch.amin, torch.inf), (torch.amax, -torch.inf)):
        total = torch.zeros_like(drop)
        for count in range(1, units + 1):
            now = (size == count).nonzero()[:, 0]
            before = now[:, None] ^ (1 << torch.arange(units))  # with one unit put back
            chains = total[:, before.clamp(max=2**units - 1)].where(inside[now], worst)
            total[:, now] = drop[:, now] + best(chains, -1)
        limits.append((total[:, -1] / units).to(rank.device))
    return limits[0], limits[1]
