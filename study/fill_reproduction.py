"""Tables and answers of the page about the papers' tables on small models (`reproduced.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache, partial
from itertools import groupby
from math import isnan, nan

import numpy as np

from study.effects import load_rows, select_rows
from study.pages import Results, fill
from study.reproduced import PLANS, STAND_INS, TableEffect, TableFigure, TableOrder, is_about, list_stated_orders
from study.sentences import FEW, format_count, format_number, format_tau
from study.special import correlate_ranks
from study.tables import NOTHING, format_table
from vitreous.bench.reproduce import find_reproduction
from vitreous.metrics.protocols import protocol
from vitreous.metrics.published import PublishedOrder, published_table, published_tables
from vitreous.report.paper_comparison import PairedDifference, hash_spec, index_published_rows

CLOSE = 0.7  # an order with at least this mean τ is called largely the paper's
hash_method = lru_cache(maxsize=None)(hash_spec)


def read_figures(results: Results, plan: str) -> list[TableFigure]:
    return [row for row in load_rows(results.folder / "reproduced.csv", TableFigure) if row.plan == plan]


def read_orders(results: Results) -> list[TableOrder]:
    return sorted(load_rows(results.folder / "reproduced-orders.csv", TableOrder), key=lambda row: row.plan)


def find_row_name(plan: str, method: str) -> str:
    """Name of a method in its paper."""
    names = {hash_method(spec): name for name, spec in reversed(protocol(plan.split(":", maxsplit=1)[0]).rows.items())}
    return names.get(hash_method(method), method)


@fill("reproduction-short")
def write_short(results: Results) -> str:
    """Agreement with the published orders: a line for every table with numbers, and lines for stated orders."""
    rows = [row for row in read_orders(results) if not isnan(row.tau)]
    counts = count_agreement(results)
    if not rows or not counts:
        return NOTHING
    lines = [describe_table(plan, list(own), results) for plan, own in groupby(rows, key=lambda row: row.plan)]
    by_model: dict[str, list[tuple[str, Agreement]]] = {}
    for (_, order), agreements in counts.items():
        for model, counted_pairs in agreements.items():
            by_model.setdefault(model, []).append((order.says, counted_pairs))
    for model, own in by_model.items():
        agree, total = sum(agreement.agree for _, agreement in own), sum(agreement.comparisons for _, agreement in own)
        whole = [says for says, agreement in own if agreement.agree == agreement.comparisons]
        few = [
            f"{says} ({agreement.agree} of {agreement.comparisons})"
            for says, agreement in own
            if 2 * agreement.agree < agreement.comparisons
        ]
        lines.append(
            f"- **Orders that the texts of SkipPLUS and TIS state without numbers, on {model}**: {agree} of {total} comparisons agree "
            f"(by their interval). In every comparison: {'; '.join(whole) or 'none'}. In fewer than half of them: {'; '.join(few) or 'none'}."
        )
    return "\n".join(lines)


def describe_table(plan: str, rows: Sequence[TableOrder], results: Results) -> str:
    """Agreement with the order of a table, as an item of a list."""
    positive = sum(row.tau_low > 0 for row in rows)
    first = sum(find_best_published(row, results) == find_best_measured(row, results) for row in rows)
    taus = [row.tau for row in rows]
    if 2 * positive < len(rows):
        word = "different from the paper's"
    elif positive < len(rows):
        word = "partly related to the paper's"
    else:
        word = "largely the paper's" if sum(taus) / len(taus) >= CLOSE else "related to the paper's"
    spread = f" ({format_number(min(taus), 2)} to {format_number(max(taus), 2)})" if len(rows) > 1 else ""
    return (
        f"- `{plan}`: the order is **{word}**; mean τ {format_number(sum(taus) / len(taus), 2)}{spread}, with an interval above 0 in {positive} of "
        f"{format_count(len(rows), 'column')}; the paper's best method is best in {first}."
    )


def find_best_published(row: TableOrder, results: Results) -> str:
    """The paper's best method of a column, by its name there."""
    return find_best(published_tables()[row.plan].column(row.metric), row, results)


