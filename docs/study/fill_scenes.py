"""What stands on the page about scenes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path

import numpy as np
from study import grids, plots
from study.effects import Figure, only
from study.names import ON_SCENES
from study.pages import Results, fill, plot
from study.sentences import counted, joined, number, ranked, title
from study.special import Order
from study.tables import NOTHING, agreements, gains, standings

TRUTHS = [
    ("single", "ap"),
    ("single", "pointing_game"),
    ("part", "ap"),
    ("part", "pointing_game"),
    ("pair", "ap"),
    ("pair", "class_discrimination"),
]


@fill("scenes-truth")
def truth(results: Results) -> str:
    """Known evidence, alone and beside a rival; the best by AP first."""
    rows = [*results.figures("scenes"), *results.figures("scenes-pair")]
    truth_rows = only(rows, metric=("ap", "pointing_game", "class_discrimination"))
    named = [renamed(row) for row in truth_rows if (row.dataset, row.metric) in TRUTHS]
    columns = list(dict.fromkeys(row.metric for row in named))
    return standings(named, columns, by=columns[0]) if columns else NOTHING


def renamed(row):
    """The dataset as part of the metric's name, so that it has a column of its own."""
    return replace(row, metric=f"{title(row.metric)} {row.dataset}")


@fill("scenes-swin")
def beside_swin(results: Results) -> str:
    """The ViT and the Swin transformer beside each other, by AP; the best of both together first."""
    named = [renamed(row) for row in results.figures("scenes-swin") if (row.dataset, row.metric) in TRUTHS]
    columns = [f"{title(metric)} {dataset}" for dataset, metric in TRUTHS if metric != "pointing_game"]
    return standings(named, columns, by=columns[0]) if named else NOTHING


@fill("scenes-swin-answer")
def swin_answer(results: Results) -> str:
    """What `temper` and `decompx+plus` find in each model, and how often the peak of a map is on the evidence."""
    rows, lines = results.figures("scenes-swin"), []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        aps = {(row.model, row.method): row for row in only(rows, dataset=dataset, metric="ap")}
        effects = [
            f"`{method}` {ends(aps['Swin', method])} (ViT {ends(aps['ViT', method])})"
            for method in ("temper", "decompx+plus")
        ]
        lines.append(f"- AP on `{dataset}`: {joined(effects)}; chance {number(aps['Swin', 'random'].mean, 2)}.")
    return "\n".join(lines) or NOTHING


@fill("scenes-answer")
def answers(results: Results) -> str:
    """Who finds the evidence best, who cannot be told from it, and who knows no class."""
    rows, lines = [*results.figures("scenes"), *results.figures("scenes-pair")], []
    for dataset in ("single", "part", "pair"):
        own = [row for row in only(rows, dataset=dataset, metric="ap") if not isnan(row.mean)]
        if own:
            best, chance = (
                max(own, key=lambda row: row.mean),
                next((row for row in own if row.method == "random"), None),
            )
            useless = [row for row in own if chance and row.method != "random" and row.low <= chance.high]
            who = (
                joined([f"`{row.method}`" for row in useless])
                if len(useless) < 7
                else f"{len(useless)} of {len(own) - 1} methods"
            )
            last = f"; not significantly above chance: {who}" if useless else ""
            lines.append(f"- Evidence on `{dataset}`, {counted(best.n, 'image')}: best is `{best.method}` with AP {ends(best)}{f', chance is {number(chance.mean, 2)}' if chance else ''}{last}.")  # fmt: skip
    own = [row for row in only(rows, metric="class_discrimination") if row.method != "random" and not isnan(row.mean)]
    if own:
        best = max(own, key=lambda row: row.mean)
        told_apart = [row for row in own if row.low > 0.5]
        sure = [f"`{row.method}`" for row in own if row.low > 0.95]
        lines.append(
            f"- Two classes in one frame: {len(told_apart)} of {counted(len(own), 'method')} put the own evidence above the rival's more often than not; "
            f"best is `{best.method}` with {ends(best)}, and above 0.95 with their whole interval are {joined(sure) if sure else 'none'}."
        )
    return "\n".join(lines) or NOTHING


def ends(row: Figure) -> str:
    return f"{number(row.mean, 2)} [{number(row.low, 2)}, {number(row.high, 2)}]"


@fill("scenes-shortcut-answer")
def exposing(results: Results) -> str:
    """Which methods show the stamp in the model that uses it, and not in the other."""
    rows = only(results.figures("shortcut"), metric="stamp_above_thing")
    both = {model: {row.method: row for row in only(rows, model=model)} for model in dict.fromkeys(row.model for row in rows)}  # fmt: skip
    if not {"scenes-biased", "scenes"} <= both.keys():
        return NOTHING
    names = [method for method in both["scenes"] if method != "random"]
    exposing_methods = [method for method in names if both["scenes-biased"][method].low > 0.5]
    clear = [method for method in exposing_methods if both["scenes"][method].high < 0.5]
    best = [method for method in by_contrast(results) if method in clear][:3]
    return (
        f"{len(exposing_methods)} of {counted(len(names), 'method')} show the stamp above the thing in the model that uses it; {len(clear)} of them show the thing in the model that does not, and so expose the shortcut"
        + (f", most clearly {joined([f'`{method}`' for method in best])}." if best else ".")
        + f" The others show the stamp in both or in neither. {counted(max(row.n for row in rows), 'image')}."
    )


