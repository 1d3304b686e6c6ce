"""Who is ahead: the figures of `vitreous.bench.summary` as arrays, mean ranks, bands of curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from vitreous.bench import resample, summary
from vitreous.report.block import Block, Column


@dataclass(frozen=True, eq=False)
class Standing:
    """How every method of a block does by one metric."""

    column: Column
    values: Float[np.ndarray, " m"]
    spans: tuple[tuple[float, float], ...]  # 95 % intervals
    ranks: tuple[int | None, ...]
    tied: tuple[bool, ...]  # not told from the best
    rows: int  # that the figures rest on
    undefined: Int[np.ndarray, " m"]  # of these, without a number
    errors: Int[np.ndarray, " m"]


def standings_of(block: Block) -> list[Standing]:
    """One per metric, in the order of the plan."""
    return [standing(block, column, block.summaries[column.metric]) for column in block.columns]


def standing(block: Block, column: Column, summed: summary.Column) -> Standing:
    entries = {entry.method: entry for entry in summed.entries}
    rows = [entries.get(method) for method in block.methods]  # none of a run that is not finished
    return Standing(
        column,
        np.array([np.nan if one is None else one.value for one in rows], float),
        tuple(resample.UNKNOWN if one is None else (one.low, one.high) for one in rows),
        tuple(None if one is None else one.rank for one in rows),
        tuple(one is not None and one.tied for one in rows),
        max((one.rows for one in rows if one is not None), default=0),
        np.array([0 if one is None else one.undefined for one in rows], int),
        np.array([0 if one is None else one.errors for one in rows], int),
    )


def mean_ranks(standings: Sequence[Standing]) -> list[float]:
    """The mean over metrics that judge, of a method's rank; NaN where it has none."""
    rows = [[np.nan if rank is None else rank for rank in one.ranks] for one in standings if one.column.sign]
    if not rows:
        return [float("nan")] * (len(standings[0].ranks) if standings else 0)
    table = np.array(rows, float)
    known = (~np.isnan(table)).sum(0)
    total = np.nansum(table, 0)
    return [float(t / k) if k else float("nan") for t, k in zip(total, known, strict=True)]


def order_of(standings: Sequence[Standing]) -> list[int]:
    """Methods, the best mean rank first."""
    means = mean_ranks(standings)
    return sorted(range(len(means)), key=lambda row: (np.isnan(means[row]), means[row], row))


def band(
    curve: Float[np.ndarray, "q s"], clusters: Sequence[np.ndarray], draws: int = 400, seed: int = 0
) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"], Float[np.ndarray, " s"]]:
    """The mean curve and its pointwise interval, pictures resampled with all their questions."""
    known = ~np.isnan(curve)
    picture = np.empty(len(curve), int)
    for row, places in enumerate(clusters):
        picture[places] = row
    totals, weights = (np.zeros((len(clusters), curve.shape[1])) for _ in range(2))
    np.add.at(totals, picture, np.where(known, curve, 0.0))
    np.add.at(weights, picture, known)

    def ratio(take: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return take(totals) / take(weights)

    middle = ratio(lambda table: table.sum(0))
    if len(clusters) < resample.FEW:
        return middle, np.full_like(middle, np.nan), np.full_like(middle, np.nan)
    even = np.full(len(clusters), 1 / len(clusters))
    drawn = np.random.default_rng(seed).multinomial(len(clusters), even, size=draws)
    sampled = ratio(lambda table: drawn @ table)
    ends = np.array([resample.interval(point, resample.LEVEL) for point in sampled.T]).T
    return middle, ends[0], ends[1]
