"""What stands on the page about the papers' tables on stand-ins (`reproduced.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from math import isnan

from study.effects import loaded, only
from study.pages import Results, fill
from study.reproduced import PLANS, STAND_INS, TableEffect, TableFigure, TableOrder
from study.sentences import counted, number, ranked, verdict
from study.tables import NOTHING, table

from vitreous.bench.reproduce import reproduction
from vitreous.metrics.protocols import protocol
from vitreous.metrics.published import published_table, published_tables
from vitreous.report.paper_comparison import canonical_rows, canonical_spec

CLAIMS = {  # (plan, sentence of the paper): whether a pair of rows (better, worse) belongs to it
    ("skipplus:figure3", "PLUS and SkipPLUS lift DecompX"): lambda better, worse: worse == "DecompX" != better != "GenAtt",
    ("skipplus:figure3", "PLUS and SkipPLUS lift GlobEnc"): lambda better, worse: worse == "GlobEnc" and better != "GenAtt",
    ("skipplus:figure3", "PLUS and SkipPLUS lift ALTI"): lambda better, worse: worse == "ALTI" and better != "GenAtt",
    ("skipplus:figure3", "GenAtt is ahead of DecompX, GlobEnc and ALTI"): lambda better, worse: better == "GenAtt",
    ("skipplus:figure4", "DecompX∘SkipPLUS is ahead of every other row"): lambda better, worse: True,
    ("skipplus:figure9", "GenAtt is not lifted by PLUS and SkipPLUS, nor harmed"): lambda better, worse: True,
}  # fmt: skip


def figures(results: Results, plan: str) -> list[TableFigure]:
    return [row for row in loaded(results.folder / "reproduced.csv", TableFigure) if row.plan == plan]


def orders(results: Results) -> list[TableOrder]:
    return loaded(results.folder / "reproduced-orders.csv", TableOrder)


def row_name(plan: str, method: str) -> str:
    """Name of a method in its paper."""
    names = {
        canonical_spec(spec): name for name, spec in reversed(protocol(plan.split(":", maxsplit=1)[0]).rows.items())
    }
    return names.get(canonical_spec(method), method)


@fill("reproduction-short")
def short(results: Results) -> str:
    """How far the published orders are found again."""
    rows = [row for row in orders(results) if not isnan(row.tau)]
    if not rows:
        return NOTHING
    lines = []
    for paper, title in (("tokentm", "TokenTM"), ("tis", "TIS")):
        own = [row for row in rows if row.plan.startswith(f"{paper}:") and row.plan != "tokentm:table4"]
        if not own:
            continue
        sure = sum(row.tau_low > 0 for row in own)
        first = sum(best_published(row, results) == best_found(row, results) for row in own)
        spread = f"{number(min(row.tau for row in own), 2)} to {number(max(row.tau for row in own), 2)}"
        mean = number(sum(row.tau for row in own) / len(own), 2)
        lines.append(
            f"- **{title}**: mean τ {mean} over {counted(len(own), 'column')} ({spread}); above 0 by its interval in {sure}, "
            f"and the paper's best method is best in {first}."
        )
    return "\n".join(lines)


def best_published(row: TableOrder, results: Results) -> str:
    """The paper's best method of a column, by its name there."""
    return best_of(published_tables()[row.plan].column(row.metric), row, results)


def best_found(row: TableOrder, results: Results) -> str:
    """Our best method among those of the paper."""
    known = canonical_rows(published_tables()[row.plan])
    own = column_of(row, results)
    return best_of(
        {one.method: one.mean for one in own if canonical_spec(one.method) in known and not isnan(one.mean)},
        row,
        results,
    )


def best_of(values: dict[str, float], row: TableOrder, results: Results) -> str:
    sign = -1 if column_of(row, results)[0].better == "less" else 1
    return row_name(row.plan, max(values, key=lambda method: sign * values[method]))


def column_of(row: TableOrder, results: Results) -> list[TableFigure]:
    return only(figures(results, row.plan), metric=row.metric, model=row.model)


