"""Figures: every row of an attribution over its image; several methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from PIL import Image

from vitreous.core.errors import ShapeError
from vitreous.draw.captions import (
    class_name,
    describe_missing_image,
    describe_rank,
    describe_sums,
    describe_target,
    describe_weights,
    label,
    remarks,
)
from vitreous.draw.figure_layout import FAINT, FigureBoard, covers, is_printable
from vitreous.draw.overlay import LARGE, MapStyle, Mode, Window, backdrop
from vitreous.draw.scale import OPACITY, QUANTILE, Number, Scale, choose_scales, describe_scales, group_rows
from vitreous.methods.attribution import Attribution
from vitreous.methods.spec import depends_on_class
from vitreous.models.transforms import OpaquePreprocess

MARGIN, GAP = 0.2, 0.16  # inches
BAR = 0.33  # a colour bar and its numbers
WIDTHS = {1: 5.4, 2: 4.2, 3: 3.4}  # of an image, by the number of columns
NAMES = 1.45  # the column of class names


@dataclass(frozen=True, slots=True)
class Panel:
    """One map ready to be drawn: the image, its colour scale and its captions."""

    image: Image.Image
    window: Window | None
    scale: Scale
    opacity: Number | None  # None: the map alone
    title: str
    remarks: str
    label: str

    def draw(self, board: FigureBoard, x: Number, y: Number, width: Number) -> float:
        """Place the image with its colour bar and label below; returns where they end."""
        end = board.place_image(x, y, width, self.image, self.window)
        inset = 0.1 * width
        board.bar(x + inset, end + 0.07, width - 2 * inset, self.scale, self.opacity)
        return board.write_wrapped(x, end + BAR, self.label, width, 7, ha="center", color=FAINT)


def figure(
    attribution: Attribution,
    *,
    rows: Sequence[int] | None = None,
    overlay: bool = True,
    opacity: Number = OPACITY,
    columns: int | None = None,
    shared_scale: bool = True,
    mode: Mode = "bilinear",
    quantile: Number = QUANTILE,
    scale: Scale | None = None,
    limit: int = 24,
    uncertainty: bool = False,
) -> Figure:
    """Draw the map of every row over its image, with target, probability and colour scale.

    Parameters
    ----------
    attribution
        Maps to draw.
    rows
        Rows to draw; all by default. Rows that are left out still count for a shared scale.
    overlay
        False draws the maps alone, without the images.
    opacity
        Opacity of the strongest colours, 0 to 1.
    columns
        Maps side by side; by default up to three, else four.
    shared_scale
        True: one colour scale for all classes of an image. False: every map has its own. The figure says which.
    mode
        How patches are enlarged: "nearest", "bilinear" or "bicubic".
    quantile
        Quantile of |score| at which colours end, up to 1 (no score lies beyond).
    scale
        Colour scale to use for every map instead.
    limit
        Most rows that are drawn; the figure says how many are not.
    uncertainty
        True draws thin lines over patches whose 95 % interval contains zero (`Attribution.stderr`).

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ShapeError
        If there is nothing to draw, or an argument lies outside its range.

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution, draw
    >>> from vitreous.models.vit import Layout
    >>> attribution = Attribution(torch.rand(2, 4), Layout((2, 2), (16, 16), 0), torch.tensor([3, 5]), "ixg")
    >>> type(draw.figure(attribution, overlay=False)).__name__
    'FigureBoard'
    """
    chosen = range(len(attribution)) if rows is None else rows
    shown = chosen[:limit]
    if not shown or (columns is not None and columns < 1):
        raise ShapeError(f"nothing to draw: {len(chosen)} rows, columns={columns}, limit={limit}")
    columns = min(columns or (len(shown) if len(shown) <= 3 else 4), len(shown))
    look = MapStyle(overlay, opacity, mode, LARGE if len(shown) <= 4 else LARGE // 2, uncertainty)
    groups = group_rows(attribution, shared_scale)
    scales = [scale] * len(attribution) if scale else choose_scales(attribution, groups, quantile)
    panels = [make_panel(attribution[row], scales[row], look) for row in shown]
    width = WIDTHS.get(columns, 3.0)
    board = FigureBoard(2 * MARGIN + columns * width + (columns - 1) * GAP)
    inner = board.across - 2 * MARGIN
    y = board.write_wrapped(MARGIN, MARGIN, attribution.method, inner, 11, weight="bold") + 0.1
    for start in range(0, len(panels), columns):
        y = draw_panels(board, panels[start : start + columns], y, width) + GAP
    note = "" if scale else describe_scales(attribution, shared_scale, 1)
    left_out = count_left_out(len(chosen), len(shown), "row")
    return close_board(board, y, [attribution], panels, note, left_out, quantile)


def sheet(
    attributions: Sequence[Attribution],
    *,
    opacity: Number = OPACITY,
    shared_scale: bool = True,
    mode: Mode = "bilinear",
    quantile: Number = QUANTILE,
    limit: int = 12,
) -> Figure:
    """Compare several methods: one line per row of the attributions, with the image and then one map per method.

    Parameters
    ----------
    attributions
        One attribution per method, all about the same images and classes.
    opacity
        Opacity of the strongest colours, 0 to 1.
    shared_scale
        True: within each method, one colour scale for all classes of an image. False: every map has its own. Methods
        never share a scale, since their units differ. The sheet says which.
    mode
        How patches are enlarged: "nearest", "bilinear" or "bicubic".
    quantile
        Quantile of |score| at which colours end, up to 1 (no score lies beyond).
    limit
        Most lines that are drawn; the sheet says how many are not.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ShapeError
        If there are no attributions, or they are about different rows.

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution, draw
    >>> from vitreous.models.vit import Layout
    >>> attribution = Attribution(torch.rand(2, 4), Layout((2, 2), (16, 16), 0), torch.tensor([3, 5]), "ixg")
    >>> type(draw.sheet([attribution, attribution])).__name__
    'FigureBoard'
    """
    first = check_same_rows(attributions)
    shown = range(min(len(first), limit))
    look = MapStyle(True, opacity, mode, LARGE // 2)
    groups = group_rows(first, shared_scale)
    scales = [choose_scales(attribution, groups, quantile) for attribution in attributions]
    width = min(max((13.5 - NAMES) / (len(attributions) + 1), 2.0), 3.2)
    board = FigureBoard(2 * MARGIN + NAMES + (len(attributions) + 1) * (width + GAP))
    y = draw_headings(board, attributions, width)
    panels: list[Panel] = []
    for row in shown:
        line = [
            make_panel(attribution[row], own[row], look) for attribution, own in zip(attributions, scales, strict=True)
        ]
        y = draw_sheet_line(board, first[row], line, y, width) + GAP
        panels += line
    note = describe_scales(first, shared_scale, len(attributions))
    left_out = count_left_out(len(first), len(shown), "line")
    return close_board(board, y, attributions, panels, note, left_out, quantile)


def check_same_rows(attributions: Sequence[Attribution]) -> Attribution:
    """The first of several attributions, after checking that all are about the same rows."""
    if not attributions:
        raise ShapeError("a sheet needs at least one attribution")
    first = attributions[0]
    for attribution in attributions[1:]:
        if attribution.targets.tolist() != first.targets.tolist():
            raise ShapeError(f"{attribution.method!r} and {first.method!r} are about different classes or images")
    return first


# ── layout ───────────────────────────────────────────────────────────────────────────────────────


def make_panel(attribution: Attribution, scale: Scale, look: MapStyle) -> Panel:
    """The map of a single row with its captions."""
    captions = {
        "title": printable_target(attribution),
        "remarks": remarks(attribution),
        "label": label(attribution, scale) + ("; lines: the 95 % interval contains zero" if look.uncertainty else ""),
    }
    framed_image = backdrop(attribution, look.longest) if look.overlay else None
    image = look.draw(attribution, scale, framed_image)
    if framed_image is None:
        return Panel(image, None, scale, None, **captions)
    window = None if covers(framed_image[1], image) else framed_image[1]
    return Panel(image, window, scale, look.opacity, **captions)


def printable_target(attribution: Attribution) -> str:
    """Target of the first row, with the class index added if the font lacks characters of the class name."""
    title = describe_target(attribution)
    return title if is_printable(class_name(attribution)) else f"{title} · class {int(attribution.targets[0])}"


def draw_panels(board: FigureBoard, panels: Sequence[Panel], y: Number, width: Number) -> float:
    """Place panels side by side, each below its own title."""
    xs = [MARGIN + place * (width + GAP) for place in range(len(panels))]
    below = y
    for x, panel in zip(xs, panels, strict=True):
        end = board.write_wrapped(x, y, panel.title, width, 9, weight="bold")
        below = max(below, board.write_wrapped(x, end, panel.remarks, width, 7.5, color=FAINT))
    return max(panel.draw(board, x, below + 0.05, width) for x, panel in zip(xs, panels, strict=True))


def draw_headings(board: FigureBoard, attributions: Sequence[Attribution], width: Number) -> float:
    """Place the headings of a sheet's columns."""
    x = MARGIN + NAMES + GAP
    below = board.write_wrapped(x, MARGIN, "image", width, 9.5, ha="center", color=FAINT)
    has_classes = len(set(attributions[0].targets.tolist())) > 1
    for place, attribution in enumerate(attributions, 1):
        left = x + place * (width + GAP)
        end = board.write_wrapped(left, MARGIN, attribution.method, width, 9.5, ha="center", weight="bold")
        if has_classes and not depends_on_class(attribution.method):
            end = board.write_wrapped(left, end, "the same for every class", width, 7.5, ha="center", color=FAINT)
        below = max(below, end)
    return below + 0.06


