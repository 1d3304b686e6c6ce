"""Pictures put before the model as pixels: any number of them, made a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.progress import pieces
from vitreous.models.shapes import Images, Logits

Index = Int[Tensor, " k"]
Read = Callable[[Logits, Index], Tensor]  # what is kept [m …] of logits [m c], given the row that each belongs to


@dataclass(frozen=True, slots=True)
class Pictures:
    """`subsets` pictures for each of `rows`, made when they are needed: `make` of k pairs (row, subset) gives [k 3 H W]."""

    rows: int
    subsets: int
    make: Callable[[Index, Index], Images]

    @classmethod
    def of(cls, pictures: Float[Tensor, "b s 3 H W"]) -> Pictures:
        """Pictures that exist already."""
        return cls(pictures.shape[0], pictures.shape[1], lambda row, subset: pictures[row, subset])


@torch.no_grad()
def said_of(
    pictures: Pictures, say: Callable[[Images], Logits], chunk: int, device: torch.device, read: Read | None = None
) -> Float[Tensor, "b s c"]:
    """What `say` answers to every picture, or what `read` makes of it; at most `chunk` of them exist at once."""
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