@fill("scenes-pairs")
def compared(results: Results) -> str:
    """What the other pages ask, where the evidence is known."""
    rows = [*results.effects("scenes-pairs"), *results.effects("scenes-pair-pairs")]
    columns = {
        f"{title(name)}, {data}": (lambda row, data=data, name=name: (row.dataset, row.metric) == (data, name))
        for data, name in TRUTHS
        if only(rows, dataset=data, metric=name)
    }
    return gains(rows, ON_SCENES, columns)


@fill("scenes-shortcut")
def shortcut(results: Results) -> str:
    rows = only(results.figures("shortcut"), metric="stamp_above_thing")
    return standings(rows, ["stamp_above_thing"], methods=by_contrast(results)) if rows else NOTHING


def by_contrast(results: Results) -> list[str]:
    rows = only(results.figures("shortcut"), metric="stamp_above_thing", model="biased − plain")
    return [row.method for row in sorted(rows, key=lambda row: -row.mean)]


def all_orders(results: Results) -> list[Order]:
    """Of both plans; what a pair judges by the class that is asked about, others judge by the label."""
    rows = [*results.orders("scenes-orders"), *results.orders("scenes-pair-orders")]
    return [replace(row, metric=row.metric.replace("(judge='explained')", "")) for row in rows]


def order_table(among: str, results: Results) -> str:
    rows = all_orders(results)
    there = [truth for truth in TRUTHS if only(rows, dataset=truth[0], truth=truth[1])]
    return agreements(rows, there, among)


fill("scenes-orders")(partial(order_table, "all"))
fill("scenes-orders-half")(partial(order_table, "better half"))


@fill("scenes-orders-answer")
def orders_answer(results: Results) -> str:
    """Which metric comes nearest to the truth, and how near the truth comes to itself."""
    rows, lines = only(all_orders(results), among="all"), []
    for dataset, name in TRUTHS:
        own = only(rows, dataset=dataset, truth=name)
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
                f"{word} is {title(row.metric)}, τ = {ranked(row)}"
                for word, row in (("nearest", near), ("farthest", far))
            )
            lines.append(
                f"- {title(name)} on `{dataset}`: {text} (the truth agrees with itself on other images to {number(self.tau, 2)})."
            )
    return "\n".join(lines) or NOTHING


@plot("scenes-orders")
def draw_orders(results: Results) -> Path | None:
    """Kendall's τ between the order that a metric gives methods and the order of the known truth; a star where the interval excludes 0"""
    rows = all_orders(results)
    there = [pair for pair in TRUTHS if only(rows, dataset=pair[0], truth=pair[1])]
    if not there:
        return None
    metrics = [
        metric
        for metric in dict.fromkeys(row.metric for row in rows)
        if metric not in {name for _, name in TRUTHS} | {"energy_pointing"}
    ]
    panels, stars = {}, {}
    for among in ("all", "better half"):
        orders_by_metric = {(row.dataset, row.truth, row.metric): row for row in only(rows, among=among)}
        heading = {"all": "all methods", "better half": "the better half by the truth"}[among]
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
    names = [f"{title(name)}, {dataset}" for dataset, name in there]
    return grids.heat(
        "scenes-orders",
        panels,
        [title(metric) for metric in metrics],
        names,
        "Kendall's τ (1: the same order)",
        centre=0.0,
        stars=stars,
    )


@plot("scenes-shortcut")
def draw_shortcut(results: Results) -> Path | None:
    """Chance that a pixel of the stamp scores above one of the thing: the biased model uses the stamp, the other does not"""
    rows = only(results.figures("shortcut"), metric="stamp_above_thing")
    if not rows:
        return None
    series = {
        "biased model (should be 1)": only(rows, model="scenes-biased"),
        "plain model (should be 0)": only(rows, model="scenes"),
    }
    return plots.dots("scenes-shortcut", series, by_contrast(results), "P(stamp above thing)", chance=0.5)


@plot("scenes-truth")
def draw_truth(results: Results) -> Path | None:
    """Average precision of the known evidence, by method"""
    rows = only([*results.figures("scenes"), *results.figures("scenes-pair")], metric="ap")
    if not rows:
        return None
    series = {f"{dataset}": only(rows, dataset=dataset) for dataset in dict.fromkeys(row.dataset for row in rows)}
    last = next(reversed(series.values()))
    order = [row.method for row in sorted(last, key=lambda row: -row.mean)]
    return plots.dots("scenes-truth", series, order, "AP of the known evidence  (more is better)")
