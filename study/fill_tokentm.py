"""Tables and answers of the page about TokenTM."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from study import plots
from study.effects import Effect, select_rows
from study.names import ABLATION, MODELS, VARIANT_STEPS, VARIANTS
from study.pages import Results, fill, plot
from study.published import METHODS
from study.sentences import (
    format_answer,
    format_count,
    format_metric,
    format_number,
    format_tally_by_model,
    format_tau,
    join_words,
    judge,
)
from study.special import Order
from study.tables import NOTHING, format_differences, format_ranking, format_table, match_effects

SEGMENTATION = ["pixel_accuracy", "map_two_channel", "miou"]
CURVES = ["negative_auc(preset='tokentm')", "positive_auc(preset='tokentm')"]
DROPS = ["aopc(preset='tokentm')", "lodds(preset='tokentm')"]
STEPS = {"+ AF": (ABLATION[1], ABLATION[0]), "+ L": (ABLATION[2], ABLATION[1]), "+ NECC": (ABLATION[3], ABLATION[2])}
ROWS = (*METHODS, "random")


def read_effects(results: Results) -> list[Effect]:
    """Effects of both plans: segmentation on pets, perturbation on val."""
    return [*results.effects("tokentm-pets-pairs"), *results.effects("tokentm-pairs")]


def list_columns(model: str) -> dict:
    columns_by_title = {format_metric(metric): match_effects(model, metric) for metric in SEGMENTATION}
    for role in ("predicted", "label"):
        columns_by_title |= {
            f"{format_metric(metric)}<br>{role}": match_effects(model, metric, role) for metric in CURVES
        }
    return columns_by_title | {format_metric(metric): match_effects(model, metric, "predicted") for metric in DROPS}


@fill("tokentm-segmentation")
def write_segmentation(results: Results) -> str:
    return format_ranking(results.figures("tokentm-pets"), SEGMENTATION, methods=ROWS)


def write_perturbation(role: str, results: Results) -> str:
    rows = select_rows(results.figures("tokentm"), explained=role)
    return format_ranking(rows, [*CURVES, *(DROPS if role == "predicted" else [])], methods=ROWS)


fill("tokentm-predicted")(partial(write_perturbation, "predicted"))
fill("tokentm-label")(partial(write_perturbation, "label"))


@fill("tokentm-genatt")
def write_genatt(results: Results) -> str:
    """Comparison of TokenTM with GenAtt by every measure."""
    rows = select_rows(read_effects(results), method="tokentm", against="genatt")
    if not rows:
        return NOTHING
    lines = []
    for metric in (*SEGMENTATION, *CURVES, *DROPS):
        for role in ("", "predicted", "label"):
            own = select_rows(rows, metric=metric, explained=role)
            role_words = {"": "", "predicted": " (predicted class)", "label": " (true class)"}[role]
            lines += [f"- better by {format_metric(metric)}{role_words}? {format_answer(own)}"] if own else []
    return "\n".join([format_tally_by_model(rows, "measures"), "", *lines])


@fill("tokentm-fair")
def write_same_score(results: Results) -> str:
    """The same if GenAtt explains the probability, as TokenTM does."""
    return format_tally_by_model(
        select_rows(read_effects(results), method="tokentm", against="genatt(question='probability')"), "measures"
    )


def write_ablation(results: Results, model: str) -> str:
    return format_differences(read_effects(results), STEPS, list_columns(model))


def write_variants(results: Results, model: str) -> str:
    return format_differences(
        read_effects(results), {method: (method, "genatt") for method in VARIANTS}, list_columns(model)
    )


for _model in MODELS:
    fill(f"tokentm-ablation-{_model.lower()}")(partial(write_ablation, model=_model))
    fill(f"tokentm-open-{_model.lower()}")(partial(write_variants, model=_model))


@fill("tokentm-steps")
def write_steps(results: Results) -> str:
    """Effect of every part of TokenTM."""
    lines = []
    for name, (method, against) in STEPS.items():
        own = select_rows(read_effects(results), method=method, against=against)
        lines += [f"- **{name}** — {format_tally_by_model(own, 'measures')}"] if own else []
        for metric, role in ((SEGMENTATION[2], ""), (CURVES[0], "predicted"), (CURVES[1], "predicted")):
            shown_effects = select_rows(own, metric=metric, explained=role)
            lines += (
                [f"    - better by {format_metric(metric)}? {format_answer(shown_effects)}"] if shown_effects else []
            )
    return "\n".join(lines) or NOTHING


def read_orders(results: Results) -> list[Order]:
    return [*results.orders("tokentm-pets-published"), *results.orders("tokentm-published")]


@fill("tokentm-order")
def write_order(results: Results) -> str:
    """Variants that have the published order, TokenTM before GenAtt, most often."""
    lines, best = [], {}
    for variant in VARIANTS:
        own = select_rows(read_effects(results), method=variant, against="genatt")
        if own:
            best[variant] = sum(row.effect > 0 for row in own)
            counts = [sum(judge(row) == word for row in own) for word in ("better", "worse")]
            lines.append(
                f"- `{variant}` is better than GenAtt in {best[variant]} of {format_count(len(own), 'comparison')}; significantly better in {counts[0]}, and significantly worse in {counts[1]}."
            )
    if not lines:
        return NOTHING
    winners = [f"`{variant}`" for variant, count in best.items() if count == max(best.values())]
    matched = f"most often by {join_words(winners)}" if len(winners) < len(best) else "equally often by every variant"
    matched = matched if max(best.values()) else "by no variant in any measure"
    first = f"The published order, TokenTM before GenAtt, is matched {matched}."
    return "\n".join([first + describe_nearest(results), "", *lines])


def describe_nearest(results: Results) -> str:
    """Variant that is closest to the order of all rows of the paper's tables, by mean τ over both models and both plans."""
    rows, sentences = read_orders(results), []
    for words, variants in (("nine methods", VARIANTS), ("four steps", VARIANT_STEPS)):
        means = {}
        for variant in variants:
            own = [row.tau for row in select_rows(rows, metric=variant) if row.tau == row.tau]
            means |= {variant: sum(own) / len(own)} if own else {}
        if means:
            top = max(means, key=means.__getitem__)
            rest = ", ".join(format_number(means[variant], 2) for variant in means if variant != top)
            name = f"`{top}`" if words == "nine methods" else top
            sentences.append(f"the {words} by {name} (mean τ {format_number(means[top], 2)}; the others {rest})")
    return f" The published order of all rows is matched best, for {', and for '.join(sentences)}." if sentences else ""


