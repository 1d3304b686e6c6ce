"""Methods that change attention or activations inside the model: AtMan and CAAP.

AtMan suppresses attention to a patch. CAAP (causal attribution via activation patching) gives patches of a neutral image the
activations of the explained image over an intermediate range of layers. Only the abstract of its paper is known to us: the
neutral image, the range, what is inserted and the score are readings of ours, each an option.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.interventions import patched_logits, suppressed_score
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.masks import blur_images
from vitreous.methods.method import Method
from vitreous.methods.options import Number, Range
from vitreous.methods.pass_counts import ModelSizes
from vitreous.methods.register_method import method
from vitreous.methods.run import score_and_logits
from vitreous.methods.sampling import PERTURBATION
from vitreous.models.tensor_types import Images, PatchScores

Cosine = Annotated[float | int, Range(-1, 1)]
Neutral = Literal["zero", "mean", "blur"]
LayerIndex = Annotated[int, Range(0, 10_000)]


@method(
    "atman",
    formula="sⱼ = t(x) − t(x, attention to every patch k like j times 1 − f cos(Eⱼ, Eₖ))",
    signed=True,
    attention=True,
    question="log-probability",
    forwards="1 + patches",
    paper="deiseroth2023atman",
    presets={
        "magma": {"suppression": 0.9, "similarity": 0.6, "shift": True},
        "blip": {"suppression": 0.95, "similarity": 0.1, "shift": False},
        "single": {"similarity": None},
    },
    precision="float32",
    **PERTURBATION,
)
def atman(probe: Probe, suppression: Number = 0.9, similarity: Cosine | None = 0.6, shift: bool = True) -> PatchScores:
    """Increase of the cross-entropy when attention to a patch, and to similar patches, is suppressed in all blocks.

    Parameters
    ----------
    suppression
        Attention scores of a suppressed patch are multiplied by 1 − suppression.
    similarity
        Patches whose embeddings have at least this cosine are suppressed as well, in proportion to the cosine; None
        for no other patches.
    shift
        Whether to subtract the minimum of each row of attention scores first, so that a factor below 1 never increases
        a score. Without it, negative scores increase.
    """
    factors = suppression_factors(probe.tokens[:, probe.layout.prefix :], suppression, similarity)
    factors = F.pad(factors, (probe.layout.prefix, 0), value=1.0)  # prefix tokens keep their attention
    return score_and_logits(probe)["score"][:, None] - suppressed_score(probe, factors, shift)


def suppression_factors(
    embedded: Float[Tensor, "b p d"], suppression: Number, similarity: Cosine | None
) -> Float[Tensor, "b p p"]:
    """Factor of the attention to each patch (column) for every suppressed patch (row): 1 − suppression · cosine."""
    own = torch.eye(embedded.shape[1], dtype=torch.bool, device=embedded.device)
    direction = F.normalize(embedded, dim=-1)
    cosine = direction @ direction.mT
    along = own if similarity is None else own | (cosine >= similarity)
    near = torch.where(own, torch.ones_like(cosine), cosine)
    return torch.where(along, 1 - suppression * near, torch.ones_like(near))


def middle_blocks(depth: int, start: int | None, stop: int | None) -> tuple[int, int]:
    """Blocks from and up to which activations are inserted; None for the middle third."""
    first = depth // 3 if start is None else start
    return first, max(first + 1, 2 * depth // 3) if stop is None else stop


def count_from_start(method: Method, sizes: ModelSizes) -> dict[str, float]:
    """Passes from block `start` on, as parts of whole ones, which are an upper bound for unknown depth."""
    if "depth" not in sizes:
        return {}
    depth = sizes["depth"]
    first, _ = middle_blocks(depth, method.settings["start"], method.settings["stop"])
    return {"patches": sizes["patches"] * (1 - first / depth)}


@method(
    "caap",
    formula="sⱼ = t(neutral image, with token j's activations of x in layers start … stop − 1) − t(neutral image)",
    signed=True,
    forwards="2 + patches, each from block start on",
    counts=count_from_start,
    paper="izadi2026caap",
    **PERTURBATION,
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
    first, last = middle_blocks(depth, start, stop)
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
