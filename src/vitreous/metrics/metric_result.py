"""What a metric returns (`Measured`), and its result with settings and intervals (`MetricResult`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Parts = Mapping[str, np.ndarray]  # named values per row; rows are the last axis
Figures = np.ndarray | np.floating  # one value per bootstrap draw, or a single one for all rows
Reducer = Callable[[Parts], Figures]


def mean(parts: Parts) -> Figures:
    """Mean over the rows whose score is not NaN; NaN if there are none."""
    scores, defined = parts["score"], ~np.isnan(parts["score"])
    with np.errstate(invalid="ignore"):
        return np.where(defined, scores, 0).sum(-1) / defined.sum(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Return value of a metric function that has more than scores.

    Parameters
    ----------
    scores
        One score per row, NaN where undefined.
    curve
        The curve whose area is the score, if there is one.
    levels
        Positions of the points of `curve`.
    parts
        Further values per row, for example the counts that a pooling `reduce` needs.
    protocol
        Settings chosen during the computation, as plain values.
    flipped
        Whether the better direction is the opposite of the metric's `higher_is_better`, as for a complement.

    Examples
    --------
    >>> import torch
    >>> import vitreous
    >>> curve = torch.tensor([[1.0, 0.5, 0.0]])
    >>> vitreous.Measured(curve.mean(-1), curve=curve, levels=(0.0, 0.5, 1.0)).scores
    tensor([0.5000])
    """

    scores: Float[Tensor, " r"]
    curve: Float[Tensor, "r s"] | None = None
    levels: Sequence[int | float] | None = None
    parts: Mapping[str, Float[Tensor, " r"]] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    flipped: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class MetricResult:
    """Scores of one metric, with the settings that produced them.

    Parameters
    ----------
    metric
        Spec of the metric.
    scores
        One score per row, NaN where undefined.
    higher_is_better
        Direction of these scores; None if they are not ranked.
    curve
        The curve whose area is the score, if there is one.
    levels
        Positions of the points of `curve`.
    parts
        Further values per row.
    protocol
        Name and settings of the metric as plain values.
    reduce
        Function that computes `value` from scores and parts.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> attribution = vitreous.explain(vit, images, method="ixg")
    >>> result = vitreous.evaluate(vit, images, attribution, "sparseness")
    >>> 0 <= result.value <= 1
    True
    """

    metric: str
    scores: Float[Tensor, " r"]
    higher_is_better: bool | None
    curve: Float[Tensor, "r s"] | None = None
    levels: tuple[float, ...] | None = None
    parts: Mapping[str, Float[Tensor, " r"]] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    reduce: Reducer = mean

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def undefined(self) -> int:
        """Number of rows whose score is NaN."""
        return int(self.scores.isnan().sum())

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Input of `reduce`: "score" and the named parts as float64 arrays."""
        return {name: part.double().cpu().numpy() for name, part in {"score": self.scores, **self.parts}.items()}

    @property
    def value(self) -> float:
        """Value over all rows: the mean of defined scores, or a pooled ratio if the metric pools pixels."""
        return float(self.reduce(self.columns))

    def interval(self, level: float = 0.95, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """Percentile bootstrap interval of `value`, resampling rows.

        Parameters
        ----------
        level
            Confidence level.
        draws
            Number of bootstrap samples.
        seed
            Seed of the resampling.

        Returns
        -------
        tuple of float
            Lower and upper end; NaN if no sample has a defined value.

        Examples
        --------
        >>> import torch
        >>> import vitreous
        >>> result = vitreous.MetricResult("sparseness", torch.tensor([0.2, 0.4, 0.6]), higher_is_better=True)
        >>> low, high = result.interval()
        >>> low < result.value < high
        True
        """
        columns = self.columns
        draw = np.random.default_rng(seed)
        resampled = np.concatenate(
            [
                self.reduce({name: part[index] for name, part in columns.items()})
                for index in (draw.integers(len(self), size=(100, len(self))) for _ in range(-(-draws // 100)))
            ]
        )[:draws]
        return compute_interval(resampled, level)

    def __repr__(self) -> str:
        arrow = {True: " ↑", False: " ↓", None: ""}[self.higher_is_better]
        missing = f", {self.undefined} undefined" if self.undefined else ""
        return f"MetricResult({self.metric}{arrow} {self.value:.4g} over {len(self)} rows{missing})"


def compute_interval(values: np.ndarray, level: float) -> tuple[float, float]:
    """Central interval of `values` with coverage `level`; NaN values are ignored, and both ends are NaN if there are no others."""
    finite = values[~np.isnan(values)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def join_results(parts: Sequence[MetricResult]) -> MetricResult:
    """Concatenate the results of consecutive batches of one metric."""
    first = parts[0]
    if len(parts) == 1:
        return first
    curve = None if first.curve is None else torch.cat([part.curve for part in parts if part.curve is not None])
    named = {name: torch.cat([part.parts[name] for part in parts]) for name in first.parts}
    return replace(first, scores=torch.cat([part.scores for part in parts]), curve=curve, parts=named)
