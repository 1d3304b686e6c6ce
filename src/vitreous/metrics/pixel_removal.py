"""Insertion and deletion of pixels against a baseline image, as in RISE and TIS."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from vitreous.core.errors import SpecError
from vitreous.methods.options import Count, Seed
from vitreous.metrics.baselines import Baseline, Space, paint_baseline
from vitreous.metrics.metric import Metric
from vitreous.metrics.metric_result import Measured
from vitreous.metrics.model_outputs import Class, PerturbedModel, perturbation_metric
from vitreous.metrics.order import SHOWS, Area, Show, summarise_curve

FACTS: dict[str, Any] = {
    "family": "faithfulness",
    "affine_invariant": True,
    "paper": "petsiuk2018rise",
    "trial": {"steps": 8, "baseline": "black"},
}
TIS = {"steps": 224, "start": False, "area": "mean", "space": "normalised", "track": "label"}
RISE = {"steps": 224, "start": True, "area": "normalised", "space": "normalised", "track": "predicted"}


def count_replaced_pixels(pixels: int, steps: int, start: bool) -> list[int]:
    """Number of replaced pixels after every step.

    Steps have ceil(pixels / steps) pixels, the last one the remainder, so there may be fewer than `steps`. `start` adds
    0 as the first point.
    """
    if steps > pixels:
        raise SpecError(f"steps={steps!r}; an image of {pixels} pixels goes in 1 to {pixels} steps")
    per_step = -(-pixels // steps)
    gone = [min(per_step * step, pixels) for step in range(1, -(-pixels // per_step) + 1)]
    return [0, *gone] if start else gone


def probability_curve(
    model: PerturbedModel, insert: bool, baseline: str, space: str, steps: int, start: bool, track: str, seed: int
) -> tuple[Float[Tensor, "r s"], list[float]]:
    """Probability of the class `track` after every step, and the fraction of pixels inserted or deleted so far."""
    pixels = model.probe.images.shape[-2] * model.probe.images.shape[-1]
    gone = count_replaced_pixels(pixels, steps, start)
    counts, side = (gone, "top") if insert else ([pixels - count for count in gone], "bottom")
    outputs = model.outputs_with_pixels(side, counts, paint_baseline(model, baseline, space, seed))
    return outputs.probability(track)[0], [count / pixels for count in gone]


def pixel_metric(name: str, description: str, default: Baseline, *, insert: bool, **facts: Any) -> Metric:
    """Register the area under the probability as pixels enter a baseline image (`insert`) or give way to it."""

    def probability(
        model: PerturbedModel,
        baseline: Baseline = default,
        space: Space = "normalised",
        steps: Count = 224,
        start: bool = False,
        track: Class = "explained",
        area: Area = "mean",
        show: Show = "fraction",
        seed: Seed = 0,
    ) -> Measured:
        curve, levels = probability_curve(model, insert, baseline, space, steps, start, track, seed)
        return summarise_curve(model.attribution, curve, levels, area, show)

    return perturbation_metric(name, description, bounds=(0, 1), forwards="1 + steps", **FACTS, **facts)(probability)


insertion = pixel_metric(
    "insertion",
    """Probability of a class as the highest pixels enter a baseline image.

    `baseline`: "blur", "black", "mean", "random", or "blur-rise", RISE's blur; `space`: "normalised", as published, or "pixels",
    before normalisation. `start`: whether the first point is the baseline itself (RISE), or the image after one step (TIS).
    `track`: "explained", "predicted" or "label". `area`: "mean" of the points, or trapezoids ("normalised", "trapezoid").
    """,
    "blur",
    insert=True,
    higher_is_better=True,
    formula="mean over k of p(the baseline with the top k pixels of x)",
    presets={"tis": TIS, "rise": {**RISE, "baseline": "blur-rise"}},
)
deletion = pixel_metric(
    "deletion",
    "Probability of a class as the highest pixels are replaced by a baseline image; options as for `insertion`.",
    "black",
    insert=False,
    higher_is_better=False,
    formula="mean over k of p(x with its top k pixels from the baseline)",
    presets={"tis": TIS, "rise": {**RISE, "baseline": "black"}},
)


@perturbation_metric(
    higher_is_better=True,
    formula="insertion − deletion",
    bounds=(-1, 1),
    forwards="1 + 2 steps",
    presets={"tis": TIS, "rise": {**RISE, "baseline": ("blur-rise", "black")}},
    **FACTS,
)
def insertion_minus_deletion(
    model: PerturbedModel,
    baseline: Baseline | tuple[Baseline, ...] = "blur",
    space: Space = "normalised",
    steps: Count = 224,
    start: bool = False,
    track: Class = "explained",
    area: Area = "mean",
    show: Show = "fraction",
    seed: Seed = 0,
) -> Measured:
    """Insertion minus deletion; options as for `insertion`, and `baseline` may be a pair, ("blur", "black")."""
    if show == "complement":
        raise SpecError(f"show={show!r} has no meaning for a difference; known: {', '.join(map(repr, SHOWS[:2]))}")
    pair = (baseline, baseline) if isinstance(baseline, str) else tuple(baseline)
    if len(pair) != 2:
        raise SpecError(f"baseline={baseline!r}; give one baseline, or one for insertion and one for deletion")
    (inserted, levels), (deleted, _) = (
        probability_curve(model, insert, own_baseline, space, steps, start, track, seed)
        for insert, own_baseline in zip((True, False), pair, strict=True)
    )
    parts = {"insertion": inserted, "deletion": deleted}
    return summarise_curve(model.attribution, inserted - deleted, levels, area, show, parts=parts)
