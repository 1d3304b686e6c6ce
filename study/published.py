"""Agreement of orders of methods with those of TokenTM's first version (tables 2, 3 and 4)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import nan

import numpy as np

from study.sheets import Sheet
from study.special import Order, centre_interval, correlate_ranks
from vitreous.bench.resample import resample_values
from vitreous.metrics.published import published_tables

NEGATIVE, POSITIVE = "negative_auc(preset='tokentm')", "positive_auc(preset='tokentm')"
COLUMNS = {  # (measure, explained class) by column of tables 2, 3 (AOPC and LOdds are DeiT's) and 4
    "Pix. Acc.": ("pixel_accuracy", ""),
    "mAP": ("map_two_channel", ""),
    "mIoU": ("miou", ""),
    "Neg. (Pred.)": (NEGATIVE, "predicted"),
    "Pos. (Pred.)": (POSITIVE, "predicted"),
    "Neg. (GT)": (NEGATIVE, "label"),
    "Pos. (GT)": (POSITIVE, "label"),
    "Neg.": (NEGATIVE, "predicted"),
    "Pos.": (POSITIVE, "predicted"),
    "AOPC: DeiT-B": ("aopc(preset='tokentm')", "predicted"),
    "LOdds: DeiT-B": ("lodds(preset='tokentm')", "predicted"),
}


def read_columns(*names: str) -> dict[tuple[str, str], tuple[float, ...]]:
    """Values of all methods in the columns of published tables, by measure and explained class."""
    columns = {}
    for name in names:
        table = published_tables()[f"tokentm:{name}"]
        for title in table.columns:
            key = COLUMNS.get(title) or COLUMNS.get(title.split(": ")[1])
            columns |= {key: tuple(table.column(title).values())} if key else {}
    return columns


METHODS = tuple(published_tables()["tokentm:table2"].rows)
TABLES, STEPS = read_columns("table2", "table3"), read_columns("table4")


def select_sheets(sheets: Sequence[Sheet], tables: Mapping[tuple[str, str], tuple[float, ...]]) -> list[Sheet]:
    """Sheets of a model that have a published column."""
    return [sheet for sheet in sheets if (sheet.metric, sheet.explained) in tables]


def compare_with_tables(
    sheets: Sequence[Sheet],
    tables: Mapping[tuple[str, str], tuple[float, ...]],
    methods: Sequence[str],
    word: str,
    draws: int = 1000,
) -> Order:
    """Rank correlation with the published order, mean over the measures of a plan; all measures are resampled together."""
    own, pairs = select_sheets(sheets, tables), []
    for sheet in own:
        sign = -1 if sheet.higher is False else 1
        published_values = sign * np.array(tables[sheet.metric, sheet.explained])
        rows = {method: sheet.row(method) for method in methods}
        drawn = resample_values(rows, sheet.reduce, sheet.images, draws, seed=0)
        whole = np.array([[float(sheet.reduce(rows[method]))] for method in methods])
        measured = np.concatenate([whole, np.stack([drawn[method] for method in methods])], 1)
        pairs.append([correlate_ranks(sign * column, published_values) for column in measured.T])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN if no measure defines an order
        means = np.nanmean(pairs, 0) if pairs else np.full((2, 2), nan)
    (tau, rho), spread = means[0], means[1:]
    where = (own[0].model, own[0].dataset, word, "published", f"{len(own)} measures", len(methods))
    images = len(set(own[0].images))
    return Order(*where, images, tau, *centre_interval(tau, spread[:, 0]), rho, *centre_interval(rho, spread[:, 1]))