def draw_sheet_line(
    board: FigureBoard, attribution: Attribution, line: Sequence[Panel], y: Number, width: Number
) -> float:
    """Place class name and probability, the image, and the map of each method."""
    start = MARGIN + NAMES + GAP
    xs = [start + place * (width + GAP) for place in range(1, len(line) + 1)]
    below = y
    for x, panel in zip(xs, line, strict=True):
        below = max(below, board.write_wrapped(x, y, panel.remarks, width, 7, ha="center", color=FAINT))
    end = board.write_wrapped(MARGIN, below, class_name(attribution), NAMES, 10, weight="bold") + 0.03
    for text in describe_rank(attribution):
        end = board.write_wrapped(MARGIN, end, text, NAMES, 8.5, color=FAINT)
    if (framed_image := backdrop(attribution, LARGE // 2)) is not None:
        board.place_image(start, below, width, *framed_image)
    return max(end, *(panel.draw(board, x, below, width) for x, panel in zip(xs, line, strict=True)))


def count_left_out(rows: int, shown: int, noun: str) -> str:
    """Footnote on rows that are not drawn."""
    missing = rows - shown
    return f"{missing} more {noun}{'s' * (missing > 1)} not shown (limit={shown})" if missing else ""


def close_board(
    board: FigureBoard,
    y: Number,
    attributions: Sequence[Attribution],
    panels: Sequence[Panel | Scale],
    note: str,
    left_out: str,
    quantile: Number,
) -> Figure:
    """Write the footnotes and draw everything; `panels` are what was drawn, or only the colour scales of it."""
    scales = [panel.scale if isinstance(panel, Panel) else panel for panel in panels]
    notes = [
        str(attributions[0].provenance.get("model", "")),
        describe_weights(attributions[0]),
        note,
        describe_missing_image(attributions[0]),
    ]
    if any(scale.extend != "neither" for scale in scales):
        notes.append(f"colours end at the {100 * quantile:g} % quantile of |score|, arrows mark what lies beyond")
    if any(isinstance(panel, Panel) and panel.window is not None for panel in panels):
        notes.append("the frame is what the model sees")
    if isinstance(attributions[0].preprocess, OpaquePreprocess):
        notes.append(
            "drawn on what the model saw, in colours from its least to its largest value: the geometry and normalisation of "
            "its preprocessing are not known"
        )
    text = " · ".join(filter(None, [*notes, *describe_sums(attributions), left_out]))
    end = board.write_wrapped(MARGIN, y, text, board.across - 2 * MARGIN, 7, color=FAINT)
    return board.closed(end + MARGIN / 2)
