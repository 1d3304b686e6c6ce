"""Published numbers beside those of a run: paper, ours with its interval, difference, and the order of methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, groupby
from math import isnan, nan

from vitreous.core.errors import VitreousError
from vitreous.metrics.published import PublishedTable
from vitreous.report.column_match import FilledColumn
from vitreous.report.filled_table import PaperTable, label_row
from vitreous.report.formatting import choose_digits, format_count, format_interval, format_number, format_signed
from vitreous.report.tables import ReportTable, TableCell, TableHead


def compare_with_paper(filled: PaperTable, published: PublishedTable) -> Iterator[ReportTable]:
    """Put published numbers beside those of a run.

    Parameters
    ----------
    filled
        A table that is filled with the values of a run.
    published
        The numbers of the paper.

    Yields
    ------
    ReportTable
        One table per group of columns that both have; methods of the paper that the run lacks are left out.
    """
    columns = [(name, column) for name, column in filled.columns.items() if name in published.columns]
    methods = [method for method in filled.methods if hash_spec(method) in index_published_rows(published)]
    for number, (group, members) in enumerate(groupby(columns, lambda entry: entry[0].rpartition(": ")[0])):
        own = list(members)
        if filled.table is not None and own and methods:
            slug, title = f"{filled.table.slug}-paper-{number}", f"{filled.table.title}: {group or published.title}"
            yield compare_group(slug, title, own, methods, published)


def compare_group(
    slug: str,
    title: str,
    columns: Sequence[tuple[str, FilledColumn]],
    methods: Sequence[str],
    published: PublishedTable,
) -> ReportTable:
    """Table with the columns paper, ours and difference for every published column, and a note on each order."""
    heads: list[TableHead] = []
    groups, cells, notes = [], [[] for _ in methods], []
    by_method = index_published_rows(published)
    for name, column in columns:
        intervals = column.intervals()
        printed = [by_method[hash_spec(method)][name] for method in methods]
        own_values = [column.values.get(method, nan) for method in methods]
        digits = choose_digits(printed)
        for place, (method, printed_value, own_value) in enumerate(zip(methods, printed, own_values, strict=True)):
            span = format_interval(*intervals.get(method, (nan, nan)), digits)
            cells[place] += [
                TableCell(format_number(printed_value, digits), printed_value),
                TableCell(format_number(own_value, digits), own_value, span),
                TableCell(format_signed(own_value - printed_value, digits), own_value - printed_value),
            ]
        heads += [TableHead("paper", column.higher), TableHead("ours", column.higher), TableHead("difference")]
        groups.append((name.rpartition(": ")[2], 3))
        notes.append(f"{name.rpartition(': ')[2]}: {describe_order(printed, own_values, column.higher)}")
    paper = published.name.partition(":")[0]
    body = [(label_row(paper, method), own) for method, own in zip(methods, cells, strict=True)]
    return ReportTable(slug, title, heads, body, groups=groups, notes=["Brackets hold our 95 % interval.", *notes])


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
    from vitreous.bench.keys import hash_identity
    from vitreous.methods.spec import resolve

    try:
        return hash_identity(resolve(spec))
    except VitreousError:  # a method of an earlier version
        return spec
