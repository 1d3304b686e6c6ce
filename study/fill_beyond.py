"""Tables and answers of the page about methods beyond the papers."""

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
ONE_BACKWARD = 4.0  # one backward pass, which counts as two, and at most two forward passes
CHEAP = 8.0  # about two forward and two backward passes
EIGHTH = 1 / 8
# of ViT-Tiny
SIZES = {"patches": 196, "channels": 192, "layers": 12, "depth": 12, "size": (224, 224), "patch": (16, 16)}
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


# ── origin and cost of a method ────────────────────────────────────────────────────────


@lru_cache(None)
def classify_method(method: str) -> str:
    """Origin: "ours", "new score" for a published method with another score function, "control", or "published"."""
    from vitreous.methods.spec import resolve

    resolved = resolve(method)
    if resolved.name == "random":
        return "control"
    if not resolved.facts.paper or "@tempered" in resolved.spec:
        return "ours"
    return "new score" if "question" in resolved.options else "published"


@lru_cache(None)
def count_passes(method: str) -> float:
    """Cost in forward passes; a backward pass counts as two, a pass over some of the patches by their share."""
    from vitreous.methods.pass_counts import evaluate_passes
    from vitreous.methods.spec import resolve

    resolved = resolve(method)
    settings = resolved.settings
    if "coalitions" in settings:  # all patches once, and a subset for each coalition
        return count_passes(settings["of"]) * (1 + settings["coalitions"] * compute_mean_share(settings))
    forwards, backwards = evaluate_passes(resolved, SIZES) or (0.0, 0.0)
    passes = max(1.0, forwards) + 2 * backwards
    whole = 1.0 + 2.0 * bool(backwards)  # passes over all patches
    return whole + (passes - whole) * compute_mean_share(settings)


def compute_mean_share(settings: dict) -> float:
    """Mean share of the patches in a pass over some of them; a coalition and its complement are half each."""
    share = settings.get("kept", 1.0)
    shares = share if isinstance(share, tuple | list) else (share,)
    return 0.5 if settings.get("complements") else sum(shares) / len(shares)


def list_new_methods(rows: list[Effect]) -> list[str]:
    """Methods of a plan that no paper describes."""
    return [method for method in dict.fromkeys(row.method for row in rows) if classify_method(method) == "ours"]


def find_closest_rival(rows: list[Effect], model: str, method: str, kinds: tuple[str, ...]) -> Effect | None:
    """Effect against the best of the others that take one backward pass."""
    rivals = [
        row
        for row in select_rows(rows, model=model, method=method)
        if classify_method(row.against) in kinds and count_passes(row.against) <= ONE_BACKWARD
    ]
    return min(rivals, key=lambda row: row.effect) if rivals else None


@fill("beyond-answer")
def write_answer(results: Results) -> str:
    """Answers to both questions, on images that were not used to select anything."""
    rows = select_rows(results.effects("beyond-pairs"), metric="faithfulness")
    if not rows:
        return NOTHING
    single = [method for method in list_new_methods(rows) if count_passes(method) <= CHEAP]
    many = [method for method in list_new_methods(rows) if count_passes(method) > ONE_BACKWARD]
    lines = ["**One or two backward passes: better than every published method with one?**", ""]
    for method in single:
        lines.append(
            f"- `{method}`, {count_passes(method):g} forward passes: {format_by_model(rows, method, ('published',))}"
        )
        lines.append(f"    - the same against published methods explaining the probability: {format_by_model(rows, method, ('new score',))}")  # fmt: skip
    lines += ["", "**As faithful as TIS with 1024 masks, at an eighth of its cost?**", ""]
    for method in many:
        share = count_passes(method) / count_passes("tis")
        words = "at most an eighth" if share <= EIGHTH else "more than an eighth"
        effects = select_rows(rows, method=method, against="tis")
        mark = "yes" if effects and share <= EIGHTH and all(row.low >= 0 for row in effects) else ""
        mark = mark or ("no" if share > EIGHTH or any(judge(row) == "worse" for row in effects) else "undecided")
        lines.append(
            f"- `{method}`, {format_percent(share)} of the cost ({words}): {mark}. Better than TIS? {format_answer(effects)}"
        )
    return "\n".join(lines)


def format_percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def format_by_model(rows: list[Effect], method: str, kinds: tuple[str, ...]) -> str:
    """Effects against the best of these kinds, for each model."""
    parts = []
    for model in MODELS:
        row = find_closest_rival(rows, model, method, kinds)
        if row:
            word = {"better": "yes", "worse": "no", "open": "undecided"}.get(judge(row), "unknown")
            parts.append(f"{word} on {model}, {format_effect(row)} against the best of them, `{row.against}`")
    return "; ".join(parts) + "." if parts else "there is none."


@fill("beyond-against")
def write_comparisons(results: Results) -> str:
    """New methods minus the methods that they are compared with, on every dataset."""
    new = [method for method in list_new_methods(results.effects("beyond-pairs")) if "(" not in method]
    rivals = {method: RIVALS if count_passes(method) <= CHEAP else ("tis",) for method in new}
    return format_pairs(results, [(method, other) for method in new for other in (*rivals[method], "tis(masks=256)")])


@fill("beyond-steps")
def write_steps(results: Results) -> str:
    """Each new method minus the one that it extends."""
    return format_pairs(results, STEPS)


def format_pairs(results: Results, pairs: Sequence[tuple[str, str]]) -> str:
    """Table with a row for each pair and a column for each dataset and model."""
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
    """Table with a row for each pair and a column for each model and range of probabilities."""
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
    """Table of costs of a map."""
    methods = dict.fromkeys(row.method for row in results.figures("beyond") if classify_method(row.method) != "control")
    lines = [
        [method, {"new score": "published map; score function or fold are ours"}.get(classify_method(method), classify_method(method)), f"{count_passes(method):g}", format_percent(count_passes(method) / count_passes("tis"))]
        for method in sorted(methods, key=count_passes)
    ]  # fmt: skip
    return format_table(["method", "", "forward passes", "of TIS, 1024 masks"], lines, words=2)


@plot("beyond")
def draw_beyond(results: Results) -> Path | None:
    """Faithfulness minus that of TIS with 1024 masks (paired), by the cost of a map, on images that were not used to select anything: ours in orange, others in blue"""
    rows = select_rows(results.effects("beyond-pairs"), metric="faithfulness", against="tis")
    if not rows:
        return None
    panels = {}
    for model in MODELS:
        effects = [row for row in select_rows(rows, model=model) if row.method != "random"]
        panels[model] = [(row.method, count_passes(row.method), convert_to_figure(row)) for row in effects]
        panels[model].append(
            (
                "tis",
                count_passes("tis"),
                convert_to_figure(replace(effects[0], method="tis", effect=0.0, low=0.0, high=0.0)),
            )
        )
    new_methods = [row.method for row in rows if classify_method(row.method) == "ours"]
    named = [method for method in new_methods if "of=" not in method] + [*RIVALS, "tis(masks=256)", "tis"]
    return plots.draw_scatter(
        "beyond",
        panels,
        "cost of a map, forward passes (a backward is two)",
        "faithfulness minus TIS's  (more is better)",
        log=True,
        names={method: plots.shorten_spec(method) for method in named},
        orange=new_methods,
        level=0.0,
    )


def convert_to_figure(row: Effect) -> Figure:
    """Convert a difference to a figure, so that it can be drawn like one."""
    return Figure(row.model, row.dataset, "", row.metric, "more", row.method, row.n, 0, row.effect, row.low, row.high)
