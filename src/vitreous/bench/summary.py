"""What a table says: figures of whole sets with intervals, ranks, and what cannot be told from the best. Plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.bench.resample import DRAWS, FEW, LEVEL, UNKNOWN, alike, gap, holds_0, interval, resampled, span
from vitreous.metrics.metric import resolve_metric

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Entry:
    """One method in one column of a table."""

    method: str
    value: float  # by the metric's own reducer: a mean, or pooled
    low: float  # of the 95 % interval, pictures resampled, the same ones for every method; NaN of a single picture
    high: float
    rank: int | None  # 1 the best; None where there is no better or no value
    tied: bool  # not told from the best: the interval of their difference, over rows that both define, holds 0 or is unknown
    rows: int  # that the figure rests on: those that no method failed on
    undefined: int  # of these, rows without a number
    errors: int  # rows that failed
    error: str | None  # the first reason
    map_seconds: float  # per row, median
    seconds: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class Column:
    """One metric on one data set with one model: an entry per method, in the plan's order."""

    model: str
    dataset: str
    metric: str
    role: str  # of the class that was explained, where predicted and true classes were both asked about; else empty
    higher_is_better: bool | None
    pictures: int
    entries: tuple[Entry, ...] = field(default=())

    @property
    def best(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.rank == 1), None)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def summarise(table: pa.Table, *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0) -> list[Column]:
    """One column per model, data set and metric, in the order in which they stand in the table.

    Where predicted and true classes were both explained these are columns of their own; two classes of one picture share theirs.
    """
    return [column(where, rows, draws, level, seed) for where, rows in grouped(table)]


def grouped(table: pa.Table) -> Iterator[tuple[tuple[str, str, str, str], list[dict[str, Any]]]]:
    """Rows of one model, data set, metric and role, groups in order of appearance."""
    found: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    wanted = ["model", "dataset", "picture", "index", "target", "role", "method", "metric", "value", "higher_is_better"]
    wanted += ["parts", "seconds", "map_seconds", "peak_mib", "error"]
    rows = table.select(wanted).to_pylist()
    roles = {row["role"] for row in rows} - {""}
    for row in rows:
        where = (row["model"], row["dataset"], row["metric"])
        if roles != {"predicted", "label"}:
            found.setdefault((*where, ""), []).append(row)
        else:
            for role in (
                [row["role"]] if row["role"] else ("predicted", "label")
            ):  # a picture that was not read counts for both
                found.setdefault((*where, role), []).append(row)
    asked = {where for where, own in found.items() if any(row["role"] for row in own)}
    yield from ((where, own) for where, own in found.items() if where in asked or not asked)


def column(where: tuple[str, str, str, str], rows: list[dict[str, Any]], draws: int, level: float, seed: int) -> Column:
    model, dataset, metric, role = where
    by_method: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["index"], row["picture"], row["role"], row["target"]] = row
    failed = {name: {at for at, row in own.items() if row["error"] is not None} for name, own in by_method.items()}
    judged = [name for name, own in by_method.items() if len(failed[name]) < len(own)]
    units = common(by_method, failed, judged)
    reduce = resolve_metric(metric).reduce
    better = next(
        (row["higher_is_better"] for row in rows if row["error"] is None), resolve_metric(metric).higher_is_better
    )
    parts = {name: arrays([by_method[name][unit] for unit in units]) for name in judged} if units else {}
    values = {name: float(reduce(own)) for name, own in parts.items()}
    pictures = [unit[:2] for unit in units]
    drawn = resampled(parts, reduce, pictures, draws, seed) if len(set(pictures)) >= FEW else {}
    order = ranked(values, better)
    best = next((name for name, rank in order.items() if rank == 1), "")
    spans = {name: span(parts[name], drawn[name], pictures, level) for name in drawn}
    tied = {
        name
        for name, rank in order.items()
        if rank == 1
        or holds_0(
            interval(drawn[name] - drawn[best], level)
            if not isnan(spans.get(name, UNKNOWN)[0]) and alike(parts[name], parts[best])  # is drawn already
            else gap(parts[best], parts[name], reduce, pictures, draws, level, seed)[1:]
        )
    }
    entries = tuple(
        entry(name, by_method[name], units, values, spans, order, tied, len(failed[name])) for name in by_method
    )
    return Column(model, dataset, metric, role, better, len(set(pictures)), entries)


def common(by_method: dict[str, Any], failed: dict[str, set[Any]], judged: Sequence[str]) -> list[Any]:
    """Rows of pictures on which no method that works at all failed: only these can be compared in pairs."""
    if not judged:
        return []
    lost = {at[:2] for name in judged for at in failed[name]}
    everywhere = set.intersection(*(set(by_method[name]) for name in judged))
    return [at for at in by_method[judged[0]] if at in everywhere and at[:2] not in lost]


def arrays(rows: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """What a reducer reads: the score and the named parts, rows last."""
    names = [name for name, _ in rows[0]["parts"] or ()]
    found = {"score": np.array([row["value"] for row in rows], dtype=np.float64)}
    for place, name in enumerate(names):
        found[name] = np.array([row["parts"][place][1] for row in rows], dtype=np.float64)
    return found


def ranked(values: dict[str, float], better: bool | None) -> dict[str, int]:
    """1 for the best; equal values share a rank, and what has no value has none."""
    if better is None:
        return {}
    known = {name: value if better else -value for name, value in values.items() if not np.isnan(value)}
    return {name: 1 + sum(other > value for other in known.values()) for name, value in known.items()}


def entry(
    name: str,
    rows: dict[Any, dict[str, Any]],
    units: Sequence[Any],
    values: dict[str, float],
    spans: dict[str, tuple[float, float]],
    order: dict[str, int],
    tied: set[str],
    errors: int,
) -> Entry:
    low, high = spans.get(name, UNKNOWN)
    used = [rows[unit] for unit in units] if name in values else []
    return Entry(
        method=name,
        value=values.get(name, float("nan")),
        low=low,
        high=high,
        rank=order.get(name),
        tied=name in tied,
        rows=len(used),
        undefined=sum(bool(np.isnan(row["value"])) for row in used),
        errors=errors,
        error=next((row["error"] for row in rows.values() if row["error"] is not None), None),
        **{cost: middle([row[cost] for row in rows.values()]) for cost in ("map_seconds", "seconds", "peak_mib")},
    )


def middle(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None and not np.isnan(value)]
    return float(np.median(known)) if known else float("nan")
