"""Annealed and Bayes: maps averaged over, and contributions fitted to, random coalitions of patches.

Annealed: averaged over random halves of the patches, share and slope (`fuse`) estimate the contribution of a patch to a
coalition that it joins.

Bayes: what every patch adds to the score. The score is evaluated on random subsets of the patches and their complements, and
an additive Gaussian model is fitted to it (`additive_model`). A gradient map gives the prior mean, with a scale that is fitted
to the scores, and patches with similar final tokens are assumed to deviate from it alike. The posterior has a standard
deviation for every patch, so sampling can stop as soon as the order of the patches is settled.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from vitreous.capture.path_gradients import in_coalitions
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.additive_model import WeightPosterior, weight_covariances, weight_posterior
from vitreous.methods.method import Method
from vitreous.methods.options import Range, Seed
from vitreous.methods.pass_counts import ModelSizes, evaluate_passes
from vitreous.methods.presence import OF_THIS_LIBRARY
from vitreous.methods.random_control import generators
from vitreous.methods.recipe import LayerSignal
from vitreous.methods.register_method import method
from vitreous.methods.run import score_and_logits
from vitreous.methods.spec import resolve
from vitreous.methods.surrogate import empty_set
from vitreous.models.random_draws import random_order
from vitreous.models.tensor_types import Images, Keep, PatchScores

Part = Annotated[float | int, Range(0, 1, above=True, below=True)]
SMALLEST, LARGEST = 0.1, 0.5  # share of the patches in the first subset of a pair
ROUND = 64  # samples before the first look at `until`; every further round doubles them


def count_inner(method: Method, sizes: ModelSizes) -> tuple[float, float]:
    """Passes of a method that another one calls; a KeyError if they depend on a size that is not known."""
    passes = evaluate_passes(method, sizes)
    if passes is None:
        raise KeyError(method.spec)
    return passes


# ── annealed ─────────────────────────────────────────────────────────────────────────────────────


def averaged_method(spec: str) -> Method:
    """The method that `spec` names, if its map can be computed for a subset of the patches.

    Raises
    ------
    SpecError
        If it has no fold, computes its own passes or pixel space, sets its own score function, or ignores the target.
    """
    candidate = resolve(spec)
    recipe, space = candidate.recipe, candidate.options.get("space", "tokens")
    # nothing but layers of one pass (or, as `fuse`, of two)
    folds_layers = isinstance(recipe, LayerSignal) and recipe.adapt is None and not recipe.needs.own_pass
    if not folds_layers or space != "tokens":
        raise SpecError(
            f"of={spec!r} does not bring layers together; use one that does, such as 'fuse' or 'ixg@libra+plus'"
        )
    if "question" in candidate.options:
        raise SpecError(f"of={spec!r} says what it asks; say it of the whole: anneal(of=…, question=…)")
    if not candidate.class_specific:
        raise SpecError(f"of={spec!r} is the same whatever is asked; use one that is not, such as 'fuse'")
    return candidate


def count_averaged(method: Method, sizes: ModelSizes) -> dict[str, float]:
    """Passes of the averaged method, for every coalition and for all patches."""
    averaged, maps = averaged_method(method.settings["of"]), 1 + method.settings["coalitions"]
    forwards, backwards = count_inner(averaged, sizes)
    depth = sizes.get("layers")
    share = 1 if depth is None else len(averaged.read_layers(depth)) / depth  # blocks that are backpropagated
    return {"forwards": maps * forwards, "backwards": maps * backwards * share}


@method(
    "anneal",
    formula="sⱼ = mean over coalitions S ∋ j of fuseⱼ(S), S random halves of the patches with their complements, and all of them",
    trial={"coalitions": 4},
    forwards="2 + 2 * coalitions",
    backwards="2 + 2 * coalitions",
    counts=count_averaged,
    **OF_THIS_LIBRARY,
)
def anneal(
    probe: Probe,
    coalitions: Annotated[int, Range(high=10_000_000)] = 16,
    kept: Part | tuple[Part, ...] = 0.5,
    complements: bool = True,
    of: Annotated[str, averaged_method] = "fuse",
    seed: Seed = 0,
) -> tuple[PatchScores, dict[str, Any]]:
    """Fused maps averaged over random halves of the patches, and their complements.

    Parameters
    ----------
    coalitions
        Number of coalitions; even, if complements are used.
    kept
        Share of the patches in the first coalition of a pair; of several shares, pairs use one after the other.
    complements
        Whether to draw pairs of a coalition and its complement instead of independent coalitions.
    of
        Spec of the method that is averaged, any sum or roll-out over layers; "temper" takes half the time.
    seed
        Seed of the coalitions, combined with the image's content.
    """
    averaged = averaged_method(of)
    keep = draw_coalitions(probe.originals, probe.layout.patches, coalitions, kept, complements, seed).to(
        probe.images.device
    )
    whole = averaged.token_scores(probe)[:, probe.layout.prefix :]  # the coalition of all patches
    scores = in_coalitions(probe, keep, averaged.token_scores)
    count = keep.sum(1).repeat_interleave(probe.targets_per_image, 0)
    inside = keep.repeat_interleave(probe.targets_per_image, 0)
    # the coalition of all patches is not random: the error is that of the other terms of the mean
    stderr = error_of_means(scores, inside) * count / (1 + count)
    return (whole + scores.sum(1)) / (1 + count), {"signed": averaged.signed, "stderr": stderr}


def error_of_means(values: Float[Tensor, "r s p"], inside: Bool[Tensor, "r s p"]) -> Float[Tensor, "r p"]:
    """Standard error of the mean over s of the values that are `inside`; NaN for fewer than two of them."""
    count = inside.sum(1)
    mean = values.where(inside, 0).sum(1) / count.clamp(min=1)
    squares = (values - mean[:, None]).square().where(inside, 0).sum(1)
    return (squares / (count * (count - 1)).clamp(min=1)).sqrt().where(count > 1, torch.nan)


def draw_coalitions(
    images: Images, patches: int, coalitions: int, share_kept: Part | tuple[Part, ...], complements: bool, seed: int
) -> Keep:
    """Random coalitions per image, each followed by its complement if `complements`; seeded by the image's content."""
    if coalitions < 1 or (complements and coalitions % 2):
        raise SpecError(
            f"coalitions={coalitions}; they come in pairs, a coalition and its complement: give an even number"
        )
    shares = share_kept if isinstance(share_kept, tuple) else (share_kept,)
    if not shares or not all(0 < round(share * patches) < patches for share in shares):
        raise SpecError(f"kept={share_kept}; give a share of the {patches} patches that leaves some in and some out")
    draws = coalitions // 2 if complements else coalitions
    sizes = torch.tensor([round(shares[draw % len(shares)] * patches) for draw in range(draws)])
    keep = torch.stack([draw_subsets(patches, sizes, source) for source in generators(images, seed)])
    return torch.stack([keep, ~keep], 2).flatten(1, 2) if complements else keep


