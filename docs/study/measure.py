"""From stores to tidy tables: results/PLAN.csv has figures, results/PLAN-pairs.csv paired effects, the others what their names say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from study.effects import Figure, effect, figures, save
from study.names import BY_SURENESS, DESCRIBES, MIDDLE, OPEN, PUBLISHED, READINGS, STARTS, TRUTHS, is_compared, pairs
from study.published import METHODS, STEPS, TABLES, same_order, sheets_of_tables
from study.sheets import Sheet, mean, model_order, pick, read_store, read_table
from study.slices import singles
from study.special import across_gap, by_gap, by_sureness, ceiling, confirmed, orders, regret

from vitreous.core.errors import DataError

RESULTS = Path(__file__).parent / "results"
SCRIPTS = {
    "zebras": {"rank_correlation": False, "own_less_other": True, "own_drop": True, "other_drop": False},
    "shortcut": {"stamp_above_thing": None, "stamp_ap": None, "stamp_peak": None},
}


def measure(stores: Path, names: Sequence[str], results: Path = RESULTS) -> list[str]:
    """Tables of every store that is there; their names. What a store does not hold whole is said, and left as it was."""
    measured = []
    for name in names:
        table = stores / f"{name}.csv"
        folders = [path for path in (stores / name, *sorted(stores.glob(f"{name}@*"))) if path.is_dir()]
        try:
            if name in SCRIPTS and table.is_file():
                sheets = read_table(table, SCRIPTS[name], asked_by(name))
            elif folders:  # NAME, or NAME@MODEL for every model
                sheets = sorted((sheet for folder in folders for sheet in read_store(folder)), key=model_order)
            else:
                continue
            tabulate(name, sheets, results)
        except (DataError, LookupError) as problem:
            print(f"{name}: {problem}")
            continue
        measured.append(name)
    return measured


def asked_by(script: str) -> tuple[str, ...]:
    """The methods that a script would measure today: a table may hold others of earlier days."""
    from study import zebras

    from vitreous.bench.plan_parser import read_plan

    if script == "zebras":
        return zebras.METHODS
    return tuple(read_plan(Path(__file__).parent / "plans" / "scenes.toml").methods)


def tabulate(name: str, sheets: list[Sheet], results: Path) -> None:
    """The tables of one plan."""
    sheets = sheets + BESIDE.get(name, nothing)(sheets)
    save(results / f"{name}.csv", [row for sheet in sheets for row in figures(sheet)])
    judged = [sheet for sheet in sheets if is_compared(name, sheet.metric)]
    compared = [effect(sheet, *pair) for sheet in judged for pair in pairs(name, sheet.methods)]
    if compared:
        save(results / f"{name}-pairs.csv", compared)
    for suffix, tabulate_more in MORE.get(name, {}).items():
        if rows := tabulate_more(sheets):
            save(results / f"{name}-{suffix}.csv", rows)


def nothing(_: list[Sheet]) -> list[Sheet]:
    return []


def models(sheets: Sequence[Sheet]) -> list[str]:
    return list(dict.fromkeys(sheet.model for sheet in sheets))


# ── what single plans are asked beside means and differences ─────────────────────────────────────


def exposed(sheets: list[Sheet]) -> list[Sheet]:
    """The biased model less the other, image by image: a map that shows the stamp in both exposes nothing."""
    differences = []
    for metric in SCRIPTS["shortcut"]:
        biased, plain = (pick(sheets, metric, model) for model in ("scenes-biased", "scenes"))
        apart = {"score": biased.scores - plain.scores}
        differences.append(replace(biased, model="biased − plain", parts=apart, higher=True, reduce=mean))
    return differences


def starts(sheets: list[Sheet]) -> list:
    """What SkipPLUS's start loses against the best one, and what PLUS's does."""
    return [
        regret(pick(sheets, metric, model), own, start)
        for start in (MIDDLE, 0)
        for model in models(sheets)
        for metric in dict.fromkeys(sheet.metric for sheet in sheets)
        for own in STARTS.values()
        if set(own.values()) <= set(pick(sheets, metric, model).methods)
    ]


def trades(sheets: list[Sheet]) -> list:
    """Across methods: insertion and deletion, and where there are masks deletion and AP."""
    gone, come, area = (f"{name}(preset='skipplus')" for name in ("deletion_aopc", "insertion_aopc", "ap"))
    hits = [f"{name}_accuracy(preset='skipplus')" for name in ("deletion", "insertion")]
    trade_orders = []
    for model in models(sheets):
        named = {sheet.metric: sheet for sheet in sheets if sheet.model == model}
        metric_pairs = [(gone, come), tuple(hits), (gone, area), (come, area)]
        trade_orders += [
            orders(named[metric], named[other]) for metric, other in metric_pairs if metric in named and other in named
        ]
    return trade_orders


def truthful(sheets: list[Sheet]) -> list:
    """Every metric's order of methods against every truth's, and the truth's against itself on other images."""
    truth_orders = []
    for dataset in dict.fromkeys(sheet.dataset for sheet in sheets):
        own = [sheet for sheet in sheets if sheet.dataset == dataset]
        truths = [sheet for sheet in own if sheet.metric in TRUTHS]
        judges = [sheet for sheet in own if sheet.metric not in TRUTHS and sheet.metric not in DESCRIBES]
        for truth in truths:
            for among in ("all", "better half"):
                others = [*judges, *(sheet_of_truth for sheet_of_truth in truths if sheet_of_truth is not truth)]
                truth_orders += [*(orders(sheet, truth, among) for sheet in others), ceiling(truth, among)]
    return truth_orders


