"""Figures: every row of an attribution over its picture; several methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from PIL import Image

from vitreous.core.errors import ShapeError
from vitreous.draw.board import FAINT, Board, covers, wrapped
from vitreous.draw.overlay import LARGE, Mode, Window, backdrop, bare_image, overlay_image
from vitreous.draw.scale import OPACITY, QUANTILE, Number, Scale, scale_of
from vitreous.draw.words import class_name, class_specific, footnotes, label, remarks, standing, title
from vitreous.methods.attribution import Attribution

MARGIN, GAP = 0.2, 0.16  # inches
BAR = 0.46  # a colour bar, its numbers and its label
WIDTHS = {1: 5.4, 2: 4.2, 3: 3.4}  # of a picture, by the number of columns
NAMES = 1.45  # the column of class names
TALLEST = 1.6  # height of a picture's box, as a share of its width


@dataclass(frozen=True, slots=True)
class Look:
    """How maps are drawn."""

    overlay: bool = True
    opacity: Number = OPACITY
    mode: Mode = "bilinear"
    quantile: Number = QUANTILE
    longest: int = LARGE  # side of a picture, in pixels


@dataclass(frozen=True, slots=True)
class Panel:
    """One map as it is shown: the picture, its scale, and what must be said about it."""

    picture: Image.Image
    window: Window | None
    scale: Scale
    opacity: Number | None  # None: the map alone
    title: str
    remarks: str
    label: str

    def draw(self, board: Board, x: Number, y: Number, width: Number) -> float:
        """The picture, and under it the bar; returns where that ends."""
        height = boxed(self.picture, width)
        board.picture(x, y, width, height, self.picture, self.window)
        inset = 0.1 * width
        board.bar(x + inset, y + height + 0.07, width - 2 * inset, self.scale, self.opacity)
        label = wrapped(self.label, width, 7, most=1)
        board.write(x + width / 2, y + height + 0.33, label, 7, ha="center", color=FAINT)
        return y + height + BAR


def boxed(picture: Image.Image, width: Number) -> float:
    """The height that a picture takes when it is so wide; a very tall one is made narrower."""
    return width * min(picture.height / picture.width, TALLEST)


def figure(
    attribution: Attribution,
    *,
    overlay: bool = True,
    opacity: Number = OPACITY,
    columns: int | None = None,
    shared_scale: bool = False,
    mode: Mode = "bilinear",
    quantile: Number = QUANTILE,
    scale: Scale | None = None,
    limit: int = 24,
) -> Figure:
    """Every row over its picture, with its class, its probability and its scale.

    `overlay=False` shows the maps alone; `shared_scale` gives all rows one scale, `scale` a given one; colours end at
    the `quantile` of |score| (1 for all of it); no more than `limit` rows are drawn, and the figure says so.
    """
    shown = range(min(len(attribution), limit))
    if not shown or (columns is not None and columns < 1):
        raise ShapeError(f"nothing to draw: {len(attribution)} rows, columns={columns}, limit={limit}")
    columns = min(columns or (len(shown) if len(shown) <= 3 else 4), len(shown))
    look = Look(overlay, opacity, mode, quantile, LARGE if len(shown) <= 4 else LARGE // 2)
    common = scale_of(attribution, quantile=quantile) if shared_scale and scale is None else scale
    panels = [panel(attribution[row], common, look) for row in shown]
    width = WIDTHS.get(columns, 3.0)
    board = Board(2 * MARGIN + columns * width + (columns - 1) * GAP)
    heading = wrapped(attribution.method, board.across - 2 * MARGIN, 11, weight="bold")
    y = board.write(MARGIN, MARGIN, heading, 11, weight="bold") + 0.1
    for start in range(0, len(panels), columns):
        y = draw_line(board, panels[start : start + columns], y, width) + GAP
    return finished(board, y, attribution, panels, left_out(attribution, shown, "row"), quantile)


def sheet(
    attributions: Sequence[Attribution],
    *,
    opacity: Number = OPACITY,
    shared_scale: bool = False,
    mode: Mode = "bilinear",
    quantile: Number = QUANTILE,
    limit: int = 12,
) -> Figure:
    """Several methods about the same pictures and classes: picture | method | method | …, one line per row.

    `shared_scale` gives each method one scale for all its lines. No more than `limit` lines are drawn, and the sheet
    says so.
    """
    first = one_subject(attributions)
    shown = range(min(len(first), limit))
    look = Look(True, opacity, mode, quantile, LARGE // 2)
    scales = [scale_of(one, quantile=quantile) if shared_scale else None for one in attributions]
    width = min(max((13.5 - NAMES) / (len(attributions) + 1), 2.0), 3.2)
    board = Board(2 * MARGIN + NAMES + (len(attributions) + 1) * (width + GAP))
    y = draw_headings(board, attributions, width)
    everything: list[Panel] = []
    for row in shown:
        line = [panel(one[row], scale, look) for one, scale in zip(attributions, scales, strict=True)]
        y = draw_sheet_line(board, first[row], line, y, width) + GAP
        everything += line
    return finished(board, y, first, everything, left_out(first, shown, "line"), quantile)


def one_subject(attributions: Sequence[Attribution]) -> Attribution:
    """The first of several attributions that are about the same rows."""
    if not attributions:
        raise ShapeError("a sheet needs at least one attribution")
    first = attributions[0]
    for other in attributions[1:]:
        if other.targets.tolist() != first.targets.tolist():
            raise ShapeError(f"{other.method!r} and {first.method!r} are about different classes or pictures")
    return first


def panel(one: Attribution, scale: Scale | None, look: Look) -> Panel:
    """A single row, ready to be drawn."""
    scale = scale or scale_of(one, quantile=look.quantile)
    words = {"title": title(one), "remarks": remarks(one), "label": label(one, scale)}
    found = backdrop(one, look.longest) if look.overlay else None
    if found is None:
        return Panel(bare_image(one, mode=look.mode, scale=scale), None, scale, None, **words)
    picture = overlay_image(one, opacity=look.opacity, mode=look.mode, scale=scale, longest=look.longest)
    window = None if covers(found[1], picture) else found[1]
    return Panel(picture, window, scale, look.opacity, **words)


def draw_line(board: Board, panels: Sequence[Panel], y: Number, width: Number) -> float:
    """Panels side by side, each under its own title."""
    xs = [MARGIN + place * (width + GAP) for place in range(len(panels))]
    below = y
    for x, one in zip(xs, panels, strict=True):
        end = board.write(x, y, wrapped(one.title, width, 9, most=2, weight="bold"), 9, weight="bold")
        below = max(below, board.write(x, end, wrapped(one.remarks, width, 7.5, most=2), 7.5, color=FAINT))
    return max(one.draw(board, x, below + 0.05, width) for x, one in zip(xs, panels, strict=True))


def draw_headings(board: Board, attributions: Sequence[Attribution], width: Number) -> float:
    """What each column of a sheet shows."""
    x = MARGIN + NAMES + GAP + width / 2
    below = board.write(x, MARGIN, ["picture"], 9.5, ha="center", color=FAINT)
    several = len(set(attributions[0].targets.tolist())) > 1
    for place, one in enumerate(attributions, 1):
        middle = x + place * (width + GAP)
        end = board.write(
            middle, MARGIN, wrapped(one.method, width, 9.5, weight="bold"), 9.5, ha="center", weight="bold"
        )
        if several and not class_specific(one.method):
            end = board.write(middle, end, ["the same for every class"], 7.5, ha="center", color=FAINT)
        below = max(below, end)
    return below + 0.06


def draw_sheet_line(board: Board, one: Attribution, line: Sequence[Panel], y: Number, width: Number) -> float:
    """Name and probability, the picture, and what each method says."""
    start = MARGIN + NAMES + GAP
    below = y
    for place, panel in enumerate(line, 1):
        middle = start + place * (width + GAP) + width / 2
        text = wrapped(panel.remarks, width, 7, most=2)
        below = max(below, board.write(middle, y, text, 7, ha="center", color=FAINT))
    end = board.write(MARGIN, below, wrapped(class_name(one), NAMES, 10, weight="bold"), 10, weight="bold")
    end = board.write(MARGIN, end + 0.03, standing(one), 8.5, color=FAINT)
    if (found := backdrop(one, LARGE // 2)) is not None:
        board.picture(start, below, width, boxed(found[0], width), *found)
    xs = [start + place * (width + GAP) for place in range(1, len(line) + 1)]
    return max(end, *(panel.draw(board, x, below, width) for x, panel in zip(xs, line, strict=True)))


def left_out(attribution: Attribution, shown: range, what: str) -> str:
    missing = len(attribution) - len(shown)
    return f"{missing} more {what}{'s' * (missing > 1)} not shown (limit={len(shown)})" if missing else ""


def finished(
    board: Board, y: Number, one: Attribution, panels: Sequence[Panel], left_out: str, quantile: Number
) -> Figure:
    """The page with its footnotes, closed where they end."""
    notes = footnotes(
        one,
        clipped=any(panel.scale.extend != "neither" for panel in panels),
        framed=any(panel.window is not None for panel in panels),
        quantile=quantile,
        left_out=left_out,
    )
    end = board.write(MARGIN, y, wrapped(notes, board.across - 2 * MARGIN, 7), 7, color=FAINT)
    return board.closed(end + MARGIN / 2)
