"""Formatting of names and numbers in reports."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from markupsafe import Markup

ARROWS = {True: "↑", False: "↓", None: ""}
DIRECTIONS = {True: "higher is better", False: "lower is better", None: "describes, does not judge"}
JOINTS = re.compile(r"(?<=[+@(,_/:])(?!$)")


def make_breakable(name: str) -> Markup:
    """A spec as HTML that can wrap after its separators."""
    return Markup("<wbr>").join(JOINTS.split(name))


def format_code(name: str) -> Markup:
    return Markup("<code>{}</code>").format(make_breakable(name))


def format_number(value: float, digits: int = 3) -> str:
    """Format a number with a typographic minus sign.

    NaN becomes a dash; with more than two decimals, a value that would be written as 0 is written with one significant
    digit.
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:.{digits}f}"
    if float(text) == 0 and abs(value) > 0 and digits > 2:
        text = f"{value:.0e}"
    if float(text) == 0:
        text = text.removeprefix("-")
    return text.replace("-", "−")


def round_as_shown(value: float, digits: int) -> float:
    """The number that `format_number` writes."""
    return float(format_number(value, digits).replace("−", "-")) if math.isfinite(value) else value


def format_signed(value: float, digits: int) -> str:
    """Format a number with its sign."""
    return f"+{format_number(value, digits)}" if value > 0 else format_number(value, digits)


def format_score(score: str) -> str:
    """Name of the score that a method explains; "any" for maps that do not depend on the class."""
    return score or "any"


def format_interval(low: float, high: float, digits: int) -> str:
    return "" if math.isnan(low) else f"[{format_number(low, digits)}, {format_number(high, digits)}]"


def choose_digits(values: Sequence[float]) -> int:
    """Number of decimals for a table column: percentages need fewer than fractions."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return 3 if largest < 10 else 2 if largest < 100 else 1


def format_seconds(value: float) -> str:
    if math.isnan(value):
        return "–"
    size, unit = (1.0, "s") if value >= 1 else (1e-3, "ms") if value >= 1e-3 else (1e-6, "µs")
    return f"{value / size:.3g} {unit}"


def format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}".replace(",", " ")


def wrap_spec(text: str, width: int) -> list[str]:
    """Split a spec into at most three lines of about `width` characters, for charts, which do not wrap text."""
    lines = [""]
    for piece in re.split(r"(?<=[ ,(@+/_-])", text):
        for part in (piece[at : at + width] for at in range(0, len(piece), width)):
            if lines[-1] and len(lines[-1] + part.rstrip()) > width:
                lines.append("")
            lines[-1] += part
    lines = [line.strip() for line in lines if line.strip()] or [""]
    return lines if len(lines) <= 3 else [*lines[:2], lines[2][: width - 1] + "…"]


def abbreviate_metric(metric: str) -> str:
    """Short name of a metric: `deletion_accuracy` becomes "del acc"."""
    words = metric.split("(", maxsplit=1)[0].split("_")
    return " ".join(word if len(word) < 5 else word[:3] for word in words)


def join_nonempty(*parts: str, by: str = " · ") -> str:
    return by.join(part for part in parts if part)
