"""Evaluate a model on any number of images, which are made in small batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.progress import pieces
from vitreous.models.tensor_types import Images, Logits

Index = Int[Tensor, " k"]
Read = Callable[[Logits, Index], Tensor]  # reduces logits [m c] to [m …], given the row of each


@dataclass(frozen=True, slots=True)
class Pictures:
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
    def of(cls, pictures: Float[Tensor, "b s colours H W"]) -> Pictures:
        """Wrap images that already exist."""
        return cls(pictures.shape[0], pictures.shape[1], lambda row, subset: pictures[row, subset])


@torch.no_grad()
def said_of(
    pictures: Pictures, say: Callable[[Images], Logits], chunk: int, device: torch.device, read: Read | None = None
) -> Float[Tensor, "b s c"]:
    """Return the logits of all images, after `read` if given.

    Parameters
    ----------
    pictures
        The images.
    say
        Function from images to logits.
    chunk
        Number of images in memory at once.
    device
        Device of the indices passed to `pictures.make`.
    read
        Reduces the logits of each piece, given the row of each.
    """
    answers: Tensor | None = None

    def some(piece: slice) -> Logits:
        index = torch.arange(piece.start, piece.stop, device=device)
        return say(pictures.make(index // pictures.subsets, index % pictures.subsets))

    total = pictures.rows * pictures.subsets
    for piece, said in pieces(some, total, chunk):
        owner = torch.arange(piece.start, piece.stop, device=device) // pictures.subsets
        told = said if read is None else read(said, owner)
        answers = told.new_empty(total, told.shape[-1]) if answers is None else answers
        answers[piece] = told
    assert answers is not None
    return answers.unflatten(0, (pictures.rows, pictures.subsets))
