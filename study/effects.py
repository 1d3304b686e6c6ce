"""Figures and paired effects with 95 % intervals: images are resampled, the same ones for every method."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from math import isnan, nan
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from study.sheets import BETTER, Sheet
from vitreous.bench.resample import (
    DRAWS,
    FEW,
    LEVEL,
    UNKNOWN,
    compute_interval,
    compute_value_interval,
    resample_values,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One method by one metric."""

    model: str
    dataset: str
    explained: str
    metric: str
    better: str  # "more", "less", or empty for a metric without a better direction
    method: str
    n: int  # images on which it is defined
    undefined: int  # rows (image, class) on which it is not
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Effect:
    """Difference of two methods; positive is better, also for metrics where less is better."""

    model: str
    dataset: str
    explained: str
    metric: str
    method: str
    against: str
    n: int  # images on which both are defined
    effect: float
    low: float
    high: float
    p: float  # two-sided, of the resampled differences


def compute_figures(sheet: Sheet, draws: int = DRAWS, seed: int = 0) -> list[Figure]:
    """Figures of every method of a sheet."""
    rows = {method: sheet.row(method) for method in sheet.methods}
    enough = len(set(sheet.images)) >= FEW
    drawn = resample_values(rows, sheet.reduce, sheet.images, draws, seed) if enough else {}
    all_figures = []
    for method, parts in rows.items():
        defined = ~np.isnan(parts["score"])
        ends = compute_value_interval(parts, drawn[method], sheet.images, LEVEL) if enough else UNKNOWN
        value = float(sheet.reduce(parts)) if defined.any() else nan
        images = len({sheet.images[place] for place in np.flatnonzero(defined)})
        where = (sheet.model, sheet.dataset, sheet.explained, sheet.metric, BETTER[sheet.higher], method)
        all_figures.append(Figure(*where, images, int((~defined).sum()), value, *ends))
    return all_figures


def compute_effect(sheet: Sheet, method: str, against: str, draws: int = DRAWS, seed: int = 0) -> Effect:
    """`method` − `against` on rows on which both are defined; negated for metrics where less is better."""
    after, before = sheet.row(method), sheet.row(against)
    both = np.flatnonzero(~np.isnan(after["score"]) & ~np.isnan(before["score"]))
    parts = {
        word: {name: values[both] for name, values in side.items()} for word, side in (("a", after), ("b", before))
    }
    images = [sheet.images[place] for place in both]
    where = (sheet.model, sheet.dataset, sheet.explained, sheet.metric, method, against, len(set(images)))
    if not len(both):
        return Effect(*where, nan, nan, nan, nan)
    sign = -1.0 if sheet.higher is False else 1.0
    difference = sign * float(sheet.reduce(parts["a"]) - sheet.reduce(parts["b"]))
    if len(set(images)) < FEW:
        return Effect(*where, difference, nan, nan, nan)
    drawn = resample_values(parts, sheet.reduce, images, draws, seed)
    differences = sign * (drawn["a"] - drawn["b"])
    return Effect(*where, difference, *compute_interval(differences, LEVEL), compute_p_value(differences))


def compute_p_value(differences: np.ndarray) -> float:
    """Twice the share of resampled differences on the rarer side of 0; never 0, since draws are finite."""
    defined = differences[~np.isnan(differences)]
    rarer = min((defined <= 0).sum(), (defined >= 0).sum())
    return float(min(1.0, 2 * (1 + rarer) / (1 + len(defined))))


# ── tables on disk ───────────────────────────────────────────────────────────────────────────────


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """Write rows as CSV with six significant digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow([field.name for field in fields(rows[0])])
        out.writerows([format_value(value) for value in asdict(row).values()] for row in rows)


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return "" if isnan(value) else f"{value + 0.0:.6g}"
    return str(value)


def load_rows(path: Path, kind: type[T]) -> list[T]:
    """Rows of a table; none if the file does not exist."""
    return list(read_rows(path, path.stat().st_mtime_ns, kind)) if path.is_file() else []


@lru_cache(maxsize=64)
def read_rows(path: Path, written_at: int, kind: type[T]) -> tuple[T, ...]:
    """Rows of a table, cached by the time of its last change: pages read each table many times."""
    types = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
    with path.open(encoding="utf-8") as file:
        return tuple(
            kind(**{name: parse_value(row[name], types[name]) for name in types}) for row in csv.DictReader(file)
        )


def parse_value(text: str, kind: str) -> Any:
    if kind == "float":
        return float(text) if text else nan
    return int(text) if kind == "int" else text


def select_rows(rows: Iterable[T], **fields: Any) -> list[T]:
    """Rows whose fields have these values; a tuple, list or set allows any of its values."""
    for name, value in fields.items():  # one field after the other: most rows are dropped by the first
        if isinstance(value, tuple | set | list):
            rows = [row for row in rows if getattr(row, name) in value]
        else:
            rows = [row for row in rows if getattr(row, name) == value]
    return list(rows)
