"""Tables and answers of the page about newer methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from study import grids
from study.effects import select_rows
from study.names import FOLDS, LINEARISATIONS, MODELS, PUBLISHED, QUESTIONS, SIGNALS
from study.pages import Results, fill, plot
from study.sentences import format_answer, format_count, format_metric, format_number
from study.tables import NOTHING, format_differences, format_ranking, match_effects


@fill("newer-table")
def write_table(results: Results) -> str:
    return format_ranking(
        results.figures("newer"), ["faithfulness", "deletion_aopc", "insertion_aopc"], by="faithfulness"
    )


@fill("newer-answer")
def write_answer(results: Results) -> str:
    rows = select_rows(results.effects("newer-pairs"), metric="faithfulness", against="decompx+skipplus")
    methods = ("fullgrad@libra+plus", "attnlrp", "attnlrp+plus", "legrad", "genatt", "tokentm", "transatt")
    return (
        "\n".join(
            f"- `{method}`, better than `decompx+skipplus`? {format_answer(own)}"
            for method in methods
            if (own := select_rows(rows, method=method))
        )
        or NOTHING
    )


@fill("newer-question")
def write_score_functions(results: Results) -> str:
    """Each method explaining the probability minus the same method explaining the logit."""
    return format_differences(
        results.effects("newer-pairs"), QUESTIONS, {model: match_effects(model, "faithfulness") for model in MODELS}
    )


@fill("newer-chosen")
def write_selected(results: Results) -> str:
    """Unpublished combinations against the best published one."""
    rows = results.effects("newer-grid-chosen")
    lines = []
    for row in rows:
        if "confirm" in row.dataset:
            before = select_rows(rows, model=row.model, method=row.method, against=row.against)[0]
            lines.append(
                f"- Does `{row.method}` beat `{row.against}`, the best published? {format_answer([row])} On the selection half it was {format_number(before.effect, 3, plus=True)}; {format_count(row.n, 'image')} each."
            )  # fmt: skip
    return "\n".join(lines) or NOTHING


@plot("newer-grid")
def draw_grid(results: Results) -> Path | None:
    """Faithfulness of every signal, linearisation and fold on the confirmation half; framed cells are published, and LeGrad's own fold is PLUS"""
    rows = [
        figure
        for figure in select_rows(results.figures("newer-grid"), metric="faithfulness")
        if "confirm" in figure.dataset
    ]
    if not rows:
        return None
    means = {(figure.model, figure.method): figure.mean for figure in rows}
    across = [(line, fold) for line in LINEARISATIONS for fold in FOLDS]
    spec = [[f"{signal}{LINEARISATIONS[line]}{FOLDS[fold]}" for line, fold in across] for signal in SIGNALS]
    panels = {
        model: np.array([[means.get((model, method), np.nan) for method in row] for row in spec]) for model in MODELS
    }
    framed = np.array([[method in PUBLISHED for method in row] for row in spec])
    names = [f"{line} · {fold}" for line, fold in across]
    return grids.draw_heatmap(
        "newer-grid", panels, SIGNALS, names, f"{format_metric('faithfulness')}  (more is better)", framed
    )
