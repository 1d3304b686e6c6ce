"""From a store to arrays: rows by model and data set, at their method and question."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.bench.store import Store
from vitreous.core.errors import DataError
from vitreous.report.block import Block, Column, Question, Run

if TYPE_CHECKING:
    import pyarrow as pa

PROVENANCE = ("weights", "precision", "device", "vitreous", "torch", "question")


def read_run(folder: str | Path, name: str | None = None) -> Run:
    """The last run of a store, or the one of that name."""
    with Store(folder, create=False) as store:
        runs = store.runs()
        if not runs:
            raise DataError(f"'{folder}' holds no run; `vitreous bench … --out {folder}` would put one there")
        chosen = next((run for run in reversed(runs) if name is None or run["name"] == name), None)
        if chosen is None:
            known = ", ".join(run["name"] for run in runs)
            raise DataError(f"'{folder}' holds no run {name!r}; known: {known}")
        scores, maps = store.table(chosen["name"]), store.table(chosen["name"], kind="maps")
    if not len(scores):
        raise DataError(f"run {chosen['name']!r} in '{folder}' has no rows yet; run the plan first")
    wholes = tuple(blocks_of(scores))
    blocks = tuple(part for whole in wholes for part in split(whole))
    facts = (chosen["plan"], chosen["made"], chosen["about"])
    return Run(Path(folder), chosen["name"], *facts, blocks, wholes, maps if len(maps) else None)


def split(whole: Block) -> list[Block]:
    """Predicted and true classes apart: a figure over both would count most pictures twice."""
    if set(whole.roles) != {"predicted", "label"}:
        return [whole]
    return [block_of(rows_of_role(whole.rows, role), whole.model, whole.dataset, role) for role in whole.roles]


def of_role(block: Block, role: str) -> Block:
    """The questions of one role alone."""
    return block_of(rows_of_role(block.rows, role), block.model, block.dataset)


def rows_of_role(rows: pa.Table, role: str) -> pa.Table:
    """With those of pictures that could not be read, which have none."""
    return rows.take([at for at, one in enumerate(rows["role"].to_pylist()) if one in (role, "", None)])


def blocks_of(table: pa.Table) -> Iterator[Block]:
    """Rows by model and data set, in the order of the plan."""
    model, models = coded(table["model"])
    dataset, datasets = coded(table["dataset"])
    pair = model * len(datasets) + dataset
    for code in dict.fromkeys(pair.tolist()):
        rows = table.take(np.flatnonzero(pair == code))
        yield block_of(rows, models[code // len(datasets)], datasets[code % len(datasets)])


def coded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """Every value as its place among those that occur, in the order in which they do."""
    held = column.combine_chunks().dictionary_encode()
    return held.indices.to_numpy(zero_copy_only=False).astype(int), held.dictionary.to_pylist()


def block_of(everything: pa.Table, model: str, dataset: str, explained: str = "") -> Block:
    failures, rows = failures_of(everything), everything
    target = rows["target"].to_numpy()
    rows = (
        rows.take(np.flatnonzero(target >= 0)) if (target >= 0).any() else rows
    )  # a picture that could not be read asks nothing
    method, methods = coded(rows["method"])
    metric, metrics = coded(rows["metric"])
    questions, asked = questions_of(rows)
    shape = len(methods), len(questions)
    columns = tuple(
        column_of(rows.take(here), spec, method[here], asked[here], shape)
        for code, spec in enumerate(metrics)
        if len(here := np.flatnonzero(metric == code))
    )
    cost = [spread(numbers(rows[name]), method, asked, shape) for name in ("map_seconds", "peak_mib")]
    known = {name: tuple(map(str, rows[name].drop_null().unique().to_pylist())) for name in PROVENANCE}
    facts = (failures, known, everything, explained)
    return Block(model, dataset, tuple(methods), questions, columns, cost[0], cost[1], *facts)


def failures_of(rows: pa.Table) -> dict[str, int]:
    """Why rows have no number, and how many."""
    failures: dict[str, int] = {}
    for sentence in rows["error"].drop_null().to_pylist():
        failures[sentence] = failures.get(sentence, 0) + 1
    return failures


def questions_of(rows: pa.Table) -> tuple[tuple[Question, ...], np.ndarray]:
    """What was asked, each once, and which of it a row answers."""
    names = ("picture", "index", "target", "target_name", "role", "label", "predicted", "probability")
    held: dict[tuple[Any, ...], int] = {}
    found: list[Question] = []
    asked = np.empty(len(rows), int)
    for place, values in enumerate(zip(*(rows[name].to_pylist() for name in names), strict=True)):
        key = (values[0], values[2], values[4])
        if key not in held:
            held[key] = len(found)
            blank: tuple[Any, ...] = ("", -1, -1, f"class {values[2]}", "", -1, -1, np.nan)
            found.append(Question(*(b if v is None else v for v, b in zip(values, blank, strict=True))))
        asked[place] = held[key]
    return tuple(found), asked


def column_of(rows: pa.Table, spec: str, method: np.ndarray, asked: np.ndarray, shape: tuple[int, int]) -> Column:
    parts = {"score": spread(numbers(rows["value"]), method, asked, shape)}
    for place, pairs in enumerate(rows["parts"].to_pylist()):
        for name, number in pairs or ():
            part = parts.setdefault(name, np.full(shape, np.nan))
            part[method[place], asked[place]] = np.nan if number is None else number
    judged = rows["higher_is_better"].drop_null().to_pylist()
    curve, levels = curves_of(rows, method, asked, shape)
    seconds = spread(numbers(rows["seconds"]), method, asked, shape)
    said = next(iter(rows["protocol"].drop_null().to_pylist()), None)
    protocol = json.loads(said) if said else {}
    return Column(spec, judged[0] if judged else None, parts, curve, levels, seconds, protocol)


def curves_of(
    rows: pa.Table, method: np.ndarray, asked: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray | None, tuple[float, ...]]:
    """Curves over the levels that most rows have; in single precision, they are only drawn."""
    levels = [None if one is None else tuple(one) for one in rows["levels"].to_pylist()]
    counted: dict[tuple[float, ...], int] = {}
    for one in levels:
        if one:
            counted[one] = counted.get(one, 0) + 1
    if not counted:
        return None, ()
    common = max(counted, key=lambda one: counted[one])
    made = np.full((*shape, len(common)), np.nan, np.float32)
    for place, (curve, where) in enumerate(zip(rows["curve"].to_pylist(), levels, strict=True)):
        if curve is not None and where == common and len(curve) == len(common):
            made[method[place], asked[place]] = curve
    return made, common


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy().astype(float)


def spread(values: np.ndarray, method: np.ndarray, asked: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Values at their method and question; NaN where there is none."""
    made = np.full(shape, np.nan)
    made[method, asked] = values
    return made
