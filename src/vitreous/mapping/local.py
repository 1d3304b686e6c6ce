"""The pipeline in one process: decoding threads or processes, one model replica, and a thread that writes.

The process that launches the model's kernels does as little else as possible, since all of its threads share one
interpreter lock: images are listed and decoded in other processes and arrive in shared, page-locked memory.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from vitreous.bench.signals import children_ignore_terminal, deferred_signals
from vitreous.core.errors import DataError
from vitreous.mapping.decode import ImageBatch, decode_in_process, decode_slice, list_in_process, take_from_slot
from vitreous.mapping.explain import Launched, MapExplainer, SliceRows
from vitreous.mapping.job import Slice
from vitreous.mapping.source import ImageSource
from vitreous.models.image_input import Preprocess

ListSlices = Callable[[], Iterable[Slice]]

THREADS = 2  # decoding threads if there are no decoding processes
WRITES_AHEAD = 4  # batches that may wait for the writing thread
LOST_DECODER = "a decoding process died (out of memory?); run the same command again to go on, with fewer --decoders if it persists"


def decode(
    source: ImageSource, preprocess: Preprocess, list_slices: ListSlices, processes: int, batch_size: int
) -> Generator[ImageBatch, None, None]:
    """Decode slices ahead of their use.

    Parameters
    ----------
    source, preprocess
        What is decoded, and how.
    list_slices
        Lists the slices; if there are decoding processes, it is called in a process of its own.
    processes
        Number of decoding processes; 0 decodes in `THREADS` threads of this process.
    batch_size
        Largest number of images in a slice.
    """
    if processes:
        return decode_in_processes(source, preprocess, list_slices, processes, batch_size)
    return decode_in_threads(source, preprocess, list_slices)


def decode_in_threads(
    source: ImageSource, preprocess: Preprocess, list_slices: ListSlices
) -> Generator[ImageBatch, None, None]:
    """Decode slices in `THREADS` threads of this process, a few ahead of their use, in order."""
    waiting: deque[Future[ImageBatch]] = deque()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="vitreous-decode") as pool:
        try:
            for work in list_slices():
                waiting.append(pool.submit(decode_slice, source, preprocess, work))
                if len(waiting) >= 2 * THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def decode_in_processes(
    source: ImageSource, preprocess: Preprocess, list_slices: ListSlices, processes: int, batch_size: int
) -> Generator[ImageBatch, None, None]:
    """Decode slices in processes; batches come as they are ready, in any order. `DataError` if a process dies."""
    context = choose_process_context()
    height, width = preprocess.size
    itemsize = 1 if type(preprocess) is Preprocess else 4
    slots = share_slots(processes + WRITES_AHEAD + 2, batch_size * 3 * height * width * itemsize)
    children: list[Any] = []
    pipes: list[Connection] = []

    def start(body: Callable[..., None], *arguments: Any) -> None:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=body, args=(*arguments, sender), daemon=True)
        with deferred_signals(), children_ignore_terminal():
            child.start()
            children.append(child)
        sender.close()  # so that the pipe ends with the process
        pipes.append(receiver)

    try:
        with children_ignore_terminal():  # the semaphore tracker is started here
            tasks, free_slots = context.Queue(processes), context.SimpleQueue()
        for slot in range(len(slots)):
            free_slots.put(slot)
        start(list_in_process, list_slices, tasks, processes)
        for _ in range(processes):
            start(decode_in_process, source, preprocess, slots, free_slots, tasks)
        while pipes:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()
                except EOFError:
                    raise DataError(LOST_DECODER) from None
                if message is None:
                    pipes.remove(pipe)
                elif isinstance(message, Exception):
                    raise message
                else:
                    batch, slot = message
                    take_from_slot(batch, slots[slot])
                    batch.release = partial(free_slots.put, slot)
                    yield batch
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.join()
        if torch.cuda.is_initialized() and slots.is_pinned():
            torch.cuda.synchronize()
            get_cuda_runtime().cudaHostUnregister(slots.data_ptr())


def choose_process_context() -> Any:
    """Start method of decoding processes: a server that imports torch once for all of them, where there is one."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vitreous.mapping.decode"])
    return context


def share_slots(count: int, size: int) -> Tensor:
    """Shared memory for `count` batches of `size` bytes; page-locked if this process uses a GPU."""
    try:
        slots = torch.empty(count, size, dtype=torch.uint8).share_memory_()
    except RuntimeError as problem:
        raise DataError(
            f"there are no {count * size / 2**20:.0f} MiB of shared memory for decoded images ({str(problem).splitlines()[0]}); "
            "enlarge /dev/shm (docker run --shm-size), or give fewer --decoders, a smaller --batch-size, or --decoders 0"
        ) from None
    if torch.cuda.is_initialized():  # if this fails, batches are copied to page-locked memory one by one
        get_cuda_runtime().cudaHostRegister(slots.data_ptr(), slots.nbytes, 0)
    return slots


def get_cuda_runtime() -> Any:
    return torch.cuda.cudart()


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
