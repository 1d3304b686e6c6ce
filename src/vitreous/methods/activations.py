"""Methods that mask the image with the model's activation maps: Score-CAM and ViT-CX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.capture.pixels import ImageVariants
from vitreous.capture.probe import Probe
from vitreous.capture.score_function import PROBABILITIES
from vitreous.core.errors import SpecError
from vitreous.methods.masks import seeded_noise, sum_masks
from vitreous.methods.options import Positive, Seed
from vitreous.methods.regions import cluster_completely
from vitreous.methods.register_method import method
from vitreous.methods.run import score_and_logits
from vitreous.methods.sampling import MEAN_SCORE, PERTURBATION, PixelScores
from vitreous.models.tensor_types import Images, PatchScores, Tokens, TokenScores


def channel_maps(probe: Probe, layer: int) -> Float[Tensor, "b d rows columns"]:
    """Output of the first norm of block `layer` (negative: from the last), as one patch map per channel."""
    depth = probe.vit.depth
    if not -depth <= layer < depth:
        raise SpecError(f"layer={layer}; the model has blocks 0 to {depth - 1}")
    *_, first_layer = probe.layers(attention=False, gradients=False, down_to=layer % depth)
    return first_norm_output(first_layer)[:, probe.layout.prefix :].mT.unflatten(-1, probe.layout.grid)


def first_norm_output(layer: Layer) -> Tokens:
    """Output of the first norm, one row per image."""
    assert layer.states.normed is not None
    return layer.states.normed


def rescale_maps(maps: Float[Tensor, "k H W"], eps: float = 0.0) -> Float[Tensor, "k H W"]:
    """Every map rescaled to [0, 1]; a constant map becomes 0."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    span = high - low + eps
    return (maps - low) / torch.where(span > 0, span, torch.ones_like(span))


def weigh_channels(probe: Probe, maps: Float[Tensor, "b d rows columns"]) -> Float[Tensor, "r d"]:
    """Scores of the image multiplied by each channel's rescaled map, as a softmax over channels."""

    def through(row: Int[Tensor, " k"], channel: Int[Tensor, " k"]) -> Images:
        mask = F.interpolate(maps[row, channel][:, None], probe.layout.size, mode="bilinear", align_corners=True)
        return probe.images[row] * rescale_maps(mask[:, 0], 1e-8)[:, None]

    return probe.pixel_score(ImageVariants(len(maps), maps.shape[1], through)).softmax(-1)


def scorecam_of_layer(layer: Layer, probe: Probe) -> TokenScores:
    """Score-CAM of one layer."""
    normed = first_norm_output(layer)
    weight = weigh_channels(probe, normed[:, probe.layout.prefix :].mT.unflatten(-1, probe.layout.grid))
    return layer.full(weight[:, None] * layer.rows(normed)).sum(-1).clamp(min=0)


@method(
    "scorecam",
    family="Class activation maps",
    formula="s = relu(Σₖ wₖ aₖ), w = softmaxₖ t(x ⊙ minmax(aₖ)), aₖ channel k of the last block's first norm",
    signed=False,
    class_specific=True,
    forwards="1 + channels",
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

    def shown(row: Int[Tensor, " k"], place: Int[Tensor, " k"]) -> Images:
        mask = masks[place // 2][:, None]
        whole = (place % 2).to(mask)[:, None, None, None]  # odd indices: the whole image with the same noise
        return probe.images[row] * (mask + whole * (1 - mask)) + drawn(row, place // 2).to(mask) * (1 - mask)

    with_mask, without = probe.pixel_score(ImageVariants(1, 2 * len(masks), shown)).unflatten(1, (-1, 2)).unbind(-1)
    weight = with_mask - without + score_and_logits(probe)["score"][:, None]
    cover = masks.sum(0)
    total = sum_masks(weight, lambda index: masks[index]) / len(masks)
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
