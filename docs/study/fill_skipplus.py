"""What stands on the page about SkipPLUS."""

from __future__ import annotations

from functools import partial
from math import isnan
from pathlib import Path

from study import plots
from study.effects import Effect, only
from study.names import ALTI, FAMILIES, MIDDLE, MODELS, STARTS
from study.pages import Results, fill, plot
from study.sentences import agreement, amount, answer, number, tally, title, verdict
from study.tables import NOTHING, cell, gains, of, standings, table

AOPC = [f"{name}(preset='skipplus')" for name in ("deletion_aopc", "insertion_aopc")]
FOUR = [
    f"{name}(preset='skipplus')"
    for name in ("deletion_accuracy", "deletion_aopc", "insertion_accuracy", "insertion_aopc")
]
AP = "ap(preset='skipplus')"
HALF = "+rollout(form='half')"


def family(results: Results, pair: tuple[str, str], model: str) -> list[Effect]:
    """The paper's five measures of one pair: four on val, AP on pets."""
    own = only(results.effects("skipplus-pairs"), model=model, method=pair[0], against=pair[1], metric=tuple(FOUR))
    return own + only(results.effects("skipplus-pets-pairs"), model=model, method=pair[0], against=pair[1], metric=AP)


@fill("skipplus-lift")
def lift(results: Results) -> str:
    """Of every method the gain in mean AOPC, and in how many of the five measures it is better or worse."""
    rows = only(results.effects("skipplus-pairs"), metric="mean_aopc")
    if not rows:
        return NOTHING
    columns = [(word, place, model) for word, place in (("PLUS", 1), ("SkipPLUS", 2)) for model in MODELS]
    lines, kinds = [], {column: [] for column in columns}
    for name, specs in FAMILIES.items():
        cells = []
        for word, place, model in columns:
            main = next(iter(only(rows, model=model, method=specs[place], against=specs[0])), None)
            kinds[word, place, model] += [verdict(main)] if main else []
            cells.append(f"{cell(main)}<br>{tally(family(results, (specs[place], specs[0]), model))}")
        lines.append([name, *cells])
    said = [
        f"{word} on {model}: better for {own.count('better')}, worse for {own.count('worse')}, not told for {len(own) - own.count('better') - own.count('worse')} of {len(own)} methods"
        for (word, _, model), own in kinds.items()
    ]
    return "\n\n".join(
        [
            "; ".join(said) + ".",
            table(["mean AOPC, then the five measures", *(f"{word}, {model}" for word, _, model in columns)], lines),
        ]
    )


def folds(word: str, results: Results, model: str) -> str:
    place = {"PLUS": 1, "SkipPLUS": 2}[word]
    pairs = {name: (specs[place], specs[0]) for name, specs in FAMILIES.items()}
    rows = [*results.effects("skipplus-pairs"), *only(results.effects("skipplus-pets-pairs"), metric=AP)]
    columns = {title(metric): of(model, metric) for metric in (*FOUR, AP)}
    return gains(rows, pairs, columns)


for _word in ("PLUS", "SkipPLUS"):
    for _model in MODELS:
        fill(f"{_word.lower()}-{_model.lower()}")(partial(folds, _word, model=_model))


@fill("skipplus-best")
def best(results: Results) -> str:
    """The fifteen best, by the mean of both AOPCs on both models."""
    return standings(results.figures("skipplus"), ["mean_aopc", *FOUR], by="mean_aopc", top=15)


@fill("skipplus-first")
def first(results: Results) -> str:
    """Is DecompX∘SkipPLUS the first?"""
    rows, said = results.effects("skipplus-pairs"), []
    for model in MODELS:
        others = only(rows, model=model, method="decompx+skipplus", metric="mean_aopc")
        if others:
            rival = min(others, key=lambda one: one.effect)
            ahead = sum(verdict(one) == "better" for one in others)
            behind = {"better": "nothing is ahead of it", "open": "nothing is told ahead of it"}.get(
                verdict(rival),
                f"`{rival.against}` is ahead of it by {number(-rival.effect, 1)} [{number(-rival.high, 1)}, {number(-rival.low, 1)}]",
            )
            said.append(f"on {model} `decompx+skipplus` beats {ahead} of {len(others)} others, and {behind}")
    return (said[0][0].upper() + "; ".join(said)[1:] + ".") if said else NOTHING


@fill("skipplus-genatt")
def genatt(results: Results) -> str:
    """Is GenAtt left unharmed?"""
    rows = results.effects("skipplus-pairs")
    said = []
    for word, folded in (("PLUS", "genatt+plus"), ("SkipPLUS", "genatt+skipplus")):
        own = only(rows, method=folded, against="genatt", metric="mean_aopc")
        if own:
            words = {"better": "helped", "worse": "harmed", "open": "neither helped nor harmed", "unknown": "not known"}
            said.append(f"{word}: " + ", ".join(f"{words[verdict(one)]} on {one.model} ({amount(one)})" for one in own))
    return "; ".join(said) + "." if said else NOTHING


