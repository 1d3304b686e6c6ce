"""Values of whole datasets with intervals, ranks and ties, computed from the rows of a store."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isnan, nan
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from jaxtyping import Float

from vitreous.bench.resample import (
    DRAWS,
    FEW,
    LEVEL,
    UNKNOWN,
    compute_difference_interval,
    compute_interval,
    compute_value_interval,
    contains_zero,
    have_same_rows,
    resample_values,
)
from vitreous.bench.rows import to_table
from vitreous.bench.scores import MetricScores, count_rows, make_sections
from vitreous.bench.section_files import SUMMARISED, collect_sections
from vitreous.bench.store import Store

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

K = TypeVar("K", bound=Hashable)
COSTS = ["map_seconds", "seconds", "peak_mib"]


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """Result of one method by one metric.

    Parameters
    ----------
    method
        Spec of the method.
    value
        Value over all rows by the metric's own reducer: a mean, or pooled.
    low, high
        95 % interval; all methods use the same resampled images. NaN for a single image.
    rank
        1 is best; None if the metric has no better direction or there is no value.
    tied
        Whether the method cannot be distinguished from the best: the paired interval of their difference contains 0 or
        is unknown.
    rows
        Number of rows used: those on which no method failed.
    undefined
        Number of these rows whose score is NaN.
    errors, error
        Number of rows that failed, and the first error message.
    map_seconds, seconds, peak_mib
        Medians over the rows.
    score
        Name of the score that the method explains; empty if its maps do not depend on the class.
    """

    method: str
    value: float = nan
    low: float = nan
    high: float = nan
    rank: int | None = None
    tied: bool = False
    rows: int = 0
    undefined: int = 0
    errors: int = 0
    error: str | None = None
    map_seconds: float = nan
    seconds: float = nan
    peak_mib: float = nan
    score: str = ""


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """Results of all methods by one metric, for one model on one dataset.

    Parameters
    ----------
    model, dataset, metric
        Labels and spec.
    role
        Role of the explained class if both predicted and true classes were explained; else empty.
    higher_is_better
        None if the metric has no better direction.
    image_count
        Number of images used.
    entries
        One entry per method, in the order of the plan.
    scores
        The scores that were summarised.
    score
        Name of the score that the methods explain, if the run has methods that explain others; else empty. Methods are
        only compared with those that explain the same score, or whose maps do not depend on the class.
    """

    model: str
    dataset: str
    metric: str
    role: str
    higher_is_better: bool | None
    image_count: int
    entries: tuple[MethodSummary, ...]
    scores: MetricScores = field(repr=False)
    score: str = ""

    @property
    def best(self) -> MethodSummary | None:
        return next((entry for entry in self.entries if entry.rank == 1), None)

    def plain(self) -> dict[str, Any]:
        """The summary as JSON values."""
        facts = {
            name: getattr(self, name) for name in ("model", "dataset", "metric", "role", "score", "higher_is_better")
        }
        return {**facts, "images": self.image_count, "entries": [asdict(entry) for entry in self.entries]}

    @property
    def aligned(self) -> list[MethodSummary]:
        """One entry per method of the section; empty entries for methods without rows in an unfinished run."""
        entries = {entry.method: entry for entry in self.entries}
        scores = self.scores.section.score_by_method
        return [entries.get(method) or MethodSummary(method, score=score) for method, score in scores.items()]

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

    If both predicted and true classes were explained, they are summarised separately; other target classes of an image
    are summarised together. Methods that explain different scores, such as the logit and the probability, are
    summarised separately as well, each time with the methods whose maps do not depend on the class.

    Parameters
    ----------
    rows
        Result of `Store.table()`, or the same as a frame.
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
    import pyarrow as pa

    if not isinstance(rows, pa.Table):
        frame = rows.assign(parts=[[*(parts or {}).items()] for parts in rows["parts"]]).astype(object)
        rows = to_table("scores", frame.where(frame.notna(), None).to_dict("records"))
    return summarise_tables([rows], draws, level, seed)


def summarise_store(
    store: Store, run: str | None = None, *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0
) -> list[MetricSummary]:
    """As `summarise(store.table(run))`, in memory that holds the rows of one metric of one model and dataset.

    Parameters
    ----------
    store
        The store.
    run
        Name of the run; the last one if None.
    draws, level, seed
        As for `summarise`.

    Returns
    -------
    list of MetricSummary
    """
    return summarise_tables(store.scan(run, "scores", SUMMARISED), draws, level, seed)


def summarise_tables(tables: Iterable[pa.Table], draws: int, level: float, seed: int) -> list[MetricSummary]:
    """One summary per metric of every section; the tables hold the rows of a cell each."""
    sections = make_sections(collect_sections(enumerate(tables)))
    return [summarise_metric(scores, draws, level, seed) for section in sections for scores in section.metrics]


def summarise_metric(scores: MetricScores, draws: int = DRAWS, level: float = LEVEL, seed: int = 0) -> MetricSummary:
    """Compute values, intervals, ranks and ties of all methods by one metric."""
    section, facts, rows = scores.section, scores.facts, scores.rows()
    failed_facts = facts.loc[facts["error"].notna()]
    counts, errors = count_rows(facts, "method"), count_rows(failed_facts, "method")
    judged = [method for method in counts if errors[method] < counts[method]]
    units = find_common_questions(scores, rows, judged)
    images = [(section.questions[unit].index, section.questions[unit].image) for unit in units]
    parts = {method: scores.parts_of(method, units.tolist()) for method in judged} if len(units) else {}
    values = {method: float(scores.reduce(own)) for method, own in parts.items()}
    drawn = resample_values(parts, scores.reduce, images, draws, seed) if len(set(images)) >= FEW else {}
    spans = {method: compute_value_interval(parts[method], drawn[method], images, level) for method in drawn}
    ranks = rank_values(values, scores.higher_is_better)
    best = next((method for method, rank in ranks.items() if rank == 1), "")

    def is_tied(method: str) -> bool:
        if ranks[method] == 1:
            return True
        if not isnan(spans.get(method, UNKNOWN)[0]) and have_same_rows(parts[method], parts[best]):
            return contains_zero(
                compute_interval(drawn[method] - drawn[best], level)
            )  # paired, since both use the same resamples
        return contains_zero(
            compute_difference_interval(parts[best], parts[method], scores.reduce, images, draws, level, seed)[1:]
        )

    messages = failed_facts.drop_duplicates("method").set_index("method")["error"].to_dict()
    method_names = np.array([*section.files.methods], object)[rows["method_at"].to_numpy()]
    costs = rows.select(COSTS).to_pandas().groupby(method_names, sort=False).median()
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
            score=section.score_by_method.get(method, ""),
            **{name: float(value) for name, value in costs.loc[method].items()},
        )
        for method in counts
    ]
    where = (section.model, section.dataset, scores.metric, section.explained, scores.higher_is_better)
    return MetricSummary(*where, len(set(images)), tuple(entries), scores, section.score)


def find_common_questions(scores: MetricScores, rows: pa.Table, judged: Sequence[str]) -> np.ndarray:
    """Indices of the image-target pairs that every working method has a row for.

    Images on which one of these methods failed are left out, so that methods are compared on the same rows.
    """
    section = scores.section
    working = [place for place, method in enumerate(section.methods) if method in judged]
    is_judged = np.array([method in judged for method in section.files.methods])
    failed = rows.filter(rows["failed"].to_numpy() & is_judged[rows["method_at"].to_numpy()])
    failed_questions = [section.files.questions[at] for at in failed["question_at"].unique().to_pylist()]
    lost_images = {(question.index, question.image) for question in failed_questions}
    keep_mask = np.array([(question.index, question.image) not in lost_images for question in section.questions])
    return np.flatnonzero(scores.answered[working].all(0) & keep_mask) if working else np.empty(0, int)


def rank_values(values: Mapping[K, float], higher_is_better: bool | None) -> dict[K, int]:
    """Rank of every method, 1 for the best; equal values share a rank, methods without a value have none."""
    import pandas as pd

    if higher_is_better is None:
        return {}
    ranks = pd.Series(dict(values), dtype=float).rank(method="min", ascending=not higher_is_better)
    return ranks.dropna().astype(int).to_dict()


def compute_mean_ranks(summaries: Sequence[MetricSummary]) -> list[float]:
    """Mean rank of every method over the metrics with a better direction; NaN if it has no rank."""
    import pandas as pd

    judging = [summary.aligned for summary in summaries if summary.higher_is_better is not None]
    methods = range(len(summaries[0].aligned) if summaries else 0)
    ranks = pd.DataFrame([[entry.rank for entry in entries] for entries in judging], columns=methods, dtype=float)
    return ranks.mean().tolist()


def order_by_rank(summaries: Sequence[MetricSummary]) -> list[int]:
    """Indices of the methods, best mean rank first."""
    means = compute_mean_ranks(summaries)
    return sorted(range(len(means)), key=lambda place: (isnan(means[place]), means[place], place))
