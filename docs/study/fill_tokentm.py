"""What stands on the page about TokenTM."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from study import plots
from study.effects import Effect, only
from study.names import ABLATION, MODELS, OPEN
from study.pages import Results, fill, plot
from study.sentences import answer, held, title, verdict
from study.tables import NOTHING, gains, of, standings

SEGMENTATION = ["pixel_accuracy", "map_two_channel", "miou"]
CURVES = ["negative_auc(preset='tokentm')", "positive_auc(preset='tokentm')"]
DROPS = ["aopc(preset='tokentm')", "lodds(preset='tokentm')"]
STEPS = {"+ AF": (ABLATION[1], ABLATION[0]), "+ L": (ABLATION[2], ABLATION[1]), "+ NECC": (ABLATION[3], ABLATION[2])}
ROWS = (
    "attcam(preset='chefer')", "lrp", "conservativelrp", "transatt(preset='experiments')", "rawattention",
    "rollout(preset='chefer')", "attcat", "genatt", "tokentm", "random",
)  # fmt: skip


def effects(results: Results) -> list[Effect]:
    """Of both plans: segmentation on pets, perturbation on val."""
    return [*results.effects("tokentm-pets-pairs"), *results.effects("tokentm-pairs")]


def columns(model: str) -> dict:
    found = {title(metric): of(model, metric) for metric in SEGMENTATION}
    for role in ("predicted", "label"):
        found |= {f"{title(metric)}<br>{role}": of(model, metric, role) for metric in CURVES}
    return found | {title(metric): of(model, metric, "predicted") for metric in DROPS}


@fill("tokentm-segmentation")
def segmentation(results: Results) -> str:
    return standings(results.figures("tokentm-pets"), SEGMENTATION, methods=ROWS)


def perturbation(role: str, results: Results) -> str:
    rows = only(results.figures("tokentm"), explained=role)
    return standings(rows, [*CURVES, *(DROPS if role == "predicted" else [])], methods=ROWS)


fill("tokentm-predicted")(partial(perturbation, "predicted"))
fill("tokentm-label")(partial(perturbation, "label"))


@fill("tokentm-genatt")
def genatt(results: Results) -> str:
    """Is TokenTM at least as good as GenAtt, measure by measure?"""
    rows = only(effects(results), method="tokentm", against="genatt")
    if not rows:
        return NOTHING
    lines = []
    for metric in (*SEGMENTATION, *CURVES, *DROPS):
        for role in ("", "predicted", "label"):
            own = only(rows, metric=metric, explained=role)
            said = {"": "", "predicted": " (predicted class)", "label": " (true class)"}[role]
            lines += [f"- {title(metric)}{said}: {answer(own)}"] if own else []
    return "\n".join([held(rows, "measures"), "", *lines])


@fill("tokentm-fair")
def fair(results: Results) -> str:
    """The same, when GenAtt is asked about the probability as TokenTM is."""
    return held(only(effects(results), method="tokentm", against="genatt(question='probability')"), "measures")


def ablation(results: Results, model: str) -> str:
    return gains(effects(results), STEPS, columns(model))


def points(results: Results, model: str) -> str:
    return gains(effects(results), {one: (one, "genatt") for one in OPEN}, columns(model))


for _model in MODELS:
    fill(f"tokentm-ablation-{_model.lower()}")(partial(ablation, model=_model))
    fill(f"tokentm-open-{_model.lower()}")(partial(points, model=_model))


@fill("tokentm-steps")
def steps(results: Results) -> str:
    """What every part brings."""
    lines = []
    for name, (method, against) in STEPS.items():
        own = only(effects(results), method=method, against=against)
        lines += [f"- **{name}** — {held(own, 'measures')}"] if own else []
    return "\n".join(lines) or NOTHING


@fill("tokentm-order")
def order(results: Results) -> str:
    """Which reading has the published order, TokenTM before GenAtt, most often?"""
    lines, best = [], {}
    for one in OPEN:
        own = only(effects(results), method=one, against="genatt")
        if own:
            best[one] = sum(row.effect > 0 for row in own)
            told = [sum(verdict(row) == word for row in own) for word in ("better", "worse")]
            lines.append(
                f"- `{one}`: ahead of GenAtt in {best[one]} of {len(own)} comparisons (told in {told[0]}; told behind in {told[1]})"
            )
    if not lines:
        return NOTHING
    winners = [f"`{one}`" for one, count in best.items() if count == max(best.values())]
    return "\n".join([f"The published order is matched most often by {' and '.join(winners)}.", "", *lines])


@plot("tokentm-gains")
def draw(results: Results) -> Path | None:
    """TokenTM less GenAtt, and less every reading of its open points, with 95 % intervals"""
    rows = [
        one for one in effects(results) if one.against == "genatt" and one.method in OPEN and one.explained != "label"
    ]
    if not rows:
        return None
    panels = {title(metric): only(rows, metric=metric) for metric in (*SEGMENTATION, *CURVES, DROPS[0])}
    series = {model: (lambda one, model=model: one.model == model) for model in MODELS}
    return plots.forest(
        "tokentm-gains", panels, [plots.short(one) for one in OPEN], lambda one: plots.short(one.method), series
    )
