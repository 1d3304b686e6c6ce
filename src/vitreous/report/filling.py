"""Columns of published tables: which metric of a run fills each, with best and second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from vitreous.metrics.metric import resolve_metric
from vitreous.metrics.protocols import protocol
from vitreous.report.block import Block, Column
from vitreous.report.tables import Cell, Head, figure_cell, places

Values = list[float]
EXPLAINED = {"Pred.": ("predicted", "top 1"), "GT": ("label",)}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A column of a published table: the metric that fills it, and which class was explained."""

    title: str
    metric: str
    options: tuple[tuple[str, Any], ...] = ()
    explained: str = ""
    percent: bool = False

    @property
    def name(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.options)
        said = f"{self.metric}({inside})" if inside else self.metric
        return (
            f"{said} of the {'predicted class' if self.explained == 'Pred.' else 'label'}" if self.explained else said
        )


@lru_cache(maxsize=512)
def meant(spec: str) -> tuple[str, dict[str, Any]]:
    found = resolve_metric(spec)
    return found.name, found.settings


def find(block: Block, wanted: Wanted) -> Column | None:
    """The first metric of the run that fills a column."""
    for column in block.columns:
        name, settings = meant(column.metric)
        if name == wanted.metric and all(settings.get(key) == value for key, value in wanted.options):
            return column
    return None


def values_of(block: Block, wanted: Wanted) -> tuple[Values, bool | None] | None:
    """The figure of every method, and which way it points; None where the run has it not."""
    column = find(block, wanted)
    if column is None:
        return gap_of(block, wanted) if wanted.metric == "insertion_minus_deletion" else None
    asked = [
        q for q, one in enumerate(block.questions) if not wanted.explained or one.role in EXPLAINED[wanted.explained]
    ]
    if not asked:
        return None
    figures = np.asarray(column.reduce({name: part[:, asked] for name, part in column.parts.items()}), float)
    if np.isnan(figures).all():
        return None
    shares = wanted.percent and meant(column.metric)[1].get("show", "fraction") == "fraction"
    return (figures * (100 if shares else 1)).tolist(), column.higher


def gap_of(block: Block, wanted: Wanted) -> tuple[Values, bool | None] | None:
    """Insertion − deletion of a run that has both under the same baseline."""
    sides = [values_of(block, Wanted("", metric, wanted.options)) for metric in ("insertion", "deletion")]
    if sides[0] is None or sides[1] is None or (sides[0][1], sides[1][1]) != (True, False):
        return None
    return [into - out for into, out in zip(sides[0][0], sides[1][0], strict=True)], True


def fill(block: Block, wanted: Sequence[Wanted], digits: int) -> tuple[list[Head], list[list[Cell]], list[str]]:
    """Heads and columns of what is there, and the names of what is not."""
    heads, columns, missing = [], [], []
    for one in wanted:
        found = values_of(block, one)
        if found is None:
            missing.append(one.name)
            continue
        values, higher = found
        best = places([round(value, digits) for value in values], higher)
        heads.append(Head(one.title, higher, True, hint=one.name))
        columns.append([figure_cell(value, digits, place) for value, place in zip(values, best, strict=True)])
    return heads, columns, missing


def lines(methods: Sequence[str], columns: Sequence[Sequence[Cell]], paper: str = "") -> list[tuple[str, list[Cell]]]:
    """Rows under the name that the paper gives a method, and ours."""
    names = {spec: name for name, spec in protocol(paper).rows.items()} if paper else {}
    titles = [f"{names[method]}: {method}" if method in names else method for method in methods]
    return [(title, [column[row] for column in columns]) for row, title in enumerate(titles)]


def lacking(names: Sequence[str]) -> list[str]:
    return [f"The run has no {', '.join(names)}."] if names else []


def where(block: Block) -> str:
    return block.title
