"""What stands on the page about TokenTM."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from study import plots
from study.effects import Effect, only
from study.names import ABLATION, MODELS, OPEN, READINGS
from study.pages import Results, fill, plot
from study.published import METHODS
from study.sentences import answer, counted, joined, number, ranked, tally_by_model, title, verdict
from study.special import Order
from study.tables import NOTHING, gains, of, standings, table

SEGMENTATION = ["pixel_accuracy", "map_two_channel", "miou"]
CURVES = ["negative_auc(preset='tokentm')", "positive_auc(preset='tokentm')"]
DROPS = ["aopc(preset='tokentm')", "lodds(preset='tokentm')"]
STEPS = {"+ AF": (ABLATION[1], ABLATION[0]), "+ L": (ABLATION[2], ABLATION[1]), "+ NECC": (ABLATION[3], ABLATION[2])}
ROWS = (*METHODS, "random")


def effects(results: Results) -> list[Effect]:
    """Of both plans: segmentation on pets, perturbation on val."""
    return [*results.effects("tokentm-pets-pairs"), *results.effects("tokentm-pairs")]


def columns(model: str) -> dict:
    columns_by_title = {title(metric): of(model, metric) for metric in SEGMENTATION}
    for role in ("predicted", "label"):
        columns_by_title |= {f"{title(metric)}<br>{role}": of(model, metric, role) for metric in CURVES}
    return columns_by_title | {title(metric): of(model, metric, "predicted") for metric in DROPS}


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
            role_words = {"": "", "predicted": " (predicted class)", "label": " (true class)"}[role]
            lines += [f"- better by {title(metric)}{role_words}? {answer(own)}"] if own else []
    return "\n".join([tally_by_model(rows, "measures"), "", *lines])


@fill("tokentm-fair")
def fair(results: Results) -> str:
    """The same, when GenAtt is of the probability as TokenTM is."""
    return tally_by_model(
        only(effects(results), method="tokentm", against="genatt(question='probability')"), "measures"
    )


def ablation(results: Results, model: str) -> str:
    return gains(effects(results), STEPS, columns(model))


def points(results: Results, model: str) -> str:
    return gains(effects(results), {method: (method, "genatt") for method in OPEN}, columns(model))


for _model in MODELS:
    fill(f"tokentm-ablation-{_model.lower()}")(partial(ablation, model=_model))
    fill(f"tokentm-open-{_model.lower()}")(partial(points, model=_model))


@fill("tokentm-steps")
def steps(results: Results) -> str:
    """What every part brings."""
    lines = []
    for name, (method, against) in STEPS.items():
        own = only(effects(results), method=method, against=against)
        lines += [f"- **{name}** — {tally_by_model(own, 'measures')}"] if own else []
        for metric, role in ((SEGMENTATION[2], ""), (CURVES[0], "predicted"), (CURVES[1], "predicted")):
            shown_effects = only(own, metric=metric, explained=role)
            lines += [f"    - better by {title(metric)}? {answer(shown_effects)}"] if shown_effects else []
    return "\n".join(lines) or NOTHING


def published(results: Results) -> list[Order]:
    return [*results.orders("tokentm-pets-published"), *results.orders("tokentm-published")]


@fill("tokentm-order")
def order(results: Results) -> str:
    """Which reading has the published order, TokenTM before GenAtt, most often?"""
    lines, best = [], {}
    for reading in OPEN:
        own = only(effects(results), method=reading, against="genatt")
        if own:
            best[reading] = sum(row.effect > 0 for row in own)
            counts = [sum(verdict(row) == word for row in own) for word in ("better", "worse")]
            lines.append(
                f"- `{reading}` is ahead of GenAtt in {best[reading]} of {counted(len(own), 'comparison')}; significantly in {counts[0]}, and significantly behind in {counts[1]}."
            )
    if not lines:
        return NOTHING
    winners = [f"`{reading}`" for reading, count in best.items() if count == max(best.values())]
    who = f"most often by {joined(winners)}" if len(winners) < len(best) else "as often by every reading"
    who = who if max(best.values()) else "by no reading in any measure"
    first = f"The published order, TokenTM before GenAtt, is matched {who}."
    return "\n".join([first + nearest(results), "", *lines])


def nearest(results: Results) -> str:
    """Which reading comes nearest to the whole of the paper's tables, by mean τ over both models and both plans."""
    rows, sentences = published(results), []
    for words, readings in (("nine methods", OPEN), ("four steps", READINGS)):
        means = {}
        for reading in readings:
            own = [row.tau for row in only(rows, metric=reading) if row.tau == row.tau]
            means |= {reading: sum(own) / len(own)} if own else {}
        if means:
            top = max(means, key=means.__getitem__)
            rest = ", ".join(number(means[reading], 2) for reading in means if reading != top)
            name = f"`{top}`" if words == "nine methods" else top
            sentences.append(f"the {words} by {name} (mean τ {number(means[top], 2)}; the others {rest})")
    return f" The published order of all rows is matched best, of {', and of '.join(sentences)}." if sentences else ""


@fill("tokentm-published")
def agreements(results: Results) -> str:
    """Kendall's τ with the paper's tables, reading by reading."""
    rows, lines = published(results), []
    sets = [(model, data) for data in dict.fromkeys(order.dataset for order in rows) for model in MODELS]
    for words, readings in (("nine methods", OPEN), ("steps", READINGS)):
        for reading in readings:
            orders_by_set = {(row.model, row.dataset): row for row in only(rows, metric=reading)}
            lines.append([f"{words}: {reading}", *(ranked(orders_by_set.get(place)) for place in sets)])
    return table(["order of the …", *(f"{model}<br>{data}" for model, data in sets)], lines if rows else [])


@plot("tokentm-gains")
def draw(results: Results) -> Path | None:
    """Every reading of TokenTM less GenAtt, with 95 % intervals"""
    rows = [
        row for row in effects(results) if row.against == "genatt" and row.method in OPEN and row.explained != "label"
    ]
    if not rows:
        return None
    panels = {title(metric): only(rows, metric=metric) for metric in (*SEGMENTATION, *CURVES, DROPS[0])}
    series = {model: (lambda row, model=model: row.model == model) for model in MODELS}
    return plots.forest(
        "tokentm-gains", panels, [plots.short(method) for method in OPEN], lambda row: plots.short(row.method), series
    )
