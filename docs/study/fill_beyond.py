"""What stands on the page about what goes past the papers, and on the first page."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from study import plots
from study.effects import Effect, only
from study.names import MODELS, TEMPERED
from study.pages import Results, fill, plot
from study.sentences import answer, title
from study.tables import NOTHING, gains, of, standings, table

SETS = {"beyond": "pictures to confirm", "beyond-pets": "pets", "beyond-scenes": "Scenes, two classes"}


def everything(plan: str, results: Results) -> str:
    wanted = ["faithfulness", "deletion_aopc", "insertion_aopc", "ap", "pointing_game", "class_discrimination"]
    rows = results.figures(plan)
    return standings(rows, [one for one in wanted if only(rows, metric=one)], by="faithfulness") if rows else NOTHING


for _plan in ("beyond", "beyond-choose", "beyond-pets", "beyond-scenes"):
    fill(f"{_plan}-table")(partial(everything, _plan))


@fill("beyond-answer")
def beyond(results: Results) -> str:
    """New methods against every other, on pictures that chose nothing."""
    lines = []
    for plan, words in SETS.items():
        for method in news(results.effects(f"{plan}-pairs")):
            for against in (
                "genatt",
                "decompx+skipplus",
                "attnlrp(question='probability')+plus",
                "tis(masks=256)",
                "tis",
            ):
                own = only(results.effects(f"{plan}-pairs"), metric="faithfulness", method=method, against=against)
                lines += [f"- {words}: `{method}` better than `{against}`? {answer(own)}"] if own else []
    return "\n".join(lines) or NOTHING


KNOWN = ("random", "genatt", "tokentm", "decompx", "attnlrp", "fullgrad", "tis")


def news(rows: list[Effect]) -> list[str]:
    """Methods of a plan that no paper has: the tempered one, and what was added beside it."""
    return [
        one
        for one in dict.fromkeys(row.method for row in rows)
        if one == TEMPERED or one.split("(")[0].split("+")[0].split("@")[0] not in KNOWN
    ]


def cost(method: str) -> float:
    """Passes, a backward counted as two forwards; one of fewer tokens counts as one."""
    from vitreous.bench.cost import settings, spent
    from vitreous.methods.spec import resolve

    made = resolve(method)
    sizes = {"patches": 196, "channels": 192, "layers": 12, "depth": 12, **settings(made)}
    forwards, backwards = (spent(said, sizes) or 0 for said in (made.forwards, made.backwards))
    return max(1.0, float(forwards)) + 2 * float(backwards)


@plot("beyond")
def draw_beyond(results: Results) -> Path | None:
    """Faithfulness by what a map costs, on pictures that were not used to choose anything"""
    rows = only(results.figures("beyond"), metric="faithfulness")
    panels = {
        model: [(one.method, cost(one.method), one) for one in only(rows, model=model) if one.method != "random"]
        for model in MODELS
    }
    return (
        plots.scatter(
            "beyond",
            panels,
            "cost of a map, forward passes (a backward is two)",
            f"{title('faithfulness')}  (more is better)",
            log=True,
        )
        if rows
        else None
    )


# ── the first page ───────────────────────────────────────────────────────────────────────────────


@fill("index-counts")
def counts(results: Results) -> str:
    """How many pictures every plan was run on."""
    from study.run import ORDER

    lines = []
    for name in ORDER:
        rows = results.figures(name)
        for dataset in dict.fromkeys(one.dataset for one in rows):
            own = only(rows, dataset=dataset)
            methods, metrics = (len({getattr(one, word) for one in own}) for word in ("method", "metric"))
            models = ", ".join(dict.fromkeys(one.model for one in own))
            lines.append([f"`{name}`", models, dataset, str(max(one.n for one in own)), str(methods), str(metrics)])
    return table(["plan", "models", "pictures of", "pictures", "methods", "metrics"], lines)


@fill("beyond-confirm")
def gained(results: Results) -> str:
    columns = {model: of(model, "faithfulness") for model in MODELS}
    rows = results.effects("beyond-pairs")
    methods = [one for one in dict.fromkeys(row.method for row in rows) if one != "tis"]
    return gains(rows, {one: (one, "tis") for one in methods}, columns)
