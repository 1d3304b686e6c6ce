"""The part of an embedding space in which reference embeddings differ."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from vitreous.core.errors import ShapeError, SpecError


@torch.no_grad()
def reference_directions(reference: Any, size: int, components: int | None) -> Float[Tensor, "k D"]:
    """Orthonormal directions of an embedding space without what reference embeddings have in common.

    Parameters
    ----------
    reference
        Embeddings [m, D]; only their directions count.
    size
        Number D of the embedding.
    components
        Number of directions, those in which the reference varies most; None for all that are orthogonal to its mean.

    Raises
    ------
    ShapeError
        If the reference is not [m, D], or not finite.
    SpecError
        If the reference does not vary in so many directions.
    """
    embeddings = torch.as_tensor(reference).double()
    if embeddings.ndim != 2 or not len(embeddings) or embeddings.shape[1] != size:
        raise ShapeError(f"reference embeddings are [inputs, {size}], not {list(embeddings.shape)}")
    if not embeddings.isfinite().all():
        raise ShapeError("reference embeddings hold NaN or infinite values; finite ones would work")
    unit = normalize(embeddings, dim=-1)
    common = normalize(unit.mean(0), dim=0)
    if components is None:
        return torch.linalg.svd(common[None])[2][1:]
    remainders = unit - unit.mean(0)
    _, lengths, directions = torch.linalg.svd(remainders - (remainders @ common)[:, None] * common, full_matrices=False)
    rank = int((lengths > 1e-6 * lengths.max()).sum())
    if not 1 <= components <= rank:
        raise SpecError(
            f"components={components}; {len(embeddings)} reference embeddings vary in {rank} directions, and 1 to {rank} would work"
        )
    return directions[:components]
