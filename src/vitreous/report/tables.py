"""Tables that can be written as HTML, Markdown, LaTeX and CSV. Names are escaped when they are written."""

from __future__ import annotations

import csv
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO

from vitreous.bench.summary import rank_values
from vitreous.report.formatting import (
    ARROWS,
    DIRECTIONS,
    format_number,
    format_score,
    join_nonempty,
    round_as_shown,
)

SCORE_HINT = "score of the model that is explained; any: the map does not depend on the class"
GREEK = dict(
    zip("αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ", (
        "alpha", "beta", "gamma", "delta", "varepsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu",
        "xi", "pi", "rho", "sigma", "tau", "upsilon", "varphi", "chi", "psi", "omega", "Gamma", "Delta", "Theta",
        "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi", "Omega",
    ), strict=True)
)  # fmt: skip
MATHS = {
    "−": "-", "↑": r"\uparrow", "↓": r"\downarrow", "→": r"\to", "←": r"\leftarrow", "↔": r"\leftrightarrow",
    "≈": r"\approx", "≤": r"\leq", "≥": r"\geq", "≠": r"\neq", "×": r"\times", "÷": r"\div", "±": r"\pm",
    "·": r"\cdot", "∘": r"\circ", "°": r"^{\circ}", "⊕": r"\oplus", "⊗": r"\otimes", "⊙": r"\odot", "∞": r"\infty",
    "µ": r"\mu", "√": r"\surd", "∑": r"\sum", "∏": r"\prod", "∂": r"\partial", "∇": r"\nabla", "∈": r"\in",
    "∪": r"\cup", "∩": r"\cap", "‖": r"\|", "′": r"'", "|": r"\vert", "<": "<", ">": ">",
    **{char: f"\\{name}" for char, name in GREEK.items()},
}  # fmt: skip
TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "—": "---", "…": r"\ldots{}",
    "“": "``", "”": "''", "‘": "`", "’": "'",
    **{char: f"${code}$" for char, code in MATHS.items()},
    **{char: f"\\{char}" for char in "&%$#_{}"},
}  # fmt: skip
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
    """A table.

    Parameters
    ----------
    slug
        Base name of its files.
    title
        Title.
    heads, rows
        Titles of the columns, and name and cells of every row.
    first
        Title of the column of names.
    groups
        Titles above several columns, with the number of columns.
    notes
        Notes on how to read it.
    about
        What the numbers were measured on, in sentences by name, such as the models and how a reproduction is reduced:
        notes of the table, and columns of its CSV file.
    """

    slug: str
    title: str
    heads: Sequence[TableHead]
    rows: Sequence[tuple[str, Sequence[TableCell]]]
    first: str = "method"
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_notes(self) -> list[str]:
        """What the numbers were measured on, and the notes."""
        return [*(f"{name.capitalize()}: {text}." for name, text in self.about.items()), *self.notes]

    @property
    def group_names(self) -> list[str]:
        """Title of the group above every column, as a prefix of its name."""
        if not self.groups:
            return [""] * len(self.heads)
        return [f"{title}: " if title else "" for title, width in self.groups for _ in range(width)]


def make_number_cells(
    values: Sequence[float], digits: int, higher: bool | None, scores: Sequence[str] = ()
) -> list[TableCell]:
    """Cells of a column of numbers with the best and second best marked; `scores` as for `place_values`."""
    places = place_values(values, digits, higher, scores)
    return [TableCell(format_number(v, digits), v, place=place) for v, place in zip(values, places, strict=True)]


def place_values(
    values: Sequence[float], digits: int, higher: bool | None, scores: Sequence[str] = ()
) -> list[int | None]:
    """Place 1 of the best and 2 of the second best values, otherwise None.

    Values that are written equally share a place: after two best ones there is no second best. If all are equal, none
    has a place.

    Parameters
    ----------
    values
        Values of the rows; NaN has no place.
    digits
        Number of decimals that are written.
    higher
        Whether higher is better; None if neither direction is, so that there are no places.
    scores
        Name of the score that each row explains. Rows of different scores are not compared; those without a score are
        compared with all, and have the worst of their places.
    """
    scores = scores or [""] * len(values)
    places: list[list[int]] = [[] for _ in values]
    groups = dict.fromkeys(filter(None, scores)) or {"": None}
    for group in groups:
        own = {row: round_as_shown(values[row], digits) for row, score in enumerate(scores) if score in ("", group)}
        ranks = rank_values(own, higher)
        for row in own:
            places[row].append(ranks[row] if len(set(ranks.values())) > 1 and row in ranks else 3)
    worst = [max(own_places) for own_places in places]
    return [place if place < 3 else None for place in worst]


