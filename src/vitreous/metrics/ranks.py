"""Rank statistics in which equal scores share a rank, so the order of the input does not matter."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

Scores = Float[Tensor, "r n"]
Weights = Shaped[Tensor, "r n"]
PerRow = Float[Tensor, " r"]


def rank_distinct(scores: Scores) -> Int[Tensor, "r n"]:
    """Index of every score among the distinct scores of its row, 0 for the highest."""
    ranked, order = scores.sort(dim=-1, descending=True)
    place = torch.zeros_like(order)
    place[:, 1:] = (ranked[:, 1:] != ranked[:, :-1]).cumsum(-1)
    return torch.zeros_like(order).scatter_(-1, order, place)


def sum_by_rank(place: Int[Tensor, "r n"], weights: Weights) -> Float[Tensor, "r n"]:
    """Sum of the weights at every index of `place`, in float64."""
    weights = weights.to(torch.float64)
    return torch.zeros_like(weights).scatter_add_(-1, place, weights)


def average_precision(scores: Scores, inside: Weights, counted: Weights) -> PerRow:
    """Σ (R_n − R_{n−1}) P_n over the distinct scores of `counted` entries; NaN if none of them is inside."""
    place = rank_distinct(scores)
    hits, totals = sum_by_rank(place, inside & counted), sum_by_rank(place, counted)
    precision = hits.cumsum(-1) / totals.cumsum(-1).clamp(min=1)
    return (hits * precision).sum(-1) / hits.sum(-1)


def outranking(scores: Scores, own: Weights, rival: Weights) -> PerRow:
    """Probability that an entry of `own` scores above one of `rival`, ties counting ½; NaN if either is empty."""
    place = rank_distinct(scores)
    own_mass, rival_mass = sum_by_rank(place, own), sum_by_rank(place, rival)
    rival_total = rival_mass.sum(-1, keepdim=True)
    beaten = rival_total - rival_mass.cumsum(-1) + rival_mass / 2
    return (own_mass * beaten).sum(-1) / (own_mass.sum(-1) * rival_total[:, 0])


def midranks(scores: Scores) -> Float[Tensor, "r n"]:
    """Ranks from 1 for the highest score; equal scores get the mean of their ranks."""
    place = rank_distinct(scores)
    count = sum_by_rank(place, torch.ones_like(scores))
    return (count.cumsum(-1) - (count - 1) / 2).gather(-1, place)


def spearman(first: Scores, second: Scores) -> PerRow:
    """Spearman rank correlation per row; NaN if one of the two is constant or contains NaN."""
    a, b = (ranks - ranks.mean(-1, keepdim=True) for ranks in (midranks(first), midranks(second)))
    correlation = (a * b).sum(-1) / ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()
    return correlation.where(~(first + second).isnan().any(-1), torch.nan)
