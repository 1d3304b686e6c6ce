"""Complexity metrics: how concentrated a map is and whether it sums to the score; none measures correctness."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.methods.attribution import Attribution
from vitreous.methods.options import Positive
from vitreous.metrics.localisation import PerRow, resize_map
from vitreous.metrics.metric import metric
from vitreous.metrics.robustness import native_scores


def map_scores(attribution: Attribution, of: str, part: str) -> Float[Tensor, "r n"]:
    """Scores of the map at the model's input size ("pixels") or at the method's own resolution ("native")."""
    scores = (
        native_scores(attribution)
        if of == "native"
        else resize_map(attribution, attribution.layout.size, "bilinear").flatten(1)
    )
    return scores if part == "signed" else scores.abs()


@metric(
    higher_is_better=None,
    bounds=(0, 1),
    affine_invariant=True,
    family="complexity",
    paper="chalasani2020concise",
    formula="Σ_i (2i − n − 1) v_i / (n Σ v), v the shifted scores in rising order",
    presets={
        "tis": {"shift": "negative"},
        "tis-released": {"eps": 1e-7},
        "quantus": {"part": "abs", "shift": "none"},
    },
    aliases=("gini",),
)
def sparseness(
    attribution: Attribution,
    of: Literal["pixels", "native"] = "pixels",
    part: Literal["signed", "abs"] = "signed",
    shift: Literal["always", "negative", "none"] = "always",
    eps: Positive = 0.0,
) -> PerRow:
    """Gini index of the map: 0 if all scores are equal, close to 1 if only one is large.

    `shift`: the least score becomes 0 "always", or for maps with a "negative" score only; with "none" a negative score makes
    it undefined. `eps` is added to every score, as published (1e-7), which changes the result of maps with tiny scores.
    """
    v = map_scores(attribution, of, part)
    low = v.amin(-1, keepdim=True)
    v = v if shift == "none" else v - (low if shift == "always" else low.clamp(max=0))
    v = v.sort(-1).values + eps
    count = v.shape[-1]
    weight = 2 * torch.arange(1, count + 1, device=v.device, dtype=v.dtype) - count - 1
    total = v.sum(-1)
    gini = ((v * weight).sum(-1) / (count * total)).where(total != 0, 0.0)  # an all-zero map is constant
    return gini.where((v >= 0).all(-1), torch.nan)


@metric(
    higher_is_better=None,
    bounds=(0, torch.inf),
    family="complexity",
    paper="bhatt2020evaluating",
    formula="−Σ p ln p / ln n, p = |S| / Σ |S|",
    presets={"quantus": {"normalised": False}},
    aliases=("complexity",),
)
def entropy(attribution: Attribution, of: Literal["pixels", "native"] = "pixels", normalised: bool = True) -> PerRow:
    """Entropy of the map's magnitudes: 1 if all are equal, 0 if only one is not 0; NaN if all are 0.

    `normalised=False`: in nats, not divided by the entropy of a constant map.
    """
    mass = map_scores(attribution, of, "abs")
    p = mass / mass.sum(-1, keepdim=True)
    nats = -torch.special.xlogy(p, p).sum(-1)
    return (nats / math.log(p.shape[-1]) if normalised else nats).clamp(min=0)


@metric(
    higher_is_better=False,
    bounds=(0, torch.inf),
    family="complexity",
    paper="mehri2025libragrad",
    formula="|Σ scores + biases − t|",
)
def completeness_error(attribution: Attribution, relative: bool = False) -> PerRow:
    """Difference between the sum of tokens and biases and the score; NaN for methods whose scores need not add up.

    `relative`: as a share of that number's size.
    """
    if attribution.residual is None:
        return torch.full_like(attribution.targets, torch.nan, dtype=torch.float64)
    missing = attribution.residual.double().abs()
    return missing / attribution.score.double().abs() if relative and attribution.score is not None else missing
