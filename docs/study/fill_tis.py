"""What stands on the page about TIS."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from study import plots
from study.effects import Effect, Figure, only
from study.names import KEPT, MODELS, SURE, TIS, UNSURE
from study.pages import Results, fill, plot
from study.sentences import FEW, amount, answer, between, counted, number, title, verdict
from study.tables import NOTHING, gains, of, standings

BASELINES = ("mean", "blur", "black", "random")
OPTION = {
    baseline: f"insertion_minus_deletion(preset='tis', baseline='{baseline}', steps=28)"
    for baseline in ("black", "blur")
}


def curve(results: Results, name: str) -> list[str]:
    """The metrics of a plan whose name it is, baseline by baseline."""
    metrics = dict.fromkeys(row.metric for row in results.figures("tis"))
    return [
        metric
        for baseline in BASELINES
        for metric in metrics
        if metric.startswith(f"{name}(") and f"baseline='{baseline}'" in metric
    ]


def curves(name: str, results: Results) -> str:
    return standings(results.figures("tis"), curve(results, name))


for _name in ("insertion", "deletion", "insertion_minus_deletion"):
    fill(f"tis-{_name.replace('_', '-')}")(partial(curves, _name))


def nearest(effects: list[Effect]) -> list[Effect]:
    """Of every model the method that comes nearest to it, or is farthest ahead."""
    models = dict.fromkeys(row.model for row in effects)
    return [min(only(effects, model=model), key=lambda row: row.effect) for model in models]


PAPER = ("vitcx", "tam", "transatt", "genatt", "rollout", "bth", "btt", "rise", "ig", "smoothgrad")


@fill("tis-first")
def first(results: Results) -> str:
    """Is TIS first among the paper's methods, baseline by baseline?"""
    lines = []
    for metric in curve(results, "insertion_minus_deletion"):
        rows = only(results.effects("tis-pairs"), method=TIS, metric=metric)
        for effect in nearest([row for row in rows if row.against.split("(")[0] in PAPER]):
            own = [verdict(row) for row in only(rows, model=effect.model) if row.against.split("(")[0] in PAPER]
            word = {"better": "yes, first", "worse": "no", "open": "that is undecided"}.get(
                verdict(effect), "not known"
            )
            lines.append(
                f"- {title(metric)}, {effect.model}: {word}; {amount(effect)} against `{effect.against}`, the {'best' if effect.effect < 0 else 'nearest'} of the others; ahead of {own.count('better')} of {len(own)}, behind {own.count('worse')}."
            )
    return "\n".join(lines) or NOTHING


@fill("tis-pointing")
def pointing(results: Results) -> str:
    return standings(
        results.figures("tis-pointing"),
        ["pointing_game(preset='tis')", "sparseness(preset='tis-released')"],
        by="pointing_game(preset='tis')",
    )


@fill("tis-pointing-answer")
def pointing_answer(results: Results) -> str:
    rows = only(results.effects("tis-pointing-pairs"), method="tis(masks=256)")
    lines = [
        f"- Is TIS ahead of `{row.against}`, the best of the others? {answer([row])}"
        for row in nearest(only(rows, metric="pointing_game(preset='tis')"))
    ]
    lines += [
        f"- {row.model}: the sparseness of TIS lies {between(row)} GenAtt's."
        for row in only(rows, against="genatt", metric="sparseness(preset='tis-released')")
    ]
    return "\n".join(lines) or NOTHING


@fill("tis-sensitivity")
def sensitivity(results: Results) -> str:
    return standings(
        results.figures("tis-sensitivity"), ["max_sensitivity(preset='tis')"], by="max_sensitivity(preset='tis')"
    )


@fill("tis-sensitivity-answer")
def calm(results: Results) -> str:
    """Which maps change less than TIS's, and which more?"""
    rows, lines = only(results.effects("tis-sensitivity-pairs"), method=TIS), []
    for model in MODELS:
        own = [row for row in only(rows, model=model) if row.against != "random"]
        if own and own[0].n < FEW:
            lines.append(f"- {model}, {counted(own[0].n, 'image')}: too few for a verdict; the figures are below.")
        elif own:
            kinds = {word: [row for row in own if verdict(row) == word] for word in ("worse", "better")}
            names_by_verdict = {
                word: ", ".join(f"`{row.against}` (by {number(abs(row.effect), 3)})" for row in sorted(effects, key=lambda row: -abs(row.effect))) or "none"
                for word, effects in kinds.items()
            }  # fmt: skip
            lines.append(
                f"- {model}, {counted(own[0].n, 'image')}: calmer than TIS are {names_by_verdict['worse']}; less calm {names_by_verdict['better']}."
            )
    for other in ("genatt", "rise(preset='tis', masks=1000)"):
        own = [effect for effect in only(rows, against=other) if effect.n >= FEW]
        lines += [f"- Is TIS calmer than `{other}`? {answer(own)}"] if own else []
    return "\n".join(lines) or NOTHING


@fill("tis-options")
def options(results: Results) -> str:
    return standings(results.figures("tis-options"), [*OPTION.values(), "faithfulness"])


