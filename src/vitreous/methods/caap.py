"""CAAP: causal attribution via activation patching.

Only the abstract of the paper is known to us: patches of a neutral image get the activations of the explained image over an
intermediate range of layers. The neutral image, the range, what is inserted and the score are readings of ours, each an option.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.interventions import patched_logits
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.masks import blur_images
from vitreous.methods.options import Range
from vitreous.methods.register_method import method
from vitreous.models.tensor_types import Images, PatchScores

Neutral = Literal["zero", "mean", "blur"]
LayerIndex = Annotated[int, Range(0, 10_000)]


@method(
    "caap",
    family="Perturbation",
    formula="sⱼ = t(neutral image, with token j's activations of x in layers start … stop − 1) − t(neutral image)",
    signed=True,
    class_specific=True,
    forwards="2 + patches, each from block start on",
    backwards=0,
    paper="izadi2026caap",
)
def caap(
    probe: Probe,
    neutral: Neutral = "zero",
    start: LayerIndex | None = None,
    stop: LayerIndex | None = None,
) -> PatchScores:
    """Increase of a neutral image's score by one patch's activations; after the paper's abstract, not its code.

    Parameters
    ----------
    neutral
        The image that receives the activations: "zero" in normalised units, the image's "mean" colour, or its "blur".
    start, stop
        Blocks whose input gets the activations, from `start` up to but without `stop`; None for the middle third. From 0 to
        the last block, a single patch is inserted; the last block alone reads that token at the end.
    """
    depth = probe.vit.depth
    first = depth // 3 if start is None else start
    last = max(first + 1, 2 * depth // 3) if stop is None else stop
    if not 0 <= first < last <= depth:
        raise SpecError(f"start={start}, stop={stop}; 0 ≤ start < stop ≤ {depth}, the number of blocks, would work")
    plain = probe.with_images(neutral_images(probe.images, neutral).to(probe.originals.dtype))
    scores = probe.compute_variant_scores(patched_logits(probe, plain.states, first, last))
    with torch.no_grad():
        nothing = probe.compute_variant_scores(plain.head_output.logits[:, None])
    return scores - nothing


def neutral_images(images: Images, neutral: Neutral) -> Float[Tensor, "b 3 H W"]:
    """Images that show nothing."""
    match neutral:
        case "zero":
            return torch.zeros_like(images)
        case "mean":
            return images.mean((2, 3), keepdim=True).expand_as(images).contiguous()
        case _:
            return blur_images(images)
