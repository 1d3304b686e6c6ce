"""Uncertainty of the order of the candidates for the default: worst cases on resampled images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from study.effects import Effect, compute_p_value
from study.sheets import Sheet
from vitreous.bench.resample import DRAWS, LEVEL, compute_interval

JUDGED = ("faithfulness", "ap", "class_discrimination")
Columns = dict[str, np.ndarray]  # criterion: [candidates, draws]


def compute_criteria(sheets: Sequence[Sheet], candidates: Sequence[str], draws: int, seed: int = 0) -> Columns:
    """Every criterion of every candidate, first on all images and then on resampled images.

    0 is a random map and 1 the best candidate; for negative objects it is the share of images without one, and for the shortcut
    the difference between the model that uses it and the one that does not.
    """
    counts: dict[tuple[str, str], np.ndarray] = {}
    columns: Columns = {}
    stamps: dict[str, np.ndarray] = {}
    for sheet in sheets:
        if sheet.metric not in (*JUDGED, "object_negative", "stamp_above_thing"):
            continue
        rows = np.stack([sheet.row(method)["score"] for method in (*candidates, "random")])
        defined = ~np.isnan(rows).any(0)
        group = (sheet.model if sheet.metric != "stamp_above_thing" else "", sheet.dataset)
        drawn = counts.setdefault(group, draw_image_counts(len(sheet.images), draws, seed))[:, defined]
        means = rows[:, defined] @ (drawn / drawn.sum(1, keepdims=True)).T  # [candidates + 1, draws]
        name = f"{sheet.metric}, {sheet.dataset}, {sheet.model}"
        if sheet.metric == "stamp_above_thing":
            stamps[sheet.model] = means[:-1]
        elif sheet.metric == "object_negative":
            columns[name] = 1 - means[:-1]
        else:
            columns[name] = (means[:-1] - means[-1]) / (means[:-1].max(0) - means[-1])
    if {"scenes-biased", "scenes"} <= stamps.keys():
        columns["shortcut exposed, Scenes"] = stamps["scenes-biased"] - stamps["scenes"]
    return columns


def draw_image_counts(images: int, draws: int, seed: int) -> np.ndarray:
    """How often every image is drawn in each resample, [draws + 1, images]; once each in the first row."""
    drawn = np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), size=draws)
    return np.concatenate([np.ones((1, images), int), drawn])


def compare_worst_cases(
    sheets: Sequence[Sheet], is_candidate: Callable[[str], bool], default: str, draws: int = DRAWS
) -> list[Effect]:
    """Worst case and mean of every candidate over the criteria, minus those of the default."""
    used = [sheet for sheet in sheets if sheet.metric in (*JUDGED, "object_negative", "stamp_above_thing")]
    if not used:
        return []
    common = set.intersection(*(set(sheet.methods) for sheet in used))
    candidates = [
        method for method in used[0].methods if method in common and method != "random" and is_candidate(method)
    ]
    if default not in candidates or "random" not in common:
        return []
    columns = compute_criteria(used, candidates, draws)
    stacked = np.stack(list(columns.values()))
    effects = []
    for metric, value in (("worst_case", stacked.min(0)), ("mean_case", stacked.mean(0))):
        own = value[candidates.index(default)]
        for place, method in enumerate(candidates):
            gap = value[place] - own
            where = ("all", "all", "", metric, method, default, min(len(sheet.images) for sheet in used))
            effects.append(Effect(*where, float(gap[0]), *compute_interval(gap[1:], LEVEL), compute_p_value(gap[1:])))
    return effects


def index_by_method(rows: Sequence[Effect], metric: str) -> Mapping[str, Effect]:
    return {row.method: row for row in rows if row.metric == metric}