@fill("tokentm-published")
def write_agreements(results: Results) -> str:
    """Kendall's τ with the paper's tables, for every variant."""
    rows, lines = read_orders(results), []
    sets = [(model, data) for data in dict.fromkeys(order.dataset for order in rows) for model in MODELS]
    for words, variants in (("nine methods", VARIANTS), ("steps", VARIANT_STEPS)):
        for variant in variants:
            orders_by_set = {(row.model, row.dataset): row for row in select_rows(rows, metric=variant)}
            lines.append([f"{words}: {variant}", *(format_tau(orders_by_set.get(place)) for place in sets)])
    return format_table(["order of the …", *(f"{model}<br>{data}" for model, data in sets)], lines if rows else [])


@plot("tokentm-gains")
def draw_gains(results: Results) -> Path | None:
    """Every variant of TokenTM minus GenAtt, with 95 % intervals"""
    rows = [
        row
        for row in read_effects(results)
        if row.against == "genatt" and row.method in VARIANTS and row.explained != "label"
    ]
    if not rows:
        return None
    panels = {format_metric(metric): select_rows(rows, metric=metric) for metric in (*SEGMENTATION, *CURVES, DROPS[0])}
    series = {model: (lambda row, model=model: row.model == model) for model in MODELS}
    return plots.draw_forest(
        "tokentm-gains",
        panels,
        [plots.shorten_spec(method) for method in VARIANTS],
        lambda row: plots.shorten_spec(row.method),
        series,
    )
