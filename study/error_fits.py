"""Maps of `bayes` with several numbers of samples and with other priors, all fitted to the same subsets of patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.capture.probe import Probe
from vitreous.capture.score_function import resolve_score_function
from vitreous.methods.additive_model import RATIOS, additive_fits, weight_covariances, weight_posterior
from vitreous.methods.attribution import Attribution
from vitreous.methods.coalition_methods import draw_pairs, prior_maps, prior_scores
from vitreous.methods.random_control import generators
from vitreous.methods.run import score_and_logits
from vitreous.methods.spec import resolve

SIZES = (
    128,
    256,
    512,
    1024,
)  # numbers of samples of `bayes`; the subsets of a smaller number are the first of a larger one
QUESTIONS = ("probability", "logit")
THREADS = 4  # images that are fitted at once


def half_cauchy(scale: float) -> Tensor:
    """Log prior of `RATIOS` if the ratio of the standard deviations of deviation and noise is half-Cauchy."""
    deviation = RATIOS.rsqrt()
    return deviation.log() - torch.log1p((deviation / scale).square())


def fixed_ratio(ratio: float) -> Tensor:
    """Log prior that is 0 at the nearest of `RATIOS` and −∞ elsewhere."""
    nearest = (RATIOS.log() - np.log(ratio)).abs().argmin()
    return torch.full_like(RATIOS, -torch.inf).index_fill(0, nearest, 0.0)


SHRINKAGE: dict[str, Tensor] = {  # log priors of the size of deviations from the maps
    "flat": -RATIOS.log() / 2,
    "log": torch.zeros_like(RATIOS),
    **{f"cauchy{scale:g}": half_cauchy(scale) for scale in (0.3, 0.1, 0.03, 0.01)},
    **{f"fixed{ratio:g}": fixed_ratio(ratio) for ratio in (300, 1000, 10_000, 100_000)},
}


@dataclass(frozen=True)
class ScoredSubsets:
    """Subsets of a batch and their scores, for both score functions."""

    vit: Any
    images: Tensor
    probes: Mapping[str, Probe]
    keep: Tensor
    differences: Mapping[str, Tensor]
    totals: Mapping[str, Tensor]

    @property
    def targets_per_image(self) -> int:
        return self.probes["logit"].targets_per_image


@torch.no_grad()
def draw_subsets(vit: Any, images: Tensor, targets: Tensor, most: int) -> ScoredSubsets:
    """Evaluate `most` subsets once; probability and logit are computed from the same logits."""
    probes = {question: Probe(vit, images, targets, question) for question in QUESTIONS}
    probe = probes["logit"]
    patches, targets_per_image = probe.layout.patches, probe.targets_per_image
    keep = torch.stack([draw_pairs(patches, most // 2, draw) for draw in generators(probe.originals, 0)])
    keep = keep.to(probe.images.device)
    scores: dict[str, list[Tensor]] = {question: [] for question in QUESTIONS}
    no_patch = torch.zeros_like(keep[:, :1])
    for piece in torch.cat([keep, ~keep, no_patch], 1).split(2048, 1):
        logits = probe.logits(piece).repeat_interleave(targets_per_image, 0)  # [r s c]
        rows = probe.targets[:, None].expand(-1, logits.shape[1]).flatten()
        for question in QUESTIONS:
            scores[question].append(
                resolve_score_function(question)(logits.flatten(0, 1), rows).unflatten(0, logits.shape[:2])
            )
    differences, totals = {}, {}
    for question, parts in scores.items():
        first, second, empty = torch.cat(parts, 1).double().split([most // 2, most // 2, 1], 1)
        differences[question] = (first - second) / 2
        score = score_and_logits(probes[question])["score"]
        totals[question] = score - empty[:, 0].to(score)
    return ScoredSubsets(vit, images, probes, keep, differences, totals)


def weight_by_distance(covariance: Tensor, grid: Sequence[int], length: float = 3.0) -> Tensor:
    """A covariance times exp(−distance² / 2 length²) of the patches."""
    places = torch.cartesian_prod(*(torch.arange(side) for side in grid)).to(covariance)
    return covariance * torch.exp(-torch.cdist(places, places).square() / (2 * length**2))


def fit_maps(
    vit: Any, images: Tensor, targets: Tensor, question: str, prior: str, most: int, subsets: ScoredSubsets | None = None,
    shrinkage: Sequence[str] = ("",), cover: str = "features", sizes: Sequence[int] = (),
) -> dict[str, Attribution]:  # fmt: skip
    """Maps of `bayes` with each of `sizes` up to `most`, from the subsets of the largest.

    `shrinkage` names priors of SHRINKAGE, "" for that of the method; `prior` may be "fuse as two maps", or two specs joined by " and "; `cover` is the
    prior covariance: "features" as in the method, "plain" without the maps' size, or "space" with distances on the grid.
    """
    subsets = subsets or draw_subsets(vit, images, targets, most)
    probe, targets_per_image, total = subsets.probes[question], subsets.targets_per_image, subsets.totals[question]
    patches, layout = probe.layout.patches, probe.layout
    names = ("temper", "presence") if prior == "fuse as two maps" else prior.split(" and ")
    methods = [method for name in names for method in prior_maps(name)]
    maps = [prior_scores(method, probe).double().cpu() for method in methods]
    means = torch.stack(maps, 1) if maps else torch.zeros(probe.rows, 0, patches, dtype=torch.float64)
    keep, differences = subsets.keep.cpu(), subsets.differences[question].cpu()
    features = probe.states[-1][:, layout.prefix :].double().cpu()
    maps_by_spec: dict[str, Attribution] = {}
    for samples in dict.fromkeys(size for size in (*(sizes or SIZES), most) if size <= most):

        def fit_image(image: int, pairs: int = samples // 2) -> list[Any]:
            rows_of_image = slice(image * targets_per_image, (image + 1) * targets_per_image)
            image_means = means[rows_of_image]
            covariances = weight_covariances(features[image], image_means[:, :0] if cover == "plain" else image_means)
            if cover == "space":
                covariances = [weight_by_distance(covariance, layout.grid) for covariance in covariances]
            data = (keep[image, :pairs], differences[rows_of_image, :pairs], image_means)
            if tuple(shrinkage) == ("",):
                return [weight_posterior(*data, covariances)]
            (fit,) = additive_fits(*data, covariances[:1])
            return [fit.posterior(SHRINKAGE[name]) for name in shrinkage]

        with ThreadPoolExecutor(THREADS) as pool:
            by_image = list(pool.map(fit_image, range(len(images))))
        for name, posteriors in zip(shrinkage, zip(*by_image, strict=True), strict=True):
            mean = torch.cat([posterior.mean for posterior in posteriors]).to(total) + total[:, None] / patches
            stderr = torch.cat([posterior.stderr for posterior in posteriors]).to(total)
            spec = resolve("bayes", samples=samples, prior=prior.partition(" ")[0], question=question).spec
            words = [
                word for word in (name, prior if " " in prior else "", cover if cover != "features" else "") if word
            ]
            maps_by_spec[" | ".join([spec, *words])] = Attribution(
                mean, layout, probe.targets, spec, score=score_and_logits(probe)["score"],
                logits=score_and_logits(probe)["logits"], images=images.repeat_interleave(targets_per_image, 0), stderr=stderr,
            )  # fmt: skip
    return maps_by_spec
