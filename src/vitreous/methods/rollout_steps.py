"""Steps of a roll-out from one layer to the one below, and rescaling of a layer's scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.models.tensor_types import TokenScores

Form = Literal["add", "half", "half-normalised", "none", "normalised", "vit-explain"]  # keys of STEPS
Scaling = Literal["none", "sum", "max", "minmax", "tanh"]
Row = Float[Tensor, "r 1 n"]
Matrix = Float[Tensor, "r n n"]


def overflow_factor(row: Row) -> Float[Tensor, "r 1 1"]:
    """Power of two that keeps a growing row below overflow; 1 for rows of ordinary size.

    Products of vector norms over many layers can overflow, and the scale of the map carries no information.
    """
    half = math.log2(torch.finfo(row.dtype).max) // 2
    large = row.abs().amax(-1, keepdim=True) > 2.0**half
    return torch.where(large, 2.0**-half, 1.0).to(row.dtype)


def normalised_step(row: Row, mixing: Matrix) -> Row:
    """row · (T + I), each row of T + I divided by its sum."""
    return (row / (mixing.sum(-1)[:, None] + 1)) @ mixing + row / (mixing.sum(-1)[:, None] + 1)


def half_normalised_step(row: Row, mixing: Matrix) -> Row:
    """row · ½(T̄ + I), each row of T̄ being the row of T divided by its sum."""
    sums = mixing.sum(-1)[:, None]
    return (row + torch.where(sums == 0, 0, row / sums) @ mixing) / 2


def vit_explain_step(row: Row, mixing: Matrix) -> Row:
    """row · ½(T + I) with column j divided by the sum of row j, as published."""
    return (row + row @ mixing) / (mixing.sum(-1)[:, None] + 1)


STEPS: dict[str, Callable[[Row, Matrix], Row]] = {
    "add": lambda row, mixing: row + row @ mixing,
    "half": lambda row, mixing: (row + row @ mixing) / 2,
    "half-normalised": half_normalised_step,
    "none": lambda row, mixing: row @ mixing,
    "normalised": normalised_step,
    "vit-explain": vit_explain_step,
}


def rescale_scores(tokens: TokenScores, prefix: int, normalise: Scaling) -> TokenScores:
    """Scores of a layer, rescaled by the scores of its patches (all but `prefix` tokens); a map of zeros stays 0."""
    patches = tokens[:, prefix:]
    low, size = 0, patches.abs().amax(-1, keepdim=True)
    if normalise == "sum":
        size = patches.abs().sum(-1, keepdim=True)
    elif normalise == "minmax":
        low = patches.amin(-1, keepdim=True)
        size = patches.amax(-1, keepdim=True) - low
    scores = (tokens - low) / torch.where(size > 0, size, 1)
    return (2 * scores).tanh() if normalise == "tanh" else scores
