"""Tables of the first page: the answers, and the plans that were run."""

from __future__ import annotations

from collections.abc import Sequence

from study.effects import Effect, select_rows
from study.fill_beyond import (
    CHEAP,
    EIGHTH,
    ONE_BACKWARD,
    count_passes,
    find_closest_rival,
    format_percent,
    list_new_methods,
)
from study.fill_tis import PAPER, find_nearest
from study.names import MIDDLE, MODELS, STARTS, TIS
from study.pages import Results, fill
from study.sentences import format_metric, format_number, format_tau, judge
from study.tables import NOTHING, format_cell, format_table

WORDS = {"better": "yes", "worse": "no", "open": "undecided", "unknown": "unknown"}
BLACK = "insertion_minus_deletion(preset='tis', baseline='black', steps=28)"
PAIRS = (  # question, claim, table, metric, explained class, method, against
    ("1", "PLUS improves DecompX", "skipplus-pairs", "mean_aopc", "", "decompx+plus", "decompx"),
    ("1", "SkipPLUS improves DecompX", "skipplus-pairs", "mean_aopc", "", "decompx+skipplus", "decompx"),
    ("1", "SkipPLUS improves GenAtt", "skipplus-pairs", "mean_aopc", "", "genatt+skipplus", "genatt"),
    ("1", "SkipPLUS beats PLUS for DecompX", "skipplus-pairs", "mean_aopc", "", "decompx+skipplus", "decompx+plus"),
    ("1", "DecompX started at the middle layer is not worse than with the best start", "skipplus-start-regret", "mean_aopc", "", STARTS["decompx"][MIDDLE], "best start"),
    ("1", "DecompX started at the first layer is not worse than with the best start", "skipplus-start-regret", "mean_aopc", "", STARTS["decompx"][0], "best start"),
    ("2", "TokenTM beats GenAtt, masks of pets", "tokentm-pets-pairs", "miou", "", "tokentm", "genatt"),
    ("2", "TokenTM beats GenAtt, perturbation", "tokentm-pairs", "negative_auc(preset='tokentm')", "predicted", "tokentm", "genatt"),
    ("3", "TIS beats GenAtt", "tis-pairs", BLACK, "", TIS, "genatt"),
    ("4", "AttnLRP beats DecompX∘SkipPLUS", "newer-pairs", "faithfulness", "", "attnlrp", "decompx+skipplus"),
    ("4", "the probability beats the logit, DecompX∘PLUS", "newer-pairs", "faithfulness", "", "decompx(question='probability')+plus", "decompx+plus"),
)  # fmt: skip


@fill("index-answers")
def write_answers(results: Results) -> str:
    """Table of all claims: yes, no or undecided, with effect and interval."""
    lines = []
    for question, claim, name, metric, explained, method, against in PAIRS:
        own = select_rows(results.effects(name), metric=metric, explained=explained, method=method, against=against)
        lines += format_claim(question, claim, own)
    first = select_rows(results.effects("tis-pairs"), method=TIS, metric=BLACK)
    lines += format_claim(
        "3",
        "TIS is first",
        find_nearest([effect_row for effect_row in first if effect_row.against.split("(")[0] in PAPER]),
    )
    grid = [effect_row for effect_row in results.effects("newer-grid-chosen") if "confirm" in effect_row.dataset]
    tops = [next(iter(select_rows(grid, model=model)), None) for model in MODELS]
    lines += format_claim(
        "4", "an unpublished combination beats every published one", [effect_row for effect_row in tops if effect_row]
    )
    lines += format_new_methods(results) + format_truths(results)
    lines.sort(key=lambda line: line[0][0])  # by question
    return format_table(["claim", "by", *MODELS, "images"], lines, words=2)


def format_claim(question: str, claim: str, effects: Sequence[Effect]) -> list[list[str]]:
    """Row of a claim in the table, or no row if nothing was measured."""
    if not effects:
        return []
    effect_by_model = {row.model: row for row in effects}
    words = WORDS if "is not worse" not in claim else {**WORDS, "better": "yes", "open": "yes, within the interval"}
    cells = [
        f"{words[judge(effect_by_model[model])]}, {format_cell(effect_by_model[model])}"
        if model in effect_by_model
        else "–"
        for model in MODELS
    ]
    images = "–".join(str(n) for n in sorted({row.n for row in effects}))
    return [[f"{question}. {claim}", format_metric(effects[0].metric), *cells, images]]


def format_new_methods(results: Results) -> list[list[str]]:
    """Question 6: new methods against the best published one with one backward pass, and against TIS."""
    rows, lines = select_rows(results.effects("beyond-pairs"), metric="faithfulness"), []
    for method in [name for name in list_new_methods(rows) if "(" not in name]:
        if count_passes(method) <= CHEAP:
            own = [name for model in MODELS if (name := find_closest_rival(rows, model, method, ("published",)))]
            twice = "" if count_passes(method) <= ONE_BACKWARD else ", with twice the passes"
            lines += format_claim("6", f"`{method}` beats every published method with one backward pass{twice}", own)
        elif count_passes(method) <= EIGHTH * count_passes("tis"):
            own = select_rows(rows, method=method, against="tis")
            lines += format_claim(
                "6",
                f"`{method}` beats TIS with 1024 masks, {format_percent(count_passes(method) / count_passes('tis'))} of its cost",
                own,
            )
    return lines


def format_truths(results: Results) -> list[list[str]]:
    """Question 5, which one model answers: its value is in the first column of the two models."""
    lines = []
    for plan, dataset in (("scenes-orders", "single"), ("scenes-orders", "part"), ("scenes-pair-orders", "pair")):
        own = select_rows(results.orders(plan), dataset=dataset, metric="faithfulness", truth="ap", among="all")
        for row in own:
            word = "yes" if row.tau_low > 0 else "no" if row.tau_high < 0 else "undecided"
            claim = f"the orders of methods by faithfulness and by known evidence agree (Scenes, `{dataset}`)"
            lines.append(
                [
                    f"5. {claim}",
                    "Kendall's τ with AP",
                    f"{word}, {format_tau(row)}",
                    "one small model",
                    format_number(row.n, 0),
                ]
            )
    return lines


@fill("index-counts")
def write_counts(results: Results) -> str:
    """Numbers of images, methods and metrics of every plan."""
    from study.run import ORDER

    lines = []
    for name in ORDER:
        rows = results.figures(name)
        for dataset in dict.fromkeys(row.dataset for row in rows):
            own = select_rows(rows, dataset=dataset)
            methods, metrics = (len({getattr(row, word) for row in own}) for word in ("method", "metric"))
            models = ", ".join(row for row in dict.fromkeys(row.model for row in own) if "−" not in row)
            lines.append([f"`{name}`", models, dataset, str(max(row.n for row in own)), str(methods), str(metrics)])
    return (
        format_table(["plan", "models", "dataset", "images", "methods", "metrics"], lines, words=3)
        if lines
        else NOTHING
    )
