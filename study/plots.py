"""Plots as SVG, in colours for colour-blind readers and with markers that differ in black and white."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FixedLocator, NullLocator

from study.effects import Effect, Figure
from study.sentences import format_metric

IMAGES = Path(__file__).parents[1] / "docs" / "study" / "images"
BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK, GREY = (
    "#0072b2", "#d55e00", "#009e73", "#a2559c", "#b8860b", "#3fa0d8", "#1d2327", "#8a8f94",
)  # fmt: skip
COLOURS, MARKS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK, GREY), "osD^vPX*"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), "-")
STYLE = {
    "font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9, "axes.titleweight": "bold",
    "legend.frameon": False, "svg.hashsalt": "vitreous", "figure.facecolor": "white", "axes.axisbelow": True, "axes.grid": True,
    "grid.color": "#e4e1da", "grid.linewidth": 0.6, "font.family": "DejaVu Sans",
}  # fmt: skip
WAYS = {"more": "more is better", "less": "less is better", "": ""}


def save_figure(figure: Any, name: str) -> Path:
    """Save a figure without date and random ids, so that the same rows give the same bytes."""
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    plt.close(figure)
    return path


def shorten_spec(method: str) -> str:
    """A shorter form of a spec for labels."""
    for long, brief in (
        ("question=", ""),
        ("preset=", ""),
        ("masks=", ""),
        ("coalitions=", ""),
        ("samples=", ""),
        ("probability", "prob"),
        ("'", ""),
    ):
        method = method.replace(long, brief)
    return method


def compute_arms(rows: Sequence[Figure | Effect]) -> np.ndarray:
    """Lengths of the intervals below and above the values, [2, rows]; 0 where there is none."""
    middle = [row.effect if isinstance(row, Effect) else row.mean for row in rows]
    ends = np.array([[at - row.low, row.high - at] for at, row in zip(middle, rows, strict=True)]).reshape(-1, 2).T
    return np.nan_to_num(np.clip(ends, 0, None))


def draw_forest(
    name: str, panels: Mapping[str, Sequence[Effect]], labels: Sequence[str], row: Any, series: Mapping[str, Any]
) -> Path:
    """Effects with intervals: a panel per metric, a row per label (`row(effect)`), a marker per series (a predicate of effects)."""
    with plt.rc_context(STYLE):
        down = 1 if len(panels) <= 5 else 2
        wide = -(-len(panels) // down)
        size = (1.0 + 2.15 * wide, (0.9 + 0.27 * len(labels)) * down)
        figure, axes = plt.subplots(down, wide, figsize=size, sharey=True, squeeze=False)
        for axis, (heading, effects) in zip(axes.flat, panels.items(), strict=True):
            axis.axvline(0, color=BLACK, linewidth=0.8)
            for place, (word, matches) in enumerate(series.items()):
                shift = 0.16 * (len(series) + 1) * (place / max(len(series) - 1, 1) - 0.5) * (len(series) > 1)
                own = [
                    effect_row
                    for effect_row in effects
                    if matches(effect_row) and row(effect_row) in labels and not isnan(effect_row.effect)
                ]
                heights = [labels.index(row(effect_row)) + shift for effect_row in own]
                axis.errorbar(
                    [effect_row.effect for effect_row in own], heights, xerr=compute_arms(own), fmt=MARKS[place], markersize=3.6,
                    color=COLOURS[place % 2 if len(series) == 4 else place], markerfacecolor="white" if len(series) == 4 and place >= 2 else None,
                    linewidth=0.9, label=word, zorder=3,
                )  # fmt: skip
            axis.set_title(heading)
            axis.set_xlabel("gain  (right is better →)" if down == 1 or axis in axes[-1] else "")
            axis.grid(axis="y", visible=False)
        axes[0, 0].set_yticks(range(len(labels)), labels)
        axes[0, 0].set_ylim(len(labels) - 0.4, -0.6)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
        figure.tight_layout()
        return save_figure(figure, name)


def draw_lines(
    name: str,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, Figure]]]],
    across: str | Mapping[str, str],
    up: str,
    mark: float | None = None,
    bars: bool = False,
) -> Path:
    """Curves with intervals as bands, or as bars if bands would overlap; one panel per model."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=(3.7 * len(panels), 3.2), squeeze=False)
        for axis, (heading, curves) in zip(axes[0], panels.items(), strict=True):
            if mark is not None:
                axis.axvline(mark, color=GREY, linewidth=0.9, linestyle=":")
            for place, (word, points) in enumerate(curves.items()):
                x, rows = [at for at, _ in points], [row for _, row in points]
                (line,) = axis.plot(
                    x,
                    [row.mean for row in rows],
                    marker=MARKS[place % 8],
                    markersize=3.5,
                    linestyle=DASHES[place % 8],
                    color=COLOURS[place % 8],
                    label=word,
                    linewidth=1.3,
                )
                if bars:
                    x = [at + 0.012 * (place - (len(curves) - 1) / 2) for at in x]
                    axis.errorbar(x, [row.mean for row in rows], yerr=compute_arms(rows), fmt="none", ecolor=COLOURS[place], elinewidth=0.9)  # fmt: skip
                    line.set_xdata(x)
                    continue
                axis.fill_between(
                    x,
                    [row.low for row in rows],
                    [row.high for row in rows],
                    color=COLOURS[place % 8],
                    alpha=0.1,
                    linewidth=0,
                )
            axis.set_title(heading)
            axis.set_xlabel(across if isinstance(across, str) else across[heading])
            axis.set_ylabel(up)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=4)
        figure.tight_layout()
        return save_figure(figure, name)