@fill("reproduction-orders")
def order_table(results: Results) -> str:
    """Every column with published numbers: rank correlation with the paper's order, and the best method."""
    lines = [
        [
            f"`{row.plan}`", row.metric, row.model, str(row.methods), str(row.n), ranked(row), best_published(row, results),
            best_found(row, results),
        ]
        for row in orders(results)
    ]  # fmt: skip
    return table(["table", "column", "model", "methods", "images", "τ", "best in the paper", "best here"], lines, 3)


def paper_and_ours(results: Results, plan: str) -> str:
    """A table of the paper: its value → ours, with half of the 95 % interval."""
    rows, published = figures(results, plan), published_table(plan)
    if not rows:
        return NOTHING
    printed = canonical_rows(published) if published else {}
    columns = list(dict.fromkeys((row.metric, row.model) for row in rows))
    by_place = {(row.metric, row.model, row.method): row for row in rows}
    largest = {column: max(abs(row.mean) for row in rows if (row.metric, row.model) == column) for column in columns}
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        theirs = printed.get(canonical_spec(method), {})
        cells = [
            cell(by_place.get((*column, method)), theirs.get(column[0]), 1 if largest[column] > 10 else 2)
            for column in columns
        ]
        lines.append([row_name(plan, method).replace(" ", "\u00a0"), *cells])
    heads = [f"{metric}{'<br>' + model if published is None else ''}" for metric, model in columns]
    note = "paper → ours" if published else "ours"
    return f"{stand_ins(plan, rows)} Cells: {note}.\n\n" + table(["", *heads], lines)


def cell(row: TableFigure | None, printed: float | None, digits: int) -> str:
    if row is None or isnan(row.mean):
        return "–"
    spread = "" if isnan(row.low) else f"\u00a0±\u00a0{number((row.high - row.low) / 2, digits)}"
    lost = (
        f"\u00a0({row.undefined}\u00a0undefined)"
        if row.undefined and row.metric.split(": ")[0] != "pointing game"
        else ""
    )
    before = "" if printed is None else f"{number(printed, digits)}\u00a0→\u00a0"
    return f"{before}{number(row.mean, digits)}{spread}{lost}"


def stand_ins(plan: str, rows: Sequence[TableFigure]) -> str:
    """What stands in for the paper's models, and how many images were measured."""
    models = reproduction(plan).models
    pairs = [f"{STAND_INS[key]} for {entry['label']}" for key, entry in models.items() if key in STAND_INS]
    sizes = {name: max(row.n for row in own) for name, own in groupby(rows, key=lambda row: row.dataset)}
    images = " and ".join(f"{counted(count, 'image')} for {name}" for name, count in sizes.items())
    return f"{', '.join(pairs)}; {images}."


for _plan in PLANS:
    fill(f"reproduction-{_plan.replace(':', '-')}")(partial(paper_and_ours, plan=_plan))


@fill("reproduction-claims")
def claims(results: Results) -> str:
    """What SkipPLUS's text says of orders: on how many axes a pair is as it says, the other way, or not told apart."""
    rows, lines = loaded(results.folder / "reproduced-pairs.csv", TableEffect), []
    for (plan, sentence), belongs in CLAIMS.items():
        for model in dict.fromkeys(row.model for row in rows):
            own = [
                row
                for row in only(rows, plan=plan, model=model)
                if belongs(row_name(plan, row.method), row_name(plan, row.against)) and not isnan(row.effect)
            ]
            if own:
                counts = [str(sum(verdict(row) == word for row in own)) for word in ("better", "worse")]
                images = str(max(row.n for row in own))
                ahead = str(sum(row.effect > 0 for row in own))
                lines.append([f"`{plan}`", sentence, model, images, str(len(own)), ahead, *counts])
    heads = [
        "figure",
        "the paper",
        "model",
        "images",
        "pairs × axes",
        "as it says",
        "by the interval",
        "the other way by the interval",
    ]
    return table(heads, lines, 3)
