"""Stores as sheets: of one model, dataset, explained class and metric, the score of every method on every question."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from study.names import MODELS

Reducer = Callable[[Mapping[str, np.ndarray]], np.ndarray]
BETTER = {True: "more", False: "less", None: ""}


@dataclass(frozen=True, eq=False)
class Sheet:
    """Methods × questions; NaN where a score is undefined or failed."""

    model: str
    dataset: str
    explained: str  # "predicted" or "label" where both were asked about
    metric: str
    higher: bool | None
    methods: tuple[str, ...]
    pictures: tuple[str, ...]  # of every question: they are drawn together
    parts: Mapping[str, np.ndarray]  # "score" and what the reducer pools, [m q]
    reduce: Reducer
    probability: np.ndarray  # of the explained class, per question
    roles: tuple[str, ...] = ()

    @property
    def scores(self) -> np.ndarray:
        return self.parts["score"]

    def row(self, method: str) -> dict[str, np.ndarray]:
        place = self.methods.index(method)
        return {name: values[place] for name, values in self.parts.items()}


def get_model_index(sheet: Any) -> int:
    """Place of the model of a sheet or of a row of results in the tables."""
    return MODELS.index(sheet.model) if sheet.model in MODELS else len(MODELS)


def average(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Of the rows that are defined."""
    known = ~np.isnan(parts["score"])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, parts["score"], 0).sum(-1) / known.sum(-1)


def read_store(folder: Path) -> list[Sheet]:
    """Every sheet of a store's last run, and what is derived from two of them."""
    from vitreous.report.stored_run import read_run

    sheets = []
    for block in read_run(folder).sections:
        shared = {
            "model": block.model, "dataset": block.dataset, "explained": block.explained, "methods": block.methods,
            "pictures": tuple(row.image for row in block.questions), "roles": tuple(row.role for row in block.questions),
            "probability": np.array([row.probability for row in block.questions]),
        }  # fmt: skip
        own = [
            Sheet(
                metric=column.metric, higher=column.higher_is_better, parts=column.parts, reduce=column.reduce, **shared
            )
            for column in block.metrics
        ]
        sheets += [*own, *derive_sheets(own)]
    return sheets


def derive_sheets(sheets: Sequence[Sheet]) -> list[Sheet]:
    """`faithfulness`: deletion AOPC + mean probability while patches enter; of SkipPLUS's percentages, `mean_aopc`."""
    named = {sheet.metric: sheet for sheet in sheets}
    derived_sheets = []
    if {"deletion_aopc", "insertion_aopc"} <= named.keys():
        gone, come = named["deletion_aopc"], named["insertion_aopc"]
        total = gone.scores + (gone.probability - come.scores)
        derived_sheets.append(replace(gone, metric="faithfulness", higher=True, parts={"score": total}, reduce=average))
    gone, come = (f"{name}_aopc(preset='skipplus')" for name in ("deletion", "insertion"))
    if {gone, come} <= named.keys():
        middle = (named[gone].scores + named[come].scores) / 2
        derived_sheets.append(
            replace(named[gone], metric="mean_aopc", higher=True, parts={"score": middle}, reduce=average)
        )
    return derived_sheets


def read_table(path: Path, higher: Mapping[str, bool | None], methods: Sequence[str] = ()) -> list[Sheet]:
    """A table of a script: model, image, method, metric, value."""
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not methods or row["method"] in methods]
    sheets = []
    for model, metric in dict.fromkeys((row["model"], row["metric"]) for row in rows):
        own = [row for row in rows if (row["model"], row["metric"]) == (model, metric)]
        methods, pictures = (tuple(dict.fromkeys(row[name] for row in own)) for name in ("method", "picture"))
        scores = np.full((len(methods), len(pictures)), np.nan)
        for row in own:
            scores[methods.index(row["method"]), pictures.index(row["picture"])] = float(row["value"])
        blank = np.full(len(pictures), np.nan)
        sheets.append(
            Sheet(
                model, path.stem, "", metric, higher.get(metric), methods, pictures, {"score": scores}, average, blank
            )
        )
    return sheets


def pick_sheet(sheets: Sequence[Sheet], metric: str, model: str, dataset: str = "", explained: str = "") -> Sheet:
    """The one sheet of a metric and a model."""
    matching = [
        row
        for row in sheets
        if (row.metric, row.model) == (metric, model)
        and (not dataset or row.dataset == dataset)
        and (not explained or row.explained == explained)
    ]
    if len(matching) != 1:
        raise LookupError(f"{len(matching)} sheets of {metric} of {model} {dataset} {explained}; one was expected")
    return matching[0]
