"""What the numbers of a block look like: radars, curves with bands, sweeps over the first layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

import numpy as np

from vitreous.metrics.metric import resolve_metric
from vitreous.report.block import Block
from vitreous.report.chart import Series, legend, lines, radar
from vitreous.report.stats import Standing, band, order_of
from vitreous.report.words import ASIDE, plural

MOST = 8  # lines that can be told apart on one chart
FEWEST = 3  # axes of a radar, starts of a sweep
SPOKES = 10  # axes of one radar whose names can be read


def card(title: str, chart: str, words: str = "") -> str:
    said = f'<p class="soft">{escape(words)}</p>' if words else ""
    return f'<figure class="card"><figcaption><b>{escape(title)}</b></figcaption>{chart}{said}</figure>'


def shown_methods(standings: Sequence[Standing]) -> list[int]:
    """The best by mean rank, as many as can be told apart."""
    return order_of(standings)[:MOST]


def left_out(block: Block) -> str:
    more = len(block.methods) - MOST
    return f"The {MOST} methods of best mean rank are drawn; {more} more are in the table." if more > 0 else ""


def named(block: Block, rows: Sequence[int]) -> list[tuple[str, int]]:
    """Methods with the style that is theirs all over the page."""
    return [(block.methods[row], row) for row in rows]


# ── radars (SkipPLUS, figs. 3–4) ─────────────────────────────────────────────────────────────────


def radars(block: Block, standings: Sequence[Standing]) -> str:
    """All methods against each other, then every signal with its folds."""
    judging = [one for one in standings if one.column.sign and np.isfinite(one.values).any()]
    if len(judging) < FEWEST or len(block.methods) < 2:
        return ""
    charts = [("Methods against each other", shown_methods(judging))]
    charts += [
        (f"{base} and its folds", rows)
        for base, rows in families(block.methods).items()
        if len(rows) < len(block.methods)
    ]
    cards = ""
    for title, rows in charts:
        for axis, some in spokes(judging):
            table = np.array([[one.values[row] for one in some] for row in rows], float)
            axes = [(one.column.metric, "↑" if one.column.higher else "↓") for one in some]
            chart = radar(named(block, rows), axes, table, [one.column.sign for one in some])
            cards += card(f"{title}: {axis}" if axis else title, chart + legend(named(block, rows)))
    return (
        "<h3>Strengths</h3><p>Outward is better on every axis: the worst of the methods drawn lies near the middle, the best on the "
        f"rim; small numbers say what these ends are, arrows which way the metric itself points. {escape(left_out(block))}</p>"
        f'<div class="cards wide">{cards}</div>'
    )


def spokes(judging: Sequence[Standing]) -> list[tuple[str, list[Standing]]]:
    """The metrics of one radar; where they are too many to be read, of one for each kind of metric."""
    if len(judging) <= SPOKES:
        return [("", list(judging))]
    kinds: dict[str, list[Standing]] = {}
    for one in judging:
        kinds.setdefault(resolve_metric(one.column.metric).family or "other", []).append(one)
    found = []
    for kind, some in kinds.items():
        size = -(-len(some) // -(-len(some) // SPOKES))  # parts of about one size
        found += [(kind, some[at : at + size]) for at in range(0, len(some), size)]
    return [(kind, some) for kind, some in found if len(some) >= FEWEST]


def families(methods: Sequence[str]) -> dict[str, list[int]]:
    """Rows of methods that differ in their fold alone, where there are several."""
    held: dict[str, list[int]] = {}
    for row, method in enumerate(methods):
        held.setdefault(unfolded(method), []).append(row)
    return {base: rows[:MOST] for base, rows in held.items() if len(rows) > 1}


def unfolded(method: str) -> str:
    """A spec up to its fold."""
    depth = 0
    for place, char in enumerate(method):
        depth += (char == "(") - (char == ")")
        if char == "+" and not depth and method[place + 1 : place + 2].isalpha():
            return method[:place]
    return method


# ── curves ───────────────────────────────────────────────────────────────────────────────────────


def curves(block: Block, standings: Sequence[Standing]) -> str:
    """The mean curve of every method that a metric draws one of, with its band."""
    rows = sorted(shown_methods(standings))
    cards = ""
    for one in standings:
        column = one.column
        if column.curve is None or len(column.levels) < 2 or max(column.levels) > 1:  # places of cells are no axis
            continue
        series = []
        for row in rows:
            middle, low, high = band(column.curve[row], block.clusters)
            series.append(Series(block.methods[row], row, column.levels, middle, low, high))
        chart = lines(series, share_of(column.metric), column.metric)
        if chart:
            cards += card(
                column.metric,
                chart,
                "" if column.higher is None else f"Of the figure in the table, {ASIDE[column.higher]}.",
            )
    if not cards:
        return ""
    return (
        "<h3>Curves</h3><p>Means over pictures, level by level; bands are pointwise 95 % intervals. "
        f'{escape(left_out(block))}</p>{legend(named(block, rows))}<div class="cards">{cards}</div>'
    )


def share_of(metric: str) -> str:
    """What the levels of a curve count."""
    name = metric.split("(", maxsplit=1)[0]
    if "insertion" in name:
        return "share shown, highest scores first"
    if name.startswith("negative"):
        return "share removed, lowest scores first"
    return "share removed, highest scores first" if re.match("deletion|positive|aopc|lodds|road", name) else "level"


# ── sweeps (SkipPLUS, fig. 7) ────────────────────────────────────────────────────────────────────


def started(method: str) -> tuple[str, int] | None:
    """A spec without its first layer, and that layer; none for a method that names none."""
    found = re.search(r"\b(start|layer)=(-?\d+)(, )?", method)
    if found is None:
        return None
    rest = method[: found.start()] + method[found.end() :]
    return re.sub(r",\s*\)", ")", rest).replace("()", ""), int(found[2])


def sweep_families(methods: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    """Layer and row of methods that differ in their first layer alone, by what they have in common."""
    held: dict[str, list[tuple[int, int]]] = {}
    for row, method in enumerate(methods):
        if (found := started(method)) is not None:
            held.setdefault(found[0], []).append((found[1], row))
    return {rest: sorted(starts) for rest, starts in held.items() if len({start for start, _ in starts}) >= FEWEST}


def sweeps(block: Block, standings: Sequence[Standing], depth: int | None = None) -> str:
    """Every metric over the first layer, a line per family."""
    found = sweep_families(block.methods)
    if not found:
        return ""
    names = [(rest, place) for place, rest in enumerate(found)]
    marks = [] if depth is None else [(float(-(-depth // 2)), "SkipPLUS")]
    cards = ""
    for one in standings:
        series = [sweep_line(one, rest, starts, place) for place, (rest, starts) in enumerate(found.items())]
        chart = lines(series, "first layer that counts", one.column.metric, marks, whole=True)
        cards += card(
            f"{one.column.metric} {'' if one.column.higher is None else '↑' if one.column.higher else '↓'}", chart
        )
    return (
        f"<h3>First layer</h3><p>Methods that differ in their first layer alone ({plural(len(found), 'family').replace('familys', 'families')}); "
        f'0 is PLUS. Bands are 95 % intervals.</p>{legend(names)}<div class="cards">{cards}</div>'
    )


def sweep_line(one: Standing, rest: str, starts: Sequence[tuple[int, int]], style: int) -> Series:
    rows = [row for _, row in starts]
    ends = np.array([one.spans[row] for row in rows])
    return Series(rest, style, [float(start) for start, _ in starts], one.values[rows], ends[:, 0], ends[:, 1])
