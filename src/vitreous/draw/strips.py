"""A method layer by layer: its parts below one another, its layers side by side, beside the image and the whole map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from vitreous.core.errors import ShapeError, SpecError
from vitreous.draw.captions import label
from vitreous.draw.figure_layout import FAINT, FigureBoard
from vitreous.draw.overlay import LARGE, MapStyle, Mode, backdrop
from vitreous.draw.pages import GAP, MARGIN, Panel, close_board, count_left_out, make_panel, printable_target
from vitreous.draw.scale import OPACITY, QUANTILE, Number, Scale, scale_of
from vitreous.methods.attribution import Attribution
from vitreous.methods.inside import ABOUT, SIGNALS, Inside
from vitreous.methods.spec import depends_on_class

SIDE, NAMES, THIN = 2.2, 1.75, 0.06  # inches: the image and the whole map, the column of names, between layers
SIZES = (0.72, 1.5)  # of a layer's map, smallest and largest
ACROSS = 11.0  # of all layers together


@dataclass(frozen=True, slots=True)
class Strip:
    """One part: its maps from the last layer to the first, and their colour scales (one for all, or one for each)."""

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
    """Draw every part of a method as a strip of maps from the last layer to the first.

    Parameters
    ----------
    inside
        What `vitreous.inside` returned.
    parts
        Names of the parts to draw, in this order; all by default.
    shared_scale
        True: one colour scale for all layers of a part. False: every layer has its own, written below its map.
    opacity
        Opacity of the strongest colours, 0 to 1.
    mode
        How patches are enlarged: "nearest", "bilinear" or "bicubic".
    quantile
        Quantile of |score| at which colours end, up to 1 (no score lies beyond).
    limit
        Most rows that are drawn; the figure says how many are not.

    Returns
    -------
    matplotlib.figure.Figure
        The image and the whole map on the left, the strips beside them.

    Raises
    ------
    SpecError
        If `parts` is not a list of known parts.
    ShapeError
        If there is nothing to draw.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> layers = vitreous.inside(vit, images, method="gradcam+skipplus")
    >>> type(vitreous.draw.strips(layers, parts=["signal"])).__name__
    'FigureBoard'
    """
    names = tuple(inside.parts) if parts is None else tuple(parts)
    if not names or isinstance(parts, str):
        raise SpecError(f"parts is a list of some of {', '.join(inside.parts)}, not {parts!r}")
    shown = range(min(len(inside), limit))
    if not shown:
        raise ShapeError(f"nothing to draw: {len(inside)} rows, limit={limit}")
    size = min(max(ACROSS / len(inside.layers), SIZES[0]), SIZES[1])
    large, small = (MapStyle(True, opacity, mode, LARGE // share) for share in (2, 4))
    stacked = len(names) > 2
    left = SIDE if stacked else 2 * SIDE + GAP
    board = FigureBoard(2 * MARGIN + left + 2 * GAP + NAMES + len(inside.layers) * (size + THIN))
    inner = board.across - 2 * MARGIN
    y = board.write_wrapped(MARGIN, MARGIN, inside.whole.method, inner, 11, weight="bold") + 0.08
    panels: list[Panel] = []
    for row in shown:
        single = inside[row]
        whole = make_panel(single.whole, scale_of(single.whole, quantile=quantile), large)
        lines = [make_strip(single, name, shared_scale, quantile) for name in names]
        y = board.write_wrapped(MARGIN, y, describe_row(single.whole), inner, 10, weight="bold")
        end = draw_whole(board, single.whole, whole, y, stacked)
        below = draw_layer_numbers(board, inside.layers, MARGIN + left + 2 * GAP + NAMES, y, size)
        for strip in lines:
            below = draw_strip(board, strip, MARGIN + left + 2 * GAP, below, size, small) + THIN
        y = max(end, below) + GAP
        panels.append(whole)
    note = "one colour scale for all layers of a part" if shared_scale else "own colour scale per layer"
    left_out = count_left_out(len(inside), len(shown), "row")
    return close_board(board, y, [inside.whole], panels, note, left_out, quantile)


def describe_row(attribution: Attribution) -> str:
    """Target of a single row, and whether the method ignores it."""
    title = printable_target(attribution)
    return title + ("" if depends_on_class(attribution.method) else " · the same for every class")


def make_strip(single: Inside, name: str, shared: bool, quantile: Number) -> Strip:
    """Maps and colour scales of one part of a single row."""
    maps = [single.at(name, layer) for layer in reversed(single.layers)]
    own = [scale_of(layer_map, quantile=quantile) for layer_map in maps]
    return Strip(name, maps, [scale_of(*maps, quantile=quantile)] * len(maps) if shared else own, shared)


def draw_whole(board: FigureBoard, attribution: Attribution, whole: Panel, y: Number, stacked: bool) -> float:
    """Place the image, and below or beside it the map that all layers make together."""
    end = board.write(MARGIN, y + 0.04, ["image"], 8, color=FAINT)
    framed_image = backdrop(attribution, LARGE // 2)
    bottom, x = end, MARGIN
    if framed_image is not None:
        bottom = board.place_image(MARGIN, end, SIDE, *framed_image)
        x = MARGIN if stacked else MARGIN + SIDE + GAP
    top = board.write(x, bottom + 0.08 if stacked else y + 0.04, ["all layers together"], 8, color=FAINT)
    top = board.write_wrapped(x, top, whole.remarks, SIDE, 7, color=FAINT)
    return max(bottom, whole.draw(board, x, top, SIDE))


def draw_layer_numbers(board: FigureBoard, layers: Sequence[int], x: Number, y: Number, size: Number) -> float:
    """Place the layer number above every column."""
    end = y
    for place, layer in enumerate(reversed(layers)):
        text = f"layer {layer}" if place in (0, len(layers) - 1) or size > 0.9 else f"{layer}"
        left = x + place * (size + THIN)
        end = max(end, board.write_wrapped(left, y + 0.04, text, size, 8, ha="center", color=FAINT))
    return end


def draw_strip(board: FigureBoard, strip: Strip, x: Number, y: Number, size: Number, look: MapStyle) -> float:
    """Place the part's name, description and colour scale; then one map for every layer."""
    width = NAMES - GAP
    end = board.write_wrapped(x, y, strip.name, width, 9, weight="bold")
    end = board.write_wrapped(x, end, ABOUT.get(strip.name, ""), width, 7, color=FAINT)
    if strip.shared:
        board.bar(x + 0.12, end + 0.05, width - 0.3, strip.scales[0], look.opacity)
        text = label(strip.maps[0], strip.scales[0])
        text = text if strip.name in SIGNALS else text.replace("score", "value", 1)
        end = board.write_wrapped(x, end + 0.31, text, width, 6.5, color=FAINT)
    start, below = x + NAMES, y
    framed_image = backdrop(strip.maps[0], look.longest)  # that of all layers
    for place, (attribution, scale) in enumerate(zip(strip.maps, strip.scales, strict=True)):
        image = look.draw(attribution, scale, framed_image)
        left = start + place * (size + THIN)
        end_of_image = board.place_image(left, y, size, image)
        below = max(below, end_of_image)
        if not strip.shared:
            text = f"{scale.written(scale.low)} … {scale.written(scale.high)}" + (
                f" e{scale.exponent}" if scale.exponent else ""
            )
            below = max(below, board.write_wrapped(left, end_of_image + 0.02, text, size, 6, ha="center", color=FAINT))
    return max(end, below)