@fill("skipplus-middle")
def middle(results: Results) -> str:
    """How much the middle start loses against the best one."""
    rows = only(results.effects("skipplus-start-regret"), metric="mean_aopc")
    lines = []
    for spec, starts in STARTS.items():
        own = only(rows, method=starts[MIDDLE])
        if own:
            lines.append([spec, *(amount(next(one for one in own if one.model == model)) for model in MODELS)])
    return table(["middle − best start, mean AOPC", *MODELS], lines)


@fill("skipplus-vanish")
def vanish(results: Results) -> str:
    return standings(results.figures("skipplus-vanish"), ["entropy", "sparseness"])


@fill("skipplus-random")
def against_random(results: Results) -> str:
    """Rollout forms against a random map."""
    rows, said = results.effects("skipplus-pairs"), []
    for name, spec in (
        ("ALTI, ½(I + T)", ALTI + HALF),
        ("ALTI, own rollout", ALTI),
        ("GlobEnc, ½(I + T)", "globenc" + HALF),
        ("GlobEnc, own rollout", "globenc"),
    ):
        for metric in AOPC:
            own = only(rows, method=spec, against="random", metric=metric)
            if own:
                said.append(f"- {name}, {title(metric)}, better than random? {answer(own)}")
    return "\n".join(said) or NOTHING


@fill("skipplus-trade")
def trade(results: Results) -> str:
    """Across methods: do insertion and deletion pull apart, and does deletion go with AP?"""
    lines = []
    for plan in ("skipplus", "skipplus-pets"):
        for one in results.orders(f"{plan}-trades"):
            words = f"{title(one.metric)} and {title(one.truth)} on {one.dataset}, {one.model}"
            lines.append(f"- {words}: {agreement(one)}.")
    return "\n".join(lines) or NOTHING


@fill("skipplus-zebras")
def zebras(results: Results) -> str:
    return standings(results.figures("zebras"), ["rank_correlation", "own_less_other"], by="own_less_other")


# ── plots ────────────────────────────────────────────────────────────────────────────────────────


@plot("skipplus-gains")
def draw_gains(results: Results) -> Path | None:
    """What PLUS and SkipPLUS add to every method, measure by measure, with 95 % intervals"""
    rows = [*results.effects("skipplus-pairs"), *only(results.effects("skipplus-pets-pairs"), metric=AP)]
    if not rows:
        return None
    place = {
        (specs[k], specs[0]): (name, word)
        for name, specs in FAMILIES.items()
        for k, word in ((1, "PLUS"), (2, "SkipPLUS"))
    }
    panels = {
        title(metric): [one for one in only(rows, metric=metric) if (one.method, one.against) in place]
        for metric in (*FOUR, AP)
    }
    series = {
        f"{word}, {model}": lambda one, word=word, model=model: (
            one.model == model and place[one.method, one.against][1] == word
        )
        for word in ("PLUS", "SkipPLUS")
        for model in MODELS
    }
    return plots.forest("skipplus-gains", panels, list(FAMILIES), lambda one: place[one.method, one.against][0], series)


@plot("skipplus-start")
def draw_starts(results: Results) -> Path | None:
    """Mean of deletion and insertion AOPC when layers are summed from every start on; the dotted line is SkipPLUS's"""
    found = {(one.model, one.method): one for one in only(results.figures("skipplus-start"), metric="mean_aopc")}
    if not found:
        return None
    panels = {
        model: {
            plots.short(spec): [
                (float(k), found[model, method]) for k, method in starts.items() if (model, method) in found
            ]
            for spec, starts in STARTS.items()
        }
        for model in MODELS
    }
    return plots.lines(
        "skipplus-start", panels, "first layer of the sum", "mean AOPC, %  (more is better)", mark=MIDDLE
    )


@plot("skipplus-trade")
def draw_trade(results: Results) -> Path | None:
    """Every method's deletion AOPC against its insertion AOPC (val) and AP (pets)"""
    panels, say, up = (
        {},
        ("random", "genatt", "decompx", "decompx+skipplus", "gradcam", f"{ALTI}{HALF}", "transatt"),
        {},
    )
    for plan, other in (("skipplus", AOPC[1]), ("skipplus-pets", AP)):
        rows = results.figures(plan)
        for model in MODELS:
            x, y = ({one.method: one for one in only(rows, model=model, metric=metric)} for metric in (AOPC[0], other))
            if x and y:
                heading = f"{model}, {plan.removeprefix('skipplus').strip('-') or 'val'}"
                panels[heading] = [(name, x[name], y[name]) for name in x if name in y and not isnan(x[name].mean)]
                up[heading] = plots.unit_of(next(iter(y.values())))
    return (
        plots.scatter("skipplus-trade", panels, "deletion AOPC, %  (more is better)", up, say=say) if panels else None
    )
