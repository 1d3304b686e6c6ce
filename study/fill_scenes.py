"""Tables and answers of the page about Scenes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path

import numpy as np

from study import grids, plots
from study.effects import Figure, select_rows
from study.names import ON_SCENES
from study.pages import Results, fill, plot
from study.sentences import format_count, format_metric, format_number, format_tau, join_words
from study.special import Order
from study.tables import NOTHING, format_agreements, format_differences, format_ranking

TRUTHS = [
    ("single", "ap"),
    ("single", "pointing_game"),
    ("part", "ap"),
    ("part", "pointing_game"),
    ("pair", "ap"),
    ("pair", "class_discrimination"),
]


@fill("scenes-truth")
def write_evidence(results: Results) -> str:
    """Agreement of maps with the known evidence; sorted by AP."""
    rows = [*results.figures("scenes"), *results.figures("scenes-pair")]
    truth_rows = select_rows(rows, metric=("ap", "pointing_game", "class_discrimination"))
    named = [name_by_dataset(row) for row in truth_rows if (row.dataset, row.metric) in TRUTHS]
    columns = list(dict.fromkeys(row.metric for row in named))
    return format_ranking(named, columns, by=columns[0]) if columns else NOTHING


def name_by_dataset(row):
    """Add the dataset to the metric's name, so that it has a separate column."""
    return replace(row, metric=f"{format_metric(row.metric)} {row.dataset}")


@fill("scenes-swin")
def write_swin(results: Results) -> str:
    """Table of the ViT and the Swin transformer; sorted by the AP of both."""
    named = [name_by_dataset(row) for row in results.figures("scenes-swin") if (row.dataset, row.metric) in TRUTHS]
    columns = [f"{format_metric(metric)} {dataset}" for dataset, metric in TRUTHS if metric != "pointing_game"]
    return format_ranking(named, columns, by=columns[0]) if named else NOTHING


@fill("scenes-swin-answer")
def write_swin_answer(results: Results) -> str:
    """AP of `temper` and `decompx+plus` in each model."""
    rows, lines = results.figures("scenes-swin"), []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        aps = {(row.model, row.method): row for row in select_rows(rows, dataset=dataset, metric="ap")}
        effects = [
            f"`{method}` {format_interval(aps['Swin', method])} (ViT {format_interval(aps['ViT', method])})"
            for method in ("temper", "decompx+plus")
        ]
        lines.append(
            f"- AP on `{dataset}`: {join_words(effects)}; chance {format_number(aps['Swin', 'random'].mean, 2)}."
        )
    return "\n".join(lines) or NOTHING


@fill("scenes-answer")
def write_answers(results: Results) -> str:
    """Best methods by AP, methods not better than chance, and methods that distinguish classes."""
    rows, lines = [*results.figures("scenes"), *results.figures("scenes-pair")], []
    for dataset in ("single", "part", "pair"):
        own = [row for row in select_rows(rows, dataset=dataset, metric="ap") if not isnan(row.mean)]
        if own:
            best, chance = (
                max(own, key=lambda row: row.mean),
                next((row for row in own if row.method == "random"), None),
            )
            useless = [row for row in own if chance and row.method != "random" and row.low <= chance.high]
            names = (
                join_words([f"`{row.method}`" for row in useless])
                if len(useless) < 7
                else f"{len(useless)} of {len(own) - 1} methods"
            )
            last = f"; not significantly above chance: {names}" if useless else ""
            lines.append(f"- Evidence on `{dataset}`, {format_count(best.n, 'image')}: the best method is `{best.method}` with AP {format_interval(best)}{f', chance is {format_number(chance.mean, 2)}' if chance else ''}{last}.")  # fmt: skip
    own = [
        row
        for row in select_rows(rows, metric="class_discrimination")
        if row.method != "random" and not isnan(row.mean)
    ]
    if own:
        best = max(own, key=lambda row: row.mean)
        discriminating = [row for row in own if row.low > 0.5]
        above = [f"`{row.method}`" for row in own if row.low > 0.95]
        lines.append(
            f"- Two classes in one image: for {len(discriminating)} of {format_count(len(own), 'method')} the evidence of the explained class scores significantly more often above that of the other class than below it; "
            f"the best is `{best.method}` with {format_interval(best)}; methods whose interval is above 0.95: {join_words(above) if above else 'none'}."
        )
    return "\n".join(lines) or NOTHING


def format_interval(row: Figure) -> str:
    return f"{format_number(row.mean, 2)} [{format_number(row.low, 2)}, {format_number(row.high, 2)}]"


@fill("scenes-shortcut-answer")
def write_shortcut_answer(results: Results) -> str:
    """Methods that show the stamp in the model that uses it, and not in the other."""
    rows = select_rows(results.figures("shortcut"), metric="stamp_above_thing")
    both = {model: {row.method: row for row in select_rows(rows, model=model)} for model in dict.fromkeys(row.model for row in rows)}  # fmt: skip
    if not {"scenes-biased", "scenes"} <= both.keys():
        return NOTHING
    names = [method for method in both["scenes"] if method != "random"]
    exposing_methods = [method for method in names if both["scenes-biased"][method].low > 0.5]
    clear = [method for method in exposing_methods if both["scenes"][method].high < 0.5]
    best = [method for method in sort_by_contrast(results) if method in clear][:3]
    return (
        f"{len(exposing_methods)} of {format_count(len(names), 'method')} score the stamp above the object in the model that uses the stamp; {len(clear)} of these score the object higher in the model that does not, and so expose the shortcut"
        + (f", most clearly {join_words([f'`{method}`' for method in best])}." if best else ".")
        + f" The others show the stamp in both models or in neither. {format_count(max(row.n for row in rows), 'image')}."
    )


