"""LIME: a linear model with one weight per image part, fitted to the scores of images like this one."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.methods.options import Count, Positive, Range, Seed
from vitreous.methods.register_method import method
from vitreous.methods.sampling import IN_PIXELS, PERTURBATION, PixelScores, Space
from vitreous.methods.standard_errors import regression_errors
from vitreous.methods.surrogate import Coalitions, Factor, Fill, Parts, Regions, Weights, divide_images, fit_surrogate
from vitreous.models.tensor_types import PatchScores


@method(
    "lime",
    formula="s = argmin_w Σ_z π(z) (t(z) − w₀ − w·z)² + α ‖w‖²",
    signed=True,
    question="probability",
    trial={"samples": 48},
    black_box=IN_PIXELS,
    forwards="1 + samples",
    paper="ribeiro2016why",
    presets={
        "original": {"space": "pixels", "regions": "quickshift", "fill": "mean"},
        "captum": {
            "space": "pixels",
            "fill": "zero",
            "samples": 50,
            "distance": "pixels",
            "width": 1.0,
            "fit": "lasso",
            "alpha": 0.01,
        },
    },
    precision="tf32",
    **PERTURBATION,
)
def lime(
    probe: BlackBoxProbe,
    samples: Count = 1000,
    space: Space = "tokens",
    regions: Regions = "patches",
    fill: Fill = "mean",
    distance: Literal["masks", "pixels"] = "masks",
    width: Annotated[float | int, Range(0, 10_000, above=True)] = 0.25,
    fit: Literal["ridge", "lasso"] = "ridge",
    alpha: Positive = 1.0,
    seed: Seed = 0,
) -> tuple[PatchScores | PixelScores, dict[str, Tensor | None]]:
    """Weights of a linear model that is fitted to the model's scores of perturbed images.

    Each part is present with probability ½; in the first sample all are. A sample has weight exp(−d²/2·width²), where
    d is its cosine distance from the whole image.

    Parameters
    ----------
    samples
        Number of samples.
    space
        "tokens" removes absent patches; "pixels" paints absent regions over.
    regions
        Segmentation for `space="pixels"`.
    fill
        Colour of absent regions: 0 in normalised units ("zero") or the region's mean colour ("mean").
    distance
        Cosine distance of "masks" or of "pixels".
    width
        Width of the kernel.
    fit
        "ridge" or "lasso".
    alpha
        Weight of the penalty.
    seed
        Seed of the samples, combined with the image's content.
    """

    def draw(part: Parts, source: torch.Generator) -> tuple[Coalitions, Tensor]:
        on = torch.rand(samples, part.count, generator=source) < 0.5
        on[0] = True
        energy = part.energy.cpu()
        energy = energy if distance == "pixels" else torch.ones_like(energy)
        return on, weigh_samples(on, energy.clamp(min=1e-12), width)

    def solve(on: Tensor, answers: Tensor, weight: Tensor) -> tuple[Weights, Factor | None]:
        return ridge(on, answers, weight, alpha) if fit == "ridge" else (lasso(on, answers, weight, alpha), None)

    parts = divide_images(probe, space, regions, fill)
    scores, stderr = fit_surrogate(probe, parts, seed, draw, solve, space)
    return scores, {"stderr": stderr}


def weigh_samples(on: Coalitions, energy: Float[Tensor, " m"], width: float | int) -> Float[Tensor, " s"]:
    """exp(−d²/2·width²), d the cosine distance between the image with absent parts set to 0 and the whole image."""
    cosine = ((on * energy).sum(-1) / energy.sum()).sqrt()
    return torch.exp(-((1 - cosine) ** 2) / (2 * width**2))


def subtract_means(on: Tensor, answers: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Masks and scores minus their weighted means, which removes the intercept from the fit."""
    share = weight / weight.sum()
    return on - share @ on, answers - (answers @ share)[:, None]


def ridge(
    on: Float[Tensor, "s m"], answers: Float[Tensor, "r s"], weight: Float[Tensor, " s"], alpha: Positive
) -> tuple[Weights, Factor]:
    """Weighted least squares with an L2 penalty α and an unpenalised intercept, and a factor of the covariance."""
    x, y = subtract_means(on, answers, weight)
    gram = (x * weight[:, None]).T @ x + alpha * torch.eye(x.shape[1]).to(x)
    weights = torch.linalg.solve(gram, (x * weight[:, None]).T @ y.T).T
    return weights, regression_errors(x, y - weights @ x.T, torch.linalg.inv(gram), weight)


def lasso(
    on: Float[Tensor, "s m"],
    answers: Float[Tensor, "r s"],
    weight: Float[Tensor, " s"],
    alpha: Positive,
    rounds: int = 1000,
) -> Weights:
    """Minimise ½ weighted mean squared error + α L1 penalty by coordinate descent; the intercept is not penalised."""
    x, y = subtract_means(on, answers, weight)
    share = (weight / weight.sum())[:, None]
    gram, pull = (x * share).T @ x, (x * share).T @ y.T  # [m m], [m r]
    coefficients = torch.zeros_like(pull)
    for _ in range(rounds):
        before = coefficients.clone()
        for j in range(len(gram)):
            rest = pull[j] - gram[j] @ coefficients + gram[j, j] * coefficients[j]
            coefficients[j] = torch.sign(rest) * (rest.abs() - alpha).clamp(min=0) / gram[j, j].clamp(min=1e-12)
        if (coefficients - before).abs().max() <= 1e-12 * coefficients.abs().max():
            break
    return coefficients.T
