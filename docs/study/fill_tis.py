"""What stands on the pages about TIS and about newer methods."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from study import grids, plots
from study.effects import Effect, Figure, only
from study.names import FOLDS, LINEARISATIONS, MODELS, PUBLISHED, SIGNALS, TIS
from study.pages import Results, fill, plot
from study.sentences import amount, answer, number, title, turned, verdict
from study.tables import NOTHING, gains, of, standings

BASELINES = ("mean", "blur", "black", "random")
OPTION = {
    baseline: f"insertion_minus_deletion(preset='tis', baseline='{baseline}', steps=28)"
    for baseline in ("black", "blur")
}


def curve(results: Results, name: str) -> list[str]:
    """The metrics of a plan whose name it is, baseline by baseline."""
    metrics = dict.fromkeys(one.metric for one in results.figures("tis"))
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
    models = dict.fromkeys(one.model for one in effects)
    return [min(only(effects, model=model), key=lambda one: one.effect) for model in models]


PAPER = ("vitcx", "tam", "transatt", "genatt", "rollout", "bth", "btt", "rise", "ig", "smoothgrad")


@fill("tis-first")
def first(results: Results) -> str:
    """Is TIS first among the paper's methods, baseline by baseline?"""
    lines = []
    for metric in curve(results, "insertion_minus_deletion"):
        rows = only(results.effects("tis-pairs"), method=TIS, metric=metric)
        for one in nearest([row for row in rows if row.against.split("(")[0] in PAPER]):
            word = {"better": "yes, first", "worse": "no", "open": "first or second, that cannot be told"}[verdict(one)]
            lines.append(f"- {title(metric)}, {one.model}: {word}; {amount(one)} against the nearest, `{one.against}`.")
    return "\n".join(lines) or NOTHING


@fill("tis-pointing")
def pointing(results: Results) -> str:
    return standings(
        results.figures("tis-pointing"),
        ["pointing_game(preset='tis')", "sparseness(preset='tis')"],
        by="pointing_game(preset='tis')",
    )


@fill("tis-pointing-answer")
def pointing_answer(results: Results) -> str:
    rows = only(results.effects("tis-pointing-pairs"), method="tis(masks=256)", metric="pointing_game(preset='tis')")
    return (
        "\n".join(
            f"- {one.model}: nearest is `{one.against}`; is TIS ahead of it? {answer([one])}" for one in nearest(rows)
        )
        or NOTHING
    )


@fill("tis-sensitivity")
def sensitivity(results: Results) -> str:
    return standings(
        results.figures("tis-sensitivity"), ["max_sensitivity(preset='tis')"], by="max_sensitivity(preset='tis')"
    )


@fill("tis-options")
def options(results: Results) -> str:
    return standings(results.figures("tis-options"), [*OPTION.values(), "faithfulness"])


def compared(results: Results, method: str, metric: str) -> list[Effect]:
    return only(results.effects("tis-options-pairs"), method=method, against="tis", metric=metric)


@fill("tis-tokens")
def tokens(results: Results) -> str:
    """What removing tokens brings over painting pixels, masks over fewer masks, softmax over logit."""
    asked = {
        "1024 masks instead of 128": "tis(masks=128)",
        "1024 instead of 256": "tis(masks=256)",
        "tokens leave instead of pixels painted over": "tis(ablate='pixels')",
        "probability instead of logit": "tis(question='logit')",
    }
    lines = []
    for words, other in asked.items():
        for metric in (*OPTION.values(), "faithfulness"):
            own = [turned(one) for one in compared(results, other, metric)]
            lines += [f"- {words}, {title(metric)}: does it help? {answer(own)}"] if own else []
    return "\n".join(lines) or NOTHING


@plot("tis-options")
def draw_options(results: Results) -> Path | None:
    """Faithfulness of TIS by number of masks (half of the tokens kept), and by the share of tokens kept (512 masks)"""
    found = {(one.model, one.method): one for one in only(results.figures("tis-options"), metric="faithfulness")}
    if not found:
        return None
    masks = {128: "tis(masks=128)", 256: "tis(masks=256)", 512: "tis(masks=512)", 1024: "tis"}
    kept = {0.5: "tis(masks=512)", **{share: f"tis(masks=512, kept={share})" for share in (0.1, 0.3, 0.7, 0.9)}}
    panels = {
        "number of masks": {
            model: [(float(k), found[model, spec]) for k, spec in masks.items() if (model, spec) in found]
            for model in MODELS
        },
        "share of tokens kept": {
            model: [(k, found[model, spec]) for k, spec in sorted(kept.items()) if (model, spec) in found]
            for model in MODELS
        },
    }
    return plots.lines("tis-options", panels, "masks  |  share kept", f"{title('faithfulness')}  (more is better)")


