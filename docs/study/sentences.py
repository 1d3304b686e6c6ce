"""Answers in words, from effects and their intervals alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from study.effects import Effect
from study.special import Order

FEW = 8  # images below which an interval over images is not believed
PERCENT = ("preset='skipplus'", "mean_aopc", "preset='tokentm'")  # shown from 0 to 100
TITLES = {
    "faithfulness": "faithfulness",
    "mean_aopc": "mean AOPC",
    "own_less_other": "own fall − other's",
    "rank_correlation": "rank correlation",
    "insertion_minus_deletion": "ins. − del.",
    "stamp_above_thing": "P(stamp above thing)",
    "map_two_channel": "mAP",
    "miou": "mIoU",
    "ap": "AP",
    "aopc": "AOPC",
    "lodds": "LOdds",
    "idsds": "IDSDS",
    "positive_auc": "positive AUC",
    "negative_auc": "negative AUC",
}


def number(value: float, digits: int, plus: bool = False) -> str:
    """With a real minus; a dash where there is none."""
    if isnan(value):
        return "–"
    text = f"{value:+.{digits}f}" if plus else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def nonzero(value: float, digits: int) -> str:
    """As many digits more, two at most, as it takes to see on which side of 0 it lies."""
    more = next((extra for extra in range(2) if round(value, digits + extra)), 2 if value else 0)
    return number(value, digits + more)


def digits_of(metric: str) -> int:
    """Percentages need fewer digits than shares."""
    share = metric.startswith(("aopc", "lodds", "ap(")) or not any(word in metric for word in PERCENT)
    return 3 if share else 1


def title(metric: str) -> str:
    """A metric in words: its name, and the baseline where it has one."""
    name, _, options = metric.partition("(")
    said = TITLES.get(name, name.replace("_aopc", " AOPC").replace("_", " "))
    for baseline in ("blur", "black", "mean", "random"):
        if f"baseline='{baseline}'" in options:
            return f"{said}, {baseline}"
    return said


def amount(one: Effect, plus: bool = True) -> str:
    """An effect with its interval; without one where no image differs from another."""
    digits = digits_of(one.metric)
    if one.low == one.high:
        return f"{number(one.effect, digits, plus)} (all equal)"
    ends = ", ".join(nonzero(end, digits) for end in (one.low, one.high))
    if verdict(one) in ("better", "worse") and not any(round(end, digits) for end in (one.effect, one.low, one.high)):
        return f"under {10**-digits / 2:g}"  # told, and too small to be written
    return f"{number(one.effect, digits, plus)} [{ends}]"


def between(one: Effect) -> str:
    """A difference that does not judge, in words: `"0.120 [0.080, 0.160] above"`."""
    if isnan(one.effect):
        return "not known beside"
    low, high = (one.low, one.high) if one.effect >= 0 else (-one.high, -one.low)
    ends = ", ".join(number(end, digits_of(one.metric)) for end in (low, high))
    return f"{number(abs(one.effect), digits_of(one.metric))} [{ends}] {'above' if one.effect >= 0 else 'below'}"


def turned(one: Effect) -> Effect:
    """The same comparison seen from the other side."""
    where = (one.model, one.dataset, one.explained, one.metric, one.against, one.method, one.n)
    return Effect(*where, -one.effect, -one.high, -one.low, one.p)


def verdict(one: Effect) -> str:
    """ "better", "worse", "open" where the interval holds 0, or "unknown", which it is of a few images."""
    if isnan(one.effect) or isnan(one.low) or one.n < FEW:
        return "unknown"
    return "better" if one.low > 0 else "worse" if one.high < 0 else "open"


def answer(effects: Sequence[Effect], yes: str = "yes", no: str = "no") -> str:
    """`"yes, by +0.031 [0.024, 0.038] on ViT-Tiny; no significant difference on DeiT-Tiny (…)"`."""
    if not effects:
        return "Not measured yet."
    said = []
    for one in effects:
        match verdict(one):
            case "better":
                said.append(f"{yes}, by {amount(one)} on {one.model}")
            case "worse":
                said.append(f"{no}, it is worse by {amount(turned(one), plus=False)} on {one.model}")
            case "open":
                said.append(f"no significant difference on {one.model} ({amount(one)})")
            case _ if one.n < FEW and not isnan(one.effect):
                apart = number(one.effect, digits_of(one.metric), plus=True)
                said.append(f"too few to say on {one.model} ({apart} on {counted(one.n, 'image')})")
            case _:
                said.append(f"not known on {one.model}")
    text = "; ".join(said)
    return text[0].upper() + text[1:] + "."


def tally(effects: Sequence[Effect]) -> str:
    """`"better in 3 of 5, worse in 1"`."""
    kinds = [verdict(one) for one in effects]
    known = len(kinds) - kinds.count("unknown")
    if not known:
        return "not known"
    told = [f"{word} in {kinds.count(word)}" for word in ("better", "worse") if kinds.count(word)]
    return f"{', '.join(told)} of {known}" if told else f"no difference in {known}"


def held(effects: Sequence[Effect], claim: str) -> str:
    """How a claim about several comparisons came out, by model."""
    if not effects:
        return "Not measured yet."
    said = []
    for model in dict.fromkeys(one.model for one in effects):
        own = [one for one in effects if one.model == model]
        said.append(f"{model}: {tally(own)} {claim}")
    return "; ".join(said) + "."


def counted(count: int, thing: str) -> str:
    """`"1 image"`, `"3 images"`."""
    return f"{count} {thing}" + ("" if count == 1 else "s")


def ranked(one: Order | None) -> str:
    """Kendall's τ with its interval; a dash where it is not known."""
    if one is None or isnan(one.tau):
        return "–"
    return f"{number(one.tau, 2)} [{number(one.tau_low, 2)}, {number(one.tau_high, 2)}]"


def joined(words: Sequence[str]) -> str:
    """`"a, b and c"`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def agreement(one: Order) -> str:
    """A rank correlation with its interval, and what it says."""
    text = f"ρ = {number(one.rho, 2)} [{number(one.rho_low, 2)}, {number(one.rho_high, 2)}]"
    if isnan(one.rho):
        return "unknown"
    kind = (
        "go together"
        if one.rho_low > 0
        else "pull apart"
        if one.rho_high < 0
        else "have no significant order in common"
    )
    return f"{kind} ({text}, {one.methods} methods)"