def draw_scatter(
    name: str,
    panels: Mapping[str, Sequence[tuple[str, Figure | float, Figure]]],
    across: str,
    up: str | Mapping[str, str],
    log: bool = False,
    names: Mapping[str, str] | None = None,
    orange: Sequence[str] | None = None,
    level: float | None = None,
    levels: Mapping[str, Mapping[str, float]] | None = None,
    frontier: bool = False,
) -> Path:
    """Methods as points with intervals; `names` are labels of methods, those in `orange` (default: `names`) are orange.

    `levels` are named dotted lines by panel; `frontier` connects the points that no cheaper point exceeds.
    """
    with plt.rc_context(STYLE):
        down = (len(panels) + 1) // 2  # two beside each other
        figure, axes = plt.subplots(down, 2, figsize=(8.6, 3.9 * down), squeeze=False)
        for axis in list(axes.flat)[len(panels) :]:
            axis.remove()
        for axis, (heading, points) in zip(axes.flat, panels.items(), strict=False):
            if log:
                axis.set_xscale("log")
                axis.xaxis.set_major_locator(FixedLocator([3, 10, 30, 100, 300, 1000]))
                axis.xaxis.set_major_formatter("{x:g}")
                axis.xaxis.set_minor_locator(NullLocator())
            if level is not None:
                axis.axhline(level, color=GREY, linewidth=0.9, linestyle=":")
            for word, height in (levels or {}).get(heading, {}).items():
                axis.axhline(height, color=BLACK, linewidth=0.9, linestyle=":")
                axis.annotate(word, (0.02, height), xycoords=("axes fraction", "data"), fontsize=6.8, va="bottom")
            if frontier:
                best = sorted((x, y.mean) for _, x, y in points if isinstance(x, float))
                best = [(x, y) for place, (x, y) in enumerate(best) if all(y > other for _, other in best[:place])]
                axis.step(*zip(*best, strict=True), where="post", color=GREY, linewidth=1.1, zorder=1)
            for word, x, y in points:
                at = x if isinstance(x, float) else x.mean
                sides = None if isinstance(x, float) else compute_arms([x])
                spread = compute_arms([y])
                colour = ORANGE if word in (orange or names or ()) else BLUE
                thin = (*mpl.colors.to_rgb(colour), 0.4)
                axis.errorbar(at, y.mean, xerr=sides, yerr=spread, fmt="o", markersize=3.4, color=colour, ecolor=thin, elinewidth=0.7, zorder=3)  # fmt: skip
            if log:
                left, right = axis.get_xlim()
                axis.set_xlim(left, right * 2.5)
            named = [
                (names[word], x if isinstance(x, float) else x.mean, y.mean)
                for word, x, y in points
                if names is not None and word in names
            ]
            label_points(axis, named, log)
            axis.set_title(heading)
            axis.set_xlabel(across)
            axis.set_ylabel(up if isinstance(up, str) else up[heading])
        figure.tight_layout()
        return save_figure(figure, name)


def label_points(axis: Any, points: Sequence[tuple[str, float, float]], log: bool) -> None:
    """Write names to the right of their points, moved up where they would overlap."""
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    place = (lambda x: np.log(x / left) / np.log(right / left)) if log else (lambda x: (x - left) / (right - left))
    occupied: list[tuple[float, float]] = []
    for word, x, y in sorted(points, key=lambda row: row[2]):
        across, up = place(x), (y - low) / (high - low)
        while any(abs(across - a) < 0.45 and abs(up - u) < 0.045 for a, u in occupied):
            up += 0.005
        occupied.append((across, up))
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": GREY, "shrinkA": 0, "shrinkB": 2}
        axis.annotate(
            word,
            (x, y),
            xytext=(across + 0.03, up),
            textcoords="axes fraction",
            fontsize=6.8,
            va="center",
            arrowprops=line,
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.4},
            zorder=2.5,
        )


def draw_dots(
    name: str, rows: Mapping[str, Sequence[Figure]], labels: Sequence[str], across: str, chance: float | None = None
) -> Path:
    """Figures with intervals: a row per method, a marker per series."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.2, 0.9 + 0.2 * len(labels)))
        if chance is not None:
            axis.axvline(chance, color=GREY, linewidth=0.9, linestyle=":")
        for place, (word, own) in enumerate(rows.items()):
            own = [row for row in own if row.method in labels and not isnan(row.mean)]
            shift = 0.5 * (place / (len(rows) - 1) - 0.5) if len(rows) > 1 else 0.0
            axis.errorbar(
                [row.mean for row in own], [labels.index(row.method) + shift for row in own],
                xerr=compute_arms(own), fmt=MARKS[place], markersize=3.8, color=COLOURS[place], linewidth=0.9, label=word,
            )  # fmt: skip
        axis.set_yticks(range(len(labels)), [shorten_spec(label) for label in labels])
        axis.set_ylim(len(labels) - 0.4, -0.6)
        axis.set_xlabel(across)
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
        figure.tight_layout()
        return save_figure(figure, name)


def format_axis_title(row: Figure) -> str:
    """Title of an axis: the metric and its direction."""
    way = WAYS[row.better]
    return format_metric(row.metric) + (f"  ({way})" if way else "")
