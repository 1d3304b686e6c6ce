"""Bayes: what every patch adds to the score, estimated from random subsets with a gradient map as prior.

The score is evaluated on random subsets of the patches and their complements, and an additive Gaussian model is fitted to
it (`additive_model`). A gradient map gives the prior mean, with a scale that is fitted to the scores, and patches with
similar final tokens are assumed to deviate from it alike. The posterior has a standard deviation for every patch, so
sampling can stop as soon as the order of the patches is settled.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.additive_model import WeightPosterior, weight_covariances, weight_posterior
from vitreous.methods.method import Method
from vitreous.methods.options import Range, Seed
from vitreous.methods.presence import OF_THIS_LIBRARY
from vitreous.methods.random_control import generators
from vitreous.methods.register_method import method
from vitreous.methods.run import score_and_logits
from vitreous.methods.spec import resolve
from vitreous.methods.surrogate import empty_set
from vitreous.models.tensor_types import PatchScores

SMALLEST, LARGEST = 0.1, 0.5  # share of the patches in the first subset of a pair
ROUND = 64  # samples before the first look at `until`; every further round doubles them


def prior_maps(spec: str) -> tuple[Method, ...]:
    """Methods whose maps span the prior mean: none for "none", else the one that is named.

    Raises
    ------
    SpecError
        If the spec sets its own score function, or its map does not depend on the target.
    """
    methods = () if spec == "none" else (resolve(spec),)
    for prior in methods:
        if "question" in prior.options:
            raise SpecError(f"prior={spec!r} says what it asks; say it of the whole: bayes(prior=…, question=…)")
        if not prior.class_specific:
            raise SpecError(
                f"prior={spec!r} is the same for every class; use one that is not, such as 'fuse' or 'temper'"
            )
    return methods


@method(
    "bayes",
    formula="s = E[w | t(S₁), t(S̄₁), …], t(S) = size effect + Σ_{j∈S} wⱼ + noise, w ~ N(a·fuse, τ² K)",
    trial={"samples": 32},
    forwards="3 + samples",
    backwards=2,
    **OF_THIS_LIBRARY,
)
def bayes(
    probe: Probe,
    samples: Annotated[int, Range(16, 10_000_000)] = 256,
    prior: Annotated[str, prior_maps] = "fuse",
    until: Annotated[float, Range(0, 0.5, above=True, below=True)] | None = None,
    seed: Seed = 0,
) -> tuple[PatchScores, dict[str, Any]]:
    """Contribution of a patch to the score, fitted to random subsets with gradient maps as prior; with error bars.

    Scores add up to the score of the image less that of no patch at all, as Shapley values do. The standard error is the
    posterior standard deviation.

    Parameters
    ----------
    samples
        Number of subsets; even, since they come with their complements. They keep a tenth to nine tenths of the patches, so
        one costs half a forward pass on average.
    prior
        "fuse" (two backward passes), the spec of another class-specific method, such as "temper" (one backward pass), or "none".
    until
        Stop as soon as the expected share of pairs of patches in the wrong order is at most this, 64 samples or more;
        None takes all `samples`.
    seed
        Seed of the subsets, combined with the image's content. More samples extend fewer ones.
    """
    if samples % 2:
        raise SpecError(f"samples={samples}; subsets come with their complements: give an even number")
    maps = [prior_scores(prior_method, probe) for prior_method in prior_maps(prior)]
    empty = {"provenance": {"empty set": empty_set(probe)}}
    rows, patches = probe.rows, probe.layout.patches
    means = torch.stack(maps, 1) if maps else probe.images.new_zeros(rows, 0, patches)
    nothing = torch.zeros(len(probe.images), 1, patches, dtype=torch.bool, device=probe.images.device)
    total = score_and_logits(probe)["score"] - probe.score(nothing)[:, 0]
    if patches == 1:
        return total[:, None], {"stderr": torch.zeros_like(total)[:, None], **empty}
    keep = [draw_pairs(patches, samples // 2, draw) for draw in generators(probe.originals, seed)]
    posteriors = fit_all(probe, torch.stack(keep), means) if until is None else fit_until(probe, keep, means, until)
    mean = torch.cat([posterior.mean for posterior in posteriors]).to(total)
    stderr = torch.cat([posterior.stderr for posterior in posteriors]).to(total)
    return mean + total[:, None] / patches, {"stderr": stderr, **empty}


def prior_scores(prior: Method, probe: Probe) -> PatchScores:
    """Map of a method, on the patches."""
    patches = prior(probe).patches
    assert patches is not None
    return patches


def draw_pairs(patches: int, pairs: int, draw: torch.Generator) -> Bool[Tensor, "pairs p"]:
    """First subsets of complementary pairs; sizes spread evenly over `SMALLEST` to `LARGEST` in every prefix."""
    share = SMALLEST + (LARGEST - SMALLEST) * torch.tensor([bit_reversed(pair) for pair in range(pairs)])
    sizes = (share * patches).round().clamp(min=1, max=patches - 1)
    ranks = torch.stack([torch.randperm(patches, generator=draw) for _ in range(pairs)])
    return ranks < sizes[:, None]


def bit_reversed(number: int) -> float:
    """Element of van der Corput's sequence in base 2: 0, ½, ¼, ¾, ⅛, …"""
    digits = f"{number:b}"[::-1]
    return int(digits, 2) / 2 ** len(digits) if number else 0.0


