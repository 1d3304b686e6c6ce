"""Colour of a score, and how much of the image it covers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from matplotlib import colormaps
from PIL import Image

from vitreous.core.errors import ShapeError
from vitreous.methods.attribution import Attribution

Number: TypeAlias = float | int

DIVERGING = ("RdBu_r", 0.08, 0.92)  # blue − white − red, without the ends that are almost black
SEQUENTIAL = ("inferno", 0.0, 1.0)
OPACITY = 0.85
QUANTILE = 0.98
NEUTRAL = 1e-6  # largest |score| of a negligible map, as a share of the scale on which it is drawn
FLAT = 1e-6  # a map whose values differ by less, relative to their size, is constant


@dataclass(frozen=True, slots=True)
class Scale:
    """Colours from `low` to `high`; zero lies in the middle when `signed`. Scores beyond take the colour of the end.

    Parameters
    ----------
    low, high
        Scores at the ends of the colour scale.
    least, most
        Lowest and highest score, which may lie beyond the ends.
    signed
        Whether zero is in the middle.

    Examples
    --------
    >>> import numpy as np
    >>> from vitreous.draw import Scale
    >>> scale = Scale(low=-2, high=2, least=-2, most=3, signed=True)
    >>> scale.positions(np.array([-2.0, 0.0, 3.0])), scale.strength(np.array([0.0, 0.5]))
    (array([0. , 0.5, 1. ]), array([1., 0.]))
    >>> scale.written(1.5), scale.extend, scale.ticks
    ('1.5', 'max', [-2, 0.0, 2])
    >>> scale.colours(np.zeros(1)).shape, scale.ramp(steps=8).shape
    ((1, 3), (8, 3))
    >>> scale.over(np.ones((2, 2, 3)), np.zeros((2, 2))).shape
    (2, 2, 3)
    """

    low: float
    high: float
    least: float  # lowest and highest score, which may lie beyond the ends
    most: float
    signed: bool

    @property
    def constant(self) -> bool:
        """Whether all scores are the same."""
        return is_flat(self.least, self.most)

    @property
    def extend(self) -> Literal["neither", "min", "max", "both"]:
        """Ends of the scale beyond which scores lie, as matplotlib names them."""
        below, above = self.least < self.low, self.most > self.high
        return "both" if below and above else "min" if below else "max" if above else "neither"

    @property
    def ticks(self) -> list[float]:
        """Scores that are written below the colour bar."""
        return [self.low, 0.0 if self.signed else (self.low + self.high) / 2, self.high]

    @property
    def exponent(self) -> int:
        """Power of ten in whose units numbers are written; 0 for scales that need none."""
        size = max(abs(self.low), abs(self.high))
        return 0 if 0.01 <= size < 10_000 else math.floor(math.log10(size))

    def written(self, value: Number) -> str:
        """A score in units of the exponent, with the digits that the width of the scale calls for.

        Parameters
        ----------
        value
            A score.

        Returns
        -------
        str
        """
        if not math.isfinite(value):
            return str(value).replace("-", "−").replace("inf", "∞")
        unit = 10.0**self.exponent
        digits = max(2 - math.floor(math.log10((self.high - self.low) / unit)), 0)
        text = f"{value / unit:.{digits}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text.replace("-", "−")

    def positions(self, values: np.ndarray) -> np.ndarray:
        """Place on the scale, 0 at `low` and 1 at `high`; NaN stays NaN.

        Parameters
        ----------
        values
            Scores.

        Returns
        -------
        numpy.ndarray
            Positions from 0 to 1, in the shape of the scores.
        """
        return ((values - self.low) / (self.high - self.low)).clip(0, 1)

    def strength(self, positions: np.ndarray) -> np.ndarray:
        """Distance from zero on a signed scale, from the lower end on an unsigned one, as 0 to 1.

        Parameters
        ----------
        positions
            As `positions` returns them.

        Returns
        -------
        numpy.ndarray
        """
        return np.abs(2 * positions - 1) ** 0.8 if self.signed else positions

    def colours(self, values: np.ndarray) -> np.ndarray:
        """Red, green and blue of every score.

        Parameters
        ----------
        values
            Scores.

        Returns
        -------
        numpy.ndarray
            Colours from 0 to 1; the last axis is red, green, blue.
        """
        return self._colours_at(self.positions(values))

    def _colours_at(self, positions: np.ndarray) -> np.ndarray:
        name, first, last = DIVERGING if self.signed else SEQUENTIAL
        return colormaps[name](first + positions * (last - first))[..., :3].astype(np.float32)

    def over(self, base: np.ndarray, values: np.ndarray, opacity: Number = OPACITY) -> np.ndarray:
        """Colours laid over an image in [0, 1], more opaque for stronger scores; weak scores leave it visible.

        Parameters
        ----------
        base
            Image [H W 3] with values from 0 to 1.
        values
            Scores [H W].
        opacity
            Opacity of the strongest colours, 0 to 1.

        Returns
        -------
        numpy.ndarray
            Image [H W 3].
        """
        positions = self.positions(values)
        cover = opacity * self.strength(positions)[..., None]
        return base * (1 - cover) + self._colours_at(positions) * cover

    def ramp(self, opacity: Number | None = OPACITY, steps: int = 256) -> np.ndarray:
        """Colours from end to end, as they look over the average grey of a toned image.

        Parameters
        ----------
        opacity
            As for `over`; None for the colours alone.
        steps
            Number of colours.

        Returns
        -------
        numpy.ndarray
            Colours [steps 3].
        """
        values = np.linspace(self.low, self.high, steps)
        if opacity is None:
            return self.colours(values)
        return self.over(tone_base(np.full((steps, 3), 0.5), self), values, opacity)


def tone_base(image: np.ndarray, scale: Scale) -> np.ndarray:
    """Image with its own colours muted: nearly grey, light where zero is white and dim where it is black."""
    grey = image @ np.array([0.299, 0.587, 0.114], image.dtype)
    muted = 0.2 * image + 0.8 * grey[..., None]
    return 0.65 * muted + 0.3 if scale.signed else 0.68 * muted


def scale_of(*attributions: Attribution, quantile: Number = QUANTILE) -> Scale:
    """One colour scale for all rows of some attributions.

    Parameters
    ----------
    *attributions
        Maps that share the scale. It is signed if one of them is signed or has a negative score. Negligible maps
        (`Attribution.negligible`) do not set it, unless all are: then colours are neutral.
    quantile
        Quantile of |score| at which colours end, above 0 and up to 1; 1 covers all scores.

    Returns
    -------
    Scale
        From −high to high when signed, else from the lowest score to high.

    Raises
    ------
    ShapeError
        If `quantile` lies outside (0, 1].

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution, draw
    >>> from vitreous.models.vit import Layout
    >>> attribution = Attribution(torch.rand(2, 4), Layout((2, 2), (16, 16), 0), torch.tensor([3, 5]), "ixg")
    >>> draw.scale_of(attribution).signed
    True
    """
    if not 0 < quantile <= 1:
        raise ShapeError(f"quantile={quantile}; a share of the scores above 0 and up to 1 would work")
    rows = [(attribution, find_negligible_rows(attribution)) for attribution in attributions]
    signed = any(attribution.signed for attribution in attributions)
    values = np.concatenate([map_values(attribution)[~negligible].ravel() for attribution, negligible in rows])
    if not len(values):
        return neutral_scale(attributions, signed)
    values = values[~np.isnan(values)]
    signed = signed or bool((values < 0).any())
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Scale(-1.0 if signed else 0.0, 1.0, math.nan, math.nan, signed)
    least, most = float(values.min()), float(values.max())
    low = 0.0 if signed or is_flat(least, most) else float(finite.min())
    high = robust_maximum(np.abs(finite) if signed else finite, low, quantile)
    return Scale(-high if signed else low, high, least, most, signed)


def merge_scales(scales: Sequence[Scale]) -> Scale:
    """Scale as wide as the widest of several, so that the strongest map sets it and weaker ones look weaker.

    A quantile of all scores together would not do: with one sparse strong map among weak ones it falls to the weak.
    """
    signed = any(scale.signed for scale in scales)
    high = max(max(abs(scale.low), scale.high) if signed else scale.high for scale in scales)
    low = -high if signed else min(scale.low for scale in scales)
    finite_scales = [scale for scale in scales if not math.isnan(scale.most)]
    least = min((scale.least for scale in finite_scales), default=math.nan)
    return Scale(low, high, least, max((scale.most for scale in finite_scales), default=math.nan), signed)


def group_rows(attribution: Attribution, shared: bool = True) -> list[int]:
    """Number of every row's colour scale: if it is shared, equal for rows about the same image.

    Rows without any image count as one group: maps on one scale can be compared, whatever they show.
    """
    if not shared:
        return list(range(len(attribution)))
    images, originals = attribution.images, attribution.originals
    numbers: dict[object, int] = {}
    groups = []
    for row in range(len(attribution)):
        if images is not None:
            key: object = images[row].float().cpu().numpy().tobytes()
        elif originals is not None:
            original = originals[row]
            key = (original.size, original.tobytes()) if isinstance(original, Image.Image) else id(original)
        else:
            key = None
        groups.append(numbers.setdefault(key, len(numbers)))
    return groups


def choose_scales(attribution: Attribution, groups: Sequence[int], quantile: Number) -> list[Scale]:
    """Colour scale of every row: that of its group, or a neutral one for a negligible map."""
    negligible = find_negligible_rows(attribution)
    own = [scale_of(attribution[row], quantile=quantile) for row in range(len(attribution))]
    scales = []
    for row, group in enumerate(groups):
        members = [other for other in range(len(own)) if groups[other] == group and not negligible[other]]
        scales.append(own[row] if negligible[row] else merge_scales([own[member] for member in members]))
    return scales


def describe_scales(attribution: Attribution, shared: bool, methods: int) -> str:
    """Footnote on which maps have one colour scale; empty when no image has several maps to compare."""
    groups = group_rows(attribution)
    if len(set(groups)) == len(groups):
        return ""
    if not shared:
        return "own colour scale per map"
    shared_by = (
        "all maps" if attribution.images is None and attribution.originals is None else "all classes of an image"
    )
    return f"one colour scale for {shared_by}" + (", per method" if methods > 1 else "")


def find_negligible_rows(attribution: Attribution) -> np.ndarray:
    """Rows whose map is rounding noise: see `Attribution.negligible`."""
    return attribution.negligible.cpu().numpy()


def neutral_scale(attributions: Sequence[Attribution], signed: bool) -> Scale:
    """Scale of negligible maps, as wide as the values that they explain, so that all colours are neutral."""
    values = np.concatenate([map_values(attribution).ravel() for attribution in attributions])
    least, most = float(np.nanmin(values)), float(np.nanmax(values))
    scores = [
        float(score) for attribution in attributions if attribution.score is not None for score in attribution.score
    ]
    high = max([abs(score) for score in scores] + [abs(least) / NEUTRAL, abs(most) / NEUTRAL]) or 1.0
    return Scale(-high if signed or least < 0 else 0.0, high, least, most, signed or least < 0)


def robust_maximum(values: np.ndarray, low: float, quantile: Number) -> float:
    """A high quantile; the highest value when nearly all lie at the lower end, and one above when all do."""
    for high in (float(np.quantile(values, quantile, method="higher")), float(values.max())):
        if not is_flat(low, high):
            return high
    return low + 1.0


def is_flat(least: float, most: float) -> bool:
    """Whether two ends are equal up to rounding."""
    return math.isfinite(most - least) and most - least <= FLAT * max(abs(most), abs(least))


def map_values(attribution: Attribution) -> np.ndarray:
    """Scores at the method's own resolution: pixels where it has them, else patches."""
    return attribution.native_maps.double().cpu().numpy()
