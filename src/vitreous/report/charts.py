"""Charts drawn with matplotlib as inline SVG, in one style.

Colours are those of the light theme; in the SVG they are replaced by CSS variables of the page (`templates/style.css`),
so that the same drawing is legible on light and dark backgrounds and in print. Text is kept as text: it is small,
searchable, and set in the page's font.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitreous.draw.scale import Number
from vitreous.report.formatting import format_number, wrap_spec

STYLE: Any = mpl.rc_params_from_file(
    Path(__file__).parent / "templates" / "charts.mplstyle", use_default_template=False
)
INK, SOFT, GRID = (STYLE[name] for name in ("text.color", "axes.labelcolor", "grid.color"))
CARD = "#fefefe"
LINES = ("#0072b2", "#d55e00", "#009e73", "#a2559c", "#b8860b", "#3fa0d8", "#1d2328", "#8a8f94")
VARIABLES = {INK: "--ink", SOFT: "--soft", GRID: "--grid", CARD: "--card"}
VARIABLES |= {colour: f"--c{number}" for number, colour in enumerate(LINES)}
DASHES = ("-", (0, (7, 3)), (0, (2, 2.5)), (0, (9, 3, 2, 3)))  # lines can be distinguished without colour
MARKERS = ("o", "s", "^", "D", "x")
POINTS = 12  # curves with more points get fewer markers
INNER = 0.1  # radius of the worst method on a radar
RADAR = (560, 380, 128)  # width, height, radius


@dataclass(frozen=True, slots=True, eq=False)
class ChartLine:
    """A line with its interval; `style` is the same for a method in all charts of a page."""

    name: str
    style: int
    x: Sequence[Number]
    y: Float[np.ndarray, " s"]
    low: Float[np.ndarray, " s"] | None = None
    high: Float[np.ndarray, " s"] | None = None


def choose_line_style(style: int) -> dict[str, Any]:
    colour = LINES[style % len(LINES)]
    marker = {"marker": MARKERS[style % len(MARKERS)], "markerfacecolor": CARD, "markeredgecolor": colour}
    return {"color": colour, "linestyle": DASHES[style % len(DASHES)], **marker}


def make_blank_axes(width: Number, height: Number) -> Axes:
    """Axes without decoration, in pixels from the upper left corner."""
    axes = Figure(figsize=(width / 72, height / 72)).add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return axes


@mpl.rc_context(STYLE)
def draw_lines(
    lines: Sequence[ChartLine],
    x_label: str,
    y_label: str,
    marks: Sequence[tuple[Number, str]] = (),
    *,
    whole: bool = False,
) -> Markup:
    """Draw lines over a common x axis.

    Parameters
    ----------
    lines
        Lines to draw; NaN values leave gaps.
    x_label, y_label
        Axis labels; together they are the chart's text for screen readers.
    marks
        Positions on the x axis with their names.
    whole
        Whether the x axis has integer ticks.

    Returns
    -------
    Markup
        Inline SVG; empty if no line has a finite point.
    """
    if not any(np.isfinite(line.y).any() for line in lines):
        return Markup("")
    figure = Figure(figsize=(440 / 72, 290 / 72))
    axes = figure.add_axes((50 / 440, 44 / 290, 376 / 440, 234 / 290))
    for line in lines:
        if line.low is not None and line.high is not None:
            has_band = np.isfinite(line.low + line.high)
            x = np.asarray(line.x)[has_band]
            ends = np.concatenate([line.high[has_band], line.low[has_band][::-1]])
            if len(x) > 1:
                colour = LINES[line.style % len(LINES)]
                axes.fill([*x, *x[::-1]], ends, color=colour, alpha=0.13, linewidth=0, gid="band")
    for number, line in enumerate(lines):
        step = -(-len(line.y) // POINTS)
        axes.plot(line.x, line.y, markevery=step, gid=f"line-{number}", **choose_line_style(line.style))
    left, right = min(min(line.x) for line in lines), max(max(line.x) for line in lines)
    axes.set_xlim((left, right) if right > left else (left - 0.5, right + 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(12 if whole else 5, integer=whole))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel(x_label)
    for place, word in marks:
        axes.axvline(place, color=SOFT, linewidth=1, linestyle=DASHES[2])
        axes.annotate(
            word, (place, 1), (4, -10), xycoords=("data", "axes fraction"), textcoords="offset points", color=SOFT
        )
    return to_inline_svg(figure, f"{y_label} over {x_label}", [line.name for line in lines])


@mpl.rc_context(STYLE)
def draw_radar(
    methods: Sequence[tuple[str, int]],
    metrics: Sequence[tuple[str, str]],
    values: Float[np.ndarray, "m a"],
    signs: Sequence[int],
) -> Markup:
    """Draw one polygon per method; on every axis the worst of the methods is near the centre and the best on the rim.

    Parameters
    ----------
    methods
        Name and style of each method.
    metrics
        Name and arrow of each axis.
    values
        Value of every method by every metric; a method that lacks one is drawn as an open line.
    signs
        1 if higher is better on an axis, −1 if lower is.

    Returns
    -------
    Markup
        Inline SVG.
    """
    width, height, reach = RADAR
    axes = make_blank_axes(width, height)
    radii, ends = scale_outward(values, signs)
    angles = 2 * np.pi * np.arange(len(metrics)) / len(metrics) - np.pi / 2

    def points(radius: np.ndarray, angle: np.ndarray = angles) -> tuple[np.ndarray, np.ndarray]:
        return width / 2 + radius * reach * np.cos(angle), height / 2 + radius * reach * np.sin(angle)

    for ring in (INNER, (1 + INNER) / 2, 1.0):
        axes.fill(*points(np.full(len(metrics), ring)), facecolor="none", edgecolor=GRID, linewidth=1)
    rims, labels = np.stack(points(np.ones(len(metrics))), -1), np.stack(points(np.full(len(metrics), 1.13)), -1)
    for (metric, arrow), (worst, best), rim, (x, y) in zip(metrics, ends, rims, labels, strict=True):
        axes.plot([width / 2, rim[0]], [height / 2, rim[1]], color=GRID, linewidth=1)
        label_axis(axes, x, y, f"{metric}\u00a0{arrow}", f"{format_number(worst)} → {format_number(best)}")
    for number, ((_, style), radius) in enumerate(zip(methods, radii, strict=True)):
        finite = np.flatnonzero(np.isfinite(radius))
        closed = [*finite, finite[0]] if len(finite) == len(metrics) else finite
        axes.plot(*points(radius[closed], angles[closed]), gid=f"line-{number}", **choose_line_style(style))
    named = ", ".join(metric for metric, _ in metrics)
    names = [name for name, _ in methods]
    return to_inline_svg(axes.figure, f"Radar of {', '.join(names)} by {named}; outward is better", names)


def label_axis(axes: Axes, x: Number, y: Number, name: str, values: str) -> None:
    """Write a wrapped name and below it the range of values: beside the axis, or above or below a vertical one."""
    width, height, _ = RADAR
    side = "center" if abs(x - width / 2) < 20 else "left" if x > width / 2 else "right"
    lines = [(line, INK) for line in wrap_spec(name, 17)] + [(values, SOFT)]
    total = 15 * (len(lines) - 1)
    top = y + 4 - (total / 2 if side != "center" else total if y < height / 2 else 0)
    top = max(top, 12)  # a name of three lines stays inside the chart
    for row, (line, colour) in enumerate(lines):
        axes.text(x, top + 15 * row, line, ha=side, color=colour, fontsize=13)


def scale_outward(
    values: Float[np.ndarray, "m a"], signs: Sequence[int]
) -> tuple[Float[np.ndarray, "m a"], list[tuple[float, float]]]:
    """Radii between `INNER` and 1, and the worst and best value of every axis.

    If all values of an axis are equal, their radius is 1.
    """
    good = np.where(np.isfinite(values), values * np.array(signs), np.nan)
    low, high = np.fmin.reduce(good), np.fmax.reduce(good)  # without NaN
    share = np.divide(good - low, high - low, out=np.where(np.isnan(good), np.nan, 1.0), where=high > low)
    ends = zip((low * signs).tolist(), (high * signs).tolist(), strict=True)
    return INNER + (1 - INNER) * share, list(ends)


@lru_cache(maxsize=64)
@mpl.rc_context(STYLE)
def draw_swatch(style: int) -> Markup:
    """Draw the line of a legend entry."""
    axes = make_blank_axes(34, 12)
    axes.plot([0, 17, 34], [6, 6, 6], markevery=[1], **choose_line_style(style))
    return to_inline_svg(axes.figure, "", [])


# ── inline SVG ───────────────────────────────────────────────────────────────────────────────────


def to_inline_svg(figure, label: str, names: Sequence[str]) -> Markup:
    """Convert a figure to SVG with CSS variables as colours, without ids, and with the names of lines as tooltips."""
    stream = StringIO()
    figure.savefig(
        stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")), transparent=True
    )
    root = ElementTree.fromstring(stream.getvalue())
    for element in root.iter():
        element.tag = element.tag.split("}")[-1]
    symbols = {f"#{path.get('id')}": path for path in root.iter("path") if path.get("id")}
    for parent in root.iter():
        for place, child in enumerate(list(parent)):
            if child.tag == "use":
                parent[place] = expand_use(child, symbols)
        for child in [child for child in parent if child.tag in ("defs", "metadata")]:
            parent.remove(child)
    for element in root.iter():
        clean_attributes(element, names)
    width, height = figure.get_size_inches() * 72
    accessible = {"role": "img", "aria-label": label} if label else {"aria-hidden": "true"}
    root.attrib = {"class": "chart", "viewBox": f"0 0 {width:.0f} {height:.0f}", **accessible}
    return Markup(re.sub(r">\s+<", "><", ElementTree.tostring(root, "unicode")))


def expand_use(use: ElementTree.Element, symbols: dict[str, ElementTree.Element]) -> ElementTree.Element:
    """Replace a reference to a marker by a path.

    References need ids, which would not be unique on a page with many charts.
    """
    symbol = symbols[next(value for key, value in use.items() if key.endswith("href"))]
    style = "; ".join(element.get("style", "") for element in (use, symbol) if element.get("style"))
    moved = f"translate({use.get('x', 0)} {use.get('y', 0)})"
    return ElementTree.Element("path", {"d": symbol.get("d", ""), "transform": moved, "style": style})


def clean_attributes(element: ElementTree.Element, names: Sequence[str]) -> None:
    """Remove ids and clip paths, round coordinates, and replace colours by CSS variables."""
    own = element.attrib.pop("id", "")
    element.attrib.pop("clip-path", None)
    if own == "band":
        element.set("class", "band")
    if own.startswith("line-"):
        element.set("class", "line")
        title = ElementTree.Element("title")
        title.text = names[int(own.removeprefix("line-"))]
        element.insert(0, title)
    for name in ("d", "x", "y", "transform"):
        if name in element.attrib:
            element.set(
                name, " ".join(re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.1f}", element.attrib[name]).split())
            )
    if "style" in element.attrib:
        style = re.sub(r"font-family:[^;]*; ", "", element.attrib["style"])  # use the page's font
        style = re.sub(r"#[0-9a-f]{6}", lambda m: f"var({VARIABLES[m[0]]})" if m[0] in VARIABLES else m[0], style)
        element.set("style", style)