def draw_subsets(patches: int, sizes: Shaped[Tensor, " s"], source: torch.Generator) -> Bool[Tensor, "s p"]:
    """Random subsets of the patches, of these sizes."""
    ranks = torch.stack([random_order(source, patches) for _ in sizes])
    return ranks < sizes[:, None]


# ── Bayes ────────────────────────────────────────────────────────────────────────────────────────


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


def count_with_prior(method: Method, sizes: ModelSizes) -> dict[str, float]:
    """Passes of the prior's map; without a prior, the pass of the whole image."""
    priors = prior_maps(method.settings["prior"])
    forwards, backwards = count_inner(priors[0], sizes) if priors else (1.0, 0.0)
    return {"forwards": 1 + forwards + method.settings["samples"], "backwards": backwards}


@method(
    "bayes",
    formula="s = E[w | t(S₁), t(S̄₁), …], t(S) = size effect + Σ_{j∈S} wⱼ + noise, w ~ N(a·fuse, τ² K)",
    trial={"samples": 32},
    forwards="3 + samples",
    backwards=2,
    counts=count_with_prior,
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
    return draw_subsets(patches, sizes, draw)


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
    targets = probe.targets_per_image
    return [
        fit_posterior(probe, image, keep[image], own, prior)
        for image, (own, prior) in enumerate(zip(differences.split(targets), means.split(targets), strict=True))
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
