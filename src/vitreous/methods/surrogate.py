"""Surrogate models with one weight per image part, fitted to the scores of random subsets of parts: LIME, KernelSHAP."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.pixels import ImageVariants, Index
from vitreous.methods.map_arrays import patch_sums
from vitreous.methods.method import Method
from vitreous.methods.options import Count, Positive, Range, Seed
from vitreous.methods.pass_counts import ModelSizes
from vitreous.methods.random_control import generators
from vitreous.methods.regions import regions_of
from vitreous.methods.register_method import method
from vitreous.methods.sampling import IN_PIXELS, PERTURBATION, Space
from vitreous.models.random_draws import uniform_numbers
from vitreous.models.tensor_types import PatchScores, PixelScores

Regions = Literal["patches", "slic", "quickshift", "felzenszwalb", "watershed"]
Fill = Literal["zero", "mean"]

EXACT = 30  # parts; of fewer, KernelSHAP takes all coalitions if `samples` suffices

Coalitions = Bool[Tensor, "s m"]  # whether each part is present
CoalitionScores = Float[Tensor, "r s"]
Weights = Float[Tensor, "r m"]
Factor = Float[Tensor, "r c m"]  # F of a covariance FᵀF of the weights


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of one image that can be present or absent.

    Attributes
    ----------
    count
        Number of parts.
    energy
        Sum of the squared pixel values of each part.
    score
        Returns the scores of coalitions.
    spread
        Maps one weight per part to patches or pixels.
    stderr
        Maps a factor F [r c m] of the weights' covariance FᵀF to standard errors of patches, or of pixels of a black box.
    """

    count: int
    energy: Float[Tensor, " m"]
    score: Callable[[Coalitions], CoalitionScores]
    spread: Callable[[Weights], PatchScores | PixelScores]
    stderr: Callable[[Factor], Tensor]


def fit_surrogate(
    probe: BlackBoxProbe,
    space: Space,
    regions: Regions,
    fill: Fill,
    seed: int,
    draw: Callable[[Parts, torch.Generator], tuple[Coalitions, Tensor]],
    fit: Callable[[Tensor, Tensor, Tensor], tuple[Weights, Factor | None]],
) -> tuple[PatchScores | PixelScores, Tensor | None]:
    """Map and standard errors of the weights that are fitted to the scores of coalitions, image by image.

    Parameters
    ----------
    probe
        The probe.
    space
        "tokens" removes absent patches, for which the coalitions of all images are batched together; "pixels" paints over.
    regions, fill
        Parts of the image, and how absent ones are painted, for `space="pixels"`.
    seed
        Seed of the coalitions, combined with the image's content.
    draw
        `(parts, generator)` → coalitions of an image, and weights for `fit`.
    fit
        `(coalitions, scores, weights)` → one weight per part, and a factor of their covariance or None; in float64 on the
        CPU, where small systems are solved with the same result for every device.
    """
    parts = [divide_image(probe.for_image(image), space, regions, fill) for image in range(len(probe.images))]
    samples = [draw(part, source) for part, source in zip(parts, generators(probe.originals, seed), strict=True)]
    coalitions = [on.to(probe.images.device) for on, _ in samples]
    if space == "tokens":
        scores_of_images = list(probe.score(torch.stack(coalitions)).split(probe.targets_per_image))
    else:
        scores_of_images = [part.score(on) for part, on in zip(parts, coalitions, strict=True)]
    maps, errors = [], []
    for part, (on, sample_weights), scores in zip(parts, samples, scores_of_images, strict=True):
        weights, factor = fit(*(values.to("cpu", torch.float64) for values in (on, scores, sample_weights)))
        maps.append(part.spread(weights.to(scores)))
        if factor is not None:
            errors.append(part.stderr(factor).to(scores))
    return torch.cat(maps), torch.cat(errors) if errors else None


