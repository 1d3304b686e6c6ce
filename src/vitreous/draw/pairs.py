"""Drawings of a pair: both sides with their maps and lines between matching parts, and a page that shows partners."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from PIL import Image

from vitreous.draw.captions import format_value
from vitreous.draw.notebook import render_template, to_data_url
from vitreous.draw.overlay import Window, backdrop, overlay_image
from vitreous.draw.scale import Scale, scale_of
from vitreous.pairs.pair_attribution import PairAttribution, Side

LINE = "#111111"


def pair_figure(pair: PairAttribution, *, lines: int = 8, partners: Iterable[int] | None = None) -> Figure:
    """Draw both sides with their maps, and lines between the pairs with the largest shares.

    Parameters
    ----------
    pair
        The pair.
    lines
        Number of lines.
    partners
        Patches or words of b: a shows only their matches, and only their lines are drawn.
    """
    chosen = None if partners is None else sorted(set(partners))
    figure = Figure(figsize=(9.0, 4.9), layout="constrained")
    axes: Any = figure.subplots(1, 2, width_ratios=[1.0, 0.55 if pair.b.words is not None else 1.0])
    draw_side(axes[0], pair, "a", chosen)
    draw_side(axes[1], pair, "b", None)
    first_places, second_places = part_centres(pair, "a"), part_centres(pair, "b")
    for index in chosen or ():
        axes[1].plot(*second_places[index], marker="s", markersize=9, fillstyle="none", color=LINE)
    strongest = [entry for entry in pair.strongest(lines, chosen) if entry[2] > 0]
    for first, second, share in strongest:
        ends = (first_places[first], second_places[second], axes[0].transData, axes[1].transData)
        width = 0.6 + 1.8 * share / strongest[0][2]
        figure.add_artist(ConnectionPatch(*ends, color=LINE, alpha=0.55, linewidth=width))
    figure.suptitle(f"{pair_title(pair)} · {pair.method}", fontsize=11)
    return figure


def pair_title(pair: PairAttribution) -> str:
    """Kind and value of the similarity and, with a reference, what is left out of it."""
    kind = pair.provenance.get("similarity", "similarity")
    reference = pair.provenance.get("reference")
    beyond = "" if reference is None else f" beyond the mean of {reference} embeddings"
    return f"{kind} {format_value(pair.similarity)}{beyond}"


def draw_side(axis: Axes, pair: PairAttribution, side: Side, partners: list[int] | None) -> None:
    own = pair.side(side)
    attribution = pair.attribution(side, partners)
    scale = scale_of(attribution)
    axis.set_axis_off()
    if own.words is not None:
        draw_words(axis, own.words, attribution.maps()[0, 0].cpu().numpy(), scale)
        return
    axis.imshow(np.asarray(overlay_image(attribution, scale=scale)))
    explained = "all of the other side" if partners is None else f"{len(partners)} marked part(s) of the other side"
    axis.set_title(f"{own.name}: match with {explained}", fontsize=9)


def draw_words(axis: Axes, words: tuple[str, ...], scores: np.ndarray, scale: Scale) -> None:
    """Words from top to bottom, each on the colour of its score."""
    colours = scale.colours(scores)
    axis.set_xlim(0, 1)
    axis.set_ylim(len(words), 0)
    for index, (word, colour) in enumerate(zip(words, colours, strict=True)):
        dark = float(np.dot(colour, (0.299, 0.587, 0.114))) < 0.5
        axis.text(
            0.08,
            index + 0.5,
            textwrap.shorten(word, 24, placeholder="…"),
            va="center",
            fontsize=min(11, 170 / len(words)),
            color="white" if dark else "black",
            bbox={"facecolor": tuple(colour), "edgecolor": "none", "pad": 2.5},
        )


def image_and_window(pair: PairAttribution, side: Side) -> tuple[Image.Image, Window]:
    """The image of a side as it is displayed, and the part of it that the model sees."""
    displayed = backdrop(pair.attribution(side))
    assert displayed is not None  # an image tower keeps its input
    return displayed


def part_centres(pair: PairAttribution, side: Side) -> list[tuple[float, float]]:
    """Centres of all patches or words of a side in the coordinates of its drawing."""
    own = pair.side(side)
    if own.words is not None:
        return [(0.02, index + 0.5) for index in range(len(own.words))]
    _, (left, top, right, bottom) = image_and_window(pair, side)
    rows, columns = own.layout.grid
    return [
        (left + (column + 0.5) / columns * (right - left), top + (row + 0.5) / rows * (bottom - top))
        for row in range(rows)
        for column in range(columns)
    ]


def pair_page(pair: PairAttribution) -> str:
    """A self-contained page: the patch or word that is pointed at shows its partners on the other side."""
    matrix = pair.matrix.cpu().double().numpy()
    largest = float(np.abs(matrix).max()) or 1.0
    shares = np.round(matrix / largest, 4).tolist()
    return render_template(
        "pair.html",
        title=pair_title(pair),
        method=pair.method,
        sides=[describe_side(pair, side) for side in ("a", "b")],
        data=json.dumps({"matrix": shares, "a": relative_scores(pair, "a"), "b": relative_scores(pair, "b")}),
    )


def relative_scores(pair: PairAttribution, side: Side) -> list[float]:
    """Scores of all patches or words of a side, relative to the largest."""
    scores = pair.map(side).flatten().cpu().double().numpy()
    return np.round(scores / (float(np.abs(scores).max()) or 1.0), 4).tolist()


def describe_side(pair: PairAttribution, side: Side) -> dict[str, Any]:
    own = pair.side(side)
    rows, columns = own.layout.grid
    described: dict[str, Any] = {"id": side, "name": own.name, "words": own.words, "rows": rows, "columns": columns}
    if own.words is None:
        image, window = image_and_window(pair, side)
        left, top, right, bottom = (round(100 * v / n, 3) for v, n in zip(window, image.size * 2, strict=True))
        described |= {
            "source": to_data_url(image, "png", optimize=True),
            "window": {"left": left, "top": top, "width": right - left, "height": bottom - top},
        }
    return described