def find_best_measured(row: TableOrder, results: Results) -> str:
    """Our best method among those of the paper."""
    published_rows = index_published_rows(published_tables()[row.plan])
    own = read_column(row, results)
    return find_best(
        {
            figure.method: figure.mean
            for figure in own
            if hash_method(figure.method) in published_rows and not isnan(figure.mean)
        },
        row,
        results,
    )


def find_best(values: dict[str, float], row: TableOrder, results: Results) -> str:
    sign = -1 if read_column(row, results)[0].better == "less" else 1
    return find_row_name(row.plan, max(values, key=lambda method: sign * values[method]))


def read_column(row: TableOrder, results: Results) -> list[TableFigure]:
    return select_rows(read_figures(results, row.plan), metric=row.metric, model=row.model)


@fill("reproduction-orders")
def write_orders(results: Results) -> str:
    """Every column with published numbers: rank correlation with the paper's order, and the best method."""
    lines = [
        [
            f"`{row.plan}`", row.metric, row.model, str(row.methods), str(row.n), format_tau(row), find_best_published(row, results),
            find_best_measured(row, results),
        ]
        for row in read_orders(results)
    ]  # fmt: skip
    return format_table(
        ["table", "column", "model", "methods", "images", "τ", "best in the paper", "best here"], lines, 3
    )


def write_table(results: Results, plan: str) -> str:
    """A table of the paper with cells "published → ours", and half of the 95 % interval."""
    rows, published = read_figures(results, plan), published_table(plan)
    if not rows:
        return NOTHING
    printed = index_published_rows(published) if published else {}
    columns = list(dict.fromkeys((row.metric, row.model) for row in rows))
    by_place = {(row.metric, row.model, row.method): row for row in rows}
    largest = {column: max(abs(row.mean) for row in rows if (row.metric, row.model) == column) for column in columns}
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        published_values = printed.get(hash_method(method), {})
        cells = [
            format_cell(
                by_place.get((*column, method)), published_values.get(column[0]), 1 if largest[column] > 10 else 2
            )
            for column in columns
        ]
        lines.append([find_row_name(plan, method).replace(" ", "\u00a0"), *cells])
    heads = [f"{metric}{'<br>' + model if published is None else ''}" for metric, model in columns]
    note = "paper → ours" if published else "ours"
    return f"{describe_stand_ins(plan, rows)} Cells: {note}.\n\n" + format_table(["", *heads], lines)


def format_cell(row: TableFigure | None, printed: float | None, digits: int) -> str:
    if row is None or isnan(row.mean):
        return "–"
    spread = "" if isnan(row.low) else f"\u00a0±\u00a0{format_number((row.high - row.low) / 2, digits)}"
    undefined = (
        f"\u00a0({row.undefined}\u00a0undefined)"
        if row.undefined and row.metric.split(": ")[0] != "pointing game"
        else ""
    )
    before = "" if printed is None else f"{format_number(printed, digits)}\u00a0→\u00a0"
    return f"{before}{format_number(row.mean, digits)}{spread}{undefined}"


def describe_stand_ins(plan: str, rows: Sequence[TableFigure]) -> str:
    """Stand-ins of the paper's models, and numbers of images."""
    models = find_reproduction(plan).models
    pairs = [f"{STAND_INS[key]} for {entry['label']}" for key, entry in models.items() if key in STAND_INS]
    sizes: dict[str, dict[str, int]] = {}
    for row in rows:
        by_model = sizes.setdefault(row.dataset, {})
        by_model[row.model] = max(row.n, by_model.get(row.model, 0))
    images = " and ".join(f"{format_image_counts(by_model)} for {name}" for name, by_model in sizes.items())
    return f"{', '.join(pairs)}; {images}."


def format_image_counts(by_model: dict[str, int]) -> str:
    """Number of images, for each model if they differ."""
    counts = set(by_model.values())
    if len(counts) == 1:
        return format_count(counts.pop(), "image")
    return " and ".join(f"{format_count(count, 'image')} ({model})" for model, count in by_model.items())


for _plan in PLANS:
    fill(f"reproduction-{_plan.replace(':', '-')}")(partial(write_table, plan=_plan))


