"""The numbers that TokenTM's first version prints (tables 2, 3 and 4), and how far an order of ours is theirs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import nan

import numpy as np
from study.sheets import Sheet
from study.special import Order, agreement, around

from vitreous.bench.resample import resampled

METHODS = (
    "attcam(preset='chefer')", "lrp", "conservativelrp", "transatt(preset='experiments')", "rawattention",
    "rollout(preset='chefer')", "attcat", "genatt", "tokentm",
)  # fmt: skip
NEGATIVE, POSITIVE = "negative_auc(preset='tokentm')", "positive_auc(preset='tokentm')"
TABLES = {  # (measure, explained class): of every method above; AOPC and LOdds are DeiT's
    ("pixel_accuracy", ""): (67.37, 50.96, 64.06, 79.70, 67.87, 59.01, 43.88, 79.05, 80.53),
    ("map_two_channel", ""): (79.20, 55.87, 68.01, 86.03, 80.24, 73.76, 48.38, 85.71, 86.33),
    ("miou", ""): (46.13, 32.82, 36.23, 61.95, 46.37, 39.43, 27.90, 61.56, 63.45),
    (NEGATIVE, "predicted"): (43.84, 42.55, 33.24, 57.48, 48.70, 43.23, 32.34, 57.53, 58.12),
    (POSITIVE, "predicted"): (26.11, 41.29, 34.35, 19.00, 25.44, 32.34, 31.71, 15.88, 15.75),
    (NEGATIVE, "label"): (44.06, 42.56, 34.33, 58.26, 48.70, 43.23, 33.59, 58.85, 59.36),
    (POSITIVE, "label"): (25.87, 41.29, 34.03, 18.38, 25.44, 32.34, 30.68, 15.20, 15.09),
    ("aopc(preset='tokentm')", "predicted"): (0.253, 0.180, 0.218, 0.282, 0.254, 0.229, 0.235, 0.296, 0.297),
    ("lodds(preset='tokentm')", "predicted"): (-3.704, -2.140, -3.011, -4.163, -3.657, -3.223, -3.262, -4.504, -4.514),
}  # fmt: skip
STEPS = {  # table 4: baseline, + AF, + L, + NECC
    ("pixel_accuracy", ""): (52.94, 76.30, 77.50, 77.89),
    ("map_two_channel", ""): (67.78, 85.28, 85.39, 85.69),
    ("miou", ""): (33.42, 58.34, 59.59, 60.29),
    (NEGATIVE, "predicted"): (44.92, 55.25, 55.03, 55.42),
    (POSITIVE, "predicted"): (31.95, 16.98, 16.28, 16.18),
}


def asked(sheets: Sequence[Sheet], tables: Mapping[tuple[str, str], tuple[float, ...]]) -> list[Sheet]:
    """The sheets of one model that have a published column."""
    return [sheet for sheet in sheets if (sheet.metric, sheet.explained) in tables]


def same_order(
    sheets: Sequence[Sheet],
    tables: Mapping[tuple[str, str], tuple[float, ...]],
    methods: Sequence[str],
    word: str,
    draws: int = 1000,
) -> Order:
    """Rank correlation with the published order, mean over the measures of a plan; all measures are resampled together."""
    own, pairs = asked(sheets, tables), []
    for sheet in own:
        sign = -1 if sheet.higher is False else 1
        theirs = sign * np.array(tables[sheet.metric, sheet.explained])
        rows = {method: sheet.row(method) for method in methods}
        drawn = resampled(rows, sheet.reduce, sheet.pictures, draws, seed=0)
        whole = np.array([[float(sheet.reduce(rows[method]))] for method in methods])
        ours = np.concatenate([whole, np.stack([drawn[method] for method in methods])], 1)
        pairs.append([agreement(sign * column, theirs) for column in ours.T])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no order in any measure is no order: NaN
        found = np.nanmean(pairs, 0) if pairs else np.full((2, 2), nan)
    (tau, rho), spread = found[0], found[1:]
    where = (own[0].model, own[0].dataset, word, "published", f"{len(own)} measures", len(methods))
    pictures = len(set(own[0].pictures))
    return Order(*where, pictures, tau, *around(tau, spread[:, 0]), rho, *around(rho, spread[:, 1]))
