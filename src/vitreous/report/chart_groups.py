"""Charts of a section: radars, curves with intervals, and metrics over the first layer that a method uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from vitreous.bench.resample import compute_curve_band
from vitreous.bench.scores import ScoreSection
from vitreous.bench.summary import MetricSummary, order_by_rank
from vitreous.metrics.metric import resolve_metric
from vitreous.report.charts import ChartLine, draw_lines, draw_radar, draw_swatch
from vitreous.report.formatting import ARROWS, DIRECTIONS

MOST = 8  # lines that can be distinguished on one chart
FEWEST = 3  # smallest number of axes of a radar, and of first layers in a sweep
SPOKES = 10  # largest number of axes of a radar with legible names
READ_RADAR = (
    "Outward is better on every axis: the worst of the methods drawn lies near the middle, the best on the rim. The small numbers are "
    "the values at these two ends, and the arrow shows whether more or less is better."
)


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """Name and line style of a method in a legend."""

    name: str
    style: int

    @property
    def swatch(self) -> Markup:
        return draw_swatch(self.style)


@dataclass(frozen=True, slots=True)
class ChartCard:
    """A chart with its title, note and legend."""

    title: str
    chart: Markup
    note: str = ""
    legend: Sequence[LegendEntry] = ()


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """Charts of one kind under a common title."""

    title: str
    text: str
    cards: Sequence[ChartCard]
    legend: Sequence[LegendEntry] = ()
    is_wide: bool = False


def draw_charts(
    section: ScoreSection, summaries: Sequence[MetricSummary], depth: int | None = None
) -> list[ChartGroup]:
    """Draw all groups of charts that a section has values for.

    Parameters
    ----------
    section
        Rows of one model on one dataset.
    summaries
        One summary per metric of the section.
    depth
        Number of layers of the model, if known.

    Returns
    -------
    list of ChartGroup
    """
    groups = [draw_radars(section, summaries), draw_curves(section, summaries), draw_sweeps(section, summaries, depth)]
    return [group for group in groups if group]


def make_legend(section: ScoreSection, rows: Sequence[int]) -> list[LegendEntry]:
    return [LegendEntry(section.methods[row], row) for row in rows]


def note_left_out(section: ScoreSection) -> str:
    """Note on the number of methods that are not drawn, or an empty string."""
    hidden = len(section.methods) - MOST
    return f" The {MOST} methods of best mean rank are drawn; {hidden} more are in the table." if hidden > 0 else ""


# ── radars (SkipPLUS, figs. 3–4) ─────────────────────────────────────────────────────────────────


def draw_radars(section: ScoreSection, summaries: Sequence[MetricSummary]) -> ChartGroup | None:
    """Draw a radar of all methods, and one for every base method with its folds.

    Returns None if fewer than `FEWEST` metrics have a better direction, or there is only one method.
    """
    judging = [summary for summary in summaries if summary.judges]
    if len(judging) < FEWEST or len(section.methods) < 2:
        return None
    cards = []
    for title, rows in {
        "Methods against each other": order_by_rank(judging)[:MOST],
        **list_fold_charts(section),
    }.items():
        for kind, axes in split_axes(judging):
            cards.append(draw_radar_card(f"{title}: {kind}" if kind else title, section, rows, axes))
    return ChartGroup("Strengths", f"{READ_RADAR}{note_left_out(section)}", cards, is_wide=True)


def list_fold_charts(section: ScoreSection) -> dict[str, list[int]]:
    """Title and methods of a chart for every base method with its folds, unless it would show all methods."""
    groups = group_folds(section.methods).items()
    return {f"{base} and its folds": rows for base, rows in groups if len(rows) < len(section.methods)}


def draw_radar_card(
    title: str, section: ScoreSection, rows: Sequence[int], axes: Sequence[MetricSummary], *, named: bool = False
) -> ChartCard:
    """Draw some methods on some axes; if `named` is set, axes are named by metric and dataset, without options."""
    legend = make_legend(section, rows)
    values = np.array([summary.values[list(rows)] for summary in axes]).T
    names = [f"{summary.metric.split('(')[0]} on {summary.dataset}" if named else summary.metric for summary in axes]
    metrics = [(name, ARROWS[summary.higher_is_better]) for name, summary in zip(names, axes, strict=True)]
    methods = [(entry.name, entry.style) for entry in legend]
    chart = draw_radar(methods, metrics, values, [summary.scores.sign for summary in axes])
    return ChartCard(title, chart, legend=legend)


def draw_joined_radars(
    parts: Sequence[tuple[ScoreSection, Sequence[MetricSummary]]], families: Mapping[str, str]
) -> ChartGroup | None:
    """Draw radars whose axes come from several datasets, such as faithfulness on one and AP on another.

    Parameters
    ----------
    parts
        Sections with their summaries.
    families
        Family by model label; a model that is not listed is a family of its own.

    Returns
    -------
    ChartGroup or None
        One radar for every model or family that has different metrics on different datasets, and the same methods;
        None if there is no such model.
    """
    groups: dict[tuple[str, str, str], list[tuple[ScoreSection, Sequence[MetricSummary]]]] = {}
    for section, summaries in parts:
        family = families.get(section.model) or section.model
        groups.setdefault((family, section.explained, section.score), []).append((section, summaries))
    cards = []
    for (family, _, score), members in groups.items():
        section = members[0][0]
        family = f"{family}, score: {score}" if score else family
        axes: dict[str, MetricSummary] = {}  # a metric is that of the first dataset that has it
        for summary in (summary for _, summaries in members for summary in summaries if summary.judges):
            axes.setdefault(summary.metric, summary)
        judging = list(axes.values())
        if len({summary.dataset for summary in judging}) < 2 or not FEWEST <= len(judging) <= SPOKES:
            continue
        if len(section.methods) < 2 or any(other.methods != section.methods for other, _ in members):
            continue
        charts = {f"{family}: {title}": rows for title, rows in list_fold_charts(section).items()}
        for title, rows in {family: order_by_rank(judging)[:MOST], **charts}.items():
            cards.append(draw_radar_card(title, section, rows, judging, named=True))
    return ChartGroup("Strengths over datasets", READ_RADAR, cards, is_wide=True) if cards else None


def split_axes(judging: Sequence[MetricSummary]) -> list[tuple[str, Sequence[MetricSummary]]]:
    """Metrics of each radar with its title: all of them, or one family per radar if there are more than `SPOKES`."""
    if len(judging) <= SPOKES:
        return [("", judging)]
    families: dict[str, list[MetricSummary]] = {}
    for summary in judging:
        families.setdefault(resolve_metric(summary.metric).family or "other", []).append(summary)
    parts = []
    for family, members in families.items():
        size = -(-len(members) // -(-len(members) // SPOKES))  # parts of about equal size
        parts += [(family, members[at : at + size]) for at in range(0, len(members), size)]
    return [(family, part) for family, part in parts if len(part) >= FEWEST]


def group_folds(methods: Sequence[str]) -> dict[str, list[int]]:
    """Indices of methods that differ only in their fold, by their common spec; groups of one are left out."""
    rows_by_base: dict[str, list[int]] = {}
    for row, method in enumerate(methods):
        rows_by_base.setdefault(strip_fold(method), []).append(row)
    return {base: rows[:MOST] for base, rows in rows_by_base.items() if len(rows) > 1}


def strip_fold(method: str) -> str:
    """The spec of a method without its fold."""
    depth = 0
    for place, char in enumerate(method):
        depth += (char == "(") - (char == ")")
        if char == "+" and not depth and method[place + 1 : place + 2].isalpha():
            return method[:place]
    return method


# ── curves ───────────────────────────────────────────────────────────────────────────────────────


def draw_curves(section: ScoreSection, summaries: Sequence[MetricSummary]) -> ChartGroup | None:
    """Draw the mean curve of every method with its interval, one chart per metric that has curves."""
    rows = sorted(order_by_rank(summaries)[:MOST])
    cards = []
    for scores in section.metrics:
        levels, curve = scores.levels, scores.curve
        if curve is None or len(levels) < 2 or max(levels) > 1:  # levels are not fractions
            continue
        lines = [
            ChartLine(section.methods[row], row, levels, *compute_curve_band(curve[row], section.clusters))
            for row in rows
        ]
        chart = draw_lines(lines, scores.axes.label if scores.axes else "level", scores.metric)
        note = f"Of the figure in the table, {DIRECTIONS[scores.higher_is_better]}." if scores.sign else ""
        cards += [ChartCard(scores.metric, chart, note)] if chart else []
    text = f"Means over images, level by level; bands are pointwise 95 % intervals.{note_left_out(section)}"
    return ChartGroup("Curves", text, cards, make_legend(section, rows)) if cards else None


# ── first layers (SkipPLUS, fig. 7) ──────────────────────────────────────────────────────────────


def split_start(method: str) -> tuple[str, int] | None:
    """Split a spec into the spec without its first layer, and that layer; None if it does not set one."""
    match = re.search(r"\b(start|layer)=(-?\d+)(, )?", method)
    if match is None:
        return None
    spec_without_start = method[: match.start()] + method[match.end() :]
    return re.sub(r",\s*\)", ")", spec_without_start).replace("()", ""), int(match[2])


def group_starts(methods: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    """Layer and index of methods that differ only in their first layer, by their common spec."""
    families: dict[str, list[tuple[int, int]]] = {}
    for row, method in enumerate(methods):
        if (split := split_start(method)) is not None:
            families.setdefault(split[0], []).append((split[1], row))
    return {spec: sorted(starts) for spec, starts in families.items() if len(dict(starts)) >= FEWEST}


def draw_sweeps(
    section: ScoreSection, summaries: Sequence[MetricSummary], depth: int | None = None
) -> ChartGroup | None:
    """Draw every metric over the first layer, with one line per group of methods."""
    families = group_starts(section.methods)
    if not families:
        return None
    marks = [] if depth is None else [(float(-(-depth // 2)), "SkipPLUS")]
    cards = []
    for summary in summaries:
        lines = []
        for style, (spec, starts) in enumerate(families.items()):
            entries = [summary.aligned[row] for _, row in starts]
            value, low, high = np.array([(entry.value, entry.low, entry.high) for entry in entries]).T
            lines.append(ChartLine(spec, style, [float(start) for start, _ in starts], value, low, high))
        chart = draw_lines(lines, "first layer that counts", summary.metric, marks, whole=True)
        cards.append(ChartCard(f"{summary.metric} {ARROWS[summary.higher_is_better]}", chart))
    count = "1 family" if len(families) == 1 else f"{len(families)} families"
    text = f"Methods that differ in their first layer alone ({count}); 0 is PLUS. Bands are 95 % intervals."
    legend = [LegendEntry(spec, style) for style, spec in enumerate(families)]
    return ChartGroup("First layer", text, cards, legend)
