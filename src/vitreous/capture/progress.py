"""Long work in pieces: as large as memory allows, halved when it runs out, and told of as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Report = Callable[[int, int], object]  # (done, total)

REPORT: ContextVar[Report | None] = ContextVar("vitreous.progress", default=None)


@contextmanager
def reporting(report: Report) -> Iterator[None]:
    """Inside, long work calls `report(done, total)` after every piece; a report that raises stops it there."""
    token = REPORT.set(report)
    try:
        yield
    finally:
        REPORT.reset(token)


class Tally:
    """How much of a long piece of work is done."""

    def __init__(self, total: int) -> None:
        self.done, self.total = 0, total

    def add(self, count: int) -> None:
        self.done += count
        report = REPORT.get()
        if report is not None:
            report(self.done, self.total)


def pieces(
    work: Callable[[slice], Tensor], total: int, chunk: int | Callable[[int], int], tally: Tally | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """`work` done on slices of `total` rows: `chunk` at a time, or as many as it says fit from a row on; from where
    memory runs out, half as many."""
    tally, most, start = tally or Tally(total), total, 0
    while start < total:
        rows = min(most, total - start, chunk(start) if callable(chunk) else chunk)
        piece = slice(start, start + max(1, rows))
        found = attempt(work, piece)
        if found is None:
            most = rows // 2
            continue
        yield piece, found
        start = piece.stop
        tally.add(piece.stop - piece.start)


def attempt(work: Callable[[slice], Tensor], piece: slice) -> Tensor | None:
    """The work, or None where the device has no room for it; a single row that does not fit is an error."""
    try:
        return work(piece)
    except torch.OutOfMemoryError:
        if piece.stop - piece.start == 1:
            raise
    # outside the handler: the traceback would hold what is to be freed
    torch.cuda.empty_cache()
    return None
