"""The paper beside a run: published numbers with ours and their difference, and orders of methods that a paper states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from math import isnan, nan

from vitreous.bench.keys import hash_identity
from vitreous.bench.resample import compute_difference_interval
from vitreous.bench.scores import MetricScores
from vitreous.core.errors import VitreousError
from vitreous.methods.spec import resolve
from vitreous.metrics.published import PublishedOrder, PublishedTable, published_label
from vitreous.report.formatting import choose_digits, format_count, format_interval, format_number, format_signed
from vitreous.report.paper_tables import PaperTable, label_row
from vitreous.report.tables import ReportTable, TableCell, TableHead, describe_scores, make_score_column

ORDER_HEADS = ("where", "first is …", "comparisons", "agree", "first ahead", "ahead by interval", "behind by interval")
ORDER_DRAWS = 400  # resamples per pair; there are up to 70 pairs, and only the sign of their interval is counted


def compare_with_paper(filled: PaperTable, published: PublishedTable | None) -> Iterator[ReportTable]:
    """Put published numbers beside those of a run.

    Parameters
    ----------
    filled
        A table that is filled with the values of a run.
    published
        The numbers of the paper; None if it prints none.

    Yields
    ------
    ReportTable
        One table per group of columns that both have; methods of the paper that the run lacks are left out.
    """
    if filled.table is None or published is None:
        return
    printed = index_published_rows(published)
    columns = [(name, column) for name, column in filled.columns.items() if name in published.columns]
    methods = [method for method in filled.methods if hash_spec(method) in printed]
    if not methods:
        return
    paper = published.name.partition(":")[0]
    for number, (group, members) in enumerate(groupby(columns, lambda entry: entry[0].rpartition(": ")[0])):
        heads, groups, notes = [], [], ["Brackets hold our 95 % interval."]
        cells: dict[str, list[TableCell]] = {method: [] for method in methods}
        for name, column in members:
            title, intervals = name.rpartition(": ")[2], column.intervals()
            paper_values = [printed[hash_spec(method)][name] for method in methods]
            own_values = [column.values.get(method, nan) for method in methods]
            digits = choose_digits(paper_values)
            for method, paper_value, own_value in zip(methods, paper_values, own_values, strict=True):
                span = format_interval(*intervals.get(method, (nan, nan)), digits)
                cells[method] += [
                    TableCell(format_number(paper_value, digits), paper_value),
                    TableCell(format_number(own_value, digits), own_value, span),
                    TableCell(format_signed(own_value - paper_value, digits), own_value - paper_value),
                ]
            heads += [TableHead("paper", column.higher), TableHead("ours", column.higher), TableHead("difference")]
            groups.append((title, 3))
            notes.append(f"{title}: {describe_order(paper_values, own_values, column.higher)}")
        slug, title = f"{filled.table.slug}-paper-{number}", f"{filled.table.title}: {group or published.title}"
        body = [(label_row(paper, method), own) for method, own in cells.items()]
        own_scores = [filled.score_by_method.get(method, "") for method in methods]
        score_head, score_cells = make_score_column(own_scores)
        body = [(name, [*own, cell]) for (name, own), cell in zip(body, score_cells, strict=True)]
        groups, notes = [*groups, ("", 1)], [*notes, describe_scores(own_scores, "Orders are compared")]
        yield ReportTable(slug, title, [*heads, score_head], body, groups=groups, notes=notes, about=filled.table.about)


def describe_order(printed: Sequence[float], own_values: Sequence[float], higher: bool | None) -> str:
    """Whether methods have the paper's order: pairs of methods that differ there, and the best one."""
    pairs = [(a, b) for a, b in combinations(range(len(printed)), 2) if printed[a] != printed[b]]
    defined_pairs = [(a, b) for a, b in pairs if not isnan(own_values[a]) and not isnan(own_values[b])]
    agree = sum(
        (printed[a] > printed[b]) == (own_values[a] > own_values[b]) and own_values[a] != own_values[b]
        for a, b in defined_pairs
    )
    if not defined_pairs:
        return "the order of methods cannot be compared."
    if agree == len(pairs):
        return "the order of methods is the paper's."
    if all(own_values[a] == own_values[b] for a, b in defined_pairs):
        return "our values do not distinguish the methods."
    sign = -1 if higher is False else 1
    best_row = max(range(len(printed)), key=lambda row: sign * printed[row])
    is_same_best = all(isnan(value) or sign * value <= sign * own_values[best_row] for value in own_values)
    word = "the paper's best method is best" if is_same_best else "another method is best"
    return f"the order of methods is not the paper's: {agree} of {format_count(len(pairs), 'pair')} agree; {word}."


def index_published_rows(published: PublishedTable) -> dict[str, dict[str, float]]:
    return {hash_spec(spec): dict(values) for spec, values in published.rows.items()}


def hash_spec(spec: str) -> str:
    """Spec without presets, so that two ways to write the same method are equal."""
    try:
        return hash_identity(resolve(spec))
    except VitreousError:  # a method of an earlier version
        return spec


# ── orders that a paper states ───────────────────────────────────────────────────────────────────


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
        heads = [TableHead(name) for name in ORDER_HEADS]
        notes = [
            note,
            describe_scores([*filled.score_by_method.values()], "Methods are compared as in the paper, not only"),
        ]
        slug, title = f"{filled.table.slug}-orders", filled.table.title
        yield ReportTable(slug, title, heads, rows, "the paper", notes=notes, about=filled.table.about)


def list_differences(filled: PaperTable, order: PublishedOrder) -> Iterator[PairedDifference]:
    """Differences of all pairs of methods that an order is about, in all columns of the table that it is about.

    For "one not worse" the best method of `first` is compared.
    """
    for name, column in filled.columns.items():
        scores = column.scores
        if scores is None or (order.columns and name.rpartition(": ")[2] not in order.columns):
            continue
        if order.models and published_label(scores.section.model) not in order.models:
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
    value, low, high = compute_difference_interval(before, after, scores.reduce, image_ids, ORDER_DRAWS)
    if scores.higher_is_better is False:
        value, low, high = -value, -high, -low
    return PairedDifference(value, low, high)
