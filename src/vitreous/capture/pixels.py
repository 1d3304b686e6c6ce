"""Evaluate a model on any number of images, which are made in small batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.progress import run_in_pieces
from vitreous.models.tensor_types import Images, Logits

Index = Int[Tensor, " k"]
LogitReader = Callable[[Logits, Index], Tensor]  # reduces logits [m c] to [m …], given the row of each


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


@torch.no_grad()
def outputs_of_variants(
    variants: ImageVariants,
    say: Callable[[Images], Logits],
    chunk: int,
    device: torch.device,
    read: LogitReader | None = None,
) -> Float[Tensor, "b s c"]:
    """Return the logits of all images, after `read` if given.

    Parameters
    ----------
    variants
        The images.
    say
        Function from images to logits.
    chunk
        Number of images in memory at once.
    device
        Device of the indices passed to `variants.make`.
    read
        Reduces the logits of each piece, given the row of each.
    """
    order = torch.arange(variants.rows * variants.subsets, device=device)

    def run_piece(piece: slice) -> Logits:
        return say(variants.make(order[piece] // variants.subsets, order[piece] % variants.subsets))

    reduce = None if read is None else lambda logits, index: read(logits, index // variants.subsets)
    return run_in_pieces(run_piece, order, chunk, reduce).unflatten(0, (variants.rows, variants.subsets))
