"""Stores as sheets: scores of every method on every image and class, for a model, dataset, explained class and metric."""

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
    """Scores [methods, rows], a row for each image and class; NaN if a score is undefined or failed."""

    model: str
    dataset: str
    explained: str  # "predicted" or "label" if both were explained
    metric: str
    higher: bool | None
    methods: tuple[str, ...]
    images: tuple[str, ...]  # image of every row; rows of an image are resampled together
    parts: Mapping[str, np.ndarray]  # "score" and other inputs of the reducer, [methods, rows]
    reduce: Reducer
    probability: np.ndarray  # of the explained class, per row
    roles: tuple[str, ...] = ()

    @property
    def scores(self) -> np.ndarray:
        return self.parts["score"]

    def row(self, method: str) -> dict[str, np.ndarray]:
        place = self.methods.index(method)
        return {name: values[place] for name, values in self.parts.items()}


def get_model_index(sheet: Any) -> int:
    """Position of the model of a sheet or of a row of results in the tables."""
    return MODELS.index(sheet.model) if sheet.model in MODELS else len(MODELS)


def average(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mean of the scores that are defined."""
    defined = ~np.isnan(parts["score"])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(defined, parts["score"], 0).sum(-1) / defined.sum(-1)


def read_store(folder: Path) -> list[Sheet]:
    """All sheets of a store's last run, and those derived from two of them."""
    from vitreous.report.compare import index_sections
    from vitreous.report.stored_run import read_run

    sheets = []
    for block in index_sections(read_run(folder)).values():  # with the methods of all scores
        shared = {
            "model": block.model, "dataset": block.dataset, "explained": block.explained, "methods": block.methods,
            "images": tuple(row.image for row in block.questions), "roles": tuple(row.role for row in block.questions),
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
    """`faithfulness` (deletion AOPC + mean probability while patches are added), and `mean_aopc` of SkipPLUS's percentages."""
    named = {sheet.metric: sheet for sheet in sheets}
    derived_sheets = []
    if {"deletion_aopc", "insertion_aopc"} <= named.keys():
        deletion, insertion = named["deletion_aopc"], named["insertion_aopc"]
        total = deletion.scores + (deletion.probability - insertion.scores)
        derived_sheets.append(
            replace(deletion, metric="faithfulness", higher=True, parts={"score": total}, reduce=average)
        )
    deletion, insertion = (f"{name}_aopc(preset='skipplus')" for name in ("deletion", "insertion"))
    if {deletion, insertion} <= named.keys():
        middle = (named[deletion].scores + named[insertion].scores) / 2
        derived_sheets.append(
            replace(named[deletion], metric="mean_aopc", higher=True, parts={"score": middle}, reduce=average)
        )
    return derived_sheets


def read_table(path: Path, higher: Mapping[str, bool | None], methods: Sequence[str] = ()) -> list[Sheet]:
    """A table of a script: model, image, method, metric, value."""
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not methods or row["method"] in methods]
    sheets = []
    for model, metric in dict.fromkeys((row["model"], row["metric"]) for row in rows):
        own = [row for row in rows if (row["model"], row["metric"]) == (model, metric)]
        methods, images = (tuple(dict.fromkeys(row[name] for row in own)) for name in ("method", "picture"))
        scores = np.full((len(methods), len(images)), np.nan)
        for row in own:
            scores[methods.index(row["method"]), images.index(row["picture"])] = float(row["value"])
        blank = np.full(len(images), np.nan)
        sheets.append(
            Sheet(model, path.stem, "", metric, higher.get(metric), methods, images, {"score": scores}, average, blank)
        )
    return sheets


def pick_sheet(sheets: Sequence[Sheet], metric: str, model: str, dataset: str = "", explained: str = "") -> Sheet:
    """The only sheet of a metric and a model."""
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
