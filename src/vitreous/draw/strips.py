"""A method from inside: its parts below one another, its layers side by side, beside the picture and the map they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from PIL import Image

from vitreous.core.errors import ShapeError, SpecError
from vitreous.draw.board import FAINT, Board, wrapped
from vitreous.draw.overlay import LARGE, Mode, backdrop, bare_image, overlay_image
from vitreous.draw.pages import GAP, MARGIN, Look, Panel, boxed, finished, left_out, panel
from vitreous.draw.scale import OPACITY, QUANTILE, Number, Scale, scale_of
from vitreous.draw.words import class_specific, label, title
from vitreous.methods.attribution import Attribution
from vitreous.methods.inside import ABOUT, SIGNALS, Inside

SIDE, NAMES, THIN = 2.2, 1.75, 0.06  # inches: the picture and the map, the column of names, between layers
SIZES = (0.72, 1.5)  # of a layer's map, smallest and largest
ACROSS = 11.0  # what the layers may take together


@dataclass(frozen=True, slots=True)
class Line:
    """One part: its maps from the last layer to the first, and their scales (one for all, or one for each)."""

    name: str
    maps: Sequence[Attribution]
    scales: Sequence[Scale]
    shared: bool


def strips(
    inside: Inside,
    *,
    parts: Sequence[str] | None = None,
    shared_scale: bool = True,
    opacity: Number = OPACITY,
    mode: Mode = "bilinear",
    quantile: Number = QUANTILE,
    limit: int = 6,
) -> Figure:
    """Every part as a strip from the last layer to the first, with its colour scale; the picture first, and the whole map.

    `parts` chooses some, in that order; `shared_scale=False` gives every layer its own scale, written below it. No more
    than `limit` rows are drawn, and the board says so.
    """
    names = tuple(inside.parts) if parts is None else tuple(parts)
    if not names or isinstance(parts, str):
        raise SpecError(f"parts is a list of some of {', '.join(inside.parts)}, not {parts!r}")
    shown = range(min(len(inside), limit))
    if not shown:
        raise ShapeError(f"nothing to draw: {len(inside)} rows, limit={limit}")
    size = min(max(ACROSS / len(inside.layers), SIZES[0]), SIZES[1])
    look = Look(True, opacity, mode, quantile, LARGE // 2)
    stacked = len(names) > 2
    left = SIDE if stacked else 2 * SIDE + GAP
    board = Board(2 * MARGIN + left + 2 * GAP + NAMES + len(inside.layers) * (size + THIN))
    heading = wrapped(inside.whole.method, board.across - 2 * MARGIN, 11, weight="bold")
    y = board.write(MARGIN, MARGIN, heading, 11, weight="bold") + 0.08
    drawn: list[Panel] = []
    for row in shown:
        one = inside[row]
        whole = panel(one.whole, None, look)
        lines = [line_of(one, name, shared_scale, quantile) for name in names]
        y = board.write(
            MARGIN, y, wrapped(said(one.whole), board.across - 2 * MARGIN, 10, 2, "bold"), 10, weight="bold"
        )
        end = draw_side(board, one.whole, whole, y, stacked)
        below = draw_layers(board, inside.layers, MARGIN + left + 2 * GAP + NAMES, y, size)
        for line in lines:
            below = draw_strip(board, line, MARGIN + left + 2 * GAP, below, size, look) + THIN
        y = max(end, below) + GAP
        drawn.append(whole)
    return finished(board, y, inside.whole, drawn, left_out(inside.whole, shown, "row"), quantile)


def said(one: Attribution) -> str:
    """The class of a single row; of a method that ignores it, that it does."""
    return title(one) + ("" if class_specific(one.method) else " · the same for every class")


def line_of(one: Inside, name: str, shared: bool, quantile: Number) -> Line:
    maps = [one.at(name, layer) for layer in reversed(one.layers)]
    scales = [scale_of(*maps, quantile=quantile)] * len(maps)
    return Line(name, maps, scales if shared else [scale_of(m, quantile=quantile) for m in maps], shared)


def draw_side(board: Board, one: Attribution, whole: Panel, y: Number, stacked: bool) -> float:
    """The picture, and below or beside it the map that the layers make."""
    end = board.write(MARGIN, y + 0.04, ["picture"], 8, color=FAINT)
    found = backdrop(one, LARGE // 2)
    bottom, x = end, MARGIN
    if found is not None:
        bottom = end + boxed(found[0], SIDE)
        board.picture(MARGIN, end, SIDE, bottom - end, *found)
        x = MARGIN if stacked else MARGIN + SIDE + GAP
    top = board.write(x, bottom + 0.08 if stacked else y + 0.04, ["all layers together"], 8, color=FAINT)
    return max(bottom, whole.draw(board, x, top, SIDE))


def draw_layers(board: Board, layers: Sequence[int], x: Number, y: Number, size: Number) -> float:
    """Which layer every column shows."""
    end = y
    for place, layer in enumerate(reversed(layers)):
        words = f"layer {layer}" if place in (0, len(layers) - 1) or size > 0.9 else f"{layer}"
        end = board.write(x + place * (size + THIN) + size / 2, y + 0.04, [words], 8, ha="center", color=FAINT)
    return end


def draw_strip(board: Board, line: Line, x: Number, y: Number, size: Number, look: Look) -> float:
    """The part's name, what it is and its scale; then one map for every layer."""
    end = board.write(x, y, [line.name], 9, weight="bold")
    end = board.write(x, end, wrapped(ABOUT.get(line.name, ""), NAMES - GAP, 7, most=4), 7, color=FAINT)
    if line.shared:
        board.bar(x + 0.12, end + 0.05, NAMES - GAP - 0.3, line.scales[0], look.opacity)
        words = label(line.maps[0], line.scales[0])
        words = words if line.name in SIGNALS else words.replace("score", "value", 1)
        end = board.write(x, end + 0.31, wrapped(words, NAMES - GAP, 6.5, most=2), 6.5, color=FAINT)
    start, below = x + NAMES, y
    for place, (one, scale) in enumerate(zip(line.maps, line.scales, strict=True)):
        picture = cell(one, scale, look)
        height = boxed(picture, size)
        across = start + place * (size + THIN)
        board.picture(across, y, size, height, picture, None)
        below = max(below, y + height)
        if not line.shared:
            ends = f"{scale.written(scale.low)} … {scale.written(scale.high)}" + (
                f" e{scale.exponent}" if scale.exponent else ""
            )
            below = max(below, board.write(across + size / 2, y + height + 0.02, [ends], 6, ha="center", color=FAINT))
    return max(end, below)


def cell(one: Attribution, scale: Scale, look: Look) -> Image.Image:
    if backdrop(one, LARGE // 4) is None:
        return bare_image(one, mode=look.mode, scale=scale)
    return overlay_image(one, opacity=look.opacity, mode=look.mode, scale=scale, longest=LARGE // 4)
