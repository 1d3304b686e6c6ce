"""The pipeline in one process: decoding threads or processes, one model replica, and a thread that writes."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from vitreous.bench.signals import children_ignore_terminal
from vitreous.core.errors import DataError
from vitreous.mapping.decode import ImageBatch, decode_here, decode_slice, start_decoding
from vitreous.mapping.explain import Launched, MapExplainer, SliceRows
from vitreous.mapping.job import Slice
from vitreous.mapping.source import ImageSource
from vitreous.models.image_input import Preprocess

Work = TypeVar("Work")
Result = TypeVar("Result")

THREADS = 2  # decoding threads if there are no decoding processes
WRITES_AHEAD = 4  # batches that may wait for the writing thread


@contextmanager
def decoders(
    source: ImageSource, preprocess: Preprocess, processes: int
) -> Iterator[Callable[[Iterable[Slice]], Iterator[ImageBatch]]]:
    """Context manager for a function that decodes slices ahead of their use, in order.

    Parameters
    ----------
    source, preprocess
        What is decoded, and how.
    processes
        Number of decoding processes; 0 decodes in `THREADS` threads of this process.
    """
    pool: Executor
    if not processes:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="vitreous-decode") as pool:
            yield partial(run_ahead, pool, partial(decode_slice, source, preprocess), window=2 * THREADS)
        return
    context = multiprocessing.get_context(
        "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    )
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["vitreous.mapping.decode"])  # torch is imported once for all processes
    with children_ignore_terminal():
        pool = ProcessPoolExecutor(processes, context, initializer=start_decoding, initargs=(source, preprocess))
    try:
        yield partial(run_ahead, pool, decode_here, window=2 * processes)
    except BrokenProcessPool:
        raise DataError(
            "a decoding process died (out of memory?); run the same command again to go on, with fewer --decoders if it persists"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def run_ahead(
    pool: Executor, function: Callable[[Work], Result], works: Iterable[Work], window: int
) -> Iterator[Result]:
    """Results in order; at most `window` of them are computed ahead."""
    waiting: deque[Future[Result]] = deque()
    try:
        for work in works:
            with children_ignore_terminal():  # the pool starts processes when work is submitted
                waiting.append(pool.submit(function, work))
            if len(waiting) >= window:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def explain_slices(explainer: MapExplainer, batches: Iterable[ImageBatch], add: Callable[[SliceRows], None]) -> None:
    """Explain batches and hand their rows to `add` in a thread, while the device computes the next ones."""
    waiting: deque[Future[None]] = deque()

    def finish(launched: Launched) -> None:
        add(explainer.finish(launched))

    with ThreadPoolExecutor(1, thread_name_prefix="vitreous-write") as writer:
        for batch in batches:
            waiting.append(writer.submit(finish, explainer.launch(batch)))
            while waiting and (len(waiting) > WRITES_AHEAD or waiting[0].done()):
                waiting.popleft().result()
        while waiting:
            waiting.popleft().result()