CHOICES = {
    "1024 masks − 128": ("tis", "tis(masks=128)"),
    "1024 masks − 256": ("tis", "tis(masks=256)"),
    "1024 masks − 512": ("tis", "tis(masks=512)"),
    "1024 masks − 2048": ("tis", "tis(masks=2048)"),
    "tokens leave − pixels painted over": ("tis", "tis(ablate='pixels')"),
    "probability − logit": ("tis", "tis(question='logit')"),
    **{f"half of the tokens kept − {share}": (KEPT[0.5], KEPT[share]) for share in (0.1, 0.3, 0.7, 0.9)},
}


@fill("tis-tokens")
def tokens(results: Results) -> str:
    """What removing tokens brings over painting pixels, masks over fewer masks, softmax over logit."""
    rows = results.effects("tis-options-pairs")
    if not rows:
        return NOTHING
    lines = []
    for words, (method, against) in CHOICES.items():
        own = only(rows, metric="faithfulness", method=method, against=against)
        lines += [f"- {words}: is the first more faithful? {answer(own)}"] if own else []
    columns = {f"{title(metric)}<br>{model}": of(model, metric) for metric in (*OPTION.values(), "faithfulness") for model in MODELS}  # fmt: skip
    return "\n".join(lines) + "\n\n" + gains(rows, CHOICES, columns)


@plot("tis-options")
def draw_options(results: Results) -> Path | None:
    """Faithfulness of TIS by number of masks (half of the tokens kept), and by the share of tokens kept (512 masks)"""
    figures_by_method = {
        (row.model, row.method): row for row in only(results.figures("tis-options"), metric="faithfulness")
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
                for k, spec in sorted(KEPT.items())
                if (model, spec) in figures_by_method
            ]
            for model in MODELS
        },
    }
    return plots.lines(
        "tis-options",
        panels,
        dict(zip(panels, ("masks", "share kept"), strict=True)),
        f"{title('faithfulness')}  (more is better)",
    )


@plot("tis-disagreement")
def draw_gaps(results: Results) -> Path | None:
    """Pointing game on wrongly classified images, by how much surer the model is of its own class than of the true one; gaps with eight images or more"""
    rows = only(results.figures("tis-disagreement-gaps"), metric="pointing_game(preset='tis')")
    if not rows:
        return None
    panels = {}
    for model in MODELS:
        curves = {}
        for method, word in ((SURE, "probability"), (UNSURE, "logit")):
            for role, of_class in (("label", "true class"), ("predicted", "predicted class")):
                own = only(rows, model=model, method=method, explained=role)
                curves[f"TIS, {word}, {of_class}"] = [(middle(row), row) for row in own if row.n >= FEW]
        panels[model] = curves
    return plots.lines(
        "tis-disagreement", panels, "p(predicted) − p(true)", "pointing game  (more is better)", bars=True
    )


def middle(row: Figure) -> float:
    low, high = row.dataset.rsplit("gap ", 1)[1].split("–")
    return (float(low) + float(high)) / 2


@fill("tis-disagreement")
def disagreement(results: Results) -> str:
    """Gap by gap: does the map of the true class lie on it as often as that of the predicted one, and does the logit help?"""
    rows = only(results.effects("tis-disagreement-gap-pairs"), metric="pointing_game(preset='tis')")
    lines = []
    for model in MODELS:
        lines += usable(results, model)
        for row in only(rows, model=model, method=SURE, against="predicted class"):
            where = f"gap {row.dataset.rsplit('gap ', 1)[1]}, {model}, {counted(row.n, 'image')}"
            if row.n < FEW:
                lines.append(f"- {where}: too few to say anything.")
                continue
            logit = only(rows, model=model, dataset=row.dataset, method=UNSURE, against=SURE)
            lines.append(
                f"- {where}: true class − predicted class {amount_in_words(row)}; logit − probability, both of the true class, {amount_in_words(logit[0]) if logit else '–'}."
            )
    share = only(results.effects("tis-disagreement-gap-pairs"), metric="energy_pointing", method=UNSURE, against=SURE)
    for model in MODELS:
        parts = [f"gap {row.dataset.rsplit('gap ', 1)[1]} {amount(row)} ({counted(row.n, 'image')})" for row in only(share, model=model) if row.n >= FEW]  # fmt: skip
        lines += (
            [f"- Share of the map in the box (energy pointing), logit − probability, {model}: {'; '.join(parts)}."]
            if parts
            else []
        )
    return "\n".join(lines) or NOTHING


def usable(results: Results, model: str) -> list[str]:
    """How many images the pointing game can use: boxes that cover half or more leave nothing to miss."""
    rows = only(results.figures("tis-disagreement-gaps"), metric="pointing_game(preset='tis')", model=model, method=SURE, explained="label")  # fmt: skip
    defined, lost = (sum(getattr(row, name) for row in rows) for name in ("n", "undefined"))
    return (
        [
            f"- {model}: of {counted(defined + lost, 'image')} that it gets wrong {defined} have boxes that cover less than half."
        ]
        if rows
        else []
    )


def amount_in_words(row: Effect) -> str:
    words = {"better": "more often", "worse": "less often", "open": "no significant difference"}
    return amount(row) if row.low == row.high else f"{amount(row)} ({words.get(verdict(row), 'not known')})"
