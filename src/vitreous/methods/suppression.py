"""AtMan: change of the score when attention to a patch is suppressed."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.interventions import suppressed_score
from vitreous.capture.probe import Probe
from vitreous.methods.options import Number, Range
from vitreous.methods.register_method import method
from vitreous.methods.run import score_and_logits
from vitreous.models.tensor_types import PatchScores

Cosine = Annotated[float | int, Range(-1, 1)]


@method(
    "atman",
    family="Perturbation",
    formula="sⱼ = t(x) − t(x, attention to every patch k like j times 1 − f cos(Eⱼ, Eₖ))",
    signed=True,
    class_specific=True,
    attention=True,
    question="log-probability",
    forwards="1 + patches",
    backwards=0,
    paper="deiseroth2023atman",
    presets={
        "magma": {"suppression": 0.9, "similarity": 0.6, "shift": True},
        "blip": {"suppression": 0.95, "similarity": 0.1, "shift": False},
        "single": {"similarity": None},
    },
    precision="float32",
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
