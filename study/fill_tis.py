"""Tables and answers of the page about TIS."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from study import plots
from study.effects import Effect, Figure, select_rows
from study.names import MODELS, SPEC_BY_SHARE, TIS, TIS_LOGIT, TIS_PROBABILITY
from study.pages import Results, fill, plot
from study.sentences import (
    FEW,
    describe_difference,
    format_answer,
    format_count,
    format_effect,
    format_metric,
    format_number,
    judge,
)
from study.tables import NOTHING, format_differences, format_ranking, match_effects

BASELINES = ("mean", "blur", "black", "random")
OPTION = {
    baseline: f"insertion_minus_deletion(preset='tis', baseline='{baseline}', steps=28)"
    for baseline in ("black", "blur")
}


def list_metrics(results: Results, name: str) -> list[str]:
    """Metrics of the plan with this name, for every baseline."""
    metrics = dict.fromkeys(row.metric for row in results.figures("tis"))
    return [
        metric
        for baseline in BASELINES
        for metric in metrics
        if metric.startswith(f"{name}(") and f"baseline='{baseline}'" in metric
    ]


def write_curves(name: str, results: Results) -> str:
    return format_ranking(results.figures("tis"), list_metrics(results, name))


for _name in ("insertion", "deletion", "insertion_minus_deletion"):
    fill(f"tis-{_name.replace('_', '-')}")(partial(write_curves, _name))


def find_nearest(effects: list[Effect]) -> list[Effect]:
    """For every model, the effect against the best of the other methods."""
    models = dict.fromkeys(row.model for row in effects)
    return [min(select_rows(effects, model=model), key=lambda row: row.effect) for model in models]


PAPER = ("vitcx", "tam", "transatt", "genatt", "rollout", "bth", "btt", "rise", "ig", "smoothgrad")


@fill("tis-first")
def write_first(results: Results) -> str:
    """Rank of TIS among the paper's methods, for every baseline."""
    lines = []
    for metric in list_metrics(results, "insertion_minus_deletion"):
        rows = select_rows(results.effects("tis-pairs"), method=TIS, metric=metric)
        for effect in find_nearest([row for row in rows if row.against.split("(")[0] in PAPER]):
            own = [judge(row) for row in select_rows(rows, model=effect.model) if row.against.split("(")[0] in PAPER]
            word = {"better": "yes, first", "worse": "no", "open": "undecided"}.get(judge(effect), "unknown")
            lines.append(
                f"- {format_metric(metric)}, {effect.model}: {word}; {format_effect(effect)} against `{effect.against}`, the best of the others; significantly better than {own.count('better')} of {len(own)}, worse than {own.count('worse')}."
            )
    return "\n".join(lines) or NOTHING


@fill("tis-pointing")
def write_pointing(results: Results) -> str:
    return format_ranking(
        results.figures("tis-pointing"),
        ["pointing_game(preset='tis')", "sparseness(preset='tis-released')"],
        by="pointing_game(preset='tis')",
    )


@fill("tis-pointing-answer")
def write_pointing_answer(results: Results) -> str:
    rows = select_rows(results.effects("tis-pointing-pairs"), method="tis(masks=256)")
    lines = [
        f"- Is TIS better than `{row.against}`, the best of the others? {format_answer([row])}"
        for row in find_nearest(select_rows(rows, metric="pointing_game(preset='tis')"))
    ]
    lines += [
        f"- {row.model}: the sparseness of TIS is {describe_difference(row)} that of GenAtt."
        for row in select_rows(rows, against="genatt", metric="sparseness(preset='tis-released')")
    ]
    return "\n".join(lines) or NOTHING


@fill("tis-sensitivity")
def write_sensitivity(results: Results) -> str:
    return format_ranking(
        results.figures("tis-sensitivity"), ["max_sensitivity(preset='tis')"], by="max_sensitivity(preset='tis')"
    )


