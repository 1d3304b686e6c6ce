"""Charts as SVG that takes its colours and letters from the page, so that it is legible on light and dark and in print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float

from vitreous.draw.scale import Number
from vitreous.report.words import broken, number

COLOURS, DASHES, MARKERS = 8, 4, 5  # told apart without colour: dashes and markers differ as well
WIDE, HIGH = 440, 290
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 12, 44
POINTS = 12  # curves with more get fewer markers
INNER = 0.1  # radius of the worst method on a radar


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A line with its band; `style` says how it looks everywhere on the page."""

    name: str
    style: int
    x: Sequence[Number]
    y: Float[np.ndarray, " s"]
    low: Float[np.ndarray, " s"] | None = None
    high: Float[np.ndarray, " s"] | None = None


def look(style: int) -> str:
    return f"c{style % COLOURS} d{style % DASHES}"


def legend(names: Sequence[tuple[str, int]]) -> str:
    """Names with the lines that stand for them."""
    items = "".join(
        f'<li><svg viewBox="0 0 34 12" width="34" height="12" aria-hidden="true"><path class="line {look(style)}" d="M0 6H34"/>'
        f"{marker(style, 17, 6)}</svg> {escape(name)}</li>"
        for name, style in names
    )
    return f'<ul class="legend">{items}</ul>'


def marker(style: int, x: Number, y: Number) -> str:
    shape = style % MARKERS
    at = f"translate({x:.1f} {y:.1f})"
    forms = ("M-3-3H3V3H-3Z", "M0-4L4 3H-4Z", "M0-4.3L4.3 0L0 4.3L-4.3 0Z", "M-3-3L3 3M-3 3L3-3")
    if shape == 0:
        return f'<circle class="mark c{style % COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>'
    return f'<path class="mark c{style % COLOURS}" transform="{at}" d="{forms[shape - 1]}"/>'


# ── lines ────────────────────────────────────────────────────────────────────────────────────────


def lines(
    series: Sequence[Series], x_label: str, y_label: str, marks: Sequence[tuple[Number, str]] = (), whole: bool = False
) -> str:
    """Curves over a common axis; `marks` are places on it that have a name, `whole` counts in whole numbers."""
    xs = [float(x) for one in series for x in one.x]
    ys = np.concatenate(
        [np.empty(0)] + [part for one in series for part in (one.y, one.low, one.high) if part is not None]
    )
    ys = ys[np.isfinite(ys)]
    if not xs or not len(ys):
        return ""
    x_ticks = whole_ticks(min(xs), max(xs)) if whole else ticks(min(xs), max(xs))
    y_ticks = ticks(float(ys.min()), float(ys.max()))
    x_range = (min(xs), max(xs)) if whole or max(xs) > min(xs) else (min(xs) - 0.5, max(xs) + 0.5)
    y_range = (min(y_ticks[0], float(ys.min())), max(y_ticks[-1], float(ys.max())))

    def across(x: Number) -> float:
        share = (x - x_range[0]) / ((x_range[1] - x_range[0]) or 1)
        return LEFT + share * (WIDE - LEFT - RIGHT)

    def down(y: Number) -> float:
        return HIGH - BOTTOM - (y - y_range[0]) / ((y_range[1] - y_range[0]) or 1) * (HIGH - TOP - BOTTOM)

    drawn = [
        f'<path class="grid" d="M{LEFT} {down(y):.1f}H{WIDE - RIGHT}"/><text x="{LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{short(y)}</text>'
        for y in y_ticks
    ]
    drawn += [
        f'<path class="grid" d="M{across(x):.1f} {HIGH - BOTTOM}v4"/><text x="{across(x):.1f}" y="{HIGH - BOTTOM + 17}" text-anchor="middle">{short(x)}</text>'
        for x in x_ticks
        if x_range[0] - 1e-9 <= x <= x_range[1] + 1e-9
    ]
    drawn += [
        f'<path class="grid dotted" d="M{across(x):.1f} {TOP}V{HIGH - BOTTOM}"/><text class="faint" x="{across(x) + 4:.1f}" y="{TOP + 10}">{escape(word)}</text>'
        for x, word in marks
    ]
    drawn += [band_path(one, across, down) for one in series]
    drawn += [line_path(one, across, down) for one in series]
    middle = (LEFT + WIDE - RIGHT) / 2
    drawn.append(f'<text class="faint" x="{middle}" y="{HIGH - 6}" text-anchor="middle">{escape(x_label)}</text>')
    return svg(WIDE, HIGH, f"{y_label} over {x_label}", drawn)


def band_path(one: Series, across, down) -> str:
    if one.low is None or one.high is None:
        return ""
    points = [(x, lo, hi) for x, lo, hi in zip(one.x, one.low, one.high, strict=True) if np.isfinite(lo + hi)]
    if len(points) < 2:
        return ""
    there = " ".join(f"{across(x):.1f},{down(hi):.1f}" for x, _, hi in points)
    back = " ".join(f"{across(x):.1f},{down(lo):.1f}" for x, lo, _ in reversed(points))
    return f'<polygon class="band c{one.style % COLOURS}" points="{there} {back}"/>'