def make_score_column(scores: Sequence[str]) -> tuple[TableHead, list[TableCell]]:
    """Column with the name of the score that each row explains."""
    return TableHead("score", hint=SCORE_HINT), [
        TableCell(format_score(score), format_score(score)) for score in scores
    ]


def describe_scores(scores: Sequence[str], ranked: str = "Best and second best are marked") -> str:
    """Sentence on the scores that the rows of a table explain: one, or several that are not comparable."""
    names = [*dict.fromkeys(filter(None, scores))]
    if not names:
        return "No map depends on the class, so there is no score."
    unscored = "" if all(scores) else " (rows of score any: the same map for every class)"
    if len(names) == 1:
        return f"Score that is explained: {names[0]}{unscored}."
    return (
        f"The rows explain different scores, {', '.join(names)}, and are not comparable across them{unscored}. "
        f"{ranked} among rows of one score; --question {names[0]} explains the same score by all methods."
    )


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────────


def to_markdown(table: ReportTable) -> str:
    titles = [group + head.title for group, head in zip(table.group_names, table.heads, strict=True)]
    lines = [f"**{escape_markdown(table.title)}**", ""]
    lines += [format_markdown_row(map(escape_markdown, [table.first, *titles]))]
    lines += ["|" + "|".join([":--", *["--:"] * len(table.heads)]) + "|"]
    for name, cells in table.rows:
        code = "`{}`".format(name.replace("`", "'").replace("|", "¦"))
        lines.append(format_markdown_row([" ".join(code.split()), *map(format_cell_markdown, cells)]))
    lines += ["", *(f"- {escape_markdown(note)}" for note in table.all_notes)] if table.all_notes else []
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
    r"""A booktabs table with a caption, for \input; the caption has the notes, since a comment would not be printed."""
    rows = [[escape_latex(table.first), *(escape_latex(head.title) for head in table.heads)]]
    if table.groups:
        rows.insert(0, ["", *(rf"\multicolumn{{{n}}}{{c}}{{{escape_latex(title)}}}" for title, n in table.groups)])
    body = [[rf"\texttt{{{escape_latex(name)}}}", *map(format_cell_latex, cells)] for name, cells in table.rows]
    caption = " ".join([f"{table.title}.", *table.all_notes])
    lines = [r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(caption)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(table.heads)}}}", r"\toprule"]
    lines += [*(format_latex_row(row) for row in rows), r"\midrule", *(format_latex_row(row) for row in body)]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def format_latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def escape_latex(text: str) -> str:
    """Escape LaTeX special characters; characters that pdfLaTeX does not support are written as U+ and their number."""
    return "".join(map(escape_latex_character, " ".join(text.split())))


def escape_latex_character(char: str) -> str:
    if char in TEX or ord(char) < 0x250:
        return TEX.get(char, char)
    plain = unicodedata.normalize("NFKC", char)
    if plain != char and len(plain) == 1:
        return escape_latex_character(plain)
    return f"[U+{ord(char):04X}]"


def format_cell_latex(cell: TableCell) -> str:
    text = " / ".join(TEX_PLACES.get(figure.place or 0, "%s") % escape_latex(figure.text) for figure in cell.figures)
    span = rf" {{\scriptsize {escape_latex(cell.span)}}}" if cell.span else ""
    return text + (r"$^{\approx}$" if cell.tied else "") + span


# ── CSV ──────────────────────────────────────────────────────────────────────────────────────────


def to_csv(table: ReportTable) -> str:
    heads = [table.first, *(group + head.name for group, head in zip(table.group_names, table.heads, strict=True))]
    rows = [[name, *map(get_cell_value, cells), *table.about.values()] for name, cells in table.rows]
    return write_csv([*heads, *(f"about_{name}" for name in table.about)], rows)


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
