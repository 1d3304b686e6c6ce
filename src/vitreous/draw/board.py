"""A page that is set out in inches from its upper left corner, so that nothing overlaps and nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from PIL import Image

from vitreous.draw.overlay import Window
from vitreous.draw.scale import Number, Scale

FONT = "DejaVu Sans"  # comes with matplotlib
INK, FAINT = "#1a1a1a", "#666666"
LINE = 1.3 / 72  # inches between lines, for every point of a letter's size
DPI = 150


class Board(Figure):
    """A figure of its own: no global state, and a notebook shows it whatever its backend.

    Things are put down from the top; `closed` at some height draws them.
    """

    def __init__(self, width: Number) -> None:
        super().__init__(figsize=(width, 1), dpi=DPI, facecolor="white")
        self.across = self.down = float(width)
        self._later: list[Callable[[], object]] = []

    def closed(self, height: Number) -> Board:
        self.down = height
        self.set_size_inches(self.across, height)
        while self._later:
            self._later.pop(0)()
        return self

    def write(self, x: Number, y: Number, lines: Sequence[str], size: Number, **style: Any) -> float:
        """Lines below one another from (x, y) on; returns where the next would begin."""
        for line in lines:
            self._later.append(partial(self._write, x, y, line, size, style))
            y += size * LINE
        return y

    def picture(
        self, x: Number, y: Number, width: Number, height: Number, picture: Image.Image, window: Window | None
    ) -> None:
        """A picture in the middle of a box, in its own proportions, with a frame around what the model sees."""
        self._later.append(partial(self._picture, x, y, width, height, picture, window))

    def bar(self, x: Number, y: Number, width: Number, scale: Scale, opacity: Number | None) -> None:
        """A colour bar with its numbers; arrows where scores lie beyond its ends."""
        self._later.append(partial(self._bar, x, y, width, scale, opacity))

    def _area(self, x: Number, y: Number, width: Number, height: Number) -> Axes:
        box = (x / self.across, 1 - (y + height) / self.down, width / self.across, height / self.down)
        return self.add_axes(box)

    def _write(self, x: Number, y: Number, line: str, size: Number, style: dict[str, Any]) -> None:
        words = {"color": INK, "va": "top", "family": FONT, "parse_math": False, **style}
        self.text(x / self.across, 1 - y / self.down, line, fontsize=size, **words)

    def _picture(
        self, x: Number, y: Number, width: Number, height: Number, picture: Image.Image, window: Window | None
    ) -> None:
        share = min(width / picture.width, height / picture.height)
        wide, high = picture.width * share, picture.height * share
        axes = self._area(x + (width - wide) / 2, y + (height - high) / 2, wide, high)
        axes.imshow(picture, extent=(0, picture.width, picture.height, 0), aspect="auto", interpolation="antialiased")
        axes.set_axis_off()
        if window is not None and not covers(window, picture):
            left, top, right, bottom = window
            for colour, thick in (("white", 1.6), ("black", 0.6)):
                axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, ec=colour, lw=thick))

    def _bar(self, x: Number, y: Number, width: Number, scale: Scale, opacity: Number | None) -> None:
        colours = ScalarMappable(Normalize(scale.low, scale.high), ListedColormap(scale.ramp(opacity)))
        axes = self._area(x, y, width, 0.1)
        bar = self.colorbar(colours, cax=axes, orientation="horizontal", extend=scale.extend, extendfrac=0.04)
        bar.set_ticks(scale.ticks, labels=[scale.written(tick) for tick in scale.ticks])
        bar.ax.tick_params(labelsize=7, length=2, width=0.5, pad=1.5, labelcolor=INK, labelfontfamily=FONT)
        bar.outline.set_linewidth(0.5)

    def _repr_png_(self) -> bytes:
        stream = BytesIO()
        self.savefig(stream, format="png", dpi=110)
        return stream.getvalue()


def covers(window: Window, picture: Image.Image) -> bool:
    """The model sees all of the picture."""
    left, top, right, bottom = window
    return left <= 1 and top <= 1 and right >= picture.width - 1 and bottom >= picture.height - 1


def wrapped(text: str, width: Number, size: Number, most: int = 3, weight: str = "normal") -> list[str]:
    """Text in lines of at most `width` inches, broken at spaces and at the joints of a spec."""
    lines = [""]
    for piece in re.split(r"(?<=[\s,(@+/_-])", printable(text)):
        for part in fragments(piece, width, size, weight):
            if lines[-1] and inches((lines[-1] + part).rstrip(), size, weight) > width:
                lines.append("")
            lines[-1] += part
    lines = [line for line in map(str.strip, lines) if line]
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][:-1] + "…"]


def fragments(piece: str, width: Number, size: Number, weight: str) -> list[str]:
    """A word that is too long for a line, in parts that are not."""
    if inches(piece, size, weight) <= width:
        return [piece]
    fit = max(int(len(piece) * width / inches(piece, size, weight) * 0.9), 1)
    return [piece[start : start + fit] for start in range(0, len(piece), fit)]


@lru_cache(maxsize=4096)
def inches(text: str, size: Number, weight: str = "normal") -> float:
    """How wide a text is when it is drawn; on a screen's grid letters come out a little wider than in the font."""
    font = FontProperties(family=FONT, size=size, weight=weight)
    return 1.05 * text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] / 72


@lru_cache(maxsize=1)
def glyphs() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family=FONT))).get_charmap())


def printable(text: str) -> str:
    """Letters that the font does not have are shown as a box, without a warning for each."""
    return "".join(c if ord(c) in glyphs() else "▯" for c in " ".join(text.split()))
