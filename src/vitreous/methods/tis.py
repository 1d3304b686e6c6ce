"""Transformer Input Sampling: mean score over subsets of patches that are chosen by clusters of activations."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.pixels import ImageVariants
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.map_arrays import enlarge_patches
from vitreous.methods.options import Count, PartialShare, Seed
from vitreous.methods.random_control import content_seeds, draw_uniform, generators
from vitreous.methods.register_method import method
from vitreous.methods.sampling import PERTURBATION
from vitreous.models.tensor_types import Images, Keep, PatchScores

ROOM, WIDE = 2**22, 2**28  # distances in memory at once while clustering, on a CPU and on other devices


@method(
    "tis",
    formula="s = Σₘ t(patches in Mₘ alone) Mₘ ⊘ Σₘ Mₘ, Mₘ where a k-means centroid of the activations is largest",
    signed=False,
    question="probability",
    averages=True,
    trial={"masks": 16},
    forwards="1 + masks",
    paper="englebert2023explaining",
    presets={
        "paper": {"masks": 1024, "kept": 0.5},
        "released": {"masks": 1024, "kept": 0.5, "normalise": True},
        "pixels": {"masks": 1024, "kept": 0.5, "ablate": "pixels", "normalise": True},
    },
    precision="float32",
    **PERTURBATION,
)
def tis(
    probe: Probe,
    masks: Count = 1024,
    kept: PartialShare | tuple[PartialShare, ...] = 0.5,
    ablate: Literal["tokens", "pixels"] = "tokens",
    normalise: bool = False,
    seed: Seed = 0,
) -> tuple[PatchScores, dict[str, PatchScores]]:
    """Mean score over the token subsets that contain a patch; subsets are the largest entries of activation clusters.

    Parameters
    ----------
    masks
        Number of clusters; at most one per activation channel of all blocks.
    kept
        Share of the patches in a subset; with several shares, every cluster gives a subset of each size.
    ablate
        "tokens" removes the other patches, "pixels" replaces their pixels by noise.
    normalise
        Whether to rescale every map to [0, 1], as the released code does; equation 5 of the paper does not.
    seed
        Seed of clustering and noise, combined with the image's content.

    The standard error of a patch is that of the mean over the subsets that contain it, as if they were drawn at random.
    """
    activations = torch.cat(probe.states[1:], -1)[:, probe.layout.prefix :].mT  # [b depth·d p]
    keep = keep_largest(cluster_activations(activations, masks, probe.originals, seed), kept)
    mean, stderr = tis_of_subsets(probe, keep, ablate, normalise, seed)
    return mean, {"stderr": stderr}


def tis_of_subsets(
    probe: Probe, keep: Keep, ablate: str = "tokens", normalise: bool = False, seed: int = 0
) -> tuple[PatchScores, PatchScores]:
    """Mean score over the subsets that contain each patch, and its standard error (NaN for fewer than two subsets)."""
    scores = probe.score(keep) if ablate == "tokens" else probe.pixel_score(noise_variants(probe, keep, seed))  # [r m]
    members = keep.repeat_interleave(probe.targets_per_image, 0).to(scores)
    count = members.sum(1)
    mean = (scores[:, None] @ members)[:, 0] / count.clamp(min=1)
    # a patch that is in no subset gets the minimum
    least = mean.masked_fill(count == 0, torch.inf).amin(-1, keepdim=True)
    mean = torch.where(count > 0, mean, least)
    stderr = error_of_member_means(scores, members, mean)
    if not normalise:
        return mean, stderr
    span = mean.amax(-1, keepdim=True) - least
    span = torch.where(span > 0, span, torch.ones_like(span))
    return (mean - least) / span, stderr / span


def error_of_member_means(
    scores: Float[Tensor, "r m"], members: Float[Tensor, "r m p"], mean: Float[Tensor, "r p"]
) -> Float[Tensor, "r p"]:
    """Standard error of the mean score of the subsets that contain each patch; NaN for fewer than two subsets.

    Parameters
    ----------
    scores
        Score of every subset.
    members
        1 where a subset contains a patch, else 0.
    mean
        Mean score of the subsets that contain each patch.
    """
    count = members.sum(1)
    level = scores.mean(1, keepdim=True)  # squares of differences from it lose fewer digits
    squares = ((scores - level).square()[:, None] @ members)[:, 0] / count.clamp(min=1)
    variance = (squares - (mean - level).square()).clamp(min=0) / (count - 1).clamp(min=1)
    return variance.sqrt().where(count > 1, torch.nan)


def keep_largest(centroids: Float[Tensor, "b m p"], share_kept: PartialShare | tuple[PartialShare, ...]) -> Keep:
    """Subsets of the patches with the largest values of each centroid."""
    ratios, patches = share_kept if isinstance(share_kept, tuple) else (share_kept,), centroids.shape[-1]
    if not ratios:
        raise SpecError(f"kept={share_kept!r}; a share of the patches lies between 0 and 1")
    order = centroids.argsort(dim=-1, descending=True, stable=True)
    subsets = []
    for ratio in ratios:
        chosen = order[..., : max(1, int(ratio * patches))]
        subsets.append(torch.zeros_like(centroids, dtype=torch.bool).scatter(-1, chosen, True))
    return torch.cat(subsets, 1)


def noise_variants(probe: Probe, keep: Keep, seed: int) -> ImageVariants:
    """Images of the kept patches; the rest is uniform noise in [0, 1) in normalised units."""
    seeds = torch.tensor(content_seeds(probe.originals, seed), device=probe.images.device)

    def make(row: Int[Tensor, " k"], subset: Int[Tensor, " k"]) -> Images:
        mask = enlarge_patches(keep[row, subset], probe.layout)
        drawn = draw_uniform(seeds[row] + subset, probe.images.shape[1:])
        return torch.where(mask[:, None], probe.images[row], drawn.to(probe.images))

    return ImageVariants(len(keep), keep.shape[1], make)


# ── k-means ──────────────────────────────────────────────────────────────────────────────────────


def cluster_activations(
    samples: Float[Tensor, "b a p"], clusters: int, images: Images, seed: int
) -> Float[Tensor, "b m p"]:
    """k-means centroids of every image's samples, initialised at random samples seeded by the image's content."""
    samples = samples.to(torch.promote_types(samples.dtype, torch.float32))
    count = samples.shape[1]
    clusters = min(clusters, count)
    first = torch.stack([torch.randperm(count, generator=draw)[:clusters] for draw in generators(images, seed)])
    start = samples.gather(1, first.to(samples.device)[..., None].expand(-1, -1, samples.shape[2]))
    together = max(1, (ROOM if samples.device.type == "cpu" else WIDE) // (count * clusters))
    pairs = zip(samples.split(together), start.split(together), strict=True)
    return torch.cat([kmeans(part, begin) for part, begin in pairs])


def kmeans(
    samples: Float[Tensor, "b a p"], centroids: Float[Tensor, "b m p"], rounds: int = 100, tolerance: float = 1e-4
) -> Float[Tensor, "b m p"]:
    """Lloyd's algorithm for a batch; an image stops when its centroids' squared movement is at most `tolerance`."""
    centroids, left = centroids.clone(), torch.arange(len(samples), device=samples.device)
    for _ in range(rounds):
        moved = lloyd(samples, centroids[left])
        still = ((moved - centroids[left]) ** 2).sum((1, 2)) > tolerance
        centroids[left] = moved
        if not still.all():
            left, samples = left[still], samples[still]
        if not len(left):
            break
    return centroids


def lloyd(samples: Float[Tensor, "b a p"], centroids: Float[Tensor, "b m p"]) -> Float[Tensor, "b m p"]:
    """One iteration: every sample joins its nearest centroid, which moves to the mean of its samples.

    Empty clusters restart at the samples farthest from their centroids, one each in order of distance.
    """
    distance = torch.baddbmm((centroids**2).sum(-1)[:, None], samples, centroids.mT, alpha=-2)
    near, owner = distance.min(-1)
    count = torch.zeros_like(centroids[..., 0]).scatter_add_(1, owner, torch.ones_like(near))
    total = torch.zeros_like(centroids).scatter_add_(1, owner[..., None].expand_as(samples), samples)
    empty: Bool[Tensor, "b m"] = count == 0
    farthest = (near + (samples**2).sum(-1)).argsort(dim=-1, descending=True, stable=True)
    place = farthest.gather(1, (empty.cumsum(-1) - 1).clamp(min=0))
    again = samples.gather(1, place[..., None].expand_as(centroids))
    return torch.where(empty[..., None], again, total / count.clamp(min=1)[..., None])
