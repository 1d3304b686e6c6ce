"""Statistics besides paired differences: orders of methods, the best start, selection on one half, groups by probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isnan, nan

import numpy as np

from study.effects import Effect, Figure, compute_effect, compute_figures
from study.sheets import Sheet, average
from vitreous.bench.resample import DRAWS, LEVEL, UNKNOWN, compute_interval


@dataclass(frozen=True, slots=True)
class Order:
    """Agreement of the orders of methods by two metrics."""

    model: str
    dataset: str
    metric: str
    truth: str
    among: str  # "all" methods, or the "better half" by the truth
    methods: int
    n: int  # images
    tau: float  # Kendall's τ-b
    tau_low: float
    tau_high: float
    rho: float  # Spearman's
    rho_low: float
    rho_high: float


def compare_orders(metric: Sheet, truth: Sheet, among: str = "all", draws: int = 1000, seed: int = 0) -> Order:
    """Agreement of two orders; for the interval both are computed again for every resample of the images."""
    methods, figures_of = align_sheets(metric, truth, among)
    names = list(dict.fromkeys(metric.images))
    weights = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    pairs = [correlate_ranks(*figures_of(row)) for row in (np.ones(len(names)), *weights)]
    (tau, rho), drawn = pairs[0], np.array(pairs[1:])
    where = (metric.model, metric.dataset, metric.metric, truth.metric, among, len(methods), len(names))
    return Order(*where, tau, *centre_interval(tau, drawn[:, 0]), rho, *centre_interval(rho, drawn[:, 1]))


def centre_interval(value: float, drawn: np.ndarray) -> tuple[float, float]:
    """Interval of resampled agreements, shifted to the measured one: resampled orders are noisier, so they agree less on average."""
    if np.isnan(drawn).all():
        return UNKNOWN
    low, high = compute_interval(drawn - np.nanmean(drawn) + value, LEVEL)
    return max(low, -1.0), min(high, 1.0)


def compute_ceiling(truth: Sheet, among: str = "all", draws: int = 1000, seed: int = 0) -> Order:
    """Agreement of the ground truth with itself on other images: two random halves."""
    methods, figures_of = align_sheets(truth, truth, among)
    names = list(dict.fromkeys(truth.images))
    draw, pairs = np.random.default_rng(seed), []
    for _ in range(draws):
        half = np.isin(np.arange(len(names)), draw.permutation(len(names))[: len(names) // 2]).astype(float)
        pairs.append(correlate_ranks(figures_of(half)[0], figures_of(1 - half)[0]))
    agreements = np.array(pairs)
    where = (truth.model, truth.dataset, "the same truth, other images", truth.metric, among, len(methods), len(names))
    tau, rho = (float(np.nanmean(column)) if not np.isnan(column).all() else nan for column in agreements.T)
    return Order(
        *where, tau, *compute_interval(agreements[:, 0], LEVEL), rho, *compute_interval(agreements[:, 1], LEVEL)
    )


def align_sheets(metric: Sheet, truth: Sheet, among: str):
    """Methods with scores for most rows of both sheets, and a function from image weights to the means of both (more is better)."""
    if metric.images != truth.images:
        raise LookupError(f"{metric.metric} and {truth.metric} were measured on different images")
    both = [method for method in truth.methods if method in metric.methods]
    sides = [
        np.array([sheet.row(method)["score"] for method in both]) * (-1 if sheet.higher is False else 1)
        for sheet in (metric, truth)
    ]
    names = list(dict.fromkeys(metric.images))
    image_of_row = np.array([names.index(name) for name in metric.images])
    defined = [place for place in range(len(both)) if all((~np.isnan(side[place])).mean() > 0.5 for side in sides)]
    if among == "better half":
        level = {place: float(average({"score": sides[1][place]})) for place in defined}
        defined = sorted(defined, key=lambda place: -level[place])[: (len(defined) + 1) // 2]
    sides = [side[defined] for side in sides]

    def weigh(weights: np.ndarray) -> list[np.ndarray]:
        per_row = weights[image_of_row]
        with np.errstate(invalid="ignore"):
            return [np.where(np.isnan(s), 0, s) @ per_row / (~np.isnan(s) @ per_row) for s in sides]

    return [both[place] for place in defined], weigh


def correlate_ranks(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Kendall's τ-b and Spearman's ρ over methods; equal values are ties."""
    good = ~np.isnan(first) & ~np.isnan(second)
    a, b = first[good], second[good]
    if len(a) < 3:
        return nan, nan
    up, across = np.sign(a[:, None] - a), np.sign(b[:, None] - b)
    total = np.sqrt((up**2).sum() * (across**2).sum())
    ranks = [(signs.sum(1) - signs.sum(1).mean()) for signs in (up, across)]  # midranks up to a factor and a shift
    spread = np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum())
    return (
        float((up * across).sum() / total) if total else nan,
        float(ranks[0] @ ranks[1] / spread) if spread else nan,
    )


