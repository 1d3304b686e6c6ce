"""Compare two runs on rows with the same model, dataset, method, metric, image and target class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.bench.resample import gap as difference
from vitreous.bench.scores import MetricScores, ScoreSection
from vitreous.report.formatting import choose_digits, format_count, format_interval, format_number
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
            "changes": [{**asdict(one), "verdict": one.verdict} for one in self.changes],
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
    one, other = read_run(before, before_run), read_run(after, after_run)
    held = {block.title: block for block in other.sections}
    changes, caveats = [], []
    for block in one.sections:
        twin = held.get(block.title)
        if twin is not None:
            changes += changes_of(block, twin)
            caveats += caveats_of(block, twin)
    old, new = (f"{folder} ({run.name})" for folder, run in ((before, one), (after, other)))
    return Comparison(old, new, tuple(changes), tuple(alone(one, other)), tuple(dict.fromkeys(caveats)))


def changes_of(before: ScoreSection, after: ScoreSection) -> list[Change]:
    """Compare all methods and metrics that two sections have in common."""
    columns = {column.metric: column for column in after.metrics}
    return [
        change_of(before, after, method, column, columns[column.metric])
        for method in before.methods
        if method in after.methods
        for column in before.metrics
        if column.metric in columns
    ]


def change_of(
    before: ScoreSection, after: ScoreSection, method: str, column: MetricScores, other: MetricScores
) -> Change:
    """Compare one method and metric on the image-target pairs that both sections have."""
    rows = before.methods.index(method), after.methods.index(method)
    places = {question.key: place for place, question in reversed(list(enumerate(after.questions)))}
    here = {question.key: place for place, question in reversed(list(enumerate(before.questions)))}
    shared = [key for key in here if key in places]
    ours, theirs = [here[key] for key in shared], [places[key] for key in shared]
    old = {name: part[rows[0], ours] for name, part in column.parts.items()}
    new = {name: part[rows[1], theirs] for name, part in other.parts.items()}
    gap, low, high = difference(old, new, column.reduce, [key[0] for key in shared])
    both = ~np.isnan(old["score"]) & ~np.isnan(new["score"])
    figures = [
        float(column.reduce({name: np.where(both, part, np.nan) for name, part in side.items()}))
        if both.any()
        else np.nan
        for side in (old, new)
    ]
    same = count_equal(old["score"][both], new["score"][both])
    answered = int(both.sum())
    alone = [
        int((~np.isnan(one.scores[row, list(at.values())])).sum()) - answered
        for one, row, at in ((column, rows[0], here), (other, rows[1], places))
    ]
    where = (before.model, before.dataset, before.explained, method, column.metric, other.higher_is_better)
    return Change(*where, figures[0], figures[1], gap, low, high, answered, same, *alone)


def count_equal(before: np.ndarray, after: np.ndarray) -> int:
    """Count the scores that agree within `TOLERANCE` of the largest finite score."""
    scores = np.abs(np.concatenate([before, after]))
    largest = scores[np.isfinite(scores)].max(initial=0.0)
    return int(np.isclose(before, after, rtol=0.0, atol=TOLERANCE * largest).sum())


def caveats_of(before: ScoreSection, after: ScoreSection) -> list[str]:
    """Describe provenance and protocols that differ between two sections with the same title."""
    where = before.title
    said = []
    for name in ("weights", "precision", "vitreous", "torch", "question"):
        old, new = before.provenance.get(name, ()), after.provenance.get(name, ())
        if set(old) != set(new):
            short = [", ".join(one[:12] for one in side) or "nothing" for side in (old, new)]
            said.append(f"{where}: {name} went from {short[0]} to {short[1]}")
    columns = {column.metric: column for column in after.metrics}
    for column in before.metrics:
        twin = columns.get(column.metric)
        if twin is not None and dict(twin.protocol) != dict(column.protocol):
            said.append(f"{where}: the protocol of {column.metric} is another one")
    return said


def alone(before: StoredRun, after: StoredRun) -> list[tuple[str, str, str]]:
    """What only one run has: "before" or "after", kind and name.

    These are sections that the other run lacks and, within sections that both have, methods, metrics and the number of
    image-target pairs.
    """
    found: list[tuple[str, str, str]] = []
    sides = {"before": before, "after": after}
    blocks = {side: {b.title: b for b in run.sections} for side, run in sides.items()}
    for side, rest in (("before", "after"), ("after", "before")):
        for key, block in blocks[side].items():
            where = block.title
            twin = blocks[rest].get(key)
            if twin is None:
                found.append((side, "model and dataset", where))
                continue
            found += [(side, "method", f"{one} ({where})") for one in block.methods if one not in twin.methods]
            metrics = {column.metric for column in twin.metrics}
            found += [(side, "metric", f"{c.metric} ({where})") for c in block.metrics if c.metric not in metrics]
            asked = {question.key for question in twin.questions}
            missing = sum(key not in asked for key in {question.key for question in block.questions})
            found += [(side, "questions", f"{format_count(missing, 'image')} × class ({where})")] if missing else []
    return found


# ── HTML page ────────────────────────────────────────────────────────────────────────────────────


def change_tables(found: Comparison) -> list[ReportTable]:
    """One table per model and dataset, with one row per method and metric."""
    held: dict[str, list[Change]] = {}
    for one in found.changes:
        explained = f", {one.explained} class explained" if one.explained else ""
        held.setdefault(f"{one.model} on {one.dataset}{explained}", []).append(one)
    heads = [
        TableHead("metric"),
        TableHead("before"),
        TableHead("after"),
        TableHead("change"),
        TableHead("verdict"),
        TableHead("questions"),
    ]
    return [
        ReportTable(f"change-{place}", title, heads, [(one.method, cells_of(one)) for one in several])
        for place, (title, several) in enumerate(held.items())
    ]


def cells_of(one: Change) -> Sequence[TableCell]:
    digits = choose_digits([one.before, one.after])
    span = format_interval(one.low, one.high, digits)
    aside = f"{one.equal} the same" + (
        f", {one.only_before + one.only_after} unpaired" if one.only_before + one.only_after else ""
    )
    arrow = {True: " ↑", False: " ↓", None: ""}[one.higher_is_better]
    return (
        TableCell(one.metric + arrow, one.metric),
        TableCell(format_number(one.before, digits), one.before),
        TableCell(format_number(one.after, digits), one.after),
        TableCell(plus(one.change, digits), one.change, span),
        TableCell(one.verdict, one.verdict),
        TableCell(str(one.paired), one.paired, aside=aside),
    )


def plus(value: float, digits: int) -> str:
    """Format a number with its sign."""
    return f"+{format_number(value, digits)}" if value > 0 else format_number(value, digits)


def comparison_page(found: Comparison) -> str:
    """The comparison as one self-contained HTML page."""
    return render_page("comparison.html", comparison=found, tables=change_tables(found))
