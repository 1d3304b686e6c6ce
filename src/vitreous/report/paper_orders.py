"""Orders of methods that a paper states, checked on the values of a run by paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

from vitreous.bench.resample import compute_difference_interval
from vitreous.bench.scores import MetricScores
from vitreous.metrics.published import PublishedOrder
from vitreous.report.filled_table import PaperTable
from vitreous.report.paper_comparison import hash_spec
from vitreous.report.tables import ReportTable, TableCell, TableHead

HEADS = ("where", "first is …", "comparisons", "agree", "first ahead", "ahead by interval", "behind by interval")
DRAWS = 400  # resamples per pair; there are up to 70 pairs, and only the sign of their interval is counted


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Difference of two methods in one column, positive if the first one is better; its ends are NaN if unknown."""

    value: float
    low: float
    high: float

    @property
    def ahead(self) -> bool:
        """Whether the first method is better by the interval."""
        return self.low > 0

    @property
    def behind(self) -> bool:
        """Whether the first method is worse by the interval."""
        return self.high < 0

    def agrees(self, expected: str) -> bool:
        """Whether the interval agrees with "better", "not worse", "one not worse" or "equal"."""
        if isnan(self.low):
            return False
        agreement = {"better": self.ahead, "equal": not (self.ahead or self.behind)}
        return agreement.get(expected, not self.behind)


def compare_with_orders(filled: PaperTable, orders: Sequence[PublishedOrder]) -> Iterator[ReportTable]:
    """Count on how many pairs of methods and columns a run agrees with what a paper states.

    Parameters
    ----------
    filled
        A table that is filled with the values of a run.
    orders
        The statements of the paper about it.

    Yields
    ------
    ReportTable
        One table, with a row per statement that is about the models of the table.
    """
    rows = []
    for order in orders:
        differences = list(list_differences(filled, order))
        if not differences:
            continue
        counts = (
            len(differences),
            sum(difference.agrees(order.expected) for difference in differences),
            sum(difference.value > 0 for difference in differences),
            sum(difference.ahead for difference in differences),
            sum(difference.behind for difference in differences),
        )
        words = [TableCell(order.source), TableCell(order.expected)]
        rows.append((order.says, [*words, *(TableCell(str(count), count) for count in counts)]))
    if filled.table is not None and rows:
        note = "A comparison is of two methods in one column; it agrees if the 95 % interval of their difference does."
        heads = [TableHead(name) for name in HEADS]
        yield ReportTable(f"{filled.table.slug}-orders", filled.table.title, heads, rows, "the paper", notes=[note])


def list_differences(filled: PaperTable, order: PublishedOrder) -> Iterator[PairedDifference]:
    """Differences of all pairs of methods that an order is about, in all columns of the table that it is about.

    For "one not worse" the best method of `first` is compared.
    """
    for name, column in filled.columns.items():
        scores = column.scores
        if scores is None or (order.columns and name.rpartition(": ")[2] not in order.columns):
            continue
        if order.models and scores.section.model not in order.models:
            continue
        for pairs in group_pairs(scores.section.methods, order):
            differences = [compute_paired_difference(scores, first, second) for first, second in pairs]
            defined = [difference for difference in differences if not isnan(difference.value)]
            if order.expected == "one not worse":
                defined = [max(defined, key=lambda difference: difference.value)] if defined else []
            yield from defined


def group_pairs(methods: Sequence[str], order: PublishedOrder) -> list[list[tuple[str, str]]]:
    """Pairs of methods (first, second) of an order among those of a run, grouped by the second one."""
    by_identity = {hash_spec(method): method for method in methods}
    first, second = (
        [by_identity[hash_spec(spec)] for spec in specs if hash_spec(spec) in by_identity]
        for specs in (order.first, order.second)
    )
    if not order.second:
        second = [method for method in methods if method not in first]
    return [[(method, other) for method in first if method != other] for other in second]


def compute_paired_difference(scores: MetricScores, first: str, second: str) -> PairedDifference:
    """Difference of two methods on the rows on which both are defined."""
    image_ids = [question.image for question in scores.section.questions]
    before, after = scores.parts_of(second), scores.parts_of(first)
    value, low, high = compute_difference_interval(before, after, scores.reduce, image_ids, DRAWS)
    if scores.higher_is_better is False:
        value, low, high = -value, -high, -low
    return PairedDifference(value, low, high)