def cells(sheets: list[Sheet]) -> list:
    effects = []
    for model in models(sheets):
        both = (pick(sheets, "faithfulness", model, f"val, to {word}") for word in ("choose", "confirm"))
        effects += confirmed(*both, sorted(PUBLISHED), best=3)
    return effects


def order_of_tables(sheets: list[Sheet]) -> list:
    """Every reading of TokenTM in the paper's tables: how far are the order of methods and that of the steps the published ones?"""
    table_orders = []
    for model in models(sheets):
        own = [sheet for sheet in sheets if sheet.model == model]
        table_orders += [same_order(own, TABLES, (*METHODS[:-1], reading), reading) for reading in OPEN]
        if sheets_of_tables(own, STEPS):
            table_orders += [same_order(own, STEPS, steps, words) for words, steps in READINGS.items()]
    return table_orders


def gaps(sheets: list[Sheet]) -> list[Figure]:
    """Images that the model gets wrong, by its confidence."""
    gap_figures: list[Figure] = []
    for model in models(sheets):
        for metric in dict.fromkeys(sheet.metric for sheet in sheets):
            gap_figures += by_gap(*(pick(sheets, metric, model, explained=role) for role in ("label", "predicted")))
    return gap_figures


def gap_pairs(sheets: list[Sheet]) -> list:
    effects = []
    for model in models(sheets):
        for metric in dict.fromkeys(sheet.metric for sheet in sheets):
            both = [pick(sheets, metric, model, explained=role) for role in ("label", "predicted")]
            effects += across_gap(*both, pairs("tis-disagreement", both[0].methods))
    return effects


def sureness(sheets: list[Sheet]) -> list:
    """Where a slope and coalitions help: on images of which the model is sure, or on the others?"""
    return [row for model in models(sheets) for row in by_sureness(pick(sheets, "faithfulness", model), BY_SURENESS)]


BESIDE: dict[str, Callable[[list[Sheet]], list[Sheet]]] = {"shortcut": exposed}
MORE = {
    "skipplus": {"trades": trades},
    "skipplus-pets": {"trades": trades},
    "skipplus-start": {"regret": starts},
    "scenes": {"orders": truthful, "slice": partial(singles, "scenes")},
    "scenes-pair": {"orders": truthful, "slice": partial(singles, "scenes-pair")},
    "beyond": {"sure": sureness, "slice": partial(singles, "beyond")},
    "newer-grid": {"chosen": cells},
    "tokentm": {"published": order_of_tables},
    "tokentm-pets": {"published": order_of_tables},
    "tis-disagreement": {"gaps": gaps, "gap-pairs": gap_pairs},
}
