"""Surrogate models with one weight per image part, fitted to the scores of random subsets of parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.pixels import ImageVariants
from vitreous.methods.map_arrays import patch_sums
from vitreous.methods.random_control import generators
from vitreous.methods.regions import regions_of
from vitreous.methods.sampling import PixelScores, Space
from vitreous.models.tensor_types import PatchScores

Regions = Literal["patches", "slic", "quickshift", "felzenszwalb", "watershed"]
Fill = Literal["zero", "mean"]

Coalitions = Bool[Tensor, "s m"]  # whether each part is present
Answers = Float[Tensor, "r s"]
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
    score: Callable[[Coalitions], Answers]
    spread: Callable[[Weights], PatchScores | PixelScores]
    stderr: Callable[[Factor], Tensor]


def fit_surrogate(
    probe: BlackBoxProbe,
    parts: list[Parts],
    seed: int,
    draw: Callable[[Parts, torch.Generator], tuple[Coalitions, Tensor]],
    fit: Callable[[Tensor, Tensor, Tensor], tuple[Weights, Factor | None]],
    space: Space,
) -> tuple[PatchScores | PixelScores, Tensor | None]:
    """Map and standard errors of the weights that are fitted to the scores of coalitions, image by image.

    Parameters
    ----------
    probe
        The probe.
    parts
        Parts of every image.
    seed
        Seed of the coalitions, combined with the image's content.
    draw
        `(parts, generator)` → coalitions of an image, and weights for `fit`.
    fit
        `(coalitions, scores, weights)` → one weight per part, and a factor of their covariance or None; in float64 on the
        CPU, where small systems are solved with the same result for every device.
    space
        "tokens" removes absent patches, for which the coalitions of all images are batched together; "pixels" paints over.
    """
    samples = [draw(part, source) for part, source in zip(parts, generators(probe.originals, seed), strict=True)]
    maps, errors = [], []
    answers = score_coalitions(probe, parts, [on for on, _ in samples], space)
    for part, (on, sample_weights), scores in zip(parts, samples, answers, strict=True):
        weights, factor = fit(in_double_precision(on), in_double_precision(scores), in_double_precision(sample_weights))
        maps.append(part.spread(weights.to(scores)))
        if factor is not None:
            errors.append(part.stderr(factor).to(scores))
    return torch.cat(maps), torch.cat(errors) if errors else None


def divide_images(probe: BlackBoxProbe, space: Space, regions: Regions, fill: Fill) -> list[Parts]:
    """Parts of every image of a probe; see `divide_image`."""
    return [divide_image(probe.for_image(image), space, regions, fill) for image in range(len(probe.images))]


def divide_image(probe: BlackBoxProbe, space: Space, regions: Regions, fill: Fill) -> Parts:
    """Parts of a probe with one image: patches to remove, or regions to paint over with 0 or their mean colour."""
    image = probe.images[0]
    labels = regions_of(probe, "patches" if space == "tokens" else regions, image)
    count = int(labels.max()) + 1
    energy = torch.zeros(count).to(image).index_add_(0, labels.flatten(), (image**2).sum(0).flatten())
    if space == "tokens":
        return Parts(count, energy, lambda on: probe.score(on[None]), lambda weights: weights, norm_of_columns)
    behind = torch.zeros_like(image) if fill == "zero" else mean_colour(image, labels)

    def score(on: Coalitions) -> Answers:
        def make(row: Int[Tensor, " k"], subset: Int[Tensor, " k"]) -> Float[Tensor, "k colours H W"]:
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


def score_coalitions(probe: BlackBoxProbe, parts: list[Parts], on: list[Coalitions], space: Space) -> list[Answers]:
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


def in_double_precision(values: Tensor) -> Float[Tensor, "*any"]:
    """Copy on the CPU in double precision, where small systems are solved with the same result for every device."""
    return values.to("cpu", torch.float64)
