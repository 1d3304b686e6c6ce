"""Standard errors of scores that are estimated from random samples."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


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


def error_of_means(values: Float[Tensor, "r s p"], inside: Bool[Tensor, "r s p"]) -> Float[Tensor, "r p"]:
    """Standard error of the mean over s of the values that are `inside`; NaN for fewer than two of them."""
    count = inside.sum(1)
    mean = values.where(inside, 0).sum(1) / count.clamp(min=1)
    squares = (values - mean[:, None]).square().where(inside, 0).sum(1)
    return (squares / (count * (count - 1)).clamp(min=1)).sqrt().where(count > 1, torch.nan)


def regression_errors(
    design: Float[Tensor, "s m"],
    residuals: Float[Tensor, "r s"],
    inverse: Float[Tensor, "m m"],
    weight: Float[Tensor, " s"],
    cluster: Int[Tensor, " s"] | None = None,
) -> Float[Tensor, "r c m"]:
    """Factor F of the covariance FᵀF of weighted least-squares coefficients, robust to unequal noise.

    The coefficients are `inverse` Σₛ weightₛ designₛ scoreₛ. Squared residuals are divided by one minus their leverage, which
    makes them unbiased if the noise is equal. NaN if there are not more clusters than coefficients.

    Parameters
    ----------
    design
        Rows of the regression.
    residuals
        Scores minus fitted scores.
    inverse
        Inverse, or pseudo-inverse, of Σₛ weightₛ designₛ designₛᵀ (+ penalty).
    weight
        Weight of every row.
    cluster
        Rows with the same number have dependent noise; None if all are independent.
    """
    rows, coefficients = design.shape
    cluster = torch.arange(rows, device=design.device) if cluster is None else cluster
    clusters = int(cluster.max()) + 1 if rows else 0
    if clusters <= coefficients:
        return design.new_full((len(residuals), 1, coefficients), torch.nan)
    moved = (design * weight[:, None]) @ inverse  # [s m]
    leverage = design.new_zeros(clusters).index_add_(0, cluster, (moved * design).sum(1))
    factor = design.new_zeros(len(residuals), clusters, coefficients)
    factor.index_add_(1, cluster, residuals[:, :, None] * moved)
    return factor / (1 - leverage).clamp(min=1e-6).sqrt()[:, None]
