"""What stands on the page about the papers' tables on stand-ins (`reproduced.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from math import isnan, nan

import numpy as np
from study.effects import loaded, only
from study.pages import Results, fill
from study.reproduced import PLANS, STAND_INS, TableEffect, TableFigure, TableOrder
from study.sentences import counted, number, ranked, verdict
from study.special import agreement
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
    for (plan, sentence), counts in claim_counts(results).items():
        if plan == "skipplus:figure4":
            told = ", ".join(
                f"{ahead} of {total} on {model} ({behind} the other way)"
                for model, (_, total, _, ahead, behind) in counts.items()
            )
            lines.append(
                f"- **SkipPLUS** prints no numbers. “{sentence}”: by the interval in {told}, counted over rows and axes."
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


@fill("reproduction-colours")
def own_colours(results: Results) -> str:
    """Tables 1 and 2 of TIS again from the study's plan `tis`, in which models see images as they were trained to."""
    sentences = []
    for plan, model in (("tis:table1", "ViT-Tiny"), ("tis:table2", "DeiT-Tiny")):
        published = published_tables()[plan]
        theirs = [row.tau for row in orders(results) if row.plan == plan]
        own = [tau_of_study(results, model, published.column(title), title) for title in published.columns]
        if theirs and own and not any(map(isnan, own)):
            means = [number(sum(taus) / len(taus), 2) for taus in (theirs, own)]
            sentences.append(f"{model}'s mean τ is {means[0]} in the table below and {means[1]} so")
    return f"{'; '.join(sentences)}." if sentences else NOTHING


def tau_of_study(results: Results, model: str, printed: dict[str, float], title: str) -> float:
    """τ of a published column of insertion and deletion with the study's plan `tis`, which has fewer steps and masks of RISE."""
    group, _, baseline = title.partition(": ")
    metric = {"Insertion": "insertion", "Deletion": "deletion"}.get(group, "insertion_minus_deletion")
    word = {"Rand": "random"}.get(baseline, baseline.lower())
    spec = f"{metric}(preset='tis', baseline='{word}', steps=28)"
    by_name = {row.method.partition("(")[0]: row.mean for row in only(results.figures("tis"), model=model, metric=spec)}
    both = [
        (value, by_name[name]) for method, value in printed.items() if (name := method.partition("(")[0]) in by_name
    ]
    return agreement(*(np.array(values) for values in zip(*both, strict=True)))[0] if both else nan


def claim_counts(results: Results) -> dict[tuple[str, str], dict[str, tuple[int, ...]]]:
    """By claim and model: images, pairs, pairs whose first method is ahead, and by the interval ahead and behind."""
    rows = loaded(results.folder / "reproduced-pairs.csv", TableEffect)
    counts: dict[tuple[str, str], dict[str, tuple[int, ...]]] = {}
    for (plan, sentence), belongs in CLAIMS.items():
        for model in dict.fromkeys(row.model for row in rows):
            own = [
                row
                for row in only(rows, plan=plan, model=model)
                if belongs(row_name(plan, row.method), row_name(plan, row.against)) and not isnan(row.effect)
            ]
            if own:
                verdicts = [verdict(row) for row in own]
                ahead = sum(row.effect > 0 for row in own)
                told = (verdicts.count("better"), verdicts.count("worse"))
                counts.setdefault((plan, sentence), {})[model] = (max(row.n for row in own), len(own), ahead, *told)
    return counts


@fill("reproduction-claims")
def claims(results: Results) -> str:
    """What SkipPLUS's text says of orders: on how many axes the first method of a pair is ahead."""
    heads = [
        "figure",
        "the paper",
        "model",
        "images",
        "pairs × axes",
        "first is ahead",
        "by the interval",
        "behind by the interval",
    ]
    lines = [
        [f"`{plan}`", sentence, model, *map(str, counts)]
        for (plan, sentence), by_model in claim_counts(results).items()
        for model, counts in by_model.items()
    ]
    return table(heads, lines, 3)
