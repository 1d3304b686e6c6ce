"""Bootstrap intervals over images, and paired differences.

An interval needs at least `FEW` images; otherwise it is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from vitreous.metrics.metric_result import Parts, Reducer, compute_interval

DRAWS, LEVEL = 2000, 0.95
AT_ONCE, NUMBERS_AT_ONCE = 100, 1 << 21  # resamples, and numbers in them, that are in memory at a time
FEW = 2  # smallest number of images that can be resampled
UNKNOWN = (float("nan"), float("nan"))


def resample_values(
    parts: Mapping[str, Parts], reduce: Reducer, image_ids: Sequence[Any], draws: int, seed: int
) -> dict[str, np.ndarray]:
    """Reduced values of every method on resampled sets of images.

    Parameters
    ----------
    parts
        For every method the score and the other numbers that `reduce` reads, one per row.
    reduce
        The metric's reducer.
    image_ids
        Image of every row. An image is drawn with all its rows, and the same images are drawn for every method.
    draws, seed
        Number of resamples and their seed.

    Returns
    -------
    dict of arrays
        `draws` values per method.
    """
    draw = np.random.default_rng(seed)
    rows_of: dict[Any, list[int]] = {}
    for row, image_id in enumerate(image_ids):
        rows_of.setdefault(image_id, []).append(row)
    groups = [np.array(rows) for rows in rows_of.values()]
    even = len({len(group) for group in groups}) == 1
    sums_by_name: dict[str, list[np.ndarray]] = {name: [] for name in parts}
    at_once = min(AT_ONCE, max(1, NUMBERS_AT_ONCE // len(image_ids)))
    for start in range(0, draws, at_once):
        chosen = draw.integers(len(groups), size=(min(at_once, draws - start), len(groups)))
        if even:
            indices = [np.stack(groups)[chosen].reshape(len(chosen), -1)]
        else:  # resampled sets differ in length, so they are reduced one by one
            indices = [np.concatenate([groups[at] for at in row])[None] for row in chosen]
        for name, own in parts.items():
            sums_by_name[name] += [
                np.asarray(reduce({part: values[index] for part, values in own.items()})) for index in indices
            ]
    return {name: np.concatenate(values) for name, values in sums_by_name.items()}


def compute_value_interval(
    parts: Parts, drawn: np.ndarray, image_ids: Sequence[Any], level: float
) -> tuple[float, float]:
    """Interval of a method's value; NaN if its score is defined on fewer than `FEW` images."""
    defined = {image_ids[row] for row in np.flatnonzero(~np.isnan(parts["score"])).tolist()}
    return compute_interval(drawn, level) if len(defined) >= FEW else UNKNOWN


def compute_difference_interval(
    before: Parts,
    after: Parts,
    reduce: Reducer,
    image_ids: Sequence[Any],
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Paired difference `after` − `before` over the rows on which both are defined.

    Parameters
    ----------
    before, after
        The score and the other numbers that `reduce` reads, row by row in the same order.
    reduce
        The metric's reducer.
    image_ids
        Image of every row; images are resampled with all their rows.
    draws, seed
        Number of resamples and their seed.
    level
        Coverage of the interval.

    Returns
    -------
    tuple of float
        Difference, low and high end of its interval; NaN where unknown.
    """
    both = np.flatnonzero(~np.isnan(before["score"]) & ~np.isnan(after["score"]))
    if not len(both):
        return (float("nan"), *UNKNOWN)
    shared = before.keys() & after.keys()
    parts = {word: {name: side[name][both] for name in shared} for word, side in (("before", before), ("after", after))}
    difference = float(reduce(parts["after"]) - reduce(parts["before"]))
    paired_ids = [image_ids[row] for row in both.tolist()]
    if len(set(paired_ids)) < FEW:
        return (difference, *UNKNOWN)
    drawn = resample_values(parts, reduce, paired_ids, draws, seed)
    return (difference, *compute_interval(drawn["after"] - drawn["before"], level))


def have_same_rows(first: Parts, second: Parts) -> bool:
    """Whether two methods have defined scores on the same rows."""
    return bool((np.isnan(first["score"]) == np.isnan(second["score"])).all())


def contains_zero(ends: tuple[float, float]) -> bool:
    """Whether an interval contains 0 or is unknown (NaN)."""
    return not (ends[0] > 0 or ends[1] < 0)


def compute_curve_band(
    curves: Float[np.ndarray, "q s"], clusters: Sequence[np.ndarray], draws: int = 400, seed: int = 0
) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"], Float[np.ndarray, " s"]]:
    """The mean curve and its pointwise interval; images are resampled with all their rows.

    Parameters
    ----------
    curves
        One curve per row (image and target), NaN where it is undefined.
    clusters
        Indices of the rows of each image.
    draws, seed
        Number of resamples and their seed.

    Returns
    -------
    tuple of three arrays
        Mean, low and high end; the ends are NaN for a single image.
    """
    defined = ~np.isnan(curves)
    filled = np.where(defined, curves, 0.0).astype(float)
    totals = np.array([filled[places].sum(0) for places in clusters])
    counts = np.array([defined[places].sum(0) for places in clusters])
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = totals.sum(0) / counts.sum(0)
        if len(clusters) < FEW:
            return middle, np.full_like(middle, np.nan), np.full_like(middle, np.nan)
        even = np.full(len(clusters), 1 / len(clusters))
        draw, at_once = np.random.default_rng(seed), max(1, NUMBERS_AT_ONCE // len(clusters))
        sizes = (min(at_once, draws - start) for start in range(0, draws, at_once))
        drawn = (draw.multinomial(len(clusters), even, size=size) for size in sizes)
        sampled = np.concatenate([(weights @ totals) / (weights @ counts) for weights in drawn])
    low, high = np.array([compute_interval(point, LEVEL) for point in sampled.T]).T
    return middle, low, high
