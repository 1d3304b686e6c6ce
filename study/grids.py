"""Heat maps of tables, with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from study.plots import ORANGE, STYLE, plt, save_figure
from study.sentences import format_number


def draw_heatmap(
    name: str,
    panels: Mapping[str, np.ndarray],
    down: Sequence[str],
    across: Sequence[str],
    unit: str,
    boxed: np.ndarray | None = None,
    stars: Mapping[str, np.ndarray] | None = None,
    centre: float | None = None,
) -> Path:
    """Heat map with numbers; `boxed` cells have a frame, cells in `stars` a star. Wide panels are stacked vertically.

    Without a centre every panel has its own scale, from its 0.1 quantile to its maximum.
    """
    with plt.rc_context({**STYLE, "axes.grid": False}):
        wide = len(across) > 10
        size = (2.2 + 0.5 * len(across), 1.5 + 0.3 * len(down))
        shape = (len(panels), 1) if wide else (1, len(panels))
        whole = (size[0], size[1] * 1.0 * shape[0]) if wide else (size[0] * shape[1], size[1])
        figure, axes = plt.subplots(
            *shape, figsize=whole, sharex=wide, sharey=not wide, squeeze=False, layout="constrained"
        )
        all_values = np.concatenate([table.ravel() for table in panels.values()])
        for axis, (heading, values) in zip(axes.flat, panels.items(), strict=True):
            colours, ends = "cividis", (np.nanquantile(values, 0.1), np.nanmax(values))
            if centre is not None:
                reach = np.nanmax(np.abs(all_values - centre))
                colours, ends = "RdBu", (centre - reach, centre + reach)
            drawn = axis.imshow(values, cmap=colours, vmin=ends[0], vmax=ends[1], aspect="auto")
            for i, j in np.ndindex(*values.shape):
                if not isnan(values[i, j]):
                    star = "*" if stars is not None and stars[heading][i, j] else ""
                    text = format_number(float(values[i, j]), 2) + star
                    axis.text(j, i, text, ha="center", va="center", fontsize=6.6, color=choose_ink(drawn, values[i, j]))
                if boxed is not None and boxed[i, j]:
                    frame = plt.Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, edgecolor=ORANGE, linewidth=1.3)
                    axis.add_patch(frame)
            axis.set_title(heading)
            axis.set_xticks(range(len(across)), across, rotation=90)
            axis.set_yticks(range(len(down)), down)
            axis.tick_params(length=0)
            axis.spines[:].set_visible(False)
            if centre is None or axis is axes.flat[-1]:
                colorbar_axes = axis if centre is None else axes.ravel().tolist()
                bar = figure.colorbar(drawn, ax=colorbar_axes, fraction=0.03, pad=0.015, extend="min" if centre is None else "neither")  # fmt: skip
                bar.set_label(unit)
                bar.outline.set_visible(False)
        return save_figure(figure, name)


def choose_ink(drawn: Any, value: float) -> str:
    """Text colour on a cell: white on dark, black on light."""
    red, green, blue, _ = drawn.cmap(drawn.norm(value))
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.55 else "black"
