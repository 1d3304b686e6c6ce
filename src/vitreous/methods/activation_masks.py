"""Methods that mask the image, or choose its patches, by the model's activations: Score-CAM, ViT-CX and TIS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.capture.pixels import ImageVariants, Index
from vitreous.capture.probe import Probe
from vitreous.capture.score_function import PROBABILITIES
from vitreous.core.errors import SpecError
from vitreous.methods.map_arrays import enlarge_patches
from vitreous.methods.masks import seeded_noise, sum_masks
from vitreous.methods.method import Method
from vitreous.methods.options import Count, PartialShare, Positive, Seed
from vitreous.methods.pass_counts import ModelSizes, signal_layers
from vitreous.methods.random_control import content_seeds, draw_uniform, generators
from vitreous.methods.regions import cluster_completely
from vitreous.methods.register_method import method
from vitreous.methods.run import score_and_logits
from vitreous.methods.sampling import MEAN_SCORE, PERTURBATION
from vitreous.models.random_draws import random_order
from vitreous.models.tensor_types import Images, Keep, PatchScores, PixelScores, Tokens, TokenScores

# distances between samples and cluster centres that are computed at once
DISTANCES_ON_CPU, DISTANCES_ON_DEVICE = 2**22, 2**28


# ── Score-CAM and ViT-CX ─────────────────────────────────────────────────────────────────────────


def channel_maps(probe: Probe, layer: int) -> Float[Tensor, "b d rows columns"]:
    """Output of the first norm of block `layer` (negative: from the last), as one patch map per channel."""
    depth = probe.vit.depth
    if not -depth <= layer < depth:
        raise SpecError(f"layer={layer}; the model has blocks 0 to {depth - 1}")
    *_, first_layer = probe.layers(attention=False, gradients=False, down_to=layer % depth)
    return read_channels(first_layer)[1]


def read_channels(layer: Layer) -> tuple[Tokens, Float[Tensor, "b d rows columns"]]:
    """Output of the first norm, one row per image; and the same as one patch map per channel."""
    normed = layer.states.normed
    assert normed is not None
    return normed, normed[:, layer.layout.prefix :].mT.unflatten(-1, layer.layout.grid)


def rescale_maps(maps: Float[Tensor, "k H W"], eps: float = 0.0) -> Float[Tensor, "k H W"]:
    """Every map rescaled to [0, 1]; a constant map becomes 0."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    span = high - low + eps
    return (maps - low) / torch.where(span > 0, span, torch.ones_like(span))


def weigh_channels(probe: Probe, maps: Float[Tensor, "b d rows columns"]) -> Float[Tensor, "r d"]:
    """Scores of the image multiplied by each channel's rescaled map, as a softmax over channels."""

    def through(row: Index, channel: Index) -> Images:
        mask = F.interpolate(maps[row, channel][:, None], probe.layout.size, mode="bilinear", align_corners=True)
        return probe.images[row] * rescale_maps(mask[:, 0], 1e-8)[:, None]

    return probe.pixel_score(ImageVariants(len(maps), maps.shape[1], through)).softmax(-1)


def count_channels(method: Method, sizes: ModelSizes) -> dict[str, int]:
    """Channels of every layer that is read: of one, or of all those of a fold."""
    layers = 1 if method.fold is None else len(signal_layers(method, sizes))
    return {"channels": layers * sizes["channels"]}


def scorecam_of_layer(layer: Layer, probe: Probe) -> TokenScores:
    """Score-CAM of one layer."""
    normed, maps = read_channels(layer)
    weight = weigh_channels(probe, maps)
    return layer.full(weight[:, None] * layer.rows(normed)).sum(-1).clamp(min=0)


@method(
    "scorecam",
    family="Class activation maps",
    formula="s = relu(Σₖ wₖ aₖ), w = softmaxₖ t(x ⊙ minmax(aₖ)), aₖ channel k of the last block's first norm",
    signed=False,
    class_specific=True,
    forwards="1 + channels",
    counts=count_channels,
    backwards=0,
    layered=scorecam_of_layer,
    own_pass=True,
    paper="wang2020score",
    aliases=("score-cam",),
    presets={"grad-cam": {"relu": False}},
)
def scorecam(probe: Probe, layer: int = -1, relu: bool = True) -> tuple[PatchScores, dict[str, Any]]:
    """Activations weighted by the model's score of the image masked by their channel.

    Weights are a softmax over channels, so the score of a baseline image would cancel. Under a fold (`scorecam+plus`)
    the channels of every layer are weighted this way, with one forward pass per channel and layer.

    Parameters
    ----------
    layer
        Block whose first norm is read; negative counts from the last.
    relu
        Whether to clamp scores at 0.
    """
    maps = channel_maps(probe, layer)
    weight = weigh_channels(probe, maps)
    scores = torch.einsum(
        "rd,rdp->rp", weight, maps.flatten(2).repeat_interleave(probe.targets_per_image, 0).to(weight)
    )
    return (scores.clamp(min=0) if relu else scores), {"signed": not relu}


