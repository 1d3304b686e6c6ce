"""A published table that is filled with the values of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import nan

from vitreous.methods.spec import resolve
from vitreous.metrics.protocols import protocol
from vitreous.report.column_match import FilledColumn
from vitreous.report.tables import ReportTable, TableCell, TableHead, make_number_cells

Groups = Sequence[tuple[str, Sequence[FilledColumn]]]  # columns with their common title


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A published table, or the reason why it cannot be filled.

    Parameters
    ----------
    title
        Name of the table in its paper.
    table
        The table; None if it cannot be filled.
    missing
        What is missing.
    columns
        Columns of the table by their names in `vitreous.metrics.published`.
    methods
        Method of every row.
    """

    title: str
    table: ReportTable | None
    missing: str = ""
    columns: Mapping[str, FilledColumn] = field(default_factory=dict)
    methods: Sequence[str] = ()


def fill_table(
    title: str,
    slug: str,
    heading: str,
    groups: Groups,
    methods: Sequence[str],
    *,
    digits: int = 2,
    notes: Sequence[str] = (),
    missing: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> PaperTable:
    """Make a table of one row per method; rows are named as in the paper that the slug begins with.

    Parameters
    ----------
    title, slug, heading
        Name of the table in its paper, base name of its files, and models and datasets.
    groups
        Columns under their common titles.
    methods
        Methods of the rows.
    digits
        Number of decimals.
    notes, missing
        Notes, and the names of what the run lacks.
    labels
        Names of the rows by method; the paper's by default.
    """
    columns = [column for _, columns in groups for column in columns]
    cells = [make_column_cells(column, methods, digits) for column in columns]
    heads = [TableHead(column.title, column.higher, True, hint=column.name) for column in columns]
    widths = [(name, len(columns)) for name, columns in groups if name and columns]
    paper = slug.split("-", maxsplit=1)[0]
    names = [label_row(paper, method) if labels is None else labels[method] for method in methods]
    rows = [(name, [column[row] for column in cells]) for row, name in enumerate(names)]
    notes = [*notes, *([f"The run has no {', '.join(missing)}."] if missing else [])]
    table = ReportTable(slug, heading, heads, rows, "method" if labels is None else "", widths, notes)
    named = {f"{name}: {column.title}".removeprefix(": "): column for name, columns in groups for column in columns}
    return PaperTable(title, table, columns=named, methods=methods)


def make_column_cells(column: FilledColumn, methods: Sequence[str], digits: int = 2) -> list[TableCell]:
    """Cells of a column, empty for methods that it has no value of."""
    return make_number_cells([column.values.get(method, nan) for method in methods], digits, column.higher)


def report_missing(title: str, where: str, missing: Sequence[str]) -> PaperTable:
    return PaperTable(title, None, f"{where}: the run lacks {', '.join(missing)}")


def label_row(paper: str, method: str) -> str:
    """Label of a row: its name in the paper, if it has one, and the method."""
    names = list_row_names(paper)
    return f"{names[method]}: {method}" if method in names else method


@lru_cache
def list_row_names(paper: str) -> dict[str, str]:
    """Names of the rows of a paper by canonical spec; of several names, the one in its tables."""
    return {resolve(spec).spec: name for name, spec in reversed(list(protocol(paper).rows.items()))}