@fill("scenes-pairs")
def write_comparisons(results: Results) -> str:
    """Comparisons of the other pages, measured against known evidence."""
    rows = [*results.effects("scenes-pairs"), *results.effects("scenes-pair-pairs")]
    columns = {
        f"{format_metric(name)}, {data}": (lambda row, data=data, name=name: (row.dataset, row.metric) == (data, name))
        for data, name in TRUTHS
        if select_rows(rows, dataset=data, metric=name)
    }
    return format_differences(rows, ON_SCENES, columns)


@fill("scenes-shortcut")
def write_shortcut(results: Results) -> str:
    rows = select_rows(results.figures("shortcut"), metric="stamp_above_thing")
    return format_ranking(rows, ["stamp_above_thing"], methods=sort_by_contrast(results)) if rows else NOTHING


def sort_by_contrast(results: Results) -> list[str]:
    rows = select_rows(results.figures("shortcut"), metric="stamp_above_thing", model="biased − plain")
    return [row.method for row in sorted(rows, key=lambda row: -row.mean)]


def read_orders(results: Results) -> list[Order]:
    """Orders of both plans under common metric names: on `pair` accuracy is judged by the explained class."""
    rows = [*results.orders("scenes-orders"), *results.orders("scenes-pair-orders")]
    return [replace(row, metric=row.metric.replace("(judge='explained')", "")) for row in rows]


def write_orders(among: str, results: Results) -> str:
    rows = read_orders(results)
    there = [truth for truth in TRUTHS if select_rows(rows, dataset=truth[0], truth=truth[1])]
    return format_agreements(rows, there, among)


fill("scenes-orders")(partial(write_orders, "all"))
fill("scenes-orders-half")(partial(write_orders, "better half"))


@fill("scenes-orders-answer")
def write_orders_answer(results: Results) -> str:
    """Metrics with the highest and lowest agreement with the ground truth, and its agreement with itself."""
    rows, lines = select_rows(read_orders(results), among="all"), []
    for dataset, name in TRUTHS:
        own = select_rows(rows, dataset=dataset, truth=name)
        judges = [
            row
            for row in own
            if not row.metric.startswith("the same")
            and row.metric not in ("ap", "pointing_game", "energy_pointing", "class_discrimination")
        ]
        if judges:
            near, far = max(judges, key=lambda row: row.tau), min(judges, key=lambda row: row.tau)
            self = next(row for row in own if row.metric.startswith("the same"))
            text = "; ".join(
                f"{word}: {format_metric(row.metric)}, τ = {format_tau(row)}"
                for word, row in (("highest agreement", near), ("lowest", far))
            )
            lines.append(
                f"- {format_metric(name)} on `{dataset}`: {text} (the ground truth with itself on other images: {format_number(self.tau, 2)})."
            )
    return "\n".join(lines) or NOTHING


@plot("scenes-orders")
def draw_orders(results: Results) -> Path | None:
    """Kendall's τ between the order of methods by a metric and by ground truth; a star if the interval excludes 0"""
    rows = read_orders(results)
    there = [pair for pair in TRUTHS if select_rows(rows, dataset=pair[0], truth=pair[1])]
    if not there:
        return None
    metrics = [
        metric
        for metric in dict.fromkeys(row.metric for row in rows)
        if metric not in {name for _, name in TRUTHS} | {"energy_pointing"}
    ]
    panels, stars = {}, {}
    for among in ("all", "better half"):
        orders_by_metric = {(row.dataset, row.truth, row.metric): row for row in select_rows(rows, among=among)}
        heading = {"all": "all methods", "better half": "the better half by ground truth"}[among]
        panels[heading] = np.array(
            [
                [
                    orders_by_metric[*truth, metric].tau if (*truth, metric) in orders_by_metric else np.nan
                    for truth in there
                ]
                for metric in metrics
            ]
        )
        stars[heading] = np.array(
            [
                [
                    (*truth, metric) in orders_by_metric
                    and not orders_by_metric[*truth, metric].tau_low <= 0 <= orders_by_metric[*truth, metric].tau_high
                    for truth in there
                ]
                for metric in metrics
            ]
        )
    names = [f"{format_metric(name)}, {dataset}" for dataset, name in there]
    return grids.draw_heatmap(
        "scenes-orders",
        panels,
        [format_metric(metric) for metric in metrics],
        names,
        "Kendall's τ (1: the same order)",
        centre=0.0,
        stars=stars,
    )


@plot("scenes-shortcut")
def draw_shortcut(results: Results) -> Path | None:
    """Probability that a pixel of the stamp scores above a pixel of the object: the biased model uses the stamp, the other does not"""
    rows = select_rows(results.figures("shortcut"), metric="stamp_above_thing")
    if not rows:
        return None
    series = {
        "biased model (should be 1)": select_rows(rows, model="scenes-biased"),
        "plain model (should be 0)": select_rows(rows, model="scenes"),
    }
    return plots.draw_dots("scenes-shortcut", series, sort_by_contrast(results), "P(stamp above object)", chance=0.5)


@plot("scenes-truth")
def draw_truth(results: Results) -> Path | None:
    """Average precision of the known evidence, by method"""
    rows = select_rows([*results.figures("scenes"), *results.figures("scenes-pair")], metric="ap")
    if not rows:
        return None
    series = {
        f"{dataset}": select_rows(rows, dataset=dataset) for dataset in dict.fromkeys(row.dataset for row in rows)
    }
    last = next(reversed(series.values()))
    order = [row.method for row in sorted(last, key=lambda row: -row.mean)]
    return plots.draw_dots("scenes-truth", series, order, "AP of the known evidence  (more is better)")
