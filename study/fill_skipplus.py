"""Tables and answers of the page about SkipPLUS."""

from __future__ import annotations

from functools import partial
from math import isnan

from study.effects import Effect, select_rows
from study.names import FAMILIES, MIDDLE, MODELS, STARTS, VANISHING
from study.pages import Results, fill
from study.sentences import (
    FEW,
    describe_agreement,
    format_answer,
    format_count,
    format_effect,
    format_metric,
    format_number,
    format_tally,
    join_words,
    judge,
)
from study.tables import NOTHING, format_cell, format_differences, format_ranking, format_table, match_effects

AOPC = [f"{name}(preset='skipplus')" for name in ("deletion_aopc", "insertion_aopc")]
FOUR = [
    f"{name}(preset='skipplus')"
    for name in ("deletion_accuracy", "deletion_aopc", "insertion_accuracy", "insertion_aopc")
]
AP = "ap(preset='skipplus')"
HALF = "+rollout(form='half')"


def select_measures(results: Results, pair: tuple[str, str], model: str) -> list[Effect]:
    """Effects of a pair by the paper's five measures: four on val, AP on pets."""
    own = select_rows(
        results.effects("skipplus-pairs"), model=model, method=pair[0], against=pair[1], metric=tuple(FOUR)
    )
    return own + select_rows(
        results.effects("skipplus-pets-pairs"), model=model, method=pair[0], against=pair[1], metric=AP
    )


@fill("skipplus-lift")
def write_gains(results: Results) -> str:
    """Gain of every method in mean AOPC, and the number of the five measures in which it is better or worse."""
    rows = select_rows(results.effects("skipplus-pairs"), metric="mean_aopc")
    if not rows:
        return NOTHING
    most = max(row.n for row in rows)  # undefined maps have no score, so there are fewer pairs
    columns = [(word, place, model) for word, place in (("PLUS", 1), ("SkipPLUS", 2)) for model in MODELS]
    lines, kinds = [], {column: [] for column in columns}
    for name, specs in FAMILIES.items():
        cells = []
        for word, place, model in columns:
            main = next(iter(select_rows(rows, model=model, method=specs[place], against=specs[0])), None)
            kinds[word, place, model] += [judge(main)] if main else []
            few = f"<br>{format_count(main.n, 'image')} only" if main and main.n < most else ""
            five = format_tally(select_measures(results, (specs[place], specs[0]), model)).replace(
                " of ", "\u00a0of\u00a0"
            )
            cells.append(f"{format_cell(main)}<br>{five}{few}")
        lines.append([name, *cells])
    sentences = [
        f"- {word} on {model} improves {own.count('better')} of {format_count(len(own), 'method')}, worsens {own.count('worse')}, and for {len(own) - own.count('better') - own.count('worse')} the effect is not significant."
        for (word, _, model), own in kinds.items()
    ]
    return "\n\n".join(
        [
            "\n".join(sentences),
            format_table(
                ["mean AOPC, then the five measures", *(f"{word}, {model}" for word, _, model in columns)], lines
            ),
        ]
    )


def write_fold(word: str, results: Results, model: str) -> str:
    place = {"PLUS": 1, "SkipPLUS": 2}[word]
    pairs = {name: (specs[place], specs[0]) for name, specs in FAMILIES.items()}
    rows = [*results.effects("skipplus-pairs"), *select_rows(results.effects("skipplus-pets-pairs"), metric=AP)]
    columns = {format_metric(metric): match_effects(model, metric) for metric in (*FOUR, AP)}
    return format_differences(rows, pairs, columns)


for _word in ("PLUS", "SkipPLUS"):
    for _model in MODELS:
        fill(f"{_word.lower()}-{_model.lower()}")(partial(write_fold, _word, model=_model))


@fill("skipplus-best")
def write_best(results: Results) -> str:
    """The fifteen best, by the mean of both AOPCs on both models."""
    return format_ranking(results.figures("skipplus"), ["mean_aopc", *FOUR], by="mean_aopc", top=15)


