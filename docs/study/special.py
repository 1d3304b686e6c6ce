"""What is more than a difference of two means: orders of methods, the best start, cells chosen on one half, confidence."""

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
    """How far two metrics put methods in the same order."""

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
    """Both orders anew for every resample of the images; the interval is that of their agreement."""
    methods, figures_of = align_sheets(metric, truth, among)
    names = list(dict.fromkeys(metric.pictures))
    weights = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    pairs = [correlate_ranks(*figures_of(row)) for row in (np.ones(len(names)), *weights)]
    (tau, rho), drawn = pairs[0], np.array(pairs[1:])
    where = (metric.model, metric.dataset, metric.metric, truth.metric, among, len(methods), len(names))
    return Order(*where, tau, *centre_interval(tau, drawn[:, 0]), rho, *centre_interval(rho, drawn[:, 1]))


def centre_interval(value: float, drawn: np.ndarray) -> tuple[float, float]:
    """The spread of resampled agreements, moved to the measured one: resampled orders are noisier, so they agree less on average."""
    if np.isnan(drawn).all():
        return UNKNOWN
    low, high = compute_interval(drawn - np.nanmean(drawn) + value, LEVEL)
    return max(low, -1.0), min(high, 1.0)


def compute_ceiling(truth: Sheet, among: str = "all", draws: int = 1000, seed: int = 0) -> Order:
    """How far the truth agrees with itself on other images: two random halves."""
    methods, figures_of = align_sheets(truth, truth, among)
    names = list(dict.fromkeys(truth.pictures))
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
    """Methods that both define on most questions, and a function from weights of the images to both figures, more being better."""
    if metric.pictures != truth.pictures:
        raise LookupError(f"{metric.metric} and {truth.metric} were measured on different images")
    both = [method for method in truth.methods if method in metric.methods]
    sides = [
        np.array([sheet.row(method)["score"] for method in both]) * (-1 if sheet.higher is False else 1)
        for sheet in (metric, truth)
    ]
    names = list(dict.fromkeys(metric.pictures))
    picture = np.array([names.index(method) for method in metric.pictures])
    known = [place for place in range(len(both)) if all((~np.isnan(side[place])).mean() > 0.5 for side in sides)]
    if among == "better half":
        level = {place: float(average({"score": sides[1][place]})) for place in known}
        known = sorted(known, key=lambda place: -level[place])[: (len(known) + 1) // 2]
    sides = [side[known] for side in sides]

    def weighed(weights: np.ndarray) -> list[np.ndarray]:
        per_row = weights[picture]
        with np.errstate(invalid="ignore"):
            return [np.where(np.isnan(s), 0, s) @ per_row / (~np.isnan(s) @ per_row) for s in sides]

    return [both[place] for place in known], weighed


def correlate_ranks(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Kendall's τ-b and Spearman's ρ over methods; equal figures are ties."""
    good = ~np.isnan(first) & ~np.isnan(second)
    a, b = first[good], second[good]
    if len(a) < 3:
        return nan, nan
    up, across = np.sign(a[:, None] - a), np.sign(b[:, None] - b)
    total = np.sqrt((up**2).sum() * (across**2).sum())
    ranks = [(signs.sum(1) - signs.sum(1).mean()) for signs in (up, across)]  # midranks, but for factor and shift
    spread = np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum())
    return (
        float((up * across).sum() / total) if total else nan,
        float(ranks[0] @ ranks[1] / spread) if spread else nan,
    )


# ── the best start ───────────────────────────────────────────────────────────────────────────────


def compute_regret(sheet: Sheet, starts: Mapping[int, str], middle: int) -> Effect:
    """The middle start less the best one, which is chosen on the other half of the images: choosing by luck gains nothing."""
    specs = list(starts.values())
    scores = np.array([sheet.row(spec)["score"] for spec in specs])
    halves = np.arange(len(sheet.pictures)) % 2
    whole = ~np.isnan(scores).any(0)  # starts are compared on the same images
    best = np.full(len(sheet.pictures), nan)
    for half in (0, 1):
        level = scores[:, whole & (halves != half)].sum(1) * (-1 if sheet.higher is False else 1)
        best[whole & (halves == half)] = scores[int(level.argmax()), whole & (halves == half)]
    own = scores[specs.index(starts[middle])]
    both = replace(
        sheet, methods=(starts[middle], "best start"), parts={"score": np.stack([own, best])}, reduce=average
    )
    return compute_effect(both, starts[middle], "best start")


# ── chosen here, confirmed there ─────────────────────────────────────────────────────────────────


def confirm_selection(
    choose: Sheet, confirm: Sheet, published: Sequence[str], draws: int = DRAWS, best: int = 1
) -> list[Effect]:
    """The best unpublished combinations against the best that somebody did: chosen on one half, compared on both."""
    level = {figure.method: figure.mean for figure in compute_figures(choose, draws=2)}
    known = sorted((method for method in level if not isnan(level[method])), key=lambda method: -level[method])
    theirs = next(method for method in known if method in published)
    ours = [method for method in known if method not in published][:best]
    return [compute_effect(sheet, method, theirs, draws) for method in ours for sheet in (choose, confirm)]


# ── where label and prediction differ ────────────────────────────────────────────────────────────

GAPS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))


def split_by_gap(label: Sheet, predicted: Sheet) -> list[tuple[Sheet, Sheet]]:
    """Wrongly classified images, by how much surer the model is of its own class than of the true one; both classes."""
    places = {picture: place for place, picture in enumerate(predicted.pictures)}
    theirs = np.array([places[picture] for picture in label.pictures])
    gap = predicted.probability[theirs] - label.probability
    gaps = []
    for low, high in GAPS:
        rows = np.flatnonzero((gap > low) & (gap <= high))
        if len(rows):
            words = f"{label.dataset}, gap {low:g}–{high:g}"
            gaps.append(
                tuple(select_images(sheet, at, words) for sheet, at in ((label, rows), (predicted, theirs[rows])))
            )
    return gaps


def select_images(sheet: Sheet, rows: np.ndarray, dataset: str) -> Sheet:
    return replace(
        sheet,
        dataset=dataset,
        pictures=tuple(sheet.pictures[place] for place in rows),
        parts={name: values[:, rows] for name, values in sheet.parts.items()},
        probability=sheet.probability[rows],
    )


def compute_gap_figures(label: Sheet, predicted: Sheet) -> list[Figure]:
    """Figures of both classes, gap by gap."""
    return [row for both in split_by_gap(label, predicted) for sheet in both for row in compute_figures(sheet)]


def compute_gap_effects(label: Sheet, predicted: Sheet, pairs: Sequence[tuple[str, str]]) -> list[Effect]:
    """Gap by gap: of every method the true class less the predicted one, and of the true class a method less another."""
    effects = []
    for true, own in split_by_gap(label, predicted):
        for method in true.methods:
            rows = [sheet.row(method)["score"] for sheet in (true, own)]
            both = replace(true, methods=(method, "predicted class"), parts={"score": np.stack(rows)}, reduce=average)
            effects.append(compute_effect(both, method, "predicted class"))
        effects += [compute_effect(true, *pair) for pair in pairs if set(pair) <= set(true.methods)]
    return effects


# ── how sure the model is ────────────────────────────────────────────────────────────────────────

PROBABILITY_BANDS = (0.0, 0.5, 0.9, 1.0)


def compare_by_probability(sheet: Sheet, pairs: Sequence[tuple[str, str]]) -> list[Effect]:
    """Differences among images of whose explained class the model is about as sure."""
    band = np.searchsorted(PROBABILITY_BANDS[1:-1], sheet.probability, side="right")
    effects = []
    for place, (low, high) in enumerate(pairwise(PROBABILITY_BANDS)):
        own = select_images(sheet, np.flatnonzero(band == place), f"{sheet.dataset}, p {low:g}–{high:g}")
        effects += [compute_effect(own, *pair) for pair in pairs if set(pair) <= set(own.methods)]
    return effects
