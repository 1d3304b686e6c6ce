"""Convert stores to tables: results/PLAN.csv has figures, results/PLAN-pairs.csv paired effects, others further statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from study.effects import Figure, compute_effect, compute_figures, write_rows
from study.names import (
    DESCRIBES,
    MIDDLE,
    PAIRS_BY_PROBABILITY,
    PUBLISHED,
    STARTS,
    TRUTHS,
    VARIANT_STEPS,
    VARIANTS,
    is_compared,
    list_pairs,
)
from study.published import METHODS, STEPS, TABLES, compare_with_tables, select_sheets
from study.sheets import Sheet, average, get_model_index, pick_sheet, read_store, read_table
from study.slices import select_singles
from study.special import (
    compare_by_probability,
    compare_orders,
    compute_ceiling,
    compute_gap_effects,
    compute_gap_figures,
    compute_regret,
    confirm_selection,
)
from vitreous.core.errors import DataError

RESULTS = Path(__file__).parent / "results"
SCRIPTS = {
    "zebras": {"rank_correlation": False, "own_less_other": True, "own_drop": True, "other_drop": False},
    "shortcut": {"stamp_above_thing": None, "stamp_ap": None, "stamp_peak": None},
}


def measure(stores: Path, names: Sequence[str], results: Path = RESULTS) -> list[str]:
    """Write tables of every store that exists and return their names; incomplete stores are reported and skipped."""
    measured = []
    for name in names:
        table = stores / f"{name}.csv"
        folders = [path for path in (stores / name, *sorted(stores.glob(f"{name}@*"))) if path.is_dir()]
        try:
            if name in SCRIPTS and table.is_file():
                sheets = read_table(table, SCRIPTS[name], list_methods(name))
            elif folders:  # NAME, or NAME@MODEL for every model
                sheets = sorted((sheet for folder in folders for sheet in read_store(folder)), key=get_model_index)
            else:
                continue
            tabulate(name, sheets, results)
        except (DataError, LookupError) as problem:
            print(f"{name}: {problem}")
            continue
        measured.append(name)
    return measured


def list_methods(script: str) -> tuple[str, ...]:
    """Methods that a script measures now; a table of an earlier run may contain others."""
    from study import zebras
    from vitreous.bench.plan_parser import read_plan

    if script == "zebras":
        return zebras.METHODS
    return tuple(read_plan(Path(__file__).parent / "plans" / "scenes.toml").methods)


def tabulate(name: str, sheets: list[Sheet], results: Path) -> None:
    """Write the tables of a plan."""
    sheets = sheets + DERIVED_SHEETS.get(name, make_no_sheets)(sheets)
    write_rows(results / f"{name}.csv", [row for sheet in sheets for row in compute_figures(sheet)])
    judged = [sheet for sheet in sheets if is_compared(name, sheet.metric)]
    compared = [compute_effect(sheet, *pair) for sheet in judged for pair in list_pairs(name, sheet.methods)]
    if compared:
        write_rows(results / f"{name}-pairs.csv", compared)
    for suffix, tabulate_more in FURTHER_TABLES.get(name, {}).items():
        if rows := tabulate_more(sheets):
            write_rows(results / f"{name}-{suffix}.csv", rows)


def make_no_sheets(_: list[Sheet]) -> list[Sheet]:
    return []


def list_models(sheets: Sequence[Sheet]) -> list[str]:
    return list(dict.fromkeys(sheet.model for sheet in sheets))


# ── statistics of single plans besides means and differences ─────────────────────────────────────


def subtract_plain_model(sheets: list[Sheet]) -> list[Sheet]:
    """Scores of the biased model minus those of the plain one, per image."""
    differences = []
    for metric in SCRIPTS["shortcut"]:
        biased, plain = (pick_sheet(sheets, metric, model) for model in ("scenes-biased", "scenes"))
        difference = {"score": biased.scores - plain.scores}
        differences.append(replace(biased, model="biased − plain", parts=difference, higher=True, reduce=average))
    return differences


def compute_regrets(sheets: list[Sheet]) -> list:
    """Differences of the starts of SkipPLUS and PLUS to the best start."""
    return [
        compute_regret(pick_sheet(sheets, metric, model), own, start)
        for start in (MIDDLE, 0)
        for model in list_models(sheets)
        for metric in dict.fromkeys(sheet.metric for sheet in sheets)
        for own in STARTS.values()
        if set(own.values()) <= set(pick_sheet(sheets, metric, model).methods)
    ]


def compute_tradeoffs(sheets: list[Sheet]) -> list:
    """Rank correlations across methods: insertion and deletion, and both with AP if there are masks."""
    deletion, insertion, area = (f"{name}(preset='skipplus')" for name in ("deletion_aopc", "insertion_aopc", "ap"))
    accuracies = [f"{name}_accuracy(preset='skipplus')" for name in ("deletion", "insertion")]
    trade_orders = []
    for model in list_models(sheets):
        named = {sheet.metric: sheet for sheet in sheets if sheet.model == model}
        metric_pairs = [(deletion, insertion), tuple(accuracies), (deletion, area), (insertion, area)]
        trade_orders += [
            compare_orders(named[metric], named[other])
            for metric, other in metric_pairs
            if metric in named and other in named
        ]
    return trade_orders


def compare_with_truth(sheets: list[Sheet]) -> list:
    """Agreement of every metric's order of methods with that of every ground truth, and of the truth with itself."""
    truth_orders = []
    for dataset in dict.fromkeys(sheet.dataset for sheet in sheets):
        own = [sheet for sheet in sheets if sheet.dataset == dataset]
        truths = [sheet for sheet in own if sheet.metric in TRUTHS]
        judges = [sheet for sheet in own if sheet.metric not in TRUTHS and sheet.metric not in DESCRIBES]
        for truth in truths:
            for among in ("all", "better half"):
                others = [*judges, *(sheet_of_truth for sheet_of_truth in truths if sheet_of_truth is not truth)]
                truth_orders += [
                    *(compare_orders(sheet, truth, among) for sheet in others),
                    compute_ceiling(truth, among),
                ]
    return truth_orders


