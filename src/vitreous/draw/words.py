"""What is said beside a map: class, probability, scale, and what would be misread in silence."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.draw.scale import Number, Scale, scale_of
from vitreous.methods.attribution import Attribution
from vitreous.models.transforms import OpaquePreprocess

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def title(one: Attribution) -> str:
    """Class and probability of a single row, or the output and its value."""
    chance, number = probability(one), value(one)
    if number is not None:
        return f"{class_name(one)} = {written_value(number)}"
    return class_name(one) + ("" if chance is None else f" · {percent(chance)}")


def class_name(one: Attribution) -> str:
    return one.names[0] if one.names else f"class {int(one.targets[0])}"


def probability(one: Attribution) -> float | None:
    """What the model gives the class of a single row; None where it answers with one number, or is not known."""
    chances = probabilities(one)
    return None if chances is None else float(chances[int(one.targets[0])])


def probabilities(one: Attribution) -> Float[Tensor, " c"] | None:
    """Probability of every class for a single row: by softmax, or each by its own sigmoid where that was asked."""
    if one.logits is None or value(one) is not None:
        return None
    own = one.provenance.get("question") == "sigmoid" and one.provenance.get("output_type") != "binary"
    logits = one.logits[0].double()
    return logits.sigmoid() if own else logits.softmax(-1)


def value(one: Attribution) -> float | None:
    """The number that a model with a scalar output answers with; None for classes. A binary output has two columns."""
    return float(one.logits[0, 0]) if one.logits is not None and one.logits.shape[-1] == 1 else None


def written_value(number: float) -> str:
    return f"{number:.4g}"


def standing(one: Attribution) -> list[str]:
    """Where the class of a single row stands among the others."""
    index, chance = int(one.targets[0]), probability(one)
    told = not one.names or one.names[0] == f"class {index}" or one.provenance.get("target") == "text"
    named = [] if told else [f"class {index}"]
    if (number := value(one)) is not None:
        return [f"= {written_value(number)}"]
    if chance is None or one.logits is None:
        return named
    rank = int((one.logits[0] > one.logits[0, index]).sum()) + 1
    return [*named, f"{percent(chance)} · rank {rank}"]


def percent(share: float) -> str:
    return "< 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def remarks(one: Attribution) -> str:
    """Missing scores, and a map that is the same everywhere."""
    own = one.maps() if one.native_pixels is None else one.native_pixels
    missing = int(torch.isnan(own).sum())
    said = ["constant map"] if scale_of(one).constant else []
    return ", ".join([*said, *([f"{missing} of {own.numel()} scores missing (hatched)"] if missing else [])])


def label(one: Attribution, scale: Scale) -> str:
    """What the colour bar counts, and how far scores lie beyond its ends."""
    asked = one.provenance.get("question")
    asked = "value" if asked == "logit" and value(one) is not None else asked
    beyond = {"min": (scale.least,), "max": (scale.most,), "both": (scale.least, scale.most), "neither": ()}
    reach = " and ".join(scale.written(value) for value in beyond[scale.extend])
    unit = f" × 10{str(scale.exponent).translate(RAISED)}" if scale.exponent else ""
    return "score" + (f" ({asked})" if asked else "") + unit + (f", reaching {reach}" if reach else "")


def class_specific(method: str) -> bool:
    """False only when a method is known to give every class the same map."""
    from vitreous.methods.spec import resolve

    try:
        return resolve(method).class_specific
    except VitreousError:
        return True


def footnotes(one: Attribution, *, clipped: bool, framed: bool, quantile: Number, left_out: str) -> str:
    """What holds for the whole page."""
    notes = [str(one.provenance["model"])] if "model" in one.provenance else []
    if clipped:
        notes.append(f"colours end at the {100 * quantile:g} % quantile of |score|, arrows mark what lies beyond")
    if framed:
        notes.append("the frame is what the model sees")
    if isinstance(one.preprocess, OpaquePreprocess):
        notes.append(
            "drawn on what the model saw, in colours from its least to its largest value: the geometry and normalisation of "
            "its preprocessing are not known"
        )
    return " · ".join([*notes, left_out] if left_out else notes)
