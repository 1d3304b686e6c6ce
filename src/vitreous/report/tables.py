"""Tables once, written four ways: HTML, Markdown, LaTeX, CSV. Every name is escaped where it is written."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO

from vitreous.report.words import ARROWS, ASIDE, JOINTS, code, number

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


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure as it is shown; `place` 1 is bold, 2 underlined."""

    text: str
    sort: float | int | str | None = None
    span: str = ""  # its interval
    place: int | None = None
    tied: bool = False
    aside: str = ""  # what else is to be said, in small letters
    hint: str = ""  # and what only to those who ask
    also: tuple[Cell, ...] = ()  # more figures of the same cell, behind a stroke


@dataclass(frozen=True, slots=True)
class Head:
    """The title of a column."""

    name: str
    higher: bool | None = None
    judged: bool = False
    hint: str = ""
    is_spec: bool = False

    @property
    def arrow(self) -> str:
        return ARROWS[self.higher]

    @property
    def title(self) -> str:
        return f"{self.name} {self.arrow}".strip()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under heads; `groups` are titles over several columns, with their widths."""

    slug: str
    title: str
    heads: Sequence[Head]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    first: str = "method"
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = field(default_factory=tuple)


def figure_cell(value: float, digits: int, place: int | None = None) -> Cell:
    return Cell(number(value, digits), value, place=place)


def places(values: Sequence[float], higher: bool | None) -> list[int | None]:
    """1 and 2 for the best and the second, as they are printed; equals share a place."""
    if higher is None:
        return [None] * len(values)
    known = sorted({value for value in values if not math.isnan(value)}, reverse=higher)
    return [known.index(value) + 1 if value in known[:2] else None for value in values]


# ── HTML ─────────────────────────────────────────────────────────────────────────────────────────


def html(table: Table) -> str:
    over = ""
    if table.groups:
        titles = "".join(
            f'<th colspan="{width}" scope="colgroup">{escape(title)}</th>' for title, width in table.groups
        )
        over = f"<tr class=groups><th></th>{titles}</tr>"
    heads = "".join(head_html(head) for head in table.heads)
    rows = "".join(
        f'<tr><th scope="row" data-v="{escape(name, quote=True)}">{code(name)}</th>{"".join(cell_html(c) for c in cells)}</tr>'
        for name, cells in table.rows
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(table.title, quote=True)}"><table class="sortable"><thead>{over}'
        f'<tr><th scope="col">{escape(table.first)}</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )


def head_html(head: Head) -> str:
    hint = " · ".join(part for part in (ASIDE[head.higher] if head.judged else "", head.hint) if part)
    name = JOINTS.sub("<wbr>", escape(head.name))
    arrow = f' <span class="arrow">{head.arrow}</span>' if head.arrow else ""
    return f'<th scope="col"{f" title={quoted(hint)}" if hint else ""}>{name}{arrow}</th>'


def marked_html(cell: Cell) -> str:
    mark = {1: "b", 2: "u"}.get(cell.place or 0)
    return f"<{mark}>{escape(cell.text)}</{mark}>" if mark else escape(cell.text)


def quoted(text: str) -> str:
    return f'"{escape(text, quote=True)}"'


def cell_html(cell: Cell) -> str:
    text = " / ".join(marked_html(one) for one in (cell, *cell.also))
    tied = '<span class="tie" title="not told from the best: the paired interval of the difference holds 0">≈</span>'
    small = "".join(f"<small>{escape(part)}</small>" for part in (cell.span, cell.aside) if part)
    sort = "" if cell.sort is None or cell.sort != cell.sort else f" data-v={quoted(str(cell.sort))}"
    hint = f" title={quoted(cell.hint)}" if cell.hint else ""
    kind = ' class="tied"' if cell.tied else ""
    return f"<td{kind}{sort}{hint}>{text}{tied if cell.tied else ''}{small}</td>"


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────────


def markdown(table: Table) -> str:
    heads = [table.first, *(over_name(table, place) + head.title for place, head in enumerate(table.heads))]
    lines = [
        f"**{md(table.title)}**",
        "",
        "| " + " | ".join(map(md, heads)) + " |",
        "|" + "|".join([":--", *["--:"] * len(table.heads)]) + "|",
    ]
    lines += [
        "| " + " | ".join([f"`{name.replace('`', chr(39)).replace('|', '¦')}`", *map(cell_md, cells)]) + " |"
        for name, cells in table.rows
    ]
    lines += ["", *(f"- {md(note)}" for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def over_name(table: Table, place: int) -> str:
    """The title above a column, in front of its own."""
    for title, width in table.groups:
        if place < width:
            return f"{title}: " if title else ""
        place -= width
    return ""


def md(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def cell_md(cell: Cell) -> str:
    wraps = {1: "**{}**", 2: "<u>{}</u>"}
    text = " / ".join(wraps.get(one.place or 0, "{}").format(md(one.text)) for one in (cell, *cell.also))
    return " ".join(part for part in (text, "≈" * cell.tied, md(cell.span), md(cell.aside)) if part)


# ── LaTeX ────────────────────────────────────────────────────────────────────────────────────────


def latex(table: Table) -> str:
    """A booktabs table, for \\input."""
    lines = [r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{l{'r' * len(table.heads)}}}", r"\toprule"]
    if table.groups:
        titles = [rf"\multicolumn{{{width}}}{{c}}{{{tex(title)}}}" for title, width in table.groups]
        lines.append(" & ".join(["", *titles]) + r" \\")
    lines.append(" & ".join([tex(table.first), *(tex(head.title) for head in table.heads)]) + r" \\")
    lines.append(r"\midrule")
    lines += [" & ".join([rf"\texttt{{{tex(name)}}}", *map(cell_tex, cells)]) + r" \\" for name, cells in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {' '.join(note.split())}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def tex(text: str) -> str:
    """Letters that LaTeX would read as orders are written out; others that pdfLaTeX does not have, as a question mark."""
    clean = " ".join(text.split())
    return "".join(TEX.get(char, char if ord(char) < 0x250 else "?") for char in clean)


def cell_tex(cell: Cell) -> str:
    wraps = {1: r"\textbf{%s}", 2: r"\underline{%s}"}
    text = " / ".join(wraps.get(one.place or 0, "%s") % tex(one.text) for one in (cell, *cell.also))
    span = rf" {{\scriptsize {tex(cell.span)}}}" if cell.span else ""
    return text + (r"$^{\approx}$" if cell.tied else "") + span


# ── CSV ──────────────────────────────────────────────────────────────────────────────────────────


def comma_separated(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    out = StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow(heads)
    write.writerows([tame(value) for value in row] for row in rows)
    return out.getvalue()


def tame(value: object) -> object:
    """Numbers in full, nothing for what is none; a name that a spreadsheet would compute gets an apostrophe."""
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    if value is None:
        return ""
    text = " ".join(str(value).split())
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") and not isinstance(value, int) else text


def table_csv(table: Table) -> str:
    heads = [table.first, *(over_name(table, place) + head.name for place, head in enumerate(table.heads))]
    rows = [[name, *map(plain, cells)] for name, cells in table.rows]
    return comma_separated(heads, rows)


def plain(cell: Cell) -> object:
    if cell.also:
        return " / ".join(one.text for one in (cell, *cell.also))
    return cell.text if cell.sort is None else cell.sort
