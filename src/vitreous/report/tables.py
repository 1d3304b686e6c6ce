"""Tables that can be written as HTML, Markdown, LaTeX and CSV. Names are escaped when they are written."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from vitreous.report.formatting import ARROWS, DIRECTIONS, format_number, join_nonempty

TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≈": r"$\approx$",
    "×": r"$\times$",
    "–": "--",
    "µ": r"$\mu$",
    "∞": r"$\infty$",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}
TEX_PLACES = {1: r"\textbf{%s}", 2: r"\underline{%s}"}
MARKDOWN_PLACES = {1: "**%s**", 2: "<u>%s</u>"}


@dataclass(frozen=True, slots=True)
class TableCell:
    """A formatted value; `place` 1 is set in bold, 2 is underlined."""

    text: str
    sort: float | int | str | None = None
    span: str = ""  # formatted interval
    place: int | None = None
    tied: bool = False
    aside: str = ""  # shown in small letters
    also: tuple[TableCell, ...] = ()  # more values in the same cell

    @property
    def figures(self) -> tuple[TableCell, ...]:
        return (self, *self.also)

    @property
    def is_sortable(self) -> bool:
        return self.sort is not None and not (isinstance(self.sort, float) and math.isnan(self.sort))


@dataclass(frozen=True, slots=True)
class TableHead:
    """Title of a column."""

    name: str
    higher: bool | None = None
    judged: bool = False  # whether the tooltip says which direction is better
    hint: str = ""

    @property
    def arrow(self) -> str:
        return ARROWS[self.higher]

    @property
    def title(self) -> str:
        return f"{self.name} {self.arrow}".strip()

    @property
    def tooltip(self) -> str:
        return join_nonempty(DIRECTIONS[self.higher] if self.judged else "", self.hint)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table; `groups` are titles above several columns, with the number of columns."""

    slug: str
    title: str
    heads: Sequence[TableHead]
    rows: Sequence[tuple[str, Sequence[TableCell]]]
    first: str = "method"
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()

    @property
    def group_names(self) -> list[str]:
        """Title of the group above every column, as a prefix of its name."""
        if not self.groups:
            return [""] * len(self.heads)
        return [f"{title}: " if title else "" for title, width in self.groups for _ in range(width)]


def make_number_cells(values: Sequence[float], digits: int, higher: bool | None) -> list[TableCell]:
    """Cells of a column of numbers; the best and second best of the rounded values are marked."""
    places = place_values([round(value, digits) for value in values], higher)
    return [TableCell(format_number(v, digits), v, place=place) for v, place in zip(values, places, strict=True)]


def place_values(values: Sequence[float], higher: bool | None) -> list[int | None]:
    """1 for the best and 2 for the second best value, otherwise None; equal values share a place."""
    if higher is None:
        return [None] * len(values)
    ordered_values = sorted({value for value in values if not math.isnan(value)}, reverse=higher)
    return [ordered_values.index(value) + 1 if value in ordered_values[:2] else None for value in values]


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────────


def to_markdown(table: ReportTable) -> str:
    titles = [group + head.title for group, head in zip(table.group_names, table.heads, strict=True)]
    lines = [f"**{escape_markdown(table.title)}**", ""]
    lines += [format_markdown_row(map(escape_markdown, [table.first, *titles]))]
    lines += ["|" + "|".join([":--", *["--:"] * len(table.heads)]) + "|"]
    for name, cells in table.rows:
        code = "`{}`".format(name.replace("`", "'").replace("|", "¦"))
        lines.append(format_markdown_row([" ".join(code.split()), *map(format_cell_markdown, cells)]))
    lines += ["", *(f"- {escape_markdown(note)}" for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def format_markdown_row(cells) -> str:
    return f"| {' | '.join(cells)} |"


def escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def format_cell_markdown(cell: TableCell) -> str:
    text = " / ".join(
        MARKDOWN_PLACES.get(figure.place or 0, "%s") % escape_markdown(figure.text) for figure in cell.figures
    )
    return join_nonempty(text, "≈" * cell.tied, escape_markdown(cell.span), escape_markdown(cell.aside), by=" ")


# ── LaTeX ────────────────────────────────────────────────────────────────────────────────────────


def to_latex(table: ReportTable) -> str:
    r"""A booktabs table, for \input."""
    rows = [[escape_latex(table.first), *(escape_latex(head.title) for head in table.heads)]]
    if table.groups:
        rows.insert(0, ["", *(rf"\multicolumn{{{n}}}{{c}}{{{escape_latex(title)}}}" for title, n in table.groups)])
    body = [[rf"\texttt{{{escape_latex(name)}}}", *map(format_cell_latex, cells)] for name, cells in table.rows]
    lines = [r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{l{'r' * len(table.heads)}}}", r"\toprule"]
    lines += [*(format_latex_row(row) for row in rows), r"\midrule", *(format_latex_row(row) for row in body)]
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {' '.join(note.split())}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def format_latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def escape_latex(text: str) -> str:
    """Escape LaTeX special characters; characters that pdfLaTeX does not support become a question mark."""
    return "".join(TEX.get(char, char if ord(char) < 0x250 else "?") for char in " ".join(text.split()))


def format_cell_latex(cell: TableCell) -> str:
    text = " / ".join(TEX_PLACES.get(figure.place or 0, "%s") % escape_latex(figure.text) for figure in cell.figures)
    span = rf" {{\scriptsize {escape_latex(cell.span)}}}" if cell.span else ""
    return text + (r"$^{\approx}$" if cell.tied else "") + span


# ── CSV ──────────────────────────────────────────────────────────────────────────────────────────


def to_csv(table: ReportTable) -> str:
    heads = [table.first, *(group + head.name for group, head in zip(table.group_names, table.heads, strict=True))]
    return write_csv(heads, [[name, *map(get_cell_value, cells)] for name, cells in table.rows])


def get_cell_value(cell: TableCell) -> object:
    if cell.also:
        return " / ".join(figure.text for figure in cell.figures)
    return cell.text if cell.sort is None else cell.sort


def write_csv(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([to_csv_value(value) for value in row] for row in rows)
    return stream.getvalue()


def to_csv_value(value: object) -> object:
    """Numbers in full precision, empty for NaN; text that a spreadsheet would evaluate gets an apostrophe in front."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, int | float):
        return value if isinstance(value, int) else repr(float(value))
    text = " ".join(str(value).split())
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
