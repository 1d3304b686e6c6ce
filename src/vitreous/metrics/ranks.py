"""Scores as ranks: what is equal stands together, and nothing is won by the order in which it came."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

Scores = Float[Tensor, "r n"]
Weights = Shaped[Tensor, "r n"]
PerRow = Float[Tensor, " r"]


def standing(scores: Scores) -> Int[Tensor, "r n"]:
    """Place of every score among the distinct ones of its row, the highest being 0."""
    ranked, order = scores.sort(dim=-1, descending=True)
    place = torch.zeros_like(order)
    place[:, 1:] = (ranked[:, 1:] != ranked[:, :-1]).cumsum(-1)
    return torch.zeros_like(order).scatter_(-1, order, place)


def gathered(place: Int[Tensor, "r n"], weights: Weights) -> Float[Tensor, "r n"]:
    """Total weight at every place."""
    weights = weights.to(torch.float64)
    return torch.zeros_like(weights).scatter_add_(-1, place, weights)


def average_precision(scores: Scores, inside: Weights, counted: Weights) -> PerRow:
    """Σ (R_n − R_{n−1}) P_n over distinct scores, `counted` entries alone; NaN where nothing is inside."""
    place = standing(scores)
    found, seen = gathered(place, inside & counted), gathered(place, counted)
    precision = found.cumsum(-1) / seen.cumsum(-1).clamp(min=1)
    return (found * precision).sum(-1) / found.sum(-1)


def outranking(scores: Scores, own: Weights, rival: Weights) -> PerRow:
    """Chance that an entry of `own` stands above one of `rival`, a tie counting half; NaN where one of them is empty."""
    place = standing(scores)
    mine, theirs = gathered(place, own), gathered(place, rival)
    total = theirs.sum(-1, keepdim=True)
    beaten = total - theirs.cumsum(-1) + theirs / 2
    return (mine * beaten).sum(-1) / (mine.sum(-1) * total[:, 0])


def midranks(scores: Scores) -> Float[Tensor, "r n"]:
    """Ranks from 1, the highest first; equal scores share the mean of theirs."""
    place = standing(scores)
    count = gathered(place, torch.ones_like(scores))
    return (count.cumsum(-1) - (count - 1) / 2).gather(-1, place)


def spearman(first: Scores, second: Scores) -> PerRow:
    """Rank correlation of two maps; NaN where one of them is constant, or knows no number."""
    a, b = (ranks - ranks.mean(-1, keepdim=True) for ranks in (midranks(first), midranks(second)))
    found = (a * b).sum(-1) / ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()
    return found.where(~(first + second).isnan().any(-1), torch.nan)
