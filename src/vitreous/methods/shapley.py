"""LIME and KernelSHAP: surrogate models with one weight per image part, fitted to scores of random subsets of parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.pixels import ImageVariants
from vitreous.methods.map_arrays import patch_sums
from vitreous.methods.method import method
from vitreous.methods.options import Count, Positive, Range, Seed
from vitreous.methods.random_control import generators
from vitreous.methods.regions import regions_of
from vitreous.methods.sampling import IN_PIXELS, PixelScores, Space
from vitreous.methods.standard_errors import regression_errors
from vitreous.models.tensor_types import PatchScores

Regions = Literal["patches", "slic", "quickshift", "felzenszwalb", "watershed"]
Fill = Literal["zero", "mean"]

Coalitions = Bool[Tensor, "s m"]  # whether each part is present
Answers = Float[Tensor, "r s"]


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
    score: Callable[[Coalitions], Answers]
    spread: Callable[[Float[Tensor, "r m"]], PatchScores | PixelScores]
    stderr: Callable[[Float[Tensor, "r c m"]], Tensor]


def parts_of(probe: BlackBoxProbe, space: Space, regions: Regions, fill: Fill) -> Parts:
    """Parts of a probe with one image: patches to remove, or regions to paint over with 0 or their mean colour."""
    image = probe.images[0]
    labels = regions_of(probe, "patches" if space == "tokens" else regions, image)
    count = int(labels.max()) + 1
    energy = torch.zeros(count).to(image).index_add_(0, labels.flatten(), (image**2).sum(0).flatten())
    if space == "tokens":
        return Parts(count, energy, lambda on: probe.score(on[None]), lambda weights: weights, root_of_squares)
    behind = torch.zeros_like(image) if fill == "zero" else mean_colour(image, labels)

    def score(on: Coalitions) -> Answers:
        def make(row: Int[Tensor, " k"], subset: Int[Tensor, " k"]) -> Float[Tensor, "k colours H W"]:
            return torch.where(on[subset][:, labels][:, None], image, behind)

        return probe.pixel_score(ImageVariants(1, len(on), make))

    def stderr(factor: Float[Tensor, "r c m"]) -> Tensor:
        if probe.black_box:
            return root_of_squares(factor)[:, labels.to(factor.device)]
        regions_of_pixels = torch.nn.functional.one_hot(labels, count).permute(2, 0, 1).double()
        return root_of_squares(factor @ patch_sums(regions_of_pixels, probe.layout).to(factor))

    return Parts(count, energy, score, lambda weights: weights[:, labels], stderr)


def root_of_squares(factor: Float[Tensor, "r c m"]) -> Float[Tensor, "r m"]:
    """Square root of the diagonal of FᵀF."""
    return factor.square().sum(1).sqrt()


def answers_of(probe: BlackBoxProbe, parts: list[Parts], on: list[Coalitions], space: Space) -> list[Answers]:
    """Scores of every image's coalitions; for `space="tokens"` the coalitions of all images are batched together."""
    on = [coalitions.to(probe.images.device) for coalitions in on]
    if space == "tokens":
        return list(probe.score(torch.stack(on)).split(probe.targets_per_image))
    return [part.score(coalitions) for part, coalitions in zip(parts, on, strict=True)]


def mean_colour(image: Float[Tensor, "colours H W"], labels: Int[Tensor, "H W"]) -> Float[Tensor, "colours H W"]:
    """The image with every region filled by its mean colour."""
    flat, size = labels.flatten(), torch.bincount(labels.flatten())
    total = torch.zeros(3, len(size)).to(image).index_add_(1, flat, image.flatten(1))
    return (total / size)[:, labels]


# ── LIME ─────────────────────────────────────────────────────────────────────────────────────────