# ── the best start ───────────────────────────────────────────────────────────────────────────────


def compute_regret(sheet: Sheet, starts: Mapping[int, str], middle: int) -> Effect:
    """The middle start minus the best one, which is selected on the other half of the images to avoid selection bias."""
    specs = list(starts.values())
    scores = np.array([sheet.row(spec)["score"] for spec in specs])
    halves = np.arange(len(sheet.images)) % 2
    whole = ~np.isnan(scores).any(0)  # starts are compared on the same images
    best = np.full(len(sheet.images), nan)
    for half in (0, 1):
        level = scores[:, whole & (halves != half)].sum(1) * (-1 if sheet.higher is False else 1)
        best[whole & (halves == half)] = scores[int(level.argmax()), whole & (halves == half)]
    own = scores[specs.index(starts[middle])]
    both = replace(
        sheet, methods=(starts[middle], "best start"), parts={"score": np.stack([own, best])}, reduce=average
    )
    return compute_effect(both, starts[middle], "best start")


# ── selected on one half, confirmed on the other ─────────────────────────────────────────────────────────────────


def confirm_selection(
    choose: Sheet, confirm: Sheet, published: Sequence[str], draws: int = DRAWS, best: int = 1
) -> list[Effect]:
    """The best unpublished combinations against the best published one: selected on one half, compared on both."""
    level = {figure.method: figure.mean for figure in compute_figures(choose, draws=2)}
    ranking = sorted((method for method in level if not isnan(level[method])), key=lambda method: -level[method])
    best_published = next(method for method in ranking if method in published)
    best_new = [method for method in ranking if method not in published][:best]
    return [compute_effect(sheet, method, best_published, draws) for method in best_new for sheet in (choose, confirm)]


# ── where label and prediction differ ────────────────────────────────────────────────────────────

GAPS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))


def split_by_gap(label: Sheet, predicted: Sheet) -> list[tuple[Sheet, Sheet]]:
    """Sheets of the true and the predicted class on wrongly classified images, grouped by the gap of their probabilities."""
    places = {image: place for place, image in enumerate(predicted.images)}
    predicted_rows = np.array([places[image] for image in label.images])
    gap = predicted.probability[predicted_rows] - label.probability
    gaps = []
    for low, high in GAPS:
        rows = np.flatnonzero((gap > low) & (gap <= high))
        if len(rows):
            words = f"{label.dataset}, gap {low:g}–{high:g}"
            gaps.append(
                tuple(
                    select_images(sheet, at, words) for sheet, at in ((label, rows), (predicted, predicted_rows[rows]))
                )
            )
    return gaps


def select_images(sheet: Sheet, rows: np.ndarray, dataset: str) -> Sheet:
    return replace(
        sheet,
        dataset=dataset,
        images=tuple(sheet.images[place] for place in rows),
        parts={name: values[:, rows] for name, values in sheet.parts.items()},
        probability=sheet.probability[rows],
    )


def compute_gap_figures(label: Sheet, predicted: Sheet) -> list[Figure]:
    """Figures of both classes in every range of the gap."""
    return [row for both in split_by_gap(label, predicted) for sheet in both for row in compute_figures(sheet)]


def compute_gap_effects(label: Sheet, predicted: Sheet, pairs: Sequence[tuple[str, str]]) -> list[Effect]:
    """In every range of the gap: the true class minus the predicted one for every method, and pairs of methods for the true class."""
    effects = []
    for true, own in split_by_gap(label, predicted):
        for method in true.methods:
            rows = [sheet.row(method)["score"] for sheet in (true, own)]
            both = replace(true, methods=(method, "predicted class"), parts={"score": np.stack(rows)}, reduce=average)
            effects.append(compute_effect(both, method, "predicted class"))
        effects += [compute_effect(true, *pair) for pair in pairs if set(pair) <= set(true.methods)]
    return effects


# ── by the probability of the explained class ────────────────────────────────────────────────────────────────────────

PROBABILITY_BANDS = (0.0, 0.5, 0.9, 1.0)


def compare_by_probability(sheet: Sheet, pairs: Sequence[tuple[str, str]]) -> list[Effect]:
    """Effects in ranges of the probability of the explained class."""
    band = np.searchsorted(PROBABILITY_BANDS[1:-1], sheet.probability, side="right")
    effects = []
    for place, (low, high) in enumerate(pairwise(PROBABILITY_BANDS)):
        own = select_images(sheet, np.flatnonzero(band == place), f"{sheet.dataset}, p {low:g}–{high:g}")
        effects += [compute_effect(own, *pair) for pair in pairs if set(pair) <= set(own.methods)]
    return effects
