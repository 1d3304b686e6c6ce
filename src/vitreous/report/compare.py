"""What changed between two runs, picture by picture: equal model, data set, method, metric, picture and class are paired."""

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

# float32 sums taken in another order move a score by less than this share of the largest one (docs/how-to/benchmark.md)
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both runs, over the questions that both answer."""

    model: str
    dataset: str
    explained: str  # the class, where predicted and true ones were both asked about
    method: str
    metric: str
    higher_is_better: bool | None
    before: float
    after: float
    change: float
    low: float  # of the paired 95 % interval
    high: float
    paired: int  # questions that both runs answer with a number
    equal: int  # of these, with the same one within TOLERANCE
    only_before: int  # questions that only one of them answers
    only_after: int

    @property
    def verdict(self) -> str:
        """better, worse, changed (where nothing is better), the same, or unclear."""
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
    """All pairs, and what is in one run alone."""

    before: str
    after: str
    changes: tuple[Change, ...]
    only: tuple[tuple[str, str, str], ...]  # "before" or "after", kind, name
    caveats: tuple[str, ...] = field(default_factory=tuple)

    def plain(self) -> dict[str, Any]:
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
    """Two runs of any two stores, or of one."""
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
    """What is no longer equal under equal names."""
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
    """Blocks, and in blocks that both have methods, metrics and pictures, of one run alone."""
    found: list[tuple[str, str, str]] = []
    sides = {"before": before, "after": after}
    blocks = {side: {b.title: b for b in run.sections} for side, run in sides.items()}
    for side, rest in (("before", "after"), ("after", "before")):
        for key, block in blocks[side].items():
            where = block.title
            twin = blocks[rest].get(key)
            if twin is None:
                found.append((side, "model and data set", where))
                continue
            found += [(side, "method", f"{one} ({where})") for one in block.methods if one not in twin.methods]
            metrics = {column.metric for column in twin.metrics}
            found += [(side, "metric", f"{c.metric} ({where})") for c in block.metrics if c.metric not in metrics]
            asked = {question.key for question in twin.questions}
            missing = sum(key not in asked for key in {question.key for question in block.questions})
            found += [(side, "questions", f"{format_count(missing, 'picture')} × class ({where})")] if missing else []
    return found


# ── as a page ────────────────────────────────────────────────────────────────────────────────────


def change_tables(found: Comparison) -> list[ReportTable]:
    """One table per model and data set, lines by method and metric."""
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
    return f"+{format_number(value, digits)}" if value > 0 else format_number(value, digits)


def comparison_page(found: Comparison) -> str:
    """The comparison as one self-contained HTML page."""
    return render_page("comparison.html", comparison=found, tables=change_tables(found))
