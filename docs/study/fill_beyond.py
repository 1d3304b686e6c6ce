"""What stands on the page about what goes past the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from study import plots
from study.effects import Effect, Figure, select_rows
from study.names import MODELS, PAIRS_BY_PROBABILITY, PROBABLE, TEMPERED
from study.pages import Results, fill, plot
from study.sentences import format_answer, format_effect, judge
from study.tables import NOTHING, format_cell, format_differences, format_ranking, format_table, match_effects

SETS = {"beyond": "val, to confirm", "beyond-pets": "pets", "beyond-scenes": "pair"}
ONE = 3.0  # forward passes: one forward and one backward, which is two
ONE_BACKWARD = 4.0  # one backward and at most two forwards
CHEAP = 8.0  # two of each, say
EIGHTH = 1 / 8
RIVALS = ("genatt", "decompx+skipplus", "attnlrp", "fullgrad@libra+plus", "attnlrp(question='probability')+plus")
STEPS = ((TEMPERED, PROBABLE["decompx"]), ("fuse", TEMPERED), ("fuse", "presence"), ("anneal", "fuse"))


def write_all_methods(plan: str, results: Results) -> str:
    metrics = ["faithfulness", "deletion_aopc", "insertion_aopc", "ap", "pointing_game", "class_discrimination"]
    rows = results.figures(plan)
    return (
        format_ranking(rows, [metric for metric in metrics if select_rows(rows, metric=metric)], by="faithfulness")
        if rows
        else NOTHING
    )


for _plan in ("beyond", "beyond-choose", "beyond-pets", "beyond-scenes"):
    fill(f"{_plan}-table")(partial(write_all_methods, _plan))


# ── whose method it is, and what it costs ────────────────────────────────────────────────────────


@lru_cache(None)
def classify_method(method: str) -> str:
    """ "ours" where no paper has it, "new score" where a paper asks about the logit, "control", or "published"."""
    from vitreous.methods.spec import resolve

    resolved = resolve(method)
    if resolved.name == "random":
        return "control"
    if not resolved.facts.paper or "@tempered" in resolved.spec:
        return "ours"
    return "new score" if "question" in resolved.options else "published"


@lru_cache(None)
def count_passes(method: str) -> float:
    """Forward passes, a backward counted as two; a pass over some of the patches counts by their share."""
    from vitreous.bench.cost import evaluate_cost
    from vitreous.methods.spec import resolve

    resolved = resolve(method)
    known = resolved.settings
    sizes = {"patches": 196, "channels": 192, "layers": 12, "depth": 12, **known}
    if "coalitions" in known:  # all patches once, and some of them so many times
        return count_passes(known["of"]) * (1 + known["coalitions"] * compute_mean_share(known))
    forwards, backwards = (
        evaluate_cost(formula, sizes) or 0 for formula in (resolved.facts.forwards, resolved.facts.backwards)
    )
    passes = max(1.0, float(forwards)) + 2 * float(backwards)
    whole = 1.0 + 2.0 * bool(backwards)  # of all patches
    return whole + (passes - whole) * compute_mean_share(known)


def compute_mean_share(known: dict) -> float:
    """Mean share of the patches in a pass over some of them; a coalition and its complement are half each."""
    share = known.get("kept", 1.0)
    shares = share if isinstance(share, tuple | list) else (share,)
    return 0.5 if known.get("complements") else sum(shares) / len(shares)


def list_new_methods(rows: list[Effect]) -> list[str]:
    """Methods of a plan that no paper has."""
    return [method for method in dict.fromkeys(row.method for row in rows) if classify_method(method) == "ours"]


def find_closest_rival(rows: list[Effect], model: str, method: str, kinds: tuple[str, ...]) -> Effect | None:
    """Against the best of the others that cost one backward."""
    rivals = [
        row
        for row in select_rows(rows, model=model, method=method)
        if classify_method(row.against) in kinds and count_passes(row.against) <= ONE_BACKWARD
    ]
    return min(rivals, key=lambda row: row.effect) if rivals else None


@fill("beyond-answer")
def write_answer(results: Results) -> str:
    """Both bars, on images that chose nothing."""
    rows = select_rows(results.effects("beyond-pairs"), metric="faithfulness")
    if not rows:
        return NOTHING
    single = [method for method in list_new_methods(rows) if count_passes(method) <= CHEAP]
    many = [method for method in list_new_methods(rows) if count_passes(method) > ONE_BACKWARD]
    lines = ["**One backward pass or two: better than every published method of one?**", ""]
    for method in single:
        lines.append(
            f"- `{method}`, {count_passes(method):g} forward passes' worth: {format_by_model(rows, method, ('published',))}"
        )
        lines.append(f"    - the same against those of the probability: {format_by_model(rows, method, ('new score',))}")  # fmt: skip
    lines += ["", "**As faithful as TIS with 1024 masks, at an eighth of its cost?**", ""]
    for method in many:
        share = count_passes(method) / count_passes("tis")
        words = "within the eighth" if share <= EIGHTH else "more than an eighth"
        own = select_rows(rows, method=method, against="tis")
        mark = "yes" if own and share <= EIGHTH and all(row.low >= 0 for row in own) else ""
        mark = mark or ("no" if share > EIGHTH or any(judge(row) == "worse" for row in own) else "undecided")
        lines.append(
            f"- `{method}`, {format_percent(share)} of the cost ({words}): {mark}. Better than TIS? {format_answer(own)}"
        )
    return "\n".join(lines)


def format_percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def format_by_model(rows: list[Effect], method: str, kinds: tuple[str, ...]) -> str:
    """Against the best of them, model by model."""
    parts = []
    for model in MODELS:
        row = find_closest_rival(rows, model, method, kinds)
        if row:
            word = {"better": "yes", "worse": "no", "open": "undecided"}.get(judge(row), "not known")
            parts.append(f"{word} on {model}, {format_effect(row)} against the best of them, `{row.against}`")
    return "; ".join(parts) + "." if parts else "there is none."


@fill("beyond-against")
def write_comparisons(results: Results) -> str:
    """What is new less what it must beat, wherever it was measured."""
    new = [method for method in list_new_methods(results.effects("beyond-pairs")) if "(" not in method]
    rivals = {method: RIVALS if count_passes(method) <= CHEAP else ("tis",) for method in new}
    return format_pairs(results, [(method, other) for method in new for other in (*rivals[method], "tis(masks=256)")])


@fill("beyond-steps")
def write_steps(results: Results) -> str:
    """Each of ours less the one that it goes past."""
    return format_pairs(results, STEPS)


def format_pairs(results: Results, pairs: Sequence[tuple[str, str]]) -> str:
    """Pairs down; sets of images and models across."""
    columns = [
        (plan, model, words)
        for plan, words in SETS.items()
        for model in dict.fromkeys(row.model for row in results.effects(f"{plan}-pairs"))
    ]
    lines = []
    for method, other in pairs:
        cells = []
        for plan, model, _ in columns:
            own = select_rows(results.effects(f"{plan}-pairs"), model=model, metric="faithfulness", method=method)
            cells.append(format_cell(next(iter(select_rows(own, against=other)), None)))
        lines.append([f"{method} − {other}", *cells])
    return format_table(
        ["faithfulness", *(f"{words}<br>{model}" for _, model, words in columns)], lines if columns else []
    )


@fill("beyond-sure")
def write_by_probability(results: Results) -> str:
    """Pairs down; models and how sure they are across."""
    rows = results.effects("beyond-sure")
    columns = {
        f"{row.model}<br>{row.dataset.split(', ')[-1]}<br>{row.n} images": match_effects(
            row.model, row.metric, dataset=row.dataset
        )
        for row in rows
    }
    return format_differences(
        rows, {f"{method} − {other}": (method, other) for method, other in PAIRS_BY_PROBABILITY}, columns
    )


@fill("beyond-costs")
def write_costs(results: Results) -> str:
    """What a map takes."""
    methods = dict.fromkeys(row.method for row in results.figures("beyond") if classify_method(row.method) != "control")
    lines = [
        [method, {"new score": "a paper's map; question or fold are ours"}.get(classify_method(method), classify_method(method)), f"{count_passes(method):g}", format_percent(count_passes(method) / count_passes("tis"))]
        for method in sorted(methods, key=count_passes)
    ]  # fmt: skip
    return format_table(["method", "", "forward passes", "of TIS, 1024 masks"], lines, words=2)


@plot("beyond")
def draw_beyond(results: Results) -> Path | None:
    """Faithfulness less that of TIS with 1024 masks, in pairs, by what a map costs, on images that chose nothing: ours in orange, others in blue"""
    rows = select_rows(results.effects("beyond-pairs"), metric="faithfulness", against="tis")
    if not rows:
        return None
    panels = {}
    for model in MODELS:
        own = [row for row in select_rows(rows, model=model) if row.method != "random"]
        panels[model] = [(row.method, count_passes(row.method), convert_to_figure(row)) for row in own]
        panels[model].append(
            (
                "tis",
                count_passes("tis"),
                convert_to_figure(replace(own[0], method="tis", effect=0.0, low=0.0, high=0.0)),
            )
        )
    ours = [row.method for row in rows if classify_method(row.method) == "ours"]
    named = [method for method in ours if "of=" not in method] + [*RIVALS, "tis(masks=256)", "tis"]
    return plots.draw_scatter(
        "beyond",
        panels,
        "cost of a map, forward passes (a backward is two)",
        "faithfulness less TIS's  (more is better)",
        log=True,
        say={method: plots.shorten_spec(method) for method in named},
        orange=ours,
        level=0.0,
    )


def convert_to_figure(row: Effect) -> Figure:
    """A difference as a figure of its own."""
    return Figure(row.model, row.dataset, "", row.metric, "more", row.method, row.n, 0, row.effect, row.low, row.high)
