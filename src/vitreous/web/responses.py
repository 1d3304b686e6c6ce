"""Parts of responses made of tensors and attributions; undefined numbers become null."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitreous.core.errors import ShapeError
from vitreous.web import schemas

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from vitreous.methods.attribution import Attribution
    from vitreous.models.vit import ViT

TOP_CLASSES = 5


def to_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def list_finite_numbers(values: Tensor) -> list[float | None]:
    return [to_finite(value) for value in values.flatten().tolist()]


def round_numbers(values: Tensor) -> list[float | None]:
    """Round to seven digits: all that float32 holds, in half the bytes."""
    return [None if number is None else float(f"{number:.7g}") for number in list_finite_numbers(values)]


def list_colours(low: float) -> list[list[int]]:
    """Return 256 colours of the library's scale from `low` to 1: signed from −1, unsigned from 0."""
    from vitreous.draw.scale import Scale

    colours = Scale(low, 1.0, 0.0, 1.0, low < 0).ramp(opacity=None)
    return (colours * 255).round().astype(int).tolist()


def describe_class(vit: ViT, index: int, probability: float) -> schemas.ClassProbability:
    return schemas.ClassProbability(index=index, name=vit.class_name(index), probability=to_finite(probability))


def describe_prediction(vit: ViT, probabilities: Tensor, visible: Tensor) -> schemas.Prediction:
    best = probabilities.nan_to_num(-1).topk(min(TOP_CLASSES, len(probabilities))).indices.tolist()
    return schemas.Prediction(
        top=[describe_class(vit, index, float(probabilities[index])) for index in best],
        probabilities=round_numbers(probabilities),
        kept=int(visible.sum()),
        patches=len(visible),
    )


def describe_samples(plan: schemas.SamplingPlan) -> schemas.Samples | None:
    """Return the sample count of a plan and, where it was reduced, a sentence that says so and what to do."""
    if not plan.option:
        return None
    sentence = ""
    if plan.used < plan.asked:
        sentence = (
            f"{plan.used:,} of {plan.asked:,} {plan.option}; all of them would take about {plan.seconds:.0f} s here. "
            f"To run all: vitreous.explain(vit, image, target, {plan.method!r})"
        )
    return schemas.Samples(**plan.model_dump(include={"option", "used", "asked", "seconds"}), sentence=sentence)


def describe_explanation(
    rows: Sequence[Attribution], evidence: dict[int, np.ndarray], class_specific: bool, seconds: float
) -> schemas.Explained:
    first = rows[0]
    return schemas.Explained(
        method=first.method,
        grid=list(first.layout.grid),
        signed=any(row.signed for row in rows),
        class_specific=class_specific,
        maps=[describe_map(row, evidence) for row in rows],
        caveat=str(first.provenance.get("caveat", "")),
        seconds=seconds,
    )


def describe_map(attribution: Attribution, evidence: dict[int, np.ndarray]) -> schemas.Map:
    target = int(attribution.targets[0])
    if attribution.patches is None:
        raise ShapeError(f"{attribution.method!r} has no scores of patches")
    return schemas.Map(
        target=target,
        name=attribution.names[0] if attribution.names else f"class {target}",
        scores=round_numbers(attribution.patches[0]),
        pixels=None if attribution.native_pixels is None else encode_pixels(attribution.native_pixels[0]),
        evidence=match_evidence(attribution, evidence[target]) if target in evidence else None,
    )


def encode_pixels(values: Tensor) -> schemas.Pixels:
    data = values.float().contiguous().cpu().numpy().astype("<f4").tobytes()
    return schemas.Pixels(size=list(values.shape), data=b64encode(data).decode())


def match_evidence(attribution: Attribution, mask: np.ndarray) -> schemas.EvidenceMatch:
    """Compare a map with the known evidence, by the metrics that the demo uses."""
    import torch

    from vitreous.metrics.localisation import ap, pointing_game

    objects = torch.from_numpy(mask)[None]
    hit = float(pointing_game(attribution, objects=objects).scores[0])
    precision = float(ap.with_options(interpolation="bilinear")(attribution, objects=objects).scores[0])
    return schemas.EvidenceMatch(peak=hit > 0.5, precision=to_finite(precision))


def list_curve_points(
    vit: ViT, counts: Sequence[int], probabilities: Tensor, top: Tensor, top_probabilities: Tensor
) -> list[schemas.CurvePoint]:
    """Return one point per number of patches: the probability of the explained class, and the most probable class."""
    rows = zip(counts, list_finite_numbers(probabilities), top.tolist(), top_probabilities.tolist(), strict=True)
    return [
        schemas.CurvePoint(count=count, probability=probability, top=[describe_class(vit, index, top_probability)])
        for count, probability, index, top_probability in rows
    ]