@fill("reproduction-colours")
def write_own_preprocessing(results: Results) -> str:
    """Agreement with tables 1 and 2 of TIS by the study's plan `tis`, which uses the preprocessing of each model."""
    sentences = []
    for plan, model in (("tis:table1", "ViT-Tiny"), ("tis:table2", "DeiT-Tiny")):
        published = published_tables()[plan]
        table_taus = [row.tau for row in read_orders(results) if row.plan == plan]
        own = [compute_tau(results, model, published.column(title), title) for title in published.columns]
        if table_taus and own and not any(map(isnan, own)):
            means = [format_number(sum(taus) / len(taus), 2) for taus in (table_taus, own)]
            sentences.append(
                f"{model}'s mean τ is {means[0]} in the table below and {means[1]} with its own preprocessing"
            )
    return f"{'; '.join(sentences)}." if sentences else NOTHING


def compute_tau(results: Results, model: str, printed: dict[str, float], title: str) -> float:
    """τ between a published column of insertion and deletion and the study's plan `tis`, which has fewer steps and fewer masks of RISE."""
    group, _, baseline = title.partition(": ")
    metric = {"Insertion": "insertion", "Deletion": "deletion"}.get(group, "insertion_minus_deletion")
    word = {"Rand": "random"}.get(baseline, baseline.lower())
    spec = f"{metric}(preset='tis', baseline='{word}', steps=28)"
    by_name = {
        row.method.partition("(")[0]: row.mean for row in select_rows(results.figures("tis"), model=model, metric=spec)
    }
    both = [
        (value, by_name[name]) for method, value in printed.items() if (name := method.partition("(")[0]) in by_name
    ]
    return correlate_ranks(*(np.array(values) for values in zip(*both, strict=True)))[0] if both else nan


@dataclass(frozen=True, slots=True)
class Agreement:
    """Comparisons of a stated order on one model."""

    images: int
    comparisons: int
    agree: int
    first_ahead: int
    ahead: int  # by the interval
    behind: int


def count_agreement(results: Results) -> dict[tuple[str, PublishedOrder], dict[str, Agreement]]:
    """By plan and stated order: agreement by model. Differences on fewer than `FEW` images are left out."""
    rows = [row for row in load_rows(results.folder / "reproduced-pairs.csv", TableEffect) if row.n >= FEW]
    counts: dict[tuple[str, PublishedOrder], dict[str, Agreement]] = {}
    for plan in PLANS:
        for order in list_stated_orders(plan):
            for model in dict.fromkeys(row.model for row in rows if row.plan == plan):
                own = [row for row in select_rows(rows, plan=plan, model=model) if is_comparison_of(row, order)]
                if order.expected == "one not worse":
                    best: dict[tuple[str, str], TableEffect] = {}
                    for row in sorted(own, key=lambda row: row.effect):
                        best[row.metric, row.against] = row
                    own = list(best.values())
                if own:
                    counts.setdefault((plan, order), {})[model] = count_rows(own, order.expected)
    return counts


def count_rows(rows: Sequence[TableEffect], expected: str) -> Agreement:
    differences = [PairedDifference(row.effect, row.low, row.high) for row in rows]
    return Agreement(
        max(row.n for row in rows),
        len(rows),
        sum(difference.agrees(expected) for difference in differences),
        sum(difference.value > 0 for difference in differences),
        sum(difference.ahead for difference in differences),
        sum(difference.behind for difference in differences),
    )


def is_comparison_of(row: TableEffect, order: PublishedOrder) -> bool:
    """Whether a difference is one of an order."""
    first, second = (set(map(hash_method, specs)) for specs in (order.first, order.second))
    against = hash_method(row.against)
    is_second = against in second if second else against not in first
    return hash_method(row.method) in first and is_second and is_about(order, row.plan, row.model, row.metric)


@fill("reproduction-claims")
def write_claims(results: Results) -> str:
    """Orders that the texts state: how many pairs of methods and axes agree with them."""
    heads = [
        "figure", "the paper", "first is …", "model", "images", "comparisons", "agree", "first ahead", "ahead by interval",
        "behind by interval",
    ]  # fmt: skip
    lines = [
        [f"`{plan}`", f"{order.says} ({order.source})", order.expected, model, *map(str, astuple(counted_pairs))]
        for (plan, order), by_model in count_agreement(results).items()
        for model, counted_pairs in by_model.items()
    ]
    return format_table(heads, lines, 4)