@fill("tis-sensitivity-answer")
def write_sensitivity_answer(results: Results) -> str:
    """Methods that are less and more sensitive than TIS."""
    rows, lines = select_rows(results.effects("tis-sensitivity-pairs"), method=TIS), []
    for model in MODELS:
        own = [row for row in select_rows(rows, model=model) if row.against != "random"]
        if own and own[0].n < FEW:
            lines.append(f"- {model}, {format_count(own[0].n, 'image')}: too few for a verdict; the values are below.")
        elif own:
            kinds = {word: [row for row in own if judge(row) == word] for word in ("worse", "better")}
            names_by_verdict = {
                word: ", ".join(f"`{row.against}` (by {format_number(abs(row.effect), 3)})" for row in sorted(effects, key=lambda row: -abs(row.effect))) or "none"
                for word, effects in kinds.items()
            }  # fmt: skip
            lines.append(
                f"- {model}, {format_count(own[0].n, 'image')}: less sensitive than TIS: {names_by_verdict['worse']}; more sensitive: {names_by_verdict['better']}."
            )
    for other in ("genatt", "rise(preset='tis', masks=1000)"):
        own = [effect for effect in select_rows(rows, against=other) if effect.n >= FEW]
        lines += [f"- Is TIS less sensitive than `{other}`? {format_answer(own)}"] if own else []
    return "\n".join(lines) or NOTHING


@fill("tis-options")
def write_options(results: Results) -> str:
    return format_ranking(results.figures("tis-options"), [*OPTION.values(), "faithfulness"])


CHOICES = {
    "1024 masks − 128": ("tis", "tis(masks=128)"),
    "1024 masks − 256": ("tis", "tis(masks=256)"),
    "1024 masks − 512": ("tis", "tis(masks=512)"),
    "1024 masks − 2048": ("tis", "tis(masks=2048)"),
    "tokens removed − pixels painted over": ("tis", "tis(ablate='pixels')"),
    "probability − logit": ("tis", "tis(question='logit')"),
    **{
        f"half of the tokens kept − {share}": (SPEC_BY_SHARE[0.5], SPEC_BY_SHARE[share])
        for share in (0.1, 0.3, 0.7, 0.9)
    },
}


@fill("tis-tokens")
def write_choices(results: Results) -> str:
    """Effects of the options of TIS: removing tokens or painting pixels, number of masks, probability or logit."""
    rows = results.effects("tis-options-pairs")
    if not rows:
        return NOTHING
    lines = []
    for words, (method, against) in CHOICES.items():
        own = select_rows(rows, metric="faithfulness", method=method, against=against)
        lines += [f"- {words}: is the first more faithful? {format_answer(own)}"] if own else []
    columns = {f"{format_metric(metric)}<br>{model}": match_effects(model, metric) for metric in (*OPTION.values(), "faithfulness") for model in MODELS}  # fmt: skip
    return "\n".join(lines) + "\n\n" + format_differences(rows, CHOICES, columns)


@plot("tis-options")
def draw_options(results: Results) -> Path | None:
    """Faithfulness of TIS by number of masks (half of the tokens kept), and by the share of tokens kept (512 masks)"""
    figures_by_method = {
        (row.model, row.method): row for row in select_rows(results.figures("tis-options"), metric="faithfulness")
    }
    if not figures_by_method:
        return None
    masks = {128: "tis(masks=128)", 256: "tis(masks=256)", 512: "tis(masks=512)", 1024: "tis", 2048: "tis(masks=2048)"}
    panels = {
        "number of masks": {
            model: [
                (float(k), figures_by_method[model, spec])
                for k, spec in masks.items()
                if (model, spec) in figures_by_method
            ]
            for model in MODELS
        },
        "share of tokens kept": {
            model: [
                (k, figures_by_method[model, spec])
                for k, spec in sorted(SPEC_BY_SHARE.items())
                if (model, spec) in figures_by_method
            ]
            for model in MODELS
        },
    }
    return plots.draw_lines(
        "tis-options",
        panels,
        dict(zip(panels, ("masks", "share kept"), strict=True)),
        f"{format_metric('faithfulness')}  (more is better)",
    )


