"""Tables about the choice of the default method."""

from __future__ import annotations

import numpy as np

from study.default_choice import index_by_method
from study.effects import select_rows
from study.error_results import is_candidate
from study.fill_errors import compute_exposure, list_datasets
from study.pages import Results, fill
from study.sentences import format_number
from study.tables import NOTHING, format_cell, format_table
from vitreous.core.defaults import DEFAULT_METHOD


def tabulate_criteria(results: Results) -> dict[str, dict[str, float]]:
    """Columns of the table for the default: 0 is a random map, 1 the best candidate; some are plain shares of images."""
    photographs, drawn = results.figures("error-bars-photographs"), results.figures("error-bars-scenes")
    photographs = photographs + [row for row in results.figures("error-bars-clip") if row.metric != "accuracy"]
    raw: dict[str, dict[str, float]] = {}
    columns: dict[str, dict[str, float]] = {}
    for rows, metric, words in (
        (photographs, "faithfulness", "faithful"), (photographs, "ap", "AP"), (drawn, "faithfulness", "faithful"),
        (drawn, "ap", "AP"), (drawn, "class_discrimination", "class discrimination"),
    ):  # fmt: skip
        for model, dataset in list_datasets(select_rows(rows, metric=metric)):
            own = select_rows(rows, metric=metric, model=model, dataset=dataset)
            raw[f"{words}, {dataset}<br>{model}"] = {row.method: row.mean for row in own}
    if not raw:
        return {}
    everywhere = {method for method in set.intersection(*(set(own) for own in raw.values())) if is_candidate(method)}
    for name, own in raw.items():
        best, floor = max(own[method] for method in everywhere), own["random"]
        columns[name] = {method: (own[method] - floor) / (best - floor) for method in own if method in everywhere}
    for rows in (photographs, drawn):
        for model, dataset in list_datasets(select_rows(rows, metric="object_negative")):
            own = select_rows(rows, metric="object_negative", model=model, dataset=dataset)
            columns[f"object not blue, {dataset}<br>{model}"] = {row.method: 1 - row.mean for row in own if row.method in everywhere}  # fmt: skip
    measured = select_rows(drawn, metric="stamp_above_thing") or select_rows(
        results.figures("shortcut"), metric="stamp_above_thing"
    )
    stamps = {(row.model, row.method): row for row in measured}
    if stamps:
        candidates = {method for _, method in stamps if method in everywhere}
        columns["shortcut exposed<br>Scenes"] = {method: compute_exposure(stamps, method) for method in columns[next(iter(columns))] if method in candidates}  # fmt: skip
    return columns


@fill("errors-default")
def write_default(results: Results) -> str:
    columns = tabulate_criteria(results)
    if len({name.partition(",")[0] for name in columns}) < 4:
        return NOTHING
    methods = [
        method
        for method in dict.fromkeys(method for column in columns.values() for method in column)
        if is_candidate(method) and all(method in column for name, column in columns.items() if "shortcut" not in name)
    ]
    worst = {
        method: min((column[method], name) for name, column in columns.items() if method in column)
        for method in methods
    }
    less = index_by_method(results.effects("error-bars-default"), "worst_case")
    lines = []
    for method in sorted(methods, key=lambda name: -worst[name][0]):
        value, name = worst[method]
        middle = float(np.mean([column[method] for column in columns.values() if method in column]))
        gap = "" if method == DEFAULT_METHOD else format_cell(less.get(method))
        lines.append([method, format_number(value, 2), name.replace("<br>", ", "), gap, format_number(middle, 2)])
    return format_table(["candidate", "worst case", "where", f"minus that of `{DEFAULT_METHOD}`", "mean"], lines)


@fill("errors-default-all")
def write_criteria(results: Results) -> str:
    columns = tabulate_criteria(results)
    if not columns:
        return NOTHING
    methods = [
        method
        for method in dict.fromkeys(method for column in columns.values() for method in column)
        if is_candidate(method)
    ]
    lines = [
        [method, *(format_number(column.get(method, float("nan")), 2) for column in columns.values())]
        for method in methods
    ]
    return format_table(["candidate", *columns], lines)