@fill("skipplus-first")
def write_first(results: Results) -> str:
    """Comparison of DecompX∘SkipPLUS with all other methods."""
    rows, sentences = results.effects("skipplus-pairs"), []
    for model in MODELS:
        others = select_rows(rows, model=model, method="decompx+skipplus", metric="mean_aopc")
        if others:
            rival = min(others, key=lambda row: row.effect)
            ahead = sum(judge(row) == "better" for row in others)
            behind = {"better": "no method is better", "open": "no method is significantly better"}.get(
                judge(rival),
                f"`{rival.against}` is better by {format_number(-rival.effect, 1)} [{format_number(-rival.high, 1)}, {format_number(-rival.low, 1)}]",
            )
            sentences.append(f"on {model} `decompx+skipplus` beats {ahead} of {len(others)} others, and {behind}")
    return (sentences[0][0].upper() + "; ".join(sentences)[1:] + ".") if sentences else NOTHING


@fill("skipplus-genatt")
def write_genatt(results: Results) -> str:
    """Effect of PLUS and SkipPLUS on GenAtt."""
    rows, lines = results.effects("skipplus-pairs"), []
    words = {"better": "better", "worse": "worse", "open": "no significant difference", "unknown": "unknown"}
    for word, folded in (("PLUS", "genatt+plus"), ("SkipPLUS", "genatt+skipplus")):
        for row in select_rows(rows, method=folded, against="genatt", metric="mean_aopc"):
            five = format_tally(select_measures(results, (folded, "genatt"), row.model))
            lines.append(
                f"- {word} on {row.model}: {words[judge(row)]}, {format_effect(row)} of mean AOPC; of the five measures {five}."
            )
    return "\n".join(lines) or NOTHING


@fill("skipplus-middle")
def write_starts(results: Results) -> str:
    """Difference of the starts of SkipPLUS and PLUS to the best start."""
    rows, sentences, lines = select_rows(results.effects("skipplus-start-regret"), metric="mean_aopc"), [], []
    chosen = {"SkipPLUS": MIDDLE, "PLUS": 0}
    for word, start in chosen.items():
        for model in MODELS:
            own = select_rows(rows, model=model, method=tuple(starts[start] for starts in STARTS.values()))
            if own:
                worst, behind = min(own, key=lambda row: row.effect), [judge(row) for row in own].count("worse")
                sentences.append(
                    f"- {word} on {model} is significantly worse than the best start for {behind} of {format_count(len(own), 'method')}; the largest difference is that of `{worst.method.split('+')[0]}`, {format_effect(worst)}."
                )
    columns = [(start, model) for start in chosen.values() for model in MODELS]
    effects_by_method = {(row.method, row.model): row for row in rows}
    for spec, starts in STARTS.items():
        own = [effects_by_method.get((starts[start], model)) for start, model in columns]
        if any(own):
            lines.append([spec, *map(format_cell, own)])
    head = ["minus the best start, mean AOPC", *(f"{word}<br>{model}" for word in chosen for model in MODELS)]
    return "\n\n".join(["\n".join(sentences), format_table(head, lines)]) if sentences else NOTHING


@fill("skipplus-vanish")
def write_vanishing(results: Results) -> str:
    return format_ranking(results.figures("skipplus-vanish"), ["entropy", "sparseness"])


@fill("skipplus-random")
def write_against_random(results: Results) -> str:
    """Rollout forms against a random map."""
    rows = select_rows(results.effects("skipplus-pairs"), against="random", metric=tuple(AOPC))
    flat = select_rows(results.effects("skipplus-vanish-pairs"), against="genatt", metric="entropy")
    if not rows:
        return NOTHING
    lines, columns = [], {}
    for name, spec in VANISHING.items():
        lines.append(
            f"- {name}: {describe_undefined(results, spec)}{describe_against_random(select_rows(rows, method=spec))}."
        )
    for model in MODELS:
        columns |= {f"{format_metric(metric)}<br>minus random, {model}": (metric, model, rows) for metric in AOPC}
        columns |= {f"entropy<br>minus GenAtt, {model}": ("entropy", model, flat)}
    cells = [
        [name, *(format_cell(next(iter(select_rows(effects, method=spec, metric=metric, model=model)), None)) for metric, model, effects in columns.values())]
        for name, spec in VANISHING.items()
    ]  # fmt: skip
    return "\n".join(lines) + "\n\n" + format_table(["", *columns], cells)


