"""A figure laid out in inches from its upper left corner; text is measured before it is placed, so nothing is cut off."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

from matplotlib import rc_context, rcParams
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
LINE = 1.3 / 72  # inches between lines, per point of font size
TICK_SIZE = 7.0  # points, of the numbers at a colour bar
TALLEST = 1.6  # height of an image, as a share of the width that it may take
DPI = 150
PNG_LEVEL = 4  # of zlib; maps over photographs hardly become smaller beyond


class FigureBoard(Figure):
    """A figure without global state, which a notebook shows whatever its matplotlib backend.

    Items are placed from the top; their height is known only afterwards, so `closed` draws them.
    """

    def __init__(self, width: Number) -> None:
        super().__init__(figsize=(width, 1), dpi=DPI, facecolor="white")
        self.across = self.down = float(width)
        self._pending: list[Callable[[], object]] = []

    def closed(self, height: Number) -> FigureBoard:
        """Draw everything that was placed on a figure of this height."""
        self.down = height
        self.set_size_inches(self.across, height)
        while self._pending:
            self._pending.pop(0)()
        return self

    def draw(self, renderer: Any) -> None:
        """Draw without hinting, which widens small letters by up to a quarter at some resolutions."""
        with rc_context({"text.hinting": "none"}):
            super().draw(renderer)

    def savefig(self, fname: Any, *, transparent: bool | None = None, **kwargs: Any) -> None:
        """Save as matplotlib does; a PNG is compressed in half the time, to a file that is a tenth larger."""
        ending = Path(fname).suffix.lstrip(".") if isinstance(fname, str | PathLike) else ""
        is_png = (kwargs.get("format") or ending or rcParams["savefig.format"]).lower() == "png"
        if is_png and not kwargs.get("backend"):  # others than the default one take no `pil_kwargs`
            kwargs["pil_kwargs"] = {"compress_level": PNG_LEVEL, **(kwargs.get("pil_kwargs") or {})}
        super().savefig(fname, transparent=transparent, **kwargs)

    def write(self, x: Number, y: Number, lines: Sequence[str], size: Number, **style: Any) -> float:
        """Place lines below one another from (x, y) on; returns where the next line would begin."""
        for line in lines:
            self._pending.append(partial(self._write, x, y, line, size, style))
            y += size * LINE
        return y

    def write_wrapped(
        self, x: Number, y: Number, text: str, width: Number, size: Number, *, weight: str = "normal", **style: Any
    ) -> float:
        """Place a text in as many lines as it needs; a centred one (`ha="center"`) is centred within `width` from x."""
        centred = style.get("ha") == "center"
        lines = wrap_text(text, width, size, weight)
        return self.write(x + width / 2 if centred else x, y, lines, size, weight=weight, **style)

    def place_image(
        self, x: Number, y: Number, width: Number, image: Image.Image, window: Window | None = None
    ) -> float:
        """Place an image in its own proportions, with a frame around what the model sees; returns where it ends.

        A very tall image is made narrower than `width`, and placed in the middle.
        """
        height = width * min(image.height / image.width, TALLEST)
        self._pending.append(partial(self._draw_image, x, y, width, height, image, window))
        return y + height

    def bar(self, x: Number, y: Number, width: Number, scale: Scale, opacity: Number | None) -> None:
        """Place a colour bar with its numbers; arrows mark ends beyond which scores lie."""
        self._pending.append(partial(self._bar, x, y, width, scale, opacity))

    def _area(self, x: Number, y: Number, width: Number, height: Number) -> Axes:
        box = (x / self.across, 1 - (y + height) / self.down, width / self.across, height / self.down)
        return self.add_axes(box)

    def _write(self, x: Number, y: Number, line: str, size: Number, style: dict[str, Any]) -> None:
        style = {"color": INK, "va": "top", "family": FONT, "parse_math": False, **style}
        self.text(x / self.across, 1 - y / self.down, line, fontsize=size, **style)

    def _draw_image(
        self, x: Number, y: Number, width: Number, height: Number, image: Image.Image, window: Window | None
    ) -> None:
        share = min(width / image.width, height / image.height)
        wide, high = image.width * share, image.height * share
        axes = self._area(x + (width - wide) / 2, y + (height - high) / 2, wide, high)
        axes.imshow(image, extent=(0, image.width, image.height, 0), aspect="auto", interpolation="antialiased")
        axes.set_axis_off()
        if window is not None and not covers(window, image):
            left, top, right, bottom = window
            for colour, thick in (("white", 1.6), ("black", 0.6)):
                axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, ec=colour, lw=thick))

    def _bar(self, x: Number, y: Number, width: Number, scale: Scale, opacity: Number | None) -> None:
        colours = ScalarMappable(Normalize(scale.low, scale.high), ListedColormap(scale.ramp(opacity)))
        axes = self._area(x, y, width, 0.1)
        bar = self.colorbar(colours, cax=axes, orientation="horizontal", extend=scale.extend, extendfrac=0.04)
        labels = [scale.written(tick) for tick in scale.ticks]
        widest = max(text_width(label, TICK_SIZE) for label in labels)
        size = TICK_SIZE * min(0.9 * width / 2 / widest, 1)  # three labels, half the bar apart
        bar.set_ticks(scale.ticks, labels=labels)
        bar.ax.tick_params(labelsize=size, length=2, width=0.5, pad=1.5, labelcolor=INK, labelfontfamily=FONT)
        bar.outline.set_linewidth(0.5)

    def _repr_png_(self) -> bytes:
        stream = BytesIO()
        self.savefig(stream, format="png", dpi=110)
        return stream.getvalue()


def covers(window: Window, image: Image.Image) -> bool:
    """Whether the model sees all of the image."""
    left, top, right, bottom = window
    return left <= 1 and top <= 1 and right >= image.width - 1 and bottom >= image.height - 1


def wrap_text(text: str, width: Number, size: Number, weight: str = "normal") -> list[str]:
    """Break a text into lines of at most `width` inches, at spaces and at the joints of a method spec.

    Every character is kept: a word that is wider than a line is broken inside. No-break spaces do not break.
    """
    lines = [""]
    for word in re.split(r"(?<=[ ,(@+/_-])(?!%)", replace_missing_glyphs(text)):
        for part in split_long_word(word, width, size, weight):
            if lines[-1] and text_width((lines[-1] + part).rstrip(" "), size, weight) > width:
                lines.append("")
            lines[-1] += part
    return [line for line in (line.strip(" ") for line in lines) if line]


def split_long_word(word: str, width: Number, size: Number, weight: str) -> list[str]:
    """Parts of a word, each at most `width` inches wide (or one character)."""
    parts: list[str] = []
    while text_width(word.rstrip(" "), size, weight) > width and len(word) > 1:
        count = max(int(len(word) * width / text_width(word, size, weight)), 1)
        while count > 1 and text_width(word[:count], size, weight) > width:
            count -= 1
        parts.append(word[:count])
        word = word[count:]
    return [*parts, word]


@lru_cache(maxsize=4096)
def text_width(text: str, size: Number, weight: str = "normal") -> float:
    """Width of a drawn text in inches, with 1 % to spare for the pixel grid."""
    font = FontProperties(family=FONT, size=size, weight=weight)
    return 1.01 * text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] / 72


@lru_cache(maxsize=1)
def known_glyphs() -> frozenset[int]:
    """Code points that the font can draw."""
    return frozenset(get_font(findfont(FontProperties(family=FONT))).get_charmap())


def is_printable(text: str) -> bool:
    """Whether the font has every character of a text."""
    return all(ord(character) in known_glyphs() for character in text)


def replace_missing_glyphs(text: str) -> str:
    """Draw characters that the font lacks as a box, without a warning for each; line breaks and tabs become spaces."""
    single_line = re.sub(r"[^\S\N{NO-BREAK SPACE}]+", " ", text).strip(" ")
    return "".join(c if ord(c) in known_glyphs() else "▯" for c in single_line)