def confirm_cells(sheets: list[Sheet]) -> list:
    effects = []
    for model in list_models(sheets):
        both = (pick_sheet(sheets, "faithfulness", model, f"val, to {word}") for word in ("choose", "confirm"))
        effects += confirm_selection(*both, sorted(PUBLISHED), best=3)
    return effects


def compare_with_paper(sheets: list[Sheet]) -> list:
    """Agreement of the orders of methods and of steps with the paper's tables, for every variant of TokenTM."""
    table_orders = []
    for model in list_models(sheets):
        own = [sheet for sheet in sheets if sheet.model == model]
        table_orders += [compare_with_tables(own, TABLES, (*METHODS[:-1], variant), variant) for variant in VARIANTS]
        if select_sheets(own, STEPS):
            table_orders += [compare_with_tables(own, STEPS, steps, words) for words, steps in VARIANT_STEPS.items()]
    return table_orders


def tabulate_gaps(sheets: list[Sheet]) -> list[Figure]:
    """Figures on wrongly classified images, by the gap of probabilities."""
    gap_figures: list[Figure] = []
    for model in list_models(sheets):
        for metric in dict.fromkeys(sheet.metric for sheet in sheets):
            gap_figures += compute_gap_figures(
                *(pick_sheet(sheets, metric, model, explained=role) for role in ("label", "predicted"))
            )
    return gap_figures


def tabulate_gap_effects(sheets: list[Sheet]) -> list:
    effects = []
    for model in list_models(sheets):
        for metric in dict.fromkeys(sheet.metric for sheet in sheets):
            both = [pick_sheet(sheets, metric, model, explained=role) for role in ("label", "predicted")]
            effects += compute_gap_effects(*both, list_pairs("tis-disagreement", both[0].methods))
    return effects


def tabulate_by_probability(sheets: list[Sheet]) -> list:
    """Effects by the probability of the explained class."""
    return [
        row
        for model in list_models(sheets)
        for row in compare_by_probability(pick_sheet(sheets, "faithfulness", model), PAIRS_BY_PROBABILITY)
    ]


DERIVED_SHEETS: dict[str, Callable[[list[Sheet]], list[Sheet]]] = {"shortcut": subtract_plain_model}
FURTHER_TABLES = {
    "skipplus": {"trades": compute_tradeoffs},
    "skipplus-pets": {"trades": compute_tradeoffs},
    "skipplus-start": {"regret": compute_regrets},
    "scenes": {"orders": compare_with_truth, "slice": partial(select_singles, "scenes")},
    "scenes-pair": {"orders": compare_with_truth, "slice": partial(select_singles, "scenes-pair")},
    "beyond": {"sure": tabulate_by_probability, "slice": partial(select_singles, "beyond")},
    "newer-grid": {"chosen": confirm_cells},
    "tokentm": {"published": compare_with_paper},
    "tokentm-pets": {"published": compare_with_paper},
    "tis-disagreement": {"gaps": tabulate_gaps, "gap-pairs": tabulate_gap_effects},
}
