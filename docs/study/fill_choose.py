"""What was chosen for temper, fuse and anneal, and what the other choices would have brought."""

from __future__ import annotations

from functools import partial

from study.effects import only
from study.names import ANNEAL_LESS, FUSE_LESS, MODELS, QK, TEMPER_LESS, TEMPERED
from study.pages import Results, fill
from study.tables import NOTHING, about, cell, gains, of, table

COLUMNS = {model: of(model, "faithfulness") for model in MODELS}


def chosen(less: dict[str, tuple[str, str]], results: Results) -> str:
    """Each choice less its alternative, in pairs."""
    return gains(results.effects("beyond-choose-pairs"), less, COLUMNS)


for _name, _less in (("temper", TEMPER_LESS), ("fuse", FUSE_LESS), ("anneal", ANNEAL_LESS)):
    fill(f"beyond-choose-{_name}")(partial(chosen, _less))


@fill("beyond-choose-qk")
def sweep(results: Results) -> str:
    """How much of the gradient goes through queries and keys: the figure, and what a quarter has over it."""
    rows = only(results.figures("beyond-choose"), metric="faithfulness")
    pairs = only(results.effects("beyond-choose-pairs"), method=TEMPERED)
    rows_by_method = {(row.model, row.method): row for row in rows}
    less = {(row.model, row.against): row for row in pairs}
    lines = [
        [f"{share:g}", *(about(rows_by_method.get((model, spec))) for model in MODELS), *(cell(less.get((model, spec))) for model in MODELS)]
        for share, spec in QK.items()
    ]  # fmt: skip
    head = ["through q and k", *MODELS, *(f"a quarter less it<br>{model}" for model in MODELS)]
    return table(head, lines) if rows else NOTHING


@fill("beyond-masks")
def masks(results: Results) -> str:
    """Ours and what was published on the masks of pets and the evidence of Scenes, in pairs; what was not compared has a dash."""
    rows = [row for plan in ("beyond-pets", "beyond-scenes", "scenes") for row in only(results.effects(f"{plan}-pairs"), metric="ap")]  # fmt: skip
    columns = list(dict.fromkeys((row.dataset, row.model) for row in rows))
    lines = [
        [f"{method} − {other}", *(cell(next(iter(only(rows, dataset=dataset, model=model, method=method, against=other)), None)) for dataset, model in columns)]
        for method in ("temper", "fuse", "anneal")
        for other in ("genatt", "decompx+skipplus", "decompx(question='probability')+plus", "tis(masks=256)", "tis")
    ]  # fmt: skip
    head = ["AP", *(f"{dataset}<br>{model}" for dataset, model in columns)]
    return table(head, lines) if columns else NOTHING
