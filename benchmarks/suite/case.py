"""A row of the table that is not measured yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """Two functions to compare, targets of their ratio, and the required agreement of their results.

    If one cannot be imported, does not fit or is not supported, it raises when it is called, and the row contains the error.
    """

    group: str  # section of the table: "one backward", "sampling", "metrics", "peers", …
    what: str  # "decompx+skipplus"
    against: str  # "forward + backward", "captum IntegratedGradients"
    ours: Callable[[], object]
    theirs: Callable[[], object]
    at_most: float | None = None  # target: ours / theirs per image
    at_least: float | None = None  # target: theirs / ours per image, a gain
    smaller: float | None = None  # target: peak memory of theirs / ours per image, weights excluded
    pictures: tuple[float, float] = (
        1,
        1,
    )  # images of one call of ours and of theirs; less than 1 for a part of an image
    agree: Callable[[], float] | None = None  # agreement of the two (smallest Spearman correlation over images)
    agreement: float | None = None  # target of the agreement
    note: str = ""