def divide_image(probe: BlackBoxProbe, space: Space, regions: Regions, fill: Fill) -> Parts:
    """Parts of a probe with one image: patches to remove, or regions to paint over with 0 or their mean colour."""
    image = probe.images[0]
    labels = regions_of(probe, "patches" if space == "tokens" else regions)
    count = int(labels.max()) + 1
    energy = torch.zeros(count).to(image).index_add_(0, labels.flatten(), (image**2).sum(0).flatten())
    if space == "tokens":
        return Parts(count, energy, lambda on: probe.score(on[None]), lambda weights: weights, norm_of_columns)
    behind = torch.zeros_like(image) if fill == "zero" else mean_colour(image, labels)

    def score(on: Coalitions) -> CoalitionScores:
        def make(row: Index, subset: Index) -> Float[Tensor, "k colours H W"]:
            return torch.where(on[subset][:, labels][:, None], image, behind)

        return probe.pixel_score(ImageVariants(1, len(on), make))

    def stderr(factor: Factor) -> Tensor:
        if probe.black_box:
            return norm_of_columns(factor)[:, labels.to(factor.device)]
        regions_of_pixels = torch.nn.functional.one_hot(labels, count).permute(2, 0, 1).double()
        return norm_of_columns(factor @ patch_sums(regions_of_pixels, probe.layout).to(factor))

    return Parts(count, energy, score, lambda weights: weights[:, labels], stderr)


def norm_of_columns(factor: Factor) -> Weights:
    """Square root of the diagonal of FᵀF."""
    return factor.square().sum(1).sqrt()


def mean_colour(image: Float[Tensor, "colours H W"], labels: Int[Tensor, "H W"]) -> Float[Tensor, "colours H W"]:
    """The image with every region filled by its mean colour."""
    flat, size = labels.flatten(), torch.bincount(labels.flatten())
    total = torch.zeros(3, len(size)).to(image).index_add_(1, flat, image.flatten(1))
    return (total / size)[:, labels]


def regression_errors(
    design: Float[Tensor, "s m"],
    residuals: Float[Tensor, "r s"],
    inverse: Float[Tensor, "m m"],
    weight: Float[Tensor, " s"],
    cluster: Int[Tensor, " s"] | None = None,
) -> Float[Tensor, "r c m"]:
    """Factor F of the covariance FᵀF of weighted least-squares coefficients, robust to unequal noise.

    The coefficients are `inverse` Σₛ weightₛ designₛ scoreₛ. Squared residuals are divided by one minus their leverage, which
    makes them unbiased if the noise is equal. NaN if there are not more clusters than coefficients.

    Parameters
    ----------
    design
        Rows of the regression.
    residuals
        Scores minus fitted scores.
    inverse
        Inverse, or pseudo-inverse, of Σₛ weightₛ designₛ designₛᵀ (+ penalty).
    weight
        Weight of every row.
    cluster
        Rows with the same number have dependent noise; None if all are independent.
    """
    rows, coefficients = design.shape
    cluster = torch.arange(rows, device=design.device) if cluster is None else cluster
    clusters = int(cluster.max()) + 1 if rows else 0
    if clusters <= coefficients:
        return design.new_full((len(residuals), 1, coefficients), torch.nan)
    moved = (design * weight[:, None]) @ inverse  # [s m]
    leverage = design.new_zeros(clusters).index_add_(0, cluster, (moved * design).sum(1))
    factor = design.new_zeros(len(residuals), clusters, coefficients)
    factor.index_add_(1, cluster, residuals[:, :, None] * moved)
    return factor / (1 - leverage).clamp(min=1e-6).sqrt()[:, None]


# ── LIME ─────────────────────────────────────────────────────────────────────────────────────────


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
        on = uniform_numbers(source, (samples, part.count)) < 0.5
        on[0] = True
        energy = part.energy.cpu()
        energy = energy if distance == "pixels" else torch.ones_like(energy)
        return on, weigh_samples(on, energy.clamp(min=1e-12), width)

    def solve(on: Tensor, scores: Tensor, weight: Tensor) -> tuple[Weights, Factor | None]:
        return ridge(on, scores, weight, alpha) if fit == "ridge" else (lasso(on, scores, weight, alpha), None)

    scores, stderr = fit_surrogate(probe, space, regions, fill, seed, draw, solve)
    return scores, {"stderr": stderr}


