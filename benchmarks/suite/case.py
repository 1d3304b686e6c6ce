"""One row of the table before it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """Two pieces of work to compare, what their ratio should be, and how far their answers must agree.

    What is not importable, does not fit or is not supported raises when it is called, and becomes a row that says so.
    """

    group: str  # section of the table: "one backward", "sampling", "metrics", "peers", …
    what: str  # "decompx+skipplus"
    against: str  # "forward + backward", "captum IntegratedGradients"
    ours: Callable[[], object]
    theirs: Callable[[], object]
    at_most: float | None = None  # target: ours / theirs per image
    at_least: float | None = None  # target: theirs / ours per image, a gain
    smaller: float | None = None  # target: peak memory of theirs / ours per image, weights excluded
    pictures: tuple[float, float] = (1, 1)  # explained by one call of ours, of theirs; less than 1: a share of one
    agree: Callable[[], float] | None = None  # how far the two agree (Spearman, worst image), with
    agreement: float | None = None  # the least that is allowed
    note: str = ""
