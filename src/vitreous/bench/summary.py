"""Values of whole datasets with intervals, ranks and ties, computed from the rows of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import isnan, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from vitreous.bench.resample import DRAWS, FEW, LEVEL, UNKNOWN, alike, gap, holds_0, interval, resampled, span
from vitreous.bench.scores import MetricScores, split_sections

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

COSTS = ["map_seconds", "seconds", "peak_mib"]


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """One method by one metric."""

    method: str
    value: float = nan  # by the metric's own reducer: a mean, or pooled
    low: float = nan  # of the 95 % interval, the same resampled images for every method; NaN for a single image
    high: float = nan
    rank: int | None = None  # 1 is best; None where the metric does not judge or there is no value
    tied: bool = (
        False  # not distinguishable from the best: the paired interval of the difference contains 0 or is unknown
    )
    rows: int = 0  # number of rows used: those on which no method failed
    undefined: int = 0  # of these, rows without a number
    errors: int = 0  # rows that failed
    error: str | None = None  # the first error message
    map_seconds: float = nan  # median per row
    seconds: float = nan
    peak_mib: float = nan


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """One metric of one model on one dataset: an entry per method, in the plan's order."""

    model: str
    dataset: str
    metric: str
    role: str  # of the explained class, where predicted and true classes were both explained; else empty
    higher_is_better: bool | None
    pictures: int
    entries: tuple[MethodSummary, ...]
    scores: MetricScores = field(repr=False)

    @property
    def best(self) -> MethodSummary | None:
        return next((entry for entry in self.entries if entry.rank == 1), None)

    def plain(self) -> dict[str, Any]:
        """The summary as values that JSON can hold."""
        names = ("model", "dataset", "metric", "role", "higher_is_better", "pictures")
        return {name: getattr(self, name) for name in names} | {"entries": [asdict(entry) for entry in self.entries]}

    @property
    def aligned(self) -> list[MethodSummary]:
        """One entry per method of the section; empty ones for methods that an unfinished run has no rows of."""
        entries = {entry.method: entry for entry in self.entries}
        return [entries.get(method) or MethodSummary(method) for method in self.scores.section.methods]

    @property
    def values(self) -> Float[np.ndarray, " m"]:
        return np.array([entry.value for entry in self.aligned])

    @property
    def judges(self) -> bool:
        """Whether the metric has a better direction and a value for at least one method."""
        return self.higher_is_better is not None and bool(np.isfinite(self.values).any())


def summarise(
    rows: pa.Table | pd.DataFrame, *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0
) -> list[MetricSummary]:
    """Summarise the rows of a run: one summary per model, dataset and metric, in the order of the plan.

    Where predicted and true classes were both explained, each has its own summaries; other classes of one image share theirs.

    Parameters
    ----------
    rows
        What `Store.table()` returns, or the same as a frame.
    draws
        Number of bootstrap resamples of the images.
    level
        Coverage of the intervals.
    seed
        Seed of the resampling.

    Returns
    -------
    list of MetricSummary
    """
    metrics = [scores for section in split_sections(rows) for scores in section.metrics]
    return [summarise_metric(scores, draws, level, seed) for scores in metrics]


def summarise_metric(scores: MetricScores, draws: int = DRAWS, level: float = LEVEL, seed: int = 0) -> MetricSummary:
    """Values, intervals, ranks and ties of every method by one metric."""
    section = scores.section
    rows = section.rows.loc[section.rows["metric"] == scores.metric]
    failed = rows.loc[rows["error"].notna()]
    counts = Counter(map(str, rows["method"]))  # in the order of the plan
    errors = Counter(map(str, failed["method"]))
    judged = [method for method in counts if errors[method] < counts[method]]
    units = common_questions(scores, failed, judged)
    pictures = [(section.questions[unit].index, section.questions[unit].picture) for unit in units]
    places = {method: section.methods.index(method) for method in judged} if len(units) else {}
    parts = {
        method: {name: part[place, units] for name, part in scores.parts.items()} for method, place in places.items()
    }
    values = {method: float(scores.reduce(own)) for method, own in parts.items()}
    drawn = resampled(parts, scores.reduce, pictures, draws, seed) if len(set(pictures)) >= FEW else {}
    spans = {method: span(parts[method], drawn[method], pictures, level) for method in drawn}
    ranks = rank_values(values, scores.higher_is_better)
    best = next((method for method, rank in ranks.items() if rank == 1), "")

    def is_tied(method: str) -> bool:
        if ranks[method] == 1:
            return True
        if not isnan(spans.get(method, UNKNOWN)[0]) and alike(parts[method], parts[best]):
            return holds_0(interval(drawn[method] - drawn[best], level))  # paired by construction: the same resamples
        return holds_0(gap(parts[best], parts[method], scores.reduce, pictures, draws, level, seed)[1:])

    messages = dict(zip(reversed([*failed["method"]]), reversed([*failed["error"]]), strict=True))  # the first of each
    costs = rows.groupby("method", sort=False)[COSTS].median()
    entries = [
        MethodSummary(
            method=method,
            value=values.get(method, nan),
            low=spans.get(method, UNKNOWN)[0],
            high=spans.get(method, UNKNOWN)[1],
            rank=ranks.get(method),
            tied=method in ranks and is_tied(method),
            rows=len(units) if method in values else 0,
            undefined=int(np.isnan(parts[method]["score"]).sum()) if method in values else 0,
            errors=errors[method],
            error=messages.get(method),
            **{name: float(value) for name, value in costs.loc[method].items()},
        )
        for method in counts
    ]
    where = (section.model, section.dataset, scores.metric, section.explained, scores.higher_is_better)
    return MetricSummary(*where, len(set(pictures)), tuple(entries), scores)


def common_questions(scores: MetricScores, failed: pd.DataFrame, judged: Sequence[str]) -> np.ndarray:
    """Places of questions that every working method answers, without images on which one of them failed.

    Only these can be compared in pairs.
    """
    section = scores.section
    working = [place for place, method in enumerate(section.methods) if method in judged]
    lost = failed[failed["method"].isin(judged)]
    pictures = set(zip(lost["index"], lost["picture"], strict=True))
    kept = np.array([(question.index, question.picture) not in pictures for question in section.questions])
    return np.flatnonzero(scores.answered[working].all(0) & kept) if working else np.empty(0, int)


def rank_values(values: dict[str, float], higher_is_better: bool | None) -> dict[str, int]:
    """Rank 1 for the best; equal values share a rank, and methods without a value have none."""
    if higher_is_better is None:
        return {}
    known = {method: value if higher_is_better else -value for method, value in values.items() if not isnan(value)}
    return {method: 1 + sum(other > value for other in known.values()) for method, value in known.items()}


def mean_ranks(summaries: Sequence[MetricSummary]) -> list[float]:
    """The mean rank of every method over the metrics that judge; NaN where it has none."""
    ranks = [[entry.rank or nan for entry in one.aligned] for one in summaries if one.higher_is_better is not None]
    if not ranks:
        return [nan] * (len(summaries[0].aligned) if summaries else 0)
    table = np.array(ranks, float)
    counts = (~np.isnan(table)).sum(0)
    return [float(total / count) if count else nan for total, count in zip(np.nansum(table, 0), counts, strict=True)]


def order_by_rank(summaries: Sequence[MetricSummary]) -> list[int]:
    """Places of the methods, the best mean rank first."""
    means = mean_ranks(summaries)
    return sorted(range(len(means)), key=lambda place: (isnan(means[place]), means[place], place))
