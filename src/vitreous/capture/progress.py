"""Process many rows in pieces, with progress reports and smaller pieces after running out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.core.progress import Tally


def pieces(
    work: Callable[[slice], Tensor], total: int, chunk: int | Callable[[int], int], tally: Tally | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Apply `work` to consecutive slices of `total` rows.

    Parameters
    ----------
    work
        Function from a slice of rows to its result.
    total
        Number of rows.
    chunk
        Number of rows per slice, or a function from the first row of a slice to that number. It is halved when the
        device runs out of memory.
    tally
        Progress counter to advance; None starts a new one.

    Yields
    ------
    tuple of slice and Tensor
        Each slice and its result.
    """
    tally, most, start = tally or Tally(total), total, 0
    while start < total:
        rows = min(most, total - start, chunk(start) if callable(chunk) else chunk)
        piece = slice(start, start + max(1, rows))
        result = attempt(work, piece)
        if result is None:
            most = rows // 2
            continue
        yield piece, result
        start = piece.stop
        tally.add(piece.stop - piece.start)


def run_in_pieces(
    work: Callable[[slice], Tensor],
    order: Int[Tensor, " m"],
    chunk: int | Callable[[int], int],
    read: Callable[[Tensor, Int[Tensor, " k"]], Tensor] | None = None,
) -> Float[Tensor, "m c"]:
    """Results of `work` for all rows, in one tensor.

    Parameters
    ----------
    work
        Function from a slice of `order` to one result per row.
    order
        The rows, in the order in which they are processed.
    chunk
        As for `pieces`.
    read
        Reduces the results of a piece, given its rows, so that not all results are in memory.
    """
    results: Tensor | None = None
    for piece, part in pieces(work, len(order), chunk):
        part = part if read is None else read(part, order[piece])
        results = part.new_empty(len(order), part.shape[-1]) if results is None else results
        results[order[piece]] = part
    assert results is not None
    return results


def attempt(work: Callable[[slice], Tensor], piece: slice) -> Tensor | None:
    """Return `work(piece)`, or None if the device is out of memory; raise if the piece is a single row."""
    try:
        return work(piece)
    except torch.OutOfMemoryError:
        if piece.stop - piece.start == 1:
            raise
    # outside the handler, where the traceback no longer references the tensors to be freed
    torch.cuda.empty_cache()
    return None
