"""Maps of clips: a film strip as a figure or as one image, and an animated file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure
from PIL import Image

from vitreous.core.errors import ShapeError
from vitreous.draw.captions import label, remarks
from vitreous.draw.figure_layout import FAINT, FigureBoard
from vitreous.draw.overlay import MapStyle, Mode, backdrop, overlay_image
from vitreous.draw.pages import GAP, MARGIN, close_board, count_left_out, printable_target
from vitreous.draw.scale import OPACITY, QUANTILE, Number, Scale, choose_scales, describe_scales, group_rows, scale_of
from vitreous.methods.attribution import Attribution
from vitreous.models.layout import ClipLayout, Layout

FRAME, THIN = 1.5, 0.06  # inches: width of a frame, space between frames
BAR = 3.4  # width of the colour bar
SIDE = 300  # longest side of a frame in a file or a notebook, in pixels


def film_strip(
    attribution: Attribution,
    *,
    columns: int = 8,
    opacity: Number = OPACITY,
    shared_scale: bool = True,
    mode: Mode = "bilinear",
    quantile: Number = QUANTILE,
    scale: Scale | None = None,
    limit: int = 6,
) -> Figure:
    """Draw the maps of clips as film strips: the frames above, and below each the map of its time step over it.

    Parameters
    ----------
    attribution
        Maps of clips.
    columns
        Time steps side by side; longer strips continue below.
    opacity
        Opacity of the strongest colours, 0 to 1.
    shared_scale
        True: one colour scale for all classes of a clip. False: every row has its own. The figure says which.
    mode
        How patches are enlarged: "nearest", "bilinear" or "bicubic".
    quantile
        Quantile of |score| at which colours end, up to 1 (no score lies beyond).
    scale
        Colour scale to use for every row instead; always one for all time steps.
    limit
        Most rows that are drawn; the figure says how many are not.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ShapeError
        If the attribution is not one of clips, or there is nothing to draw.

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution, draw
    >>> from vitreous.models.layout import ClipLayout
    >>> layout = ClipLayout((2, 2), (16, 16), 0, times=2, tubelet=1)
    >>> clip = torch.rand(1, 2, 3, 32, 32)
    >>> attribution = Attribution(torch.rand(1, 8), layout, torch.tensor([3]), "ixg", images=clip)
    >>> type(draw.film_strip(attribution)).__name__
    'FigureBoard'
    """
    layout = clip_layout(attribution)
    shown = range(min(len(attribution), limit))
    if not shown or columns < 1:
        raise ShapeError(f"nothing to draw: {len(attribution)} rows, columns={columns}, limit={limit}")
    columns = min(columns, layout.times)
    groups = group_rows(attribution, shared_scale)
    scales = [scale] * len(attribution) if scale else choose_scales(attribution, groups, quantile)
    board = FigureBoard(2 * MARGIN + max(columns * (FRAME + THIN), BAR + 1))
    inner = board.across - 2 * MARGIN
    y = board.write_wrapped(MARGIN, MARGIN, attribution.method, inner, 11, weight="bold") + 0.08
    look = MapStyle(True, opacity, mode, SIDE)
    for row in shown:
        single, own = attribution[row], scales[row]
        y = board.write_wrapped(MARGIN, y, printable_target(single), inner, 10, weight="bold")
        y = board.write_wrapped(MARGIN, y, remarks(single), inner, 7.5, color=FAINT)
        for start in range(0, layout.times, columns):
            steps = range(start, min(start + columns, layout.times))
            y = draw_steps(board, [(step, time_step(single, step)) for step in steps], own, look, layout, y)
        board.bar(MARGIN + 0.1, y + 0.05, BAR - 0.2, own, opacity)
        y = board.write_wrapped(MARGIN, y + 0.31, label(single, own), BAR, 7, ha="center", color=FAINT) + GAP
    note = describe_scales(attribution, shared_scale, 1).replace("an image", "a clip") if scale is None else ""
    note = note or "one colour scale for all time steps"
    left_out = count_left_out(len(attribution), len(shown), "row")
    return close_board(board, y, [attribution], [scales[row] for row in shown], note, left_out, quantile)


def draw_steps(
    board: FigureBoard,
    steps: list[tuple[int, Attribution]],
    scale: Scale,
    look: MapStyle,
    layout: ClipLayout,
    y: Number,
) -> float:
    """Place one line of time steps: their frames, the maps over them and the numbers of the frames."""
    end = y
    for place, (step, attribution) in enumerate(steps):
        x = MARGIN + place * (FRAME + THIN)
        frame = backdrop(attribution, look.longest)
        image = look.draw(attribution, scale, frame)
        below = y if frame is None else board.place_image(x, y, FRAME, frame[0]) + THIN / 2
        below = board.place_image(x, below, FRAME, image)
        text = describe_frames(step, layout)
        end = max(end, board.write_wrapped(x, below + 0.03, text, FRAME, 7, ha="center", color=FAINT))
    return end + 0.05


def describe_frames(step: int, layout: ClipLayout) -> str:
    """Frames of a time step, counted from 1."""
    first, last = step * layout.tubelet + 1, (step + 1) * layout.tubelet
    return f"frame {first}" if first == last else f"frames {first}–{last}"


def clip_layout(attribution: Attribution) -> ClipLayout:
    if not isinstance(attribution.layout, ClipLayout):
        raise ShapeError("these are maps of images, which have no time steps; vitreous.draw.figure draws them")
    return attribution.layout


def time_step(attribution: Attribution, step: int, frame: int | None = None) -> Attribution:
    """Maps of one time step of clips, as maps of images.

    Parameters
    ----------
    attribution
        Maps of clips.
    step
        Number of the time step, from 0.
    frame
        Number of the frame to show with them; by default the first one of the time step.

    Raises
    ------
    ShapeError
        If the attribution is not one of clips.
    """
    layout = clip_layout(attribution)
    frame = step * layout.tubelet if frame is None else frame
    return replace(
        attribution,
        patches=attribution.maps()[:, step].flatten(1),
        layout=Layout(layout.grid, layout.patch, layout.prefix),
        images=None if attribution.images is None else attribution.images[:, frame],
    )


def film_image(attribution: Attribution, scale: Scale, *, side: int = SIDE // 2) -> Image.Image:
    """The time steps of a single row side by side."""
    images = [overlay_image(time_step(attribution, t), scale=scale) for t in range(clip_layout(attribution).times)]
    for image in images:
        image.thumbnail((side, side))
    return join_side_by_side(images)


def join_side_by_side(images: list[Image.Image]) -> Image.Image:
    """Images of one size side by side, with a thin white line between them."""
    width, height = images[0].size
    sheet = Image.new("RGB", (len(images) * (width + 2) - 2, height), "white")
    for place, image in enumerate(images):
        sheet.paste(image, (place * (width + 2), 0))
    return sheet


def save_animation(
    attribution: Attribution,
    path: str | Path,
    *,
    format: Literal["gif", "webp"] | str | None = None,  # noqa: A002 - as in matplotlib's savefig
    seconds: Number = 0.2,
    opacity: Number = OPACITY,
    mode: Mode = "bilinear",
    quantile: Number = QUANTILE,
    scale: Scale | None = None,
) -> Path:
    """Write the map of one clip as an animation that repeats: each frame, and beside it the map of its time step over it.

    Parameters
    ----------
    attribution
        Maps of one clip: a single row, such as `attribution[0]`.
    path
        File name; missing folders are created.
    format
        "gif" or "webp"; by default the suffix of `path`.
    seconds
        Time that each frame is shown.
    opacity, mode, quantile, scale
        As for `film_strip`.

    Returns
    -------
    Path
        The path of the file.

    Raises
    ------
    ShapeError
        If the attribution is not a single row of clips, or an argument lies outside its range.

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution, draw
    >>> from vitreous.models.layout import ClipLayout
    >>> layout = ClipLayout((2, 2), (16, 16), 0, times=2, tubelet=1)
    >>> clip = torch.rand(1, 2, 3, 32, 32)
    >>> attribution = Attribution(torch.rand(1, 8), layout, torch.tensor([3]), "ixg", images=clip)
    >>> draw.save_animation(attribution, "clip.gif").name
    'clip.gif'
    """
    layout, path = clip_layout(attribution), Path(path)
    chosen = path.suffix.removeprefix(".").lower() if format is None else format
    if len(attribution) != 1:
        raise ShapeError(f"an animation shows one row, not {len(attribution)}; attribution[0].save(…) would work")
    if chosen not in ("gif", "webp") or not seconds > 0:
        raise ShapeError(f"format={chosen!r}, seconds={seconds}; 'gif' or 'webp' and a time above 0 would work")
    scale = scale or scale_of(attribution, quantile=quantile)
    look = MapStyle(True, opacity, mode, 2 * SIDE)
    frames = []
    for frame in range(layout.frames):
        shown = time_step(attribution, frame // layout.tubelet, frame)
        framed_image = backdrop(shown, look.longest)
        images = [look.draw(shown, scale, framed_image)]
        if framed_image is not None:
            images.insert(0, framed_image[0])
        for image in images:
            image.thumbnail((SIDE, SIDE))
        frames.append(join_side_by_side(images))
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(
        path, chosen.upper(), save_all=True, append_images=frames[1:], duration=round(1000 * seconds), loop=0
    )
    return path
