"""Formatting of numbers, effects and answers."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from study.effects import Effect
from study.special import Order

FEW = 8  # with fewer images an interval is not reliable
PERCENT = ("preset='skipplus'", "mean_aopc", "preset='tokentm'")  # shown from 0 to 100
TITLES = {
    "faithfulness": "faithfulness",
    "mean_aopc": "mean AOPC",
    "own_less_other": "own fall − other's",
    "rank_correlation": "rank correlation",
    "insertion_minus_deletion": "ins. − del.",
    "stamp_above_thing": "P(stamp above object)",
    "map_two_channel": "mAP",
    "miou": "mIoU",
    "ap": "AP",
    "aopc": "AOPC",
    "lodds": "LOdds",
    "idsds": "IDSDS",
    "positive_auc": "positive AUC",
    "negative_auc": "negative AUC",
}


def format_number(value: float, digits: int, plus: bool = False) -> str:
    """A number with a typographic minus; a dash for NaN."""
    if isnan(value):
        return "–"
    text = f"{value:+.{digits}f}" if plus else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def format_nonzero(value: float, digits: int) -> str:
    """A number with up to two more digits if it would be rounded to 0."""
    extra = next((extra_digits for extra_digits in range(2) if round(value, digits + extra_digits)), 2 if value else 0)
    return format_number(value, digits + extra)


def count_digits(metric: str) -> int:
    """Number of decimals of a metric: fewer for percentages than for shares."""
    share = metric.startswith(("aopc", "lodds", "ap(")) or not any(word in metric for word in PERCENT)
    return 3 if share else 1


def format_metric(metric: str) -> str:
    """Title of a metric: its name, and its baseline if it has one."""
    name, _, options = metric.partition("(")
    words = TITLES.get(name, name.replace("_aopc", " AOPC").replace("_", " "))
    for baseline in ("blur", "black", "mean", "random"):
        if f"baseline='{baseline}'" in options:
            return f"{words}, {baseline}"
    return words


def format_effect(row: Effect, plus: bool = True) -> str:
    """An effect with its interval; without one if all images have the same difference."""
    digits = count_digits(row.metric)
    if row.low == row.high:
        return f"{format_number(row.effect, digits, plus)} (all equal)"
    ends = ", ".join(format_nonzero(end, digits) for end in (row.low, row.high))
    if judge(row) in ("better", "worse") and not any(round(end, digits) for end in (row.effect, row.low, row.high)):
        return f"under {10**-digits / 2:g}"  # significant, but 0 after rounding
    return f"{format_number(row.effect, digits, plus)} [{ends}]"


def describe_difference(row: Effect) -> str:
    """A difference of a metric without a better direction: `"0.120 [0.080, 0.160] above"`."""
    if isnan(row.effect):
        return "unknown relative to"
    low, high = (row.low, row.high) if row.effect >= 0 else (-row.high, -row.low)
    ends = ", ".join(format_number(end, count_digits(row.metric)) for end in (low, high))
    return (
        f"{format_number(abs(row.effect), count_digits(row.metric))} [{ends}] {'above' if row.effect >= 0 else 'below'}"
    )


def swap_methods(row: Effect) -> Effect:
    """The same comparison with the two methods exchanged."""
    where = (row.model, row.dataset, row.explained, row.metric, row.against, row.method, row.n)
    return Effect(*where, -row.effect, -row.high, -row.low, row.p)


def judge(row: Effect) -> str:
    """Verdict of an effect: "better", "worse", "open" if the interval contains 0, or "unknown" for few images."""
    if isnan(row.effect) or isnan(row.low) or row.n < FEW:
        return "unknown"
    return "better" if row.low > 0 else "worse" if row.high < 0 else "open"


def format_answer(effects: Sequence[Effect], yes: str = "yes", no: str = "no") -> str:
    """`"yes, by +0.031 [0.024, 0.038] on ViT-Tiny; no significant difference on DeiT-Tiny (…)"`."""
    if not effects:
        return "Not measured yet."
    parts = []
    for row in effects:
        match judge(row):
            case "better":
                parts.append(f"{yes}, by {format_effect(row)} on {row.model}")
            case "worse":
                parts.append(f"{no}, it is worse by {format_effect(swap_methods(row), plus=False)} on {row.model}")
            case "open":
                parts.append(f"no significant difference on {row.model} ({format_effect(row)})")
            case _ if row.n < FEW and not isnan(row.effect):
                difference = format_number(row.effect, count_digits(row.metric), plus=True)
                parts.append(f"too few images on {row.model} ({difference} on {format_count(row.n, 'image')})")
            case _:
                parts.append(f"unknown on {row.model}")
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def format_tally(effects: Sequence[Effect]) -> str:
    """`"better in 3 of 5, worse in 1"`."""
    kinds = [judge(row) for row in effects]
    judged = len(kinds) - kinds.count("unknown")
    if not judged:
        return "unknown"
    counts = [f"{word} in {kinds.count(word)}" for word in ("better", "worse") if kinds.count(word)]
    return f"{', '.join(counts)} of {judged}" if counts else f"no significant difference in {judged}"


def format_tally_by_model(effects: Sequence[Effect], claim: str) -> str:
    """Counts of verdicts about several comparisons, by model."""
    if not effects:
        return "Not measured yet."
    parts = []
    for model in dict.fromkeys(row.model for row in effects):
        own = [row for row in effects if row.model == model]
        parts.append(f"{model}: {format_tally(own)} {claim}")
    return "; ".join(parts) + "."


def format_count(count: int, thing: str) -> str:
    """`"1 image"`, `"3 images"`."""
    return f"{count} {thing}" + ("" if count == 1 else "s")


def format_tau(row: Order | None) -> str:
    """Kendall's τ with its interval; a dash if it is unknown."""
    if row is None or isnan(row.tau):
        return "–"
    return f"{format_number(row.tau, 2)} [{format_number(row.tau_low, 2)}, {format_number(row.tau_high, 2)}]"


def join_words(words: Sequence[str]) -> str:
    """`"a, b and c"`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def describe_agreement(row: Order) -> str:
    """A rank correlation with its interval, and its verdict."""
    text = f"ρ = {format_number(row.rho, 2)} [{format_number(row.rho_low, 2)}, {format_number(row.rho_high, 2)}]"
    if isnan(row.rho):
        return "unknown"
    kind = (
        "positively correlated"
        if row.rho_low > 0
        else "negatively correlated"
        if row.rho_high < 0
        else "no significant correlation"
    )
    return f"{kind} ({text}, {row.methods} methods)"
