"""Tables of the selected variants of temper, fuse and anneal, and of their alternatives."""

from __future__ import annotations

from functools import partial

from study.effects import select_rows
from study.names import ANNEAL_LESS, FUSE_LESS, MODELS, QK, TEMPER_LESS, TEMPERED
from study.pages import Results, fill
from study.tables import NOTHING, format_cell, format_differences, format_figure, format_table, match_effects

COLUMNS = {model: match_effects(model, "faithfulness") for model in MODELS}


def write_choices(less: dict[str, tuple[str, str]], results: Results) -> str:
    """Each selected variant minus its alternative (paired)."""
    return format_differences(results.effects("beyond-choose-pairs"), less, COLUMNS)


for _name, _less in (("temper", TEMPER_LESS), ("fuse", FUSE_LESS), ("anneal", ANNEAL_LESS)):
    fill(f"beyond-choose-{_name}")(partial(write_choices, _less))


@fill("beyond-choose-qk")
def write_sweep(results: Results) -> str:
    """Faithfulness by the factor on the gradient through queries and keys, and a quarter minus each."""
    rows = select_rows(results.figures("beyond-choose"), metric="faithfulness")
    pairs = select_rows(results.effects("beyond-choose-pairs"), method=TEMPERED)
    rows_by_method = {(row.model, row.method): row for row in rows}
    less = {(row.model, row.against): row for row in pairs}
    lines = [
        [f"{share:g}", *(format_figure(rows_by_method.get((model, spec))) for model in MODELS), *(format_cell(less.get((model, spec))) for model in MODELS)]
        for share, spec in QK.items()
    ]  # fmt: skip
    head = ["through q and k", *MODELS, *(f"a quarter minus it<br>{model}" for model in MODELS)]
    return format_table(head, lines) if rows else NOTHING


@fill("beyond-masks")
def write_masks(results: Results) -> str:
    """New minus published methods (paired) on the masks of pets and the evidence of Scenes; a dash if not compared."""
    rows = [row for plan in ("beyond-pets", "beyond-scenes", "scenes") for row in select_rows(results.effects(f"{plan}-pairs"), metric="ap")]  # fmt: skip
    columns = list(dict.fromkeys((row.dataset, row.model) for row in rows))
    lines = [
        [f"{method} − {other}", *(format_cell(next(iter(select_rows(rows, dataset=dataset, model=model, method=method, against=other)), None)) for dataset, model in columns)]
        for method in ("temper", "fuse", "anneal")
        for other in ("genatt", "decompx+skipplus", "decompx(question='probability')+plus", "tis(masks=256)", "tis")
    ]  # fmt: skip
    head = ["AP", *(f"{dataset}<br>{model}" for dataset, model in columns)]
    return format_table(head, lines) if columns else NOTHING