def half_differences(probe: Probe, keep: Bool[Tensor, "b pairs p"]) -> Float[Tensor, "r pairs"]:
    """Half the difference of the scores of every subset and its complement."""
    first, second = probe.score(torch.cat([keep, ~keep], 1)).chunk(2, 1)
    return (first.double() - second.double()) / 2 if first.device.type != "mps" else (first - second).cpu().double() / 2


def fit_all(probe: Probe, keep: Bool[Tensor, "b pairs p"], means: Float[Tensor, "r m p"]) -> list[WeightPosterior]:
    """Posterior of every image from all of its subsets, which are evaluated together."""
    keep = keep.to(probe.images.device)
    differences = half_differences(probe, keep)
    several = probe.targets_per_image
    return [
        fit_posterior(probe, image, keep[image], own, prior)
        for image, (own, prior) in enumerate(zip(differences.split(several), means.split(several), strict=True))
    ]


def fit_until(
    probe: Probe, keep: list[Bool[Tensor, "pairs p"]], means: Float[Tensor, "r m p"], until: float
) -> list[WeightPosterior]:
    """Posterior of every target from as many subsets of its image as its order needs, image by image."""
    posteriors = []
    for image, prior in enumerate(means.split(probe.targets_per_image)):
        subsets, alone = keep[image].to(probe.images.device), probe.for_image(image)
        differences, done = [], 0
        settled: dict[int, WeightPosterior] = {}
        while done < len(subsets) and len(settled) < len(prior):
            more = subsets[done : max(2 * done, ROUND // 2)]
            differences.append(half_differences(alone, more[None]))
            done += len(more)
            posterior = fit_posterior(probe, image, subsets[:done], torch.cat(differences, 1), prior)
            enough = (posterior.rank_error() <= until).tolist()
            for target, is_settled in enumerate(enough):
                if target not in settled and (is_settled or done == len(subsets)):
                    settled[target] = posterior.target(target)
        posteriors += [settled[target] for target in range(len(prior))]
    return posteriors


def fit_posterior(
    probe: Probe,
    image: int,
    keep: Bool[Tensor, "pairs p"],
    differences: Float[Tensor, "k pairs"],
    prior: Float[Tensor, "k m p"],
) -> WeightPosterior:
    """Posterior of one image, with the covariances of its final tokens."""
    features = probe.states[-1][image, probe.layout.prefix :].to(differences)
    maps = prior.to(differences)
    return weight_posterior(keep.to(differences.device), differences, maps, weight_covariances(features, maps))