def weigh_samples(on: Coalitions, energy: Float[Tensor, " m"], width: float | int) -> Float[Tensor, " s"]:
    """exp(−d²/2·width²), d the cosine distance between the image with absent parts set to 0 and the whole image."""
    cosine = ((on * energy).sum(-1) / energy.sum()).sqrt()
    return torch.exp(-((1 - cosine) ** 2) / (2 * width**2))


def subtract_means(on: Tensor, scores: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Masks and scores minus their weighted means, which removes the intercept from the fit."""
    share = weight / weight.sum()
    return on - share @ on, scores - (scores @ share)[:, None]


def ridge(
    on: Float[Tensor, "s m"], scores: CoalitionScores, weight: Float[Tensor, " s"], alpha: Positive
) -> tuple[Weights, Factor]:
    """Weighted least squares with an L2 penalty α and an unpenalised intercept, and a factor of the covariance."""
    x, y = subtract_means(on, scores, weight)
    gram = (x * weight[:, None]).T @ x + alpha * torch.eye(x.shape[1]).to(x)
    weights = torch.linalg.solve(gram, (x * weight[:, None]).T @ y.T).T
    return weights, regression_errors(x, y - weights @ x.T, torch.linalg.inv(gram), weight)


def lasso(
    on: Float[Tensor, "s m"],
    scores: CoalitionScores,
    weight: Float[Tensor, " s"],
    alpha: Positive,
    rounds: int = 1000,
) -> Weights:
    """Minimise ½ weighted mean squared error + α L1 penalty by coordinate descent; the intercept is not penalised."""
    x, y = subtract_means(on, scores, weight)
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


# ── KernelSHAP ───────────────────────────────────────────────────────────────────────────────────


def count_coalitions(method: Method, sizes: ModelSizes) -> dict[str, int]:
    """Coalitions of the patches; of few patches, all of them. Superpixels are counted as if there were many."""
    settings, parts = method.settings, sizes.get("patches", EXACT)
    in_patches = settings["space"] == "tokens" or settings["regions"] == "patches"
    return {"samples": min(settings["samples"], 2**parts - 2)} if in_patches and parts < EXACT else {}


@method(
    "kernelshap",
    formula="s = argmin_φ Σ_z (t(z) − t(∅) − φ·z)² with Σφ = t(x) − t(∅), z drawn by the Shapley kernel",
    signed=True,
    question="probability",
    trial={"samples": 48},
    black_box=IN_PIXELS,
    forwards="3 + samples",
    counts=count_coalitions,
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

    def fit(on: Tensor, scores: Tensor, weight: Tensor) -> tuple[Weights, Factor]:
        return shapley(on[2:], scores[:, 2:], scores[:, :2], weight, paired)

    scores, stderr = fit_surrogate(probe, space, regions, fill, seed, draw, fit)
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
    if parts < EXACT and 2**parts - 2 <= samples:
        every = torch.arange(1, 2**parts - 1)[:, None] >> torch.arange(parts) & 1
        weight = [(parts - 1) / (math.comb(parts, k) * k * (parts - k)) for k in range(1, parts)]
        return every.bool(), torch.tensor(weight, dtype=torch.float64)[every.sum(-1) - 1]
    draws = -(-samples // 2) if paired else samples
    sizes = 1 + torch.multinomial((parts - 1) / (size * (parts - size)), draws, replacement=True, generator=draw)
    place = uniform_numbers(draw, (draws, parts)).argsort(-1).argsort(-1)
    on = place < sizes[:, None]
    on = torch.stack([on, ~on], 1).flatten(0, 1)[:samples] if paired else on
    return on, torch.ones(len(on), dtype=torch.float64)


def shapley(
    on: Float[Tensor, "s m"],
    scores: CoalitionScores,
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
    rest = scores - ends[:, :1] - even * on.sum(-1)
    gram = (uneven * weight[:, None]).T @ uneven
    inverse = torch.linalg.pinv(gram, rtol=1e-10, hermitian=True)
    values = even + (inverse @ (uneven * weight[:, None]).T @ rest.T).T
    if len(on) == 2**parts - 2:  # all coalitions
        return values, values.new_zeros(len(values), 1, parts)
    residuals = scores - ends[:, :1] - values @ on.T
    sample = torch.arange(len(on)) // (2 if paired else 1)
    return values, regression_errors(uneven, residuals, inverse, weight, sample)
