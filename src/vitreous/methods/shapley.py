"""KernelSHAP: Shapley values of image parts, fitted to the scores of random coalitions."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.methods.options import Count, Seed
from vitreous.methods.register_method import method
from vitreous.methods.sampling import IN_PIXELS, PERTURBATION, PixelScores, Space
from vitreous.methods.standard_errors import regression_errors
from vitreous.methods.surrogate import Coalitions, Factor, Fill, Parts, Regions, Weights, divide_images, fit_surrogate
from vitreous.models.tensor_types import PatchScores


@method(
    "kernelshap",
    formula="s = argmin_φ Σ_z (t(z) − t(∅) − φ·z)² with Σφ = t(x) − t(∅), z drawn by the Shapley kernel",
    signed=True,
    question="probability",
    trial={"samples": 48},
    black_box=IN_PIXELS,
    forwards="3 + samples",
    paper="lundberg2017unified",
    aliases=("shap",),
    presets={"captum": {"space": "pixels", "fill": "zero", "paired": False}},
    **PERTURBATION,
)
def kernelshap(
    probe: BlackBoxProbe,
    samples: Count = 2048,
    space: Space = "tokens",
    regions: Regions = "patches",
    fill: Fill = "zero",
    paired: bool = True,
    seed: Seed = 0,
) -> tuple[PatchScores | PixelScores, dict[str, Any]]:
    """Shapley values, estimated from random coalitions of patches; they add up to the score minus that of no patch.

    Exact if `samples` is at least the number of coalitions (and there are fewer than 30 parts).

    Parameters
    ----------
    samples
        Number of coalitions.
    space
        "tokens" removes absent patches; "pixels" paints absent regions over.
    regions
        Segmentation for `space="pixels"`.
    fill
        Colour of absent regions: 0 in normalised units ("zero") or the region's mean colour ("mean").
    paired
        Whether each coalition is followed by its complement, which reduces variance.
    seed
        Seed of the coalitions, combined with the image's content.
    """

    def draw(part: Parts, source: torch.Generator) -> tuple[Coalitions, Tensor]:
        on, weight = coalitions(part.count, samples, paired, source)
        return with_ends(on), weight

    def fit(on: Tensor, answers: Tensor, weight: Tensor) -> tuple[Weights, Factor]:
        return shapley(on[2:], answers[:, 2:], answers[:, :2], weight, paired)

    scores, stderr = fit_surrogate(probe, divide_images(probe, space, regions, fill), seed, draw, fit, space)
    nothing = empty_set(probe) if space == "tokens" else f"every part painted over ({fill})"
    return scores, {"provenance": {"empty set": nothing}, "stderr": stderr}


def empty_set(probe: BlackBoxProbe) -> str:
    """Description of the model's input when no patch is present, for the provenance."""
    prefix = probe.layout.prefix
    rows = getattr(probe.vit.pool, "rows", None)
    if rows is not None and prefix and bool(rows(prefix).any()):
        return "the prefix tokens alone"
    return "no patch to read: the head on a zero pooled vector"


def with_ends(on: Coalitions) -> Bool[Tensor, "more m"]:
    """The empty and the full coalition, followed by the given ones."""
    ends = torch.tensor([[False], [True]]).expand(2, on.shape[1])
    return torch.cat([ends.to(on.device), on])


def coalitions(parts: int, samples: int, paired: bool, draw: torch.Generator) -> tuple[Coalitions, Float[Tensor, " s"]]:
    """Coalitions drawn from the Shapley kernel with weight 1, or, if `samples` suffice, all with kernel weights."""
    if parts == 1:
        return torch.zeros(0, 1, dtype=torch.bool), torch.zeros(0, dtype=torch.float64)
    size = torch.arange(1, parts, dtype=torch.float64)
    if parts < 30 and 2**parts - 2 <= samples:
        every = torch.arange(1, 2**parts - 1)[:, None] >> torch.arange(parts) & 1
        weight = [(parts - 1) / (math.comb(parts, k) * k * (parts - k)) for k in range(1, parts)]
        return every.bool(), torch.tensor(weight, dtype=torch.float64)[every.sum(-1) - 1]
    draws = -(-samples // 2) if paired else samples
    sizes = 1 + torch.multinomial((parts - 1) / (size * (parts - size)), draws, replacement=True, generator=draw)
    place = torch.rand(draws, parts, generator=draw).argsort(-1).argsort(-1)
    on = place < sizes[:, None]
    on = torch.stack([on, ~on], 1).flatten(0, 1)[:samples] if paired else on
    return on, torch.ones(len(on), dtype=torch.float64)


def shapley(
    on: Float[Tensor, "s m"],
    answers: Float[Tensor, "r s"],
    ends: Float[Tensor, "r 2"],
    weight: Float[Tensor, " s"],
    paired: bool,
) -> tuple[Weights, Factor]:
    """Weighted least squares under the constraint that the values add up to the difference of `ends`; minimum norm.

    The difference is split evenly; the remainder of each score is fitted by values that add up to 0. The factor of the
    covariance takes a coalition and its complement (`paired`) as one sample; it is 0 if all coalitions are given.
    """
    parts = on.shape[1]
    even = (ends[:, 1:] - ends[:, :1]) / parts
    uneven = on - on.mean(-1, keepdim=True)
    rest = answers - ends[:, :1] - even * on.sum(-1)
    gram = (uneven * weight[:, None]).T @ uneven
    inverse = torch.linalg.pinv(gram, rtol=1e-10, hermitian=True)
    values = even + (inverse @ (uneven * weight[:, None]).T @ rest.T).T
    if len(on) == 2**parts - 2:  # all coalitions
        return values, values.new_zeros(len(values), 1, parts)
    residuals = answers - ends[:, :1] - values @ on.T
    sample = torch.arange(len(on)) // (2 if paired else 1)
    return values, regression_errors(uneven, residuals, inverse, weight, sample)
