"""Text beside a map: its target, the unit of its colour bar, and remarks without which it would be misread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitreous.draw.scale import Scale, find_negligible_rows, map_values, scale_of
from vitreous.methods.attribution import Attribution
from vitreous.methods.fold import FOLDS
from vitreous.methods.spec import depends_on_class
from vitreous.models.random_weights import RANDOM_HEAD, RANDOM_MODEL

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NBSP = "\N{NO-BREAK SPACE}"


# ── target ───────────────────────────────────────────────────────────────────────────────────────


def describe_target(attribution: Attribution) -> str:
    """Target of the first row: "gear · 48.0 %" for a class, "age = 61.3" for a model with a single output."""
    value, share = output_value(attribution), probability(attribution)
    name = class_name(attribution)
    if value is not None:
        return f"{name} = {format_value(value)}"
    return name if share is None else f"{name} · {percent(share)}"


def describe_rank(attribution: Attribution) -> list[str]:
    """Lines below the class name in a sheet: class index, then probability and rank, or the value of a single output."""
    value, share = output_value(attribution), probability(attribution)
    index = int(attribution.targets[0])
    if value is not None:
        return [f"= {format_value(value)}"]
    index_is_shown = class_name(attribution) == f"class {index}" or attribution.provenance.get("target") == "text"
    lines = [] if index_is_shown else [f"class {index}"]
    if share is None or attribution.logits is None:
        return lines
    rank = int((attribution.logits[0] > attribution.logits[0, index]).sum()) + 1
    return [*lines, f"{percent(share)} · rank {rank}"]


def class_name(attribution: Attribution) -> str:
    """Name of the first row's target, or its index where it has no name."""
    name = attribution.names[0].strip() if attribution.names else ""
    return name or f"class {int(attribution.targets[0])}"


def output_value(attribution: Attribution) -> float | None:
    """Output of a model with a single one, which is a value and not a class; None for a classifier."""
    if attribution.logits is None or attribution.logits.shape[-1] != 1:
        return None
    return float(attribution.logits[0, 0])


def probability(attribution: Attribution) -> float | None:
    """Probability of the first row's target class; None where there are no classes to compare."""
    shares = probabilities(attribution)
    return None if shares is None else float(shares[int(attribution.targets[0])])


def probabilities(attribution: Attribution) -> Float[Tensor, " c"] | None:
    """Probability of every class in the first row: softmax, or each class's own sigmoid where that was explained."""
    if attribution.logits is None or output_value(attribution) is not None:
        return None
    provenance, logits = attribution.provenance, attribution.logits[0].double()
    independent = provenance.get("question") == "sigmoid" and provenance.get("output_type") != "binary"
    return logits.sigmoid() if independent else logits.softmax(-1)


def percent(share: float) -> str:
    """A share as a percentage with one decimal; positive shares below 0.1 % are not rounded to zero."""
    return "< 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def format_value(value: float) -> str:
    """A number with four significant digits, in powers of ten where it is very large or very small."""
    digits, _, exponent = f"{value:.4g}".replace("inf", "∞").partition("e")
    unit = f"{NBSP}×{NBSP}10{str(int(exponent)).translate(RAISED)}" if exponent else ""
    return digits.replace("-", "−") + unit


# ── remarks ──────────────────────────────────────────────────────────────────────────────────────


def remarks(attribution: Attribution) -> str:
    """What the first row's colours alone would not tell: no information, missing scores, channels that are not shown."""
    values = map_values(attribution[0])
    missing = int(np.isnan(values).sum())
    notes = []
    if find_negligible_rows(attribution[0])[0]:
        notes.append(describe_negligible(attribution))
    elif scale_of(attribution[0]).constant:
        notes.append("constant map")
    if missing:
        notes.append(f"{missing} of {values.size} scores missing (hatched)")
    if (channels := describe_channels(attribution)) is not None:
        notes.append(channels)
    return ", ".join(notes)


def describe_weights(attribution: Attribution) -> str:
    """Caution that the model or its classifier seems never to have been trained; empty if there is none."""
    caveat = str(attribution.provenance.get("caveat", ""))
    return next((sentence for sentence in (RANDOM_MODEL, RANDOM_HEAD) if sentence in caveat), "")


