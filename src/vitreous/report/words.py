"""How names and numbers are written on the page."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

ARROWS = {True: "↑", False: "↓", None: ""}
JOINTS = re.compile(r"(?<=[+@(,_/:])")
ASIDE = {True: "higher is better", False: "lower is better", None: "describes, does not judge"}


def code(name: str) -> str:
    """A spec that may break at its joints."""
    return f"<code>{JOINTS.sub('<wbr>', escape(name))}</code>"


def number(value: float, digits: int = 3) -> str:
    """A figure, with a real minus; a dash where there is none."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:.{digits}f}"
    if float(text) == 0 and abs(value) > 0 and digits > 2:
        text = f"{value:.0e}"
    return signed(text)


def signed(text: str) -> str:
    return text.replace("-", "−")


def digits_of(values: Sequence[float]) -> int:
    """Decimals under which a table is easily read: percentages need fewer than shares."""
    sizes = [abs(value) for value in values if math.isfinite(value)]
    top = max(sizes, default=0.0)
    return 3 if top < 10 else 2 if top < 100 else 1


def seconds(value: float) -> str:
    if math.isnan(value):
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}".replace(",", " ")


def broken(text: str, width: int) -> list[str]:
    """A spec in lines of about `width` letters, for places that cannot wrap by themselves."""
    lines = [""]
    for piece in re.split(r"(?<=[ ,(@+/_-])", text):
        for part in (piece[at : at + width] for at in range(0, len(piece), width)):
            if lines[-1] and len(lines[-1] + part.rstrip()) > width:
                lines.append("")
            lines[-1] += part
    lines = [line.strip() for line in lines if line.strip()] or [""]
    return lines if len(lines) <= 3 else [*lines[:2], lines[2][: width - 1] + "…"]


def brief(metric: str) -> str:
    """A metric's name where there is little room: `deletion_accuracy` is del acc."""
    words = metric.split("(", maxsplit=1)[0].split("_")
    return " ".join(word if len(word) < 5 else word[:3] for word in words)