@plot("tis-disagreement")
def draw_gaps(results: Results) -> Path | None:
    """Pointing game on wrongly classified images, by the difference between the probabilities of the predicted and the true class; groups with eight images or more"""
    rows = select_rows(results.figures("tis-disagreement-gaps"), metric="pointing_game(preset='tis')")
    if not rows:
        return None
    panels = {}
    for model in MODELS:
        curves = {}
        for method, word in ((TIS_PROBABILITY, "probability"), (TIS_LOGIT, "logit")):
            for role, of_class in (("label", "true class"), ("predicted", "predicted class")):
                own = select_rows(rows, model=model, method=method, explained=role)
                curves[f"TIS, {word}, {of_class}"] = [(parse_gap_centre(row), row) for row in own if row.n >= FEW]
        panels[model] = curves
    return plots.draw_lines(
        "tis-disagreement", panels, "p(predicted) − p(true)", "pointing game  (more is better)", bars=True
    )


def parse_gap_centre(row: Figure) -> float:
    low, high = row.dataset.rsplit("gap ", 1)[1].split("–")
    return (float(low) + float(high)) / 2


@fill("tis-disagreement")
def write_gaps(results: Results) -> str:
    """For every range of the probability gap: true minus predicted class, and logit minus probability, in the pointing game."""
    rows = select_rows(results.effects("tis-disagreement-gap-pairs"), metric="pointing_game(preset='tis')")
    lines = []
    for model in MODELS:
        lines += describe_usable(results, model)
        for row in select_rows(rows, model=model, method=TIS_PROBABILITY, against="predicted class"):
            where = f"gap {row.dataset.rsplit('gap ', 1)[1]}, {model}, {format_count(row.n, 'image')}"
            if row.n < FEW:
                lines.append(f"- {where}: too few images for a verdict.")
                continue
            logit = select_rows(rows, model=model, dataset=row.dataset, method=TIS_LOGIT, against=TIS_PROBABILITY)
            lines.append(
                f"- {where}: true class − predicted class {format_frequency(row)}; logit − probability, both of the true class, {format_frequency(logit[0]) if logit else '–'}."
            )
    share = select_rows(
        results.effects("tis-disagreement-gap-pairs"),
        metric="energy_pointing",
        method=TIS_LOGIT,
        against=TIS_PROBABILITY,
    )
    for model in MODELS:
        parts = [f"gap {row.dataset.rsplit('gap ', 1)[1]} {format_effect(row)} ({format_count(row.n, 'image')})" for row in select_rows(share, model=model) if row.n >= FEW]  # fmt: skip
        lines += (
            [f"- Share of the map in the box (energy pointing), logit − probability, {model}: {'; '.join(parts)}."]
            if parts
            else []
        )
    return "\n".join(lines) or NOTHING


def describe_usable(results: Results, model: str) -> list[str]:
    """Number of images that the pointing game can use: those whose boxes cover less than half."""
    rows = select_rows(results.figures("tis-disagreement-gaps"), metric="pointing_game(preset='tis')", model=model, method=TIS_PROBABILITY, explained="label")  # fmt: skip
    defined, undefined = (sum(getattr(row, name) for row in rows) for name in ("n", "undefined"))
    return (
        [
            f"- {model}: of {format_count(defined + undefined, 'image')} that it classifies wrongly, {defined} have boxes that cover less than half."
        ]
        if rows
        else []
    )


def format_frequency(row: Effect) -> str:
    words = {"better": "more often", "worse": "less often", "open": "no significant difference"}
    return format_effect(row) if row.low == row.high else f"{format_effect(row)} ({words.get(judge(row), 'unknown')})"
