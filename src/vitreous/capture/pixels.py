"""Any number of images to evaluate a model on, made in small batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from vitreous.models.tensor_types import Images, Logits

Index = Int[Tensor, " k"]
LogitReader = Callable[[Logits, Index], Tensor]  # reduces logits [m c] to [m …], given the index of each input


@dataclass(frozen=True, slots=True)
class ImageVariants:
    """Images that are made on demand.

    Parameters
    ----------
    rows
        Number of images or rows of the probe.
    subsets
        Number of images to make for each row.
    make
        Function of k row indices and k subset indices that returns the images [k c H W].
    """

    rows: int
    subsets: int
    make: Callable[[Index, Index], Images]

    @classmethod
    def of(cls, images: Float[Tensor, "b s colours H W"]) -> ImageVariants:
        """Wrap images that already exist."""
        return cls(images.shape[0], images.shape[1], lambda row, subset: images[row, subset])