def line_path(one: Series, across, down) -> str:
    """Known points joined; a missing one leaves a gap."""
    d, pen = "", "M"
    for x, y in zip(one.x, one.y, strict=True):
        if not np.isfinite(y):
            pen = "M"
            continue
        d += f"{pen}{across(x):.1f} {down(float(y)):.1f}"
        pen = "L"
    step = max(1, -(-len(one.y) // POINTS))
    dots = "".join(
        marker(one.style, across(x), down(float(y)))
        for x, y in list(zip(one.x, one.y, strict=True))[::step]
        if np.isfinite(y)
    )
    return f'<g><title>{escape(one.name)}</title><path class="line {look(one.style)}" d="{d}"/>{dots}</g>'


def ticks(low: Number, high: Number, count: int = 5) -> list[float]:
    """Round numbers from about `low` to about `high`."""
    if not high > low:
        return [float(low)]
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def whole_ticks(low: Number, high: Number) -> list[float]:
    step = max(1, math.ceil((high - low) / 12))
    return [float(k) for k in range(math.ceil(low), math.floor(high) + 1, step)]


def short(value: Number) -> str:
    return f"{value:.10g}".replace("-", "−")


# ── radar ────────────────────────────────────────────────────────────────────────────────────────


def radar(
    names: Sequence[tuple[str, int]],
    axes: Sequence[tuple[str, str]],
    table: Float[np.ndarray, "m a"],
    signs: Sequence[int],
) -> str:
    """A polygon per method; on every axis the worst of those shown lies near the middle and the best outside.

    `axes` are name and arrow; `signs` say which end of each is the better one.
    """
    wide, high, reach = 520, 380, 128
    x0, y0 = wide / 2, high / 2
    share, ends = outward(table, signs)

    def point(axis: int, radius: Number) -> tuple[float, float]:
        angle = 2 * math.pi * axis / len(axes) - math.pi / 2
        return x0 + radius * reach * math.cos(angle), y0 + radius * reach * math.sin(angle)

    rings = (INNER, INNER + (1 - INNER) / 2, 1.0)
    drawn = [f'<polygon class="grid" points="{joined(point(a, ring) for a in range(len(axes)))}"/>' for ring in rings]
    for place, ((name, arrow), (worst, best)) in enumerate(zip(axes, ends, strict=True)):
        x, y = point(place, 1)
        drawn.append(f'<path class="grid" d="M{x0} {y0}L{x:.1f} {y:.1f}"/>')
        drawn.append(axis_label(*point(place, 1.13), x0, f"{name}\u00a0{arrow}", f"{number(worst)} → {number(best)}"))
    for (name, style), row in zip(names, share, strict=True):
        known = [(a, r) for a, r in enumerate(row) if np.isfinite(r)]
        at = [point(a, float(r)) for a, r in known]
        shape = "polygon" if len(known) == len(axes) else "polyline"
        drawn.append(
            f'<g><title>{escape(name)}</title><{shape} class="line {look(style)}" points="{joined(at)}"/>'
            f"{''.join(marker(style, x, y) for x, y in at)}</g>"
        )
    return svg(wide, high, "radar chart: outward is better", drawn)


def outward(
    table: Float[np.ndarray, "m a"], signs: Sequence[int]
) -> tuple[Float[np.ndarray, "m a"], list[tuple[float, float]]]:
    """Radii between `INNER` and 1, and the worst and the best value of every axis; a tie of all lies outside."""
    radii = np.full(table.shape, np.nan)
    ends = []
    for axis, sign in enumerate(signs):
        good = table[:, axis] * sign
        known = good[np.isfinite(good)]
        if not len(known):
            ends.append((math.nan, math.nan))
            continue
        low, high = known.min(), known.max()
        radii[:, axis] = np.where(
            np.isfinite(good), INNER + (1 - INNER) * ((good - low) / (high - low) if high > low else 1.0), np.nan
        )
        ends.append((float(low * sign), float(high * sign)))
    return radii, ends


def axis_label(x: Number, y: Number, x0: Number, name: str, values: str) -> str:
    """A name in lines with its ends beneath: beside an axis in the middle, above or below one that stands upright."""
    anchor = "middle" if abs(x - x0) < 20 else "start" if x > x0 else "end"
    texts = [(line, "") for line in broken(name, 17)] + [(values, "faint")]
    height = 15 * (len(texts) - 1)
    top = y + 4 - height / 2 if anchor != "middle" else y + 4 - height if y < 190 else y + 4
    return "".join(
        f'<text class="{kind}" x="{x:.1f}" y="{top + 15 * row:.1f}" text-anchor="{anchor}">{escape(line)}</text>'
        for row, (line, kind) in enumerate(texts)
    )


def joined(points) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def svg(wide: Number, high: Number, label: str, drawn: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {wide} {high}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{''.join(drawn)}</svg>"
    )
