"""The table of a model on a data set: methods × metrics, with what each method costs."""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np

from vitreous.bench.resample import DRAWS, FEW
from vitreous.core.errors import VitreousError
from vitreous.report.block import Block
from vitreous.report.stats import Standing, mean_ranks
from vitreous.report.tables import Cell, Head, Table, comma_separated, places
from vitreous.report.words import ARROWS, digits_of, number, plural, seconds

OPERATIONS: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
UNSURE = 20  # pictures below which intervals deserve a warning


def main_table(block: Block, standings: Sequence[Standing], slug: str, patches: int | None = None) -> Table:
    heads = [Head(one.column.metric, one.column.higher, True, is_spec=True) for one in standings]
    heads += [
        Head("mean rank", False, hint="over the metrics that judge"),
        Head(
            "cost", hint="median seconds per map, without the forward pass that methods share; forwards and backwards"
        ),
    ]
    ranks = mean_ranks(standings)
    best = places(ranks, False)
    rows = []
    for row, method in enumerate(block.methods):
        cells = [score_cell(one, row) for one in standings]
        time = middle_of(block.map_seconds[row])
        forwards, backwards = passes(method, patches)
        cells += [
            Cell(number(ranks[row], 2), ranks[row], place=best[row] if len(block.methods) > 1 else None),
            Cell(seconds(time), time, aside=f"{forwards} fwd, {backwards} bwd"),
        ]
        rows.append((method, cells))
    title = block.title
    return Table(slug, title, heads, rows, notes=notes(block, standings))


def score_cell(one: Standing, row: int) -> Cell:
    digits = digits_of(one.values.tolist())
    value, (low, high), rank = float(one.values[row]), one.spans[row], one.ranks[row]
    span = "" if isnan(low) else f"[{number(low, digits)}, {number(high, digits)}]"
    missing, failed = int(one.undefined[row]), int(one.errors[row])
    aside = [f"rank {rank}"] if rank else []
    aside += [f"{missing} of {one.rows} undefined"] if missing else []
    aside += [f"{failed} failed"] if failed else []
    place = None if rank is None else printed_place(one, row)
    tied = one.tied[row] and rank is not None and rank > 1
    return Cell(number(value, digits), value, span, place, tied, " · ".join(aside))


def printed_place(one: Standing, row: int) -> int | None:
    return places(one.values.tolist(), one.column.higher)[row] if len(one.values) > 1 else None


def notes(block: Block, standings: Sequence[Standing]) -> list[str]:
    """How the numbers are to be read, and what should make one careful."""
    pictures, asked = len(block.clusters), len(block.questions)
    several = f", {plural(asked, 'question')} (picture × class: {', '.join(block.roles)})" if asked > pictures else ""
    said = [
        f"{plural(pictures, 'picture')}{several}. Best bold, second underlined; brackets hold the 95 % interval over {DRAWS} "
        "resamplings of the pictures, the same for every method; ≈ is not told from the best (the interval of the paired "
        "difference holds 0; not corrected for many comparisons)."
    ]
    if pictures < FEW:
        said.append("One picture has no interval.")
    elif pictures < UNSURE:
        said.append(f"Intervals from {plural(pictures, 'picture')} are too narrow more often than they say.")
    if any(len(set(one.undefined.tolist())) > 1 for one in standings):
        said.append(
            "Some methods are undefined on questions on which others are not: every figure is over the questions on which its own "
            "method is defined, and ≈ is told on those on which both are."
        )
    if any(one.errors.any() and not one.errors.all() for one in standings):
        said.append(
            "Pictures on which a method failed are left out for all of them, so that all figures are over the same ones."
        )
    said += [f"{plural(count, 'row')} failed: {sentence}" for sentence, count in block.failures.items()]
    return said


def middle_of(values: np.ndarray) -> float:
    """The median of what is known."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────


def passes(spec: str, patches: int | None = None) -> tuple[int | str, int | str]:
    """Forwards and backwards of a method per picture, counted out where its options tell."""
    from vitreous.methods.spec import resolve

    try:
        found = resolve(spec)
    except VitreousError:
        return "?", "?"
    known = {**found.known_options, **found.options, **({} if patches is None else {"patches": patches})}
    return counted(found.forwards, known), counted(found.backwards, known)


def counted(formula: int | str, known: dict[str, Any]) -> int | str:
    """`"1 + masks"` with masks=256 is 257; what cannot be counted stays as it is written."""
    if isinstance(formula, int):
        return formula
    try:
        return int(value_of(ast.parse(formula, mode="eval").body, known))
    except (SyntaxError, KeyError, TypeError):
        return formula


def value_of(node: ast.AST, known: dict[str, Any]) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name) if isinstance(known[name], int):
            return known[name]
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATIONS[type(op)](value_of(left, known), value_of(right, known))
    raise TypeError


# ── the same, for machines ───────────────────────────────────────────────────────────────────────


HEADS = [
    "model",
    "dataset",
    "explained",
    "method",
    "metric",
    "direction",
    "value",
    "low",
    "high",
    "rank",
    "tied_with_best",
]
HEADS += ["questions", "undefined", "failed", "map_seconds", "metric_seconds", "forwards", "backwards"]


def tidy(blocks: Sequence[tuple[Block, Sequence[Standing]]]) -> str:
    """One line per model, data set, method and metric."""
    rows = []
    for block, standings in blocks:
        for row, method in enumerate(block.methods):
            cost = passes(method)
            for one in standings:
                spent = float("nan") if one.column.seconds is None else middle_of(one.column.seconds[row])
                rows.append(
                    [
                        *(
                            block.model,
                            block.dataset,
                            block.explained,
                            method,
                            one.column.metric,
                            ARROWS[one.column.higher],
                        ),
                        *(float(one.values[row]), *one.spans[row], one.ranks[row]),
                        *("" if one.ranks[row] is None else int(one.tied[row]), one.rows),
                        *(
                            int(one.undefined[row]),
                            int(one.errors[row]),
                            middle_of(block.map_seconds[row]),
                            spent,
                            *cost,
                        ),
                    ]
                )
    return comma_separated(HEADS, rows)