@method(
    "vitcx",
    formula="s = (1/M) Σₘ wₘ Mₘ ⊘ Σₘ Mₘ, wₘ = t(x⊙Mₘ + ε) − t(x + ε) + t(x), ε noise where Mₘ hides",
    forwards="1 + 2 * clusters",
    paper="xie2022vitcx",
    aliases=("vit-cx",),
    precision="float32",
    **PERTURBATION,
    **MEAN_SCORE,
)
def vitcx(
    probe: Probe, layer: int = -1, threshold: Positive = 0.1, deviation: Positive = 0.1, seed: Seed = 0
) -> tuple[PixelScores, dict[str, Any]]:
    """Causal scores of masks from clustered activations, corrected for how often a pixel is visible.

    The effect of the noise alone is subtracted, so scores below 0 are possible: there, noise alone raises the score of
    an unlikely class.

    Parameters
    ----------
    layer
        Block whose first norm is read; negative counts from the last.
    threshold
        Channels are clustered into one mask while the cosine distance of any two is below this value.
    deviation
        Standard deviation of the Gaussian noise that replaces hidden pixels.
    seed
        Seed of the noise, combined with the image's content.
    """
    maps = channel_maps(probe, layer)
    maps_of_images = []
    for image in range(len(probe.images)):
        alone = probe.for_image(image)
        masks = merge_similar_channels(maps[image], probe.layout.size, threshold)
        drawn = seeded_noise(alone.originals, seed, alone.images.device)
        maps_of_images.append(vitcx_of(alone, masks, lambda row, mask, draw=drawn: deviation * draw(row, mask)))
    scores = torch.cat(maps_of_images)
    return scores, {"signed": bool((scores < 0).any()) or probe.question.name not in PROBABILITIES}


def vitcx_of(probe: Probe, masks: Float[Tensor, "m H W"], drawn: Callable[[Tensor, Tensor], Images]) -> PixelScores:
    """(1/m) Σ w·mask ⊘ Σ mask for one image, with w = t(shown, noise elsewhere) − t(all, noise elsewhere) + t(all)."""

    def shown(row: Index, place: Index) -> Images:
        mask = masks[place // 2][:, None]
        whole = (place % 2).to(mask)[:, None, None, None]  # odd indices: the whole image with the same noise
        return probe.images[row] * (mask + whole * (1 - mask)) + drawn(row, place // 2).to(mask) * (1 - mask)

    with_mask, without = probe.pixel_score(ImageVariants(1, 2 * len(masks), shown)).unflatten(1, (-1, 2)).unbind(-1)
    weight = with_mask - without + score_and_logits(probe)["score"][:, None]
    cover = masks.sum(0)
    total = sum_masks(weight, masks.__getitem__) / len(masks)
    return torch.where(
        cover > 0, total / torch.where(cover > 0, cover, torch.ones_like(cover)), torch.zeros_like(total)
    )


def merge_similar_channels(
    maps: Float[Tensor, "d rows columns"], size: tuple[int, int], threshold: Positive
) -> Float[Tensor, "m H W"]:
    """Channels resized to the image, summed within clusters of small cosine distance, each sum rescaled to [0, 1]."""
    large = rescale_maps(F.interpolate(maps[None], size, mode="bilinear", align_corners=False)[0])
    direction = F.normalize(large.flatten(1), dim=-1)
    groups = cluster_completely(1 - direction @ direction.T, threshold)
    total = torch.zeros(int(groups.max()) + 1, *size).to(large).index_add_(0, groups, large)
    return rescale_maps(total)


# ── TIS ──────────────────────────────────────────────────────────────────────────────────────────


def count_subsets(method: Method, sizes: ModelSizes) -> dict[str, int]:
    """Subsets of every cluster, one per share; there are no more clusters than channels of all blocks."""
    clusters, shares = method.settings["masks"], as_shares(method.settings["kept"])
    if "channels" in sizes:
        clusters = min(clusters, sizes["layers"] * sizes["channels"])
    return {"masks": clusters * len(shares)}


@method(
    "tis",
    formula="s = Σₘ t(patches in Mₘ alone) Mₘ ⊘ Σₘ Mₘ, Mₘ where a k-means centroid of the activations is largest",
    signed=False,
    question="probability",
    averages=True,
    trial={"masks": 16},
    forwards="1 + masks",
    counts=count_subsets,
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


def as_shares(share_kept: PartialShare | tuple[PartialShare, ...]) -> tuple[PartialShare, ...]:
    return share_kept if isinstance(share_kept, tuple) else (share_kept,)


def keep_largest(centroids: Float[Tensor, "b m p"], share_kept: PartialShare | tuple[PartialShare, ...]) -> Keep:
    """Subsets of the patches with the largest values of each centroid."""
    ratios, patches = as_shares(share_kept), centroids.shape[-1]
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

    def make(row: Index, subset: Index) -> Images:
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
    first = torch.stack([random_order(draw, count)[:clusters] for draw in generators(images, seed)])
    start = samples.gather(1, first.to(samples.device)[..., None].expand(-1, -1, samples.shape[2]))
    together = max(1, (DISTANCES_ON_CPU if samples.device.type == "cpu" else DISTANCES_ON_DEVICE) // (count * clusters))
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
