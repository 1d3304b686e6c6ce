"""Compare two runs on rows with the same model, dataset, method, metric, image and target class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.bench.resample import compute_difference_interval
from vitreous.bench.scores import MetricScores, ScoreSection
from vitreous.report.formatting import (
    ARROWS,
    choose_digits,
    format_count,
    format_interval,
    format_number,
    format_signed,
)
from vitreous.report.rendering import render_page
from vitreous.report.stored_run import StoredRun, read_run
from vitreous.report.tables import ReportTable, TableCell, TableHead

# summing float32 numbers in another order changes a score by less than this fraction of the largest score
# (docs/how-to/benchmark.md)
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Change:
    """Value of one method by one metric in two runs, over the image-target pairs that both runs have.

    Parameters
    ----------
    model, dataset, method, metric
        Labels and specs.
    explained
        "predicted" or "label" if both predicted and true classes were explained; else empty.
    higher_is_better
        None if the metric has no better direction.
    before, after, change
        The two values and their difference.
    low, high
        Paired 95 % interval of the difference.
    paired
        Number of image-target pairs that have a value in both runs.
    equal
        Number of these whose values agree within `TOLERANCE`.
    only_before, only_after
        Number of image-target pairs that have a value in one of the runs only.
    """

    model: str
    dataset: str
    explained: str
    method: str
    metric: str
    higher_is_better: bool | None
    before: float
    after: float
    change: float
    low: float
    high: float
    paired: int
    equal: int
    only_before: int
    only_after: int

    @property
    def verdict(self) -> str:
        """One of "better", "worse", "changed" (no better direction), "the same", "unclear", "not comparable"."""
        if not self.paired:
            return "not comparable"
        if self.equal == self.paired:
            return "the same"
        if isnan(self.low) or self.low <= 0 <= self.high:
            return "unclear"
        if self.higher_is_better is None:
            return "changed"
        return "better" if (self.change > 0) == self.higher_is_better else "worse"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between two runs.

    Parameters
    ----------
    before, after
        Names of the runs.
    changes
        One entry per model, dataset, method and metric that both runs have.
    only
        What only one run has: "before" or "after", kind, name.
    caveats
        Differences in provenance that limit the comparison.
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    only: tuple[tuple[str, str, str], ...]
    caveats: tuple[str, ...] = field(default_factory=tuple)

    def plain(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            "before": self.before,
            "after": self.after,
            "changes": [{**asdict(change), "verdict": change.verdict} for change in self.changes],
            "only": [{"run": side, "kind": kind, "name": name} for side, kind, name in self.only],
            "caveats": list(self.caveats),
        }


def compare_runs(
    before: str | Path, after: str | Path, before_run: str | None = None, after_run: str | None = None
) -> Comparison:
    """Compare two runs, of the same store or of two.

    Parameters
    ----------
    before, after
        Folders that `vitreous bench` wrote.
    before_run, after_run
        Names of the runs; the last ones if None.

    Returns
    -------
    Comparison

    Raises
    ------
    DataError
        If a run cannot be read.
    """
    old_run, new_run = read_run(before, before_run), read_run(after, after_run)
    new_sections = index_sections(new_run)
    changes, caveats = [], []
    for title, section in index_sections(old_run).items():
        counterpart = new_sections.get(title)
        if counterpart is not None:
            changes += list_changes(section, counterpart)
            caveats += list_caveats(section, counterpart)
    old, new = (f"{folder} ({run.name})" for folder, run in ((before, old_run), (after, new_run)))
    return Comparison(old, new, tuple(changes), tuple(list_unpaired(old_run, new_run)), tuple(dict.fromkeys(caveats)))


def index_sections(run: StoredRun) -> dict[str, ScoreSection]:
    """Sections by title, with the methods of all scores: a method is compared with itself, also if its score changed."""
    sections = (section.of_score("") for section in run.sections)
    return {section.title: section for section in sections}


def list_changes(before: ScoreSection, after: ScoreSection) -> list[Change]:
    """Compare all methods and metrics that two sections have in common."""
    metrics = {scores.metric: scores for scores in after.metrics}
    pairs = [(scores, metrics[scores.metric]) for scores in before.metrics if scores.metric in metrics]
    methods = [method for method in before.methods if method in after.methods]
    return [compare_scores(old, new, method) for method in methods for old, new in pairs]


def compare_scores(before: MetricScores, after: MetricScores, method: str) -> Change:
    """Compare one method and metric on the image-target pairs that both sections have."""
    section, old_places, new_places = before.section, before.section.place_by_key, after.section.place_by_key
    shared = [key for key in old_places if key in new_places]
    old = before.parts_of(method, [old_places[key] for key in shared])
    new = after.parts_of(method, [new_places[key] for key in shared])
    change, low, high = compute_difference_interval(old, new, before.reduce, [image for image, _ in shared])
    both = ~np.isnan(old["score"]) & ~np.isnan(new["score"])
    paired = int(both.sum())
    values, unpaired = [], []
    for scores, side in ((before, old), (after, new)):
        paired_parts = {name: np.where(both, part, np.nan) for name, part in side.items()}
        values.append(float(before.reduce(paired_parts)) if paired else np.nan)
        own = scores.parts_of(method, [*scores.section.place_by_key.values()])["score"]
        unpaired.append(int((~np.isnan(own)).sum()) - paired)
    equal = count_equal(old["score"][both], new["score"][both])
    where = (section.model, section.dataset, section.explained, method, before.metric, after.higher_is_better)
    return Change(*where, values[0], values[1], change, low, high, paired, equal, unpaired[0], unpaired[1])


def count_equal(before: np.ndarray, after: np.ndarray) -> int:
    """Count the scores that agree within `TOLERANCE` of the largest finite score."""
    scores = np.abs(np.concatenate([before, after]))
    largest = scores[np.isfinite(scores)].max(initial=0.0)
    return int(np.isclose(before, after, rtol=0.0, atol=TOLERANCE * largest).sum())


def list_caveats(before: ScoreSection, after: ScoreSection) -> list[str]:
    """Describe provenance and protocols that differ between two sections with the same title."""
    where = before.title
    caveats = []
    for name in ("weights", "precision", "vitreous", "torch", "question"):
        old, new = before.provenance.get(name, ()), after.provenance.get(name, ())
        if set(old) != set(new):
            short = [", ".join(value[:12] for value in side) or "nothing" for side in (old, new)]
            caveats.append(f"{where}: {name} went from {short[0]} to {short[1]}")
    columns = {column.metric: column for column in after.metrics}
    for column in before.metrics:
        new_column = columns.get(column.metric)
        if new_column is not None and dict(new_column.protocol) != dict(column.protocol):
            caveats.append(f"{where}: the protocol of {column.metric} is another one")
    return caveats


def list_unpaired(before: StoredRun, after: StoredRun) -> list[tuple[str, str, str]]:
    """What only one run has: "before" or "after", kind and name.

    These are sections that the other run lacks and, within sections that both have, methods, metrics and the number of
    image-target pairs.
    """
    entries: list[tuple[str, str, str]] = []
    for side, run, other_run in (("before", before, after), ("after", after, before)):
        counterparts = index_sections(other_run)
        for where, section in index_sections(run).items():
            counterpart = counterparts.get(where)
            if counterpart is None:
                entries.append((side, "model and dataset", where))
                continue
            methods = [method for method in section.methods if method not in counterpart.methods]
            entries += [(side, "method", f"{method} ({where})") for method in methods]
            metrics = {column.metric for column in counterpart.metrics}
            entries += [(side, "metric", f"{c.metric} ({where})") for c in section.metrics if c.metric not in metrics]
            missing = len(section.place_by_key.keys() - counterpart.place_by_key.keys())
            entries += [(side, "questions", f"{format_count(missing, 'image')} × class ({where})")] if missing else []
    return entries


# ── HTML page ────────────────────────────────────────────────────────────────────────────────────


def make_change_tables(comparison: Comparison) -> list[ReportTable]:
    """One table per model and dataset, with one row per method and metric."""
    changes_by_title: dict[str, list[Change]] = {}
    for change in comparison.changes:
        explained = f", {change.explained} class explained" if change.explained else ""
        changes_by_title.setdefault(f"{change.model} on {change.dataset}{explained}", []).append(change)
    heads = [TableHead(name) for name in ("metric", "before", "after", "change", "verdict", "questions")]
    return [
        ReportTable(f"change-{place}", title, heads, [(change.method, make_change_cells(change)) for change in changes])
        for place, (title, changes) in enumerate(changes_by_title.items())
    ]


def make_change_cells(change: Change) -> Sequence[TableCell]:
    digits = choose_digits([change.before, change.after])
    span = format_interval(change.low, change.high, digits)
    unpaired = change.only_before + change.only_after
    aside = f"{change.equal} the same" + (f", {unpaired} unpaired" if unpaired else "")
    return (
        TableCell(f"{change.metric} {ARROWS[change.higher_is_better]}".strip(), change.metric),
        TableCell(format_number(change.before, digits), change.before),
        TableCell(format_number(change.after, digits), change.after),
        TableCell(format_signed(change.change, digits), change.change, span),
        TableCell(change.verdict, change.verdict),
        TableCell(str(change.paired), change.paired, aside=aside),
    )


def render_comparison(comparison: Comparison) -> str:
    """The comparison as one self-contained HTML page."""
    return render_page("comparison.html", comparison=comparison, tables=make_change_tables(comparison))