@method(
    "lime",
    family="Perturbation",
    formula="s = argmin_w Σ_z π(z) (t(z) − w₀ − w·z)² + α ‖w‖²",
    signed=True,
    class_specific=True,
    question="probability",
    trial={"samples": 48},
    black_box=IN_PIXELS,
    forwards="1 + samples",
    backwards=0,
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
    """Weights of a linear model that says what the model says of images like this one.

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
    parts = [parts_of(probe.alone(image), space, regions, fill) for image in range(len(probe.images))]
    drawn = [
        torch.rand(samples, part.count, generator=draw) < 0.5
        for part, draw in zip(parts, generators(probe.originals, seed), strict=True)
    ]
    for on in drawn:
        on[0] = True
    maps, errors, solve = [], [], ridge if fit == "ridge" else lasso
    for part, on, answers in zip(parts, drawn, answers_of(probe, parts, drawn, space), strict=True):
        energy = part.energy.cpu()
        present = energy if distance == "pixels" else torch.ones_like(energy)
        weight = exactly(nearness(on, present.clamp(min=1e-12), width))
        weights = solve(exactly(on), exactly(answers), weight, alpha)
        maps.append(part.spread(weights.to(answers)))
        if fit == "ridge":
            factor = ridge_factor(exactly(on), exactly(answers), weight, alpha, weights)
            errors.append(part.stderr(factor).to(answers))
    return torch.cat(maps), {"stderr": torch.cat(errors) if errors else None}


def exactly(values: Tensor) -> Float[Tensor, "*any"]:
    """Copy on the CPU in double precision, where small systems are solved with the same result for every device."""
    return values.to("cpu", torch.float64)


def nearness(on: Coalitions, energy: Float[Tensor, " m"], width: float | int) -> Float[Tensor, " s"]:
    """exp(−d²/2·width²), d the cosine distance between the image with absent parts set to 0 and the whole image."""
    cosine = ((on * energy).sum(-1) / energy.sum()).sqrt()
    return torch.exp(-((1 - cosine) ** 2) / (2 * width**2))


def centred(on: Tensor, answers: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Masks and scores minus their weighted means, which removes the intercept from the fit."""
    share = weight / weight.sum()
    return on - share @ on, answers - (answers @ share)[:, None]


def ridge(
    on: Float[Tensor, "s m"], answers: Float[Tensor, "r s"], weight: Float[Tensor, " s"], alpha: Positive
) -> Float[Tensor, "r m"]:
    """Weighted least squares with an L2 penalty α and an unpenalised intercept."""
    x, y = centred(on, answers, weight)
    gram = (x * weight[:, None]).T @ x + alpha * torch.eye(x.shape[1]).to(x)
    return torch.linalg.solve(gram, (x * weight[:, None]).T @ y.T).T


def ridge_factor(
    on: Float[Tensor, "s m"],
    answers: Float[Tensor, "r s"],
    weight: Float[Tensor, " s"],
    alpha: Positive,
    weights: Float[Tensor, "r m"],
) -> Float[Tensor, "r c m"]:
    """Factor of the covariance of the weights that `ridge` found."""
    x, y = centred(on, answers, weight)
    gram = (x * weight[:, None]).T @ x + alpha * torch.eye(x.shape[1]).to(x)
    return regression_errors(x, y - weights @ x.T, torch.linalg.inv(gram), weight)


def lasso(
    on: Float[Tensor, "s m"],
    answers: Float[Tensor, "r s"],
    weight: Float[Tensor, " s"],
    alpha: Positive,
    rounds: int = 1000,
) -> Float[Tensor, "r m"]:
    """Minimise ½ weighted mean squared error + α L1 penalty by coordinate descent; the intercept is not penalised."""
    x, y = centred(on, answers, weight)
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


@method(
    "kernelshap",
    family="Perturbation",
    formula="s = argmin_φ Σ_z (t(z) − t(∅) − φ·z)² with Σφ = t(x) − t(∅), z drawn by the Shapley kernel",
    signed=True,
    class_specific=True,
    question="probability",
    trial={"samples": 48},
    black_box=IN_PIXELS,
    forwards="3 + samples",
    backwards=0,
    paper="lundberg2017unified",
    aliases=("shap",),
    presets={"captum": {"space": "pixels", "fill": "zero", "paired": False}},
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
    """Shapley values, estimated from random coalitions of patches; they add up to the answer less that to nothing at all.

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
    parts = [parts_of(probe.alone(image), space, regions, fill) for image in range(len(probe.images))]
    drawn = [
        coalitions(part.count, samples, paired, draw)
        for part, draw in zip(parts, generators(probe.originals, seed), strict=True)
    ]
    answers = answers_of(probe, parts, [with_ends(on) for on, _ in drawn], space)
    maps, errors = [], []
    for part, (on, weight), image_answers in zip(parts, drawn, answers, strict=True):
        scores, ends = exactly(image_answers[:, 2:]), exactly(image_answers[:, :2])
        values = shapley(exactly(on), scores, ends, weight)
        maps.append(part.spread(values.to(image_answers)))
        exact = len(on) == 2**part.count - 2  # all coalitions
        factor = values.new_zeros(len(values), 1, part.count)
        factor = factor if exact else shapley_factor(exactly(on), scores, ends, values, paired)
        errors.append(part.stderr(factor).to(image_answers))
    nothing = empty_set(probe) if space == "tokens" else f"every part painted over ({fill})"
    return torch.cat(maps), {"provenance": {"empty set": nothing}, "stderr": torch.cat(errors)}


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
    on: Float[Tensor, "s m"], answers: Float[Tensor, "r s"], ends: Float[Tensor, "r 2"], weight: Float[Tensor, " s"]
) -> Float[Tensor, "r m"]:
    """Weighted least squares under the constraint that the values add up to the difference of `ends`; minimum norm.

    The difference is split evenly; the remainder of each score is fitted by values that add up to 0.
    """
    parts = on.shape[1]
    even = (ends[:, 1:] - ends[:, :1]) / parts
    uneven = on - on.mean(-1, keepdim=True)
    rest = answers - ends[:, :1] - even * on.sum(-1)
    gram = (uneven * weight[:, None]).T @ uneven
    return even + (torch.linalg.pinv(gram, rtol=1e-10, hermitian=True) @ (uneven * weight[:, None]).T @ rest.T).T


def shapley_factor(
    on: Float[Tensor, "s m"],
    answers: Float[Tensor, "r s"],
    ends: Float[Tensor, "r 2"],
    values: Float[Tensor, "r m"],
    paired: bool,
) -> Float[Tensor, "r c m"]:
    """Factor of the covariance of `values` from sampled coalitions; a coalition and its complement are one sample."""
    uneven = on - on.mean(-1, keepdim=True)
    gram = uneven.T @ uneven
    residuals = answers - ends[:, :1] - values @ on.T
    sample = torch.arange(len(on)) // (2 if paired else 1)
    inverse = torch.linalg.pinv(gram, rtol=1e-10, hermitian=True)
    return regression_errors(uneven, residuals, inverse, torch.ones(len(on)).to(on), sample)