def describe_channels(attribution: Attribution) -> str | None:
    """What is shown of an image that has not three channels and no original; None for all others."""
    if attribution.images is None or attribution.originals is not None or attribution.images.ndim != 4:
        return None
    count = attribution.images.shape[1]
    if count == 3:
        return None
    shown = "the mean of 2 channels" if count == 2 else "its channel"
    return f"image: the first 3 of {count} channels" if count > 3 else f"image: {shown} in grey"


def describe_negligible(attribution: Attribution) -> str:
    """Sizes that make the first row's map negligible."""
    scale = scale_of(attribution[0])
    largest = max(abs(scale.least), abs(scale.most))
    if largest == 0:
        return "constant map: every score is 0"
    beside = "" if attribution.score is None else f" beside a value of {format_value(float(attribution.score[0]))}"
    return f"negligible map: scores up to {format_value(largest)}{beside}"


# ── colour bar ───────────────────────────────────────────────────────────────────────────────────


def label(attribution: Attribution, scale: Scale) -> str:
    """Unit of the colour bar, how far scores lie beyond its ends, and why scores of a probability lie beyond 1."""
    question = attribution.provenance.get("question") if depends_on_class(attribution.method) else None
    question = "value" if question == "logit" and output_value(attribution) is not None else question
    beyond = {"min": (scale.least,), "max": (scale.most,), "both": (scale.least, scale.most), "neither": ()}
    reach = " and ".join(scale.written(value) for value in beyond[scale.extend])
    unit = f" ×{NBSP}10{str(scale.exponent).translate(RAISED)}" if scale.exponent else ""
    text = "score" + (f" ({question})" if question else "") + unit + (f", reaching {reach}" if reach else "")
    if explains_probability(attribution) and max(abs(scale.least), abs(scale.most)) > 1:
        text += f"; beyond{NBSP}1: {explain_range(attribution)}"
    return text


def explains_probability(attribution: Attribution) -> bool:
    """Whether the explained value is a probability."""
    question = str(attribution.provenance.get("question", "")).partition(" ")[0]
    return question in ("probability", "sigmoid") and depends_on_class(attribution.method)


def explain_range(attribution: Attribution) -> str:
    """Why scores that explain a probability need not lie between 0 and 1.

    No linearisation holds the score function itself fixed: its exact gradient enters, so that tokens contribute to the
    tangent of the probability. Other signals (relevance rules, fitted coefficients, averages) have units of their own.
    """
    fold, linearisation = (attribution.provenance.get(key) for key in ("fold", "linearisation"))
    fold = None if fold is None else FOLDS.find(fold)
    if fold is None or not (fold.single_layer or fold.accumulates == "sum"):
        return "scores weigh patches and are not probabilities"
    exact = not linearisation or (linearisation.get("norm"), linearisation.get("qk")) == ("exact", 1)
    terms = "first-order terms" if exact else "contributions in the linearised model"
    layers = ", added over layers" if fold.accumulates == "sum" else ""
    return f"{terms} follow the probability’s tangent, which is not confined to 0 … 1{layers}"


# ── footnotes ────────────────────────────────────────────────────────────────────────────────────


def describe_missing_image(attribution: Attribution) -> str:
    """Footnote on maps whose image is not known, and how to add it; empty if it is."""
    if attribution.images is not None or attribution.originals is not None:
        return ""
    return "drawn without the image; attribution.with_images(image) adds it"


def describe_sums(attributions: Sequence[Attribution]) -> list[str]:
    """Footnotes for signed maps of a probability whose patches add up to more than 1 though none exceeds it."""
    notes = []
    for attribution in attributions:
        if not (attribution.signed and explains_probability(attribution)):
            continue
        values = np.nan_to_num(map_values(attribution)).reshape(len(attribution), -1)
        sums = np.abs(values.sum(1))
        if (sums > 1).any() and not (np.abs(values) > 1).any():
            notes.append(
                f"{attribution.method}: patches add up to as much as {format_value(float(sums.max()))}; "
                f"{explain_range(attribution)}"
            )
    return notes