def describe_undefined(results: Results, spec: str) -> str:
    """Number of images on which the map is undefined."""
    sentences = []
    for figure in select_rows(results.figures("skipplus"), method=spec, metric=AOPC[0]):
        images = max(row.n for row in select_rows(results.figures("skipplus"), model=figure.model, metric=AOPC[0]))
        sentences.append(f"{images - figure.n} of {format_count(images, 'map')} on {figure.model}")
    return f"undefined: {join_words(sentences)}" if sentences else "undefined: unknown"


def describe_against_random(effects: list[Effect]) -> str:
    """Comparison with a random map on images where the map is defined."""
    defined = [row for row in effects if not isnan(row.effect)]
    if not defined:
        return ""
    worst = min(defined, key=lambda row: row.effect)
    return f"; where it is defined, compared with a random map on two models by two measures: {format_tally(defined)}, at worst {format_effect(worst)} ({format_metric(worst.metric)}, {worst.model}, {format_count(worst.n, 'image')})"


@fill("skipplus-trade")
def write_tradeoff(results: Results) -> str:
    """Rank correlations of insertion, deletion and AP across methods."""
    rows = [row for plan in ("skipplus", "skipplus-pets") for row in results.orders(f"{plan}-trades")]
    lines = []
    for pair, pairs in (
        ("**Is there a trade-off between insertion and deletion?**", (tuple(AOPC), (FOUR[0], FOUR[2]))),
        ("**Do deletion and insertion correlate with AP?**", ((AOPC[0], AP), (AOPC[1], AP))),
    ):
        own = [row for row in rows if (row.metric, row.truth) in pairs]
        lines += [pair, ""] if own else []
        lines += [
            f"- {format_metric(row.metric)} and {format_metric(row.truth)} on {row.dataset}, {row.model}: {describe_agreement(row)}."
            for row in own
        ] + [""]
    return "\n".join(lines).strip() or NOTHING


ZEBRA_CLAIMS = {
    "rank_correlation": "Are the two maps less similar",
    "own_less_other": "Does the probability of the explained class fall further",
}


@fill("skipplus-zebras-answer")
def write_zebra_answer(results: Results) -> str:
    """Methods that distinguish zebra and elephant, and comparisons of SkipPLUS with GenAtt."""
    rows, lines = select_rows(results.figures("zebras"), metric="own_less_other"), []
    for model in MODELS:
        own = select_rows(rows, model=model)
        if own:
            few = max(row.n for row in own) < FEW
            methods = [row.method for row in own if (row.mean if few else row.low) > 0]
            certainty = "on average (too few images for a verdict)" if few else "significantly"
            lines.append(
                f"- On {model} the probability of the explained class falls further than that of the other class for {len(methods)} of {format_count(len(own), 'method')} {certainty}."
            )
    for metric, words in ZEBRA_CLAIMS.items():
        for method, other in (("decompx+skipplus", "genatt"), ("decompx+skipplus", "decompx"), ("transatt", "genatt")):
            own = select_rows(results.effects("zebras-pairs"), metric=metric, method=method, against=other)
            lines += [f"- {words} for `{method}` than for `{other}`? {format_answer(own)}"] if own else []
    return "\n".join(lines) or NOTHING


@fill("skipplus-zebras")
def write_zebras(results: Results) -> str:
    return format_ranking(results.figures("zebras"), ["rank_correlation", "own_less_other"], by="own_less_other")
