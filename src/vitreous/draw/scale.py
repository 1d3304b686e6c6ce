"""Which colour a score gets, and how much of the photograph it covers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from matplotlib import colormaps

from vitreous.core.errors import ShapeError
from vitreous.methods.attribution import Attribution

Number: TypeAlias = float | int

DIVERGING = ("RdBu_r", 0.08, 0.92)  # blue − white − red, without the ends that are almost black
SEQUENTIAL = ("inferno", 0.0, 1.0)
OPACITY = 0.85
QUANTILE = 0.98
FLAT = 1e-6  # a map whose values differ by less, relative to their size, is constant


@dataclass(frozen=True, slots=True)
class Scale:
    """From `low` to `high`; zero lies in the middle when `signed`. What lies beyond takes the colour of the end."""

    low: float
    high: float
    least: float  # the scores themselves, which may lie beyond
    most: float
    signed: bool

    @property
    def constant(self) -> bool:
        """Every score is the same, so that the map says nothing."""
        return flat(self.least, self.most)

    @property
    def extend(self) -> Literal["neither", "min", "max", "both"]:
        """At which ends scores lie beyond the limits."""
        below, above = self.least < self.low, self.most > self.high
        return "both" if below and above else "min" if below else "max" if above else "neither"

    @property
    def ticks(self) -> list[float]:
        return [self.low, 0.0 if self.signed else (self.low + self.high) / 2, self.high]

    @property
    def exponent(self) -> int:
        """The power of ten that numbers are written in; 0 for those that are easily read."""
        size = max(abs(self.low), abs(self.high))
        return 0 if 0.01 <= size < 10_000 else math.floor(math.log10(size))

    def written(self, value: Number) -> str:
        """A score in units of the exponent, as fine as the scale is."""
        if not math.isfinite(value):
            return str(value).replace("-", "−").replace("inf", "∞")
        unit = 10.0**self.exponent
        digits = max(2 - math.floor(math.log10((self.high - self.low) / unit)), 0)
        text = f"{value / unit:.{digits}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text.replace("-", "−")

    def positions(self, values: np.ndarray) -> np.ndarray:
        """0 at `low`, 1 at `high`; NaN stays NaN."""
        return ((values - self.low) / (self.high - self.low)).clip(0, 1)

    def strength(self, positions: np.ndarray) -> np.ndarray:
        """How far from saying nothing, 0 to 1: from zero on a signed scale, from the lower end on another."""
        return np.abs(2 * positions - 1) ** 0.8 if self.signed else positions

    def colours(self, values: np.ndarray) -> np.ndarray:
        """Red, green and blue of every score."""
        name, first, last = DIVERGING if self.signed else SEQUENTIAL
        return colormaps[name](first + self.positions(values) * (last - first))[..., :3].astype(np.float32)

    def over(self, base: np.ndarray, values: np.ndarray, opacity: Number = OPACITY) -> np.ndarray:
        """The colours laid over a picture in [0, 1], the more so the more a score says; near nothing it shows."""
        cover = opacity * self.strength(self.positions(values))[..., None]
        return base * (1 - cover) + self.colours(values) * cover

    def ramp(self, opacity: Number | None = OPACITY, steps: int = 256) -> np.ndarray:
        """The colours from end to end, as they look over the grey that a toned photograph has on average."""
        values = np.linspace(self.low, self.high, steps)
        if opacity is None:
            return self.colours(values)
        return self.over(toned(np.full((steps, 3), 0.5), self), values, opacity)


def toned(picture: np.ndarray, scale: Scale) -> np.ndarray:
    """A photograph that leaves colour to the map: nearly grey, light where zero is white and dim where it is black."""
    grey = picture @ np.array([0.299, 0.587, 0.114], picture.dtype)
    quiet = 0.2 * picture + 0.8 * grey[..., None]
    return 0.65 * quiet + 0.3 if scale.signed else 0.68 * quiet


def scale_of(*maps: Attribution, quantile: Number = QUANTILE) -> Scale:
    """One scale for all rows of these maps; its ends are robust: the `quantile` of |score|."""
    if not 0 < quantile <= 1:
        raise ShapeError(f"quantile={quantile}; a share of the scores above 0 and up to 1 would work")
    values = np.concatenate([source(one).ravel() for one in maps])
    values = values[~np.isnan(values)]
    signed = any(one.signed for one in maps) or bool((values < 0).any())
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Scale(-1.0 if signed else 0.0, 1.0, math.nan, math.nan, signed)
    least, most = float(values.min()), float(values.max())
    low = 0.0 if signed or flat(least, most) else float(finite.min())
    high = robust(np.abs(finite) if signed else finite, low, quantile)
    return Scale(-high if signed else low, high, least, most, signed)


def robust(values: np.ndarray, low: float, quantile: Number) -> float:
    """A high quantile; the highest value when nearly all lie at the lower end, and one above when all do."""
    for high in (float(np.quantile(values, quantile, method="higher")), float(values.max())):
        if not flat(low, high):
            return high
    return low + 1.0


def flat(least: float, most: float) -> bool:
    return math.isfinite(most - least) and most - least <= FLAT * max(abs(most), abs(least))


def source(one: Attribution) -> np.ndarray:
    """The method's own scores: pixels where it has them, else patches."""
    tensor = one.patches if one.native_pixels is None else one.native_pixels
    return tensor.double().cpu().numpy()
