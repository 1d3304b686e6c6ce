"""Pictures put before the model as pixels: any number of them, made a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.progress import pieces
from vitreous.models.shapes import Images, Logits

Index = Int[Tensor, " k"]
Fresh = Callable[[Sequence[int], Sequence[int]], Images]  # noise of k pairs (row, subset)
Read = Callable[[Logits, Index], Tensor]  # what is kept [m …] of logits [m c], given the row that each belongs to
AHEAD = 8  # pieces of work of which one is drawn while a GPU is at another


@dataclass(frozen=True, slots=True)
class Pictures:
    """`subsets` pictures for each of `rows`, made when they are needed: `make` of k pairs (row, subset) gives [k 3 H W].

    What has to be drawn for them comes from `fresh`, and `make` is given it: the CPU draws while a GPU is at work on others.
    """

    rows: int
    subsets: int
    make: Callable[..., Images]
    fresh: Fresh | None = None

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
    total, subsets = pictures.rows * pictures.subsets, pictures.subsets

    def some(piece: slice) -> Logits:
        index = torch.arange(piece.start, piece.stop, device=device)
        pair = (index // subsets, index % subsets)
        if pictures.fresh is None:
            return say(pictures.make(*pair))
        places = range(piece.start, piece.stop)  # not read from the device, which would be waited for
        return say(pictures.make(*pair, pictures.fresh([i // subsets for i in places], [i % subsets for i in places])))

    if pictures.fresh is not None and device.type != "cpu":
        chunk = min(chunk, -(-total // AHEAD))
    for piece, said in pieces(some, total, chunk):
        owner = torch.arange(piece.start, piece.stop, device=device) // subsets
        told = said if read is None else read(said, owner)
        answers = told.new_empty(total, told.shape[-1]) if answers is None else answers
        answers[piece] = told
    assert answers is not None
    return answers.unflatten(0, (pictures.rows, subsets))