@plot("tis-disagreement")
def draw_gaps(results: Results) -> Path | None:
    """Pointing game on wrongly classified pictures, by how much surer the model is of its own class than of the true one"""
    rows = only(results.figures("tis-disagreement-gaps"), metric="pointing_game(preset='tis')")
    if not rows:
        return None
    panels = {}
    for model in MODELS:
        curves = {}
        for method, word in (("tis(masks=128)", "probability"), ("tis(masks=128, question='logit')", "logit")):
            for role, of_class in (("label", "true class"), ("predicted", "predicted class")):
                own = only(rows, model=model, method=method, explained=role)
                curves[f"TIS, {word}, {of_class}"] = [(middle(one), one) for one in own if one.mean == one.mean]
        panels[model] = curves
    return plots.lines("tis-disagreement", panels, "p(predicted) − p(true)", "pointing game  (more is better)")


def middle(one: Figure) -> float:
    low, high = one.dataset.rsplit("gap ", 1)[1].split("–")
    return (float(low) + float(high)) / 2


@fill("tis-disagreement")
def disagreement(results: Results) -> str:
    """The largest gaps: the true class under probability and logit, and the predicted one."""
    rows = [
        one
        for one in results.figures("tis-disagreement-gaps")
        if one.dataset.endswith("0.75–1") and one.metric.startswith("pointing")
    ]
    lines = []
    for model in MODELS:
        for method in dict.fromkeys(one.method for one in rows):
            own = {one.explained: one for one in only(rows, model=model, method=method)}
            if len(own) == 2:
                said = {
                    role: f"{number(one.mean, 2)} [{number(one.low, 2)}, {number(one.high, 2)}]"
                    for role, one in own.items()
                }
                lines.append(
                    f"- {model}, `{method}`, {own['label'].n} pictures with a gap above 0.75: true class {said['label']}, predicted class {said['predicted']}."
                )
    return "\n".join(lines) or NOTHING


# ── newer ────────────────────────────────────────────────────────────────────────────────────────


@fill("newer-table")
def newer(results: Results) -> str:
    return standings(results.figures("newer"), ["faithfulness", "deletion_aopc", "insertion_aopc"], by="faithfulness")


@fill("newer-answer")
def newer_answer(results: Results) -> str:
    rows = only(results.effects("newer-pairs"), metric="faithfulness", against="decompx+skipplus")
    asked = ("fullgrad@libra+plus", "attnlrp", "attnlrp+plus", "legrad", "genatt", "tokentm", "transatt")
    return (
        "\n".join(
            f"- `{one}`, better than `decompx+skipplus`? {answer(own)}"
            for one in asked
            if (own := only(rows, method=one))
        )
        or NOTHING
    )


@fill("newer-question")
def question(results: Results) -> str:
    """Each method asked about the probability against itself asked about the logit, through what both gain on GenAtt."""
    columns = {model: of(model, "faithfulness") for model in MODELS}
    names = ("genatt(question='probability')", "decompx+plus", "decompx(question='probability')+plus", "attnlrp", "attnlrp(question='probability')",
             "attnlrp+plus", "attnlrp(question='probability')+plus", "fullgrad@libra+plus", "fullgrad(question='probability')@libra+plus", "legrad", "legrad(question='probability')")  # fmt: skip
    return gains(results.effects("newer-pairs"), {name: (name, "genatt") for name in names}, columns)


@fill("newer-chosen")
def chosen(results: Results) -> str:
    """Does a cell that nobody published beat all that were?"""
    rows = results.effects("newer-grid-chosen")
    lines = []
    for one in rows:
        half = "where it was chosen" if "choose" in one.dataset else "on pictures to confirm"
        lines.append(f"- `{one.method}` against `{one.against}`, {half}: {answer([one])}")
    return "\n".join(lines) or NOTHING


@plot("newer-grid")
def draw_grid(results: Results) -> Path | None:
    """Faithfulness of every signal, linearisation and fold on pictures to confirm; cells in a frame are published"""
    rows = [one for one in only(results.figures("newer-grid"), metric="faithfulness") if "confirm" in one.dataset]
    if not rows:
        return None
    found = {(one.model, one.method): one.mean for one in rows}
    across = [(line, fold) for line in LINEARISATIONS for fold in FOLDS]
    spec = [[f"{signal}{LINEARISATIONS[line]}{FOLDS[fold]}" for line, fold in across] for signal in SIGNALS]
    panels = {model: np.array([[found.get((model, one), np.nan) for one in row] for row in spec]) for model in MODELS}
    framed = np.array([[one in PUBLISHED for one in row] for row in spec])
    names = [f"{line} · {fold}" for line, fold in across]
    return grids.heat("newer-grid", panels, SIGNALS, names, f"{title('faithfulness')}  (more is better)", framed)
