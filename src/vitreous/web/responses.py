"""Results as response types; undefined numbers become null."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vitreous.web import schemas

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.methods.attribution import Attribution
    from vitreous.web.budget import SampleBudget
    from vitreous.web.service import Explanation, PerturbationCurve

TOP_CLASSES = 5


def to_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def list_finite_numbers(values: Tensor) -> list[float | None]:
    return [to_finite(value) for value in values.flatten().tolist()]


def round_numbers(values: Tensor) -> list[float | None]:
    """Round to seven digits: all that float32 holds, in half the bytes."""
    return [None if number is None else float(f"{number:.7g}") for number in list_finite_numbers(values)]


def list_top_classes(probabilities: Tensor, names: list[str]) -> list[schemas.ClassProbability]:
    best = probabilities.nan_to_num(-1).topk(min(TOP_CLASSES, len(probabilities))).indices.tolist()
    return [
        schemas.ClassProbability(index=i, name=names[i], probability=to_finite(float(probabilities[i]))) for i in best
    ]


def describe_prediction(
    probabilities: Tensor, names: list[str], removed: Sequence[int], grid: Sequence[int]
) -> schemas.Prediction:
    patches = grid[0] * grid[1]
    return schemas.Prediction(
        top=list_top_classes(probabilities, names),
        probabilities=round_numbers(probabilities),
        kept=patches - len(removed),
        patches=patches,
    )


def describe_plan(plan: SampleBudget) -> schemas.SamplingPlan:
    values = asdict(plan)
    return schemas.SamplingPlan(method=values.pop("requested"), **values)


def describe_samples(plan: SampleBudget) -> schemas.Samples | None:
    """Return the sample count of a plan and, where it was reduced, a sentence that says so and what to do."""
    if not plan.option:
        return None
    sentence = ""
    if plan.used < plan.asked:
        sentence = (
            f"{plan.used:,} of {plan.asked:,} {plan.option}; all of them would take about {plan.seconds:.0f} s here. "
            f"To run all: vitreous.explain(vit, image, target, {plan.requested!r})"
        )
    return schemas.Samples(
        option=plan.option, used=plan.used, asked=plan.asked, seconds=plan.seconds, sentence=sentence
    )


def describe_explanation(explanation: Explanation, evidence: dict[int, Any], plan: SampleBudget) -> schemas.Explained:
    first = explanation.rows[0]
    return schemas.Explained(
        method=first.method,
        grid=list(first.layout.grid),
        signed=any(row.signed for row in explanation.rows),
        class_specific=explanation.class_specific,
        maps=[describe_map(row, evidence) for row in explanation.rows],
        caveat=str(first.provenance.get("caveat", "")),
        seconds=explanation.seconds,
        samples=describe_samples(plan),
    )


def describe_map(attribution: Attribution, evidence: dict[int, Any]) -> schemas.Map:
    from vitreous.web.service import get_patch_scores

    target = int(attribution.targets[0])
    return schemas.Map(
        target=target,
        name=attribution.names[0] if attribution.names else f"class {target}",
        scores=round_numbers(get_patch_scores(attribution)[0]),
        pixels=None if attribution.native_pixels is None else encode_pixels(attribution.native_pixels[0]),
        evidence=match_evidence(attribution, evidence[target]) if target in evidence else None,
    )


def encode_pixels(values: Tensor) -> schemas.Pixels:
    data = values.float().contiguous().cpu().numpy().astype("<f4").tobytes()
    return schemas.Pixels(size=list(values.shape), data=b64encode(data).decode())


def match_evidence(attribution: Attribution, mask: Any) -> schemas.EvidenceMatch:
    """Compare a map with the known evidence, by the metrics that the demo uses."""
    import torch

    from vitreous.metrics.localisation import ap, pointing_game

    objects = torch.from_numpy(mask)[None]
    hit = float(pointing_game(attribution, objects=objects).scores[0])
    precision = float(ap.with_options(interpolation="bilinear")(attribution, objects=objects).scores[0])
    return schemas.EvidenceMatch(peak=hit > 0.5, precision=to_finite(precision))


def describe_curve(perturbation: PerturbationCurve, target: int, names: list[str]) -> schemas.Curve:
    def points(side: int) -> list[schemas.CurvePoint]:
        rows = zip(
            perturbation.counts,
            list_finite_numbers(perturbation.probability[side]),
            perturbation.top[side].tolist(),
            list_finite_numbers(perturbation.top_probability[side]),
            strict=True,
        )
        return [
            schemas.CurvePoint(
                count=count,
                probability=probability,
                top=[schemas.ClassProbability(index=first, name=names[first], probability=first_probability)],
            )
            for count, probability, first, first_probability in rows
        ]

    deletion_area, insertion_area = list_finite_numbers(perturbation.areas)
    return schemas.Curve(
        method=perturbation.method,
        target=target,
        order=perturbation.order,
        deletion=points(0),
        insertion=points(1),
        deletion_area=deletion_area,
        insertion_area=insertion_area,
    )


def describe_layers(views: dict[str, Any], target: int, grid: Sequence[int]) -> schemas.Layers:
    rows = zip(views["layers"], views["totals"], views["starts"], strict=True)
    frames = [
        schemas.LayerMap(layer=layer, scores=round_numbers(signal), start=start, total=round_numbers(total))
        for layer, (signal, total, start) in enumerate(rows)
    ]
    return schemas.Layers(method=views["method"], target=target, grid=list(grid), signed=views["signed"], frames=frames)
