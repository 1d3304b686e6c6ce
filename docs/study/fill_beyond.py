"""What stands on the page about what goes past the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from study import plots
from study.effects import Effect, Figure, only
from study.names import BY_SURENESS, MODELS, PROBABLE, TEMPERED
from study.pages import Results, fill, plot
from study.sentences import amount, answer, verdict
from study.tables import NOTHING, cell, gains, of, standings, table

SETS = {"beyond": "val, to confirm", "beyond-pets": "pets", "beyond-scenes": "pair"}
ONE = 3.0  # forward passes: one forward and one backward, which is two
ONE_BACKWARD = 4.0  # one backward and at most two forwards
CHEAP = 8.0  # two of each, say
EIGHTH = 1 / 8
RIVALS = ("genatt", "decompx+skipplus", "attnlrp", "fullgrad@libra+plus", "attnlrp(question='probability')+plus")
STEPS = ((TEMPERED, PROBABLE["decompx"]), ("fuse", TEMPERED), ("fuse", "presence"), ("anneal", "fuse"))


def everything(plan: str, results: Results) -> str:
    wanted = ["faithfulness", "deletion_aopc", "insertion_aopc", "ap", "pointing_game", "class_discrimination"]
    rows = results.figures(plan)
    return standings(rows, [one for one in wanted if only(rows, metric=one)], by="faithfulness") if rows else NOTHING


for _plan in ("beyond", "beyond-choose", "beyond-pets", "beyond-scenes"):
    fill(f"{_plan}-table")(partial(everything, _plan))


# ── whose method it is, and what it costs ────────────────────────────────────────────────────────


@lru_cache(None)
def kind(method: str) -> str:
    """ "ours" where no paper has it, "new score" where a paper asks about the logit, "control", or "published"."""
    from vitreous.methods.spec import resolve

    made = resolve(method)
    if made.name == "random":
        return "control"
    if not made.facts.paper or "@tempered" in made.spec:
        return "ours"
    return "new score" if "question" in made.options else "published"


@lru_cache(None)
def cost(method: str) -> float:
    """Forward passes, a backward counted as two; a pass over some of the patches counts by their share."""
    from vitreous.bench.cost import evaluate_cost
    from vitreous.methods.spec import resolve

    made = resolve(method)
    known = made.settings
    sizes = {"patches": 196, "channels": 192, "layers": 12, "depth": 12, **known}
    if "coalitions" in known:  # all patches once, and some of them so many times
        return cost(known["of"]) * (1 + known["coalitions"] * share_of(known))
    forwards, backwards = (evaluate_cost(said, sizes) or 0 for said in (made.facts.forwards, made.facts.backwards))
    passes = max(1.0, float(forwards)) + 2 * float(backwards)
    whole = 1.0 + 2.0 * bool(backwards)  # of all patches
    return whole + (passes - whole) * share_of(known)


def share_of(known: dict) -> float:
    """Mean share of the patches in a pass over some of them; a coalition and its complement are half each."""
    kept = known.get("kept", 1.0)
    shares = kept if isinstance(kept, tuple | list) else (kept,)
    return 0.5 if known.get("complements") else sum(shares) / len(shares)


def news(rows: list[Effect]) -> list[str]:
    """Methods of a plan that no paper has."""
    return [one for one in dict.fromkeys(row.method for row in rows) if kind(one) == "ours"]


def best_of(rows: list[Effect], model: str, method: str, kinds: tuple[str, ...]) -> Effect | None:
    """Against the best of the others that cost one backward."""
    rivals = [
        one
        for one in only(rows, model=model, method=method)
        if kind(one.against) in kinds and cost(one.against) <= ONE_BACKWARD
    ]
    return min(rivals, key=lambda one: one.effect) if rivals else None


@fill("beyond-answer")
def beyond(results: Results) -> str:
    """Both bars, on images that chose nothing."""
    rows = only(results.effects("beyond-pairs"), metric="faithfulness")
    if not rows:
        return NOTHING
    single = [one for one in news(rows) if cost(one) <= CHEAP]
    many = [one for one in news(rows) if cost(one) > ONE_BACKWARD]
    lines = ["**One backward pass or two: better than every published method of one?**", ""]
    for method in single:
        lines.append(
            f"- `{method}`, {cost(method):g} forward passes' worth: {joined_by_model(rows, method, ('published',))}"
        )
        lines.append(f"    - the same against those of the probability: {joined_by_model(rows, method, ('new score',))}")  # fmt: skip
    lines += ["", "**As faithful as TIS with 1024 masks, at an eighth of its cost?**", ""]
    for method in many:
        share = cost(method) / cost("tis")
        words = "within the eighth" if share <= EIGHTH else "more than an eighth"
        own = only(rows, method=method, against="tis")
        kept = "yes" if own and share <= EIGHTH and all(one.low >= 0 for one in own) else ""
        kept = kept or ("no" if share > EIGHTH or any(verdict(one) == "worse" for one in own) else "undecided")
        lines.append(f"- `{method}`, {percent(share)} of the cost ({words}): {kept}. Better than TIS? {answer(own)}")
    return "\n".join(lines)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def joined_by_model(rows: list[Effect], method: str, kinds: tuple[str, ...]) -> str:
    """Against the best of them, model by model."""
    said = []
    for model in MODELS:
        one = best_of(rows, model, method, kinds)
        if one:
            word = {"better": "yes", "worse": "no", "open": "undecided"}.get(verdict(one), "not known")
            said.append(f"{word} on {model}, {amount(one)} against the best of them, `{one.against}`")
    return "; ".join(said) + "." if said else "there is none."


@fill("beyond-against")
def against(results: Results) -> str:
    """What is new less what it must beat, wherever it was measured."""
    new = [one for one in news(results.effects("beyond-pairs")) if "(" not in one]
    rivals = {one: RIVALS if cost(one) <= CHEAP else ("tis",) for one in new}
    return everywhere(results, [(one, other) for one in new for other in (*rivals[one], "tis(masks=256)")])


@fill("beyond-steps")
def steps(results: Results) -> str:
    """Each of ours less the one that it goes past."""
    return everywhere(results, STEPS)


def everywhere(results: Results, pairs: Sequence[tuple[str, str]]) -> str:
    """Pairs down; sets of images and models across."""
    columns = [
        (plan, model, words)
        for plan, words in SETS.items()
        for model in dict.fromkeys(one.model for one in results.effects(f"{plan}-pairs"))
    ]
    lines = []
    for method, other in pairs:
        cells = []
        for plan, model, _ in columns:
            own = only(results.effects(f"{plan}-pairs"), model=model, metric="faithfulness", method=method)
            cells.append(cell(next(iter(only(own, against=other)), None)))
        lines.append([f"{method} − {other}", *cells])
    return table(["faithfulness", *(f"{words}<br>{model}" for _, model, words in columns)], lines if columns else [])


@fill("beyond-sure")
def sure(results: Results) -> str:
    """Pairs down; models and how sure they are across."""
    rows = results.effects("beyond-sure")
    columns = {
        f"{one.model}<br>{one.dataset.split(', ')[-1]}<br>{one.n} images": of(
            one.model, one.metric, dataset=one.dataset
        )
        for one in rows
    }
    return gains(rows, {f"{one} − {other}": (one, other) for one, other in BY_SURENESS}, columns)


@fill("beyond-costs")
def costs(results: Results) -> str:
    """What a map takes."""
    methods = dict.fromkeys(one.method for one in results.figures("beyond") if kind(one.method) != "control")
    lines = [
        [one, {"new score": "a paper's map; question or fold are ours"}.get(kind(one), kind(one)), f"{cost(one):g}", percent(cost(one) / cost("tis"))]
        for one in sorted(methods, key=cost)
    ]  # fmt: skip
    return table(["method", "", "forward passes", "of TIS, 1024 masks"], lines, words=2)


@plot("beyond")
def draw_beyond(results: Results) -> Path | None:
    """Faithfulness less that of TIS with 1024 masks, in pairs, by what a map costs, on images that chose nothing: ours in orange, others in blue"""
    rows = only(results.effects("beyond-pairs"), metric="faithfulness", against="tis")
    if not rows:
        return None
    panels = {}
    for model in MODELS:
        own = [one for one in only(rows, model=model) if one.method != "random"]
        panels[model] = [(one.method, cost(one.method), beside(one)) for one in own]
        panels[model].append(("tis", cost("tis"), beside(replace(own[0], method="tis", effect=0.0, low=0.0, high=0.0))))
    ours = [one.method for one in rows if kind(one.method) == "ours"]
    named = [one for one in ours if "of=" not in one] + [*RIVALS, "tis(masks=256)", "tis"]
    return plots.scatter(
        "beyond",
        panels,
        "cost of a map, forward passes (a backward is two)",
        "faithfulness less TIS's  (more is better)",
        log=True,
        say={one: plots.short(one) for one in named},
        orange=ours,
        level=0.0,
    )


def beside(one: Effect) -> Figure:
    """A difference as a figure of its own."""
    return Figure(one.model, one.dataset, "", one.metric, "more", one.method, one.n, 0, one.effect, one.low, one.high)
