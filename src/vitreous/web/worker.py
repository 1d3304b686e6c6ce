"""One thread that runs models.

Equal requests are computed once, requests of the same kind in one batch. Work that no client waits for is stopped, and work
whose progress shows that it cannot finish before its deadline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

from vitreous.web.cache import Cache
from vitreous.web.fair_queue import FairQueue, QueueFull

__all__ = ["QueueFull", "Worker"]

Work = Callable[[Sequence[Any]], Sequence[Any]]  # payloads of one batch → one result each
MAX_BATCH = 8  # requests computed together
MEASURED_SECONDS = 2.0  # of progress before a projection is trusted


def describe_call(function: Callable[..., Any], *arguments: Any, version: Hashable = None) -> tuple[Hashable, Work]:
    """Return the key and the work of a call that is computed alone; equal calls of one version have equal keys."""
    return (function.__qualname__, arguments, version), lambda payloads: [function(*arguments)]


class Abandoned(Exception):  # noqa: N818 - raised in a progress report to stop the computation
    """No client waits for this work any more."""


class WouldExceedLimit(Exception):  # noqa: N818 - an expected condition, answered with 504
    """A computation was stopped because it could not have finished before its deadline."""

    def __init__(self, seconds: float, done: int, total: int) -> None:
        super().__init__(f"about {seconds:.0f} s more; stopped at {done} of {total}")
        self.seconds, self.done, self.total = seconds, done, total


@dataclass(slots=True)
class Projection:
    """Seconds that a computation which counts its pieces still needs.

    The speed is measured from the first report on, because what comes before it (loading, segmentation) is not
    proportional to the number of pieces. A computation may count several times from the beginning, so the result is a
    lower bound.
    """

    _first: tuple[float, int] | None = field(default=None, init=False)

    def seconds_left(self, done: int, total: int, now: float) -> float | None:
        """Seconds needed after a report at time `now`; None while too little was measured."""
        if self._first is None or done <= self._first[1]:  # the first report, or a new count
            self._first = now, done
            return None
        then, done_before = self._first
        if now - then < MEASURED_SECONDS:
            return None
        return (total - done) * (now - then) / (done - done_before)


@dataclass(slots=True, eq=False)
class QueuedJob:
    """One computation and the number of requests that wait for it."""

    key: Hashable
    batch_key: Hashable  # jobs with equal batch keys can be computed together
    work: Work
    payload: Any
    deadline: float = math.inf  # by the worker's clock, of the request that waits longest
    client: Hashable = None  # that it is computed for first
    expensive: bool = False  # comes after cheap ones
    waiting: int = 1
    result: Future[Any] = field(default_factory=Future)


class Worker:
    """A bounded, fair queue before a single thread."""

    def __init__(self, max_waiting: int, cache: Cache, clock: Callable[[], float] = time.monotonic) -> None:
        self.cache, self.clock = cache, clock
        self.done, self.total = 0, 0  # progress of the current computation
        self._queue: FairQueue[QueuedJob] = FairQueue(max_waiting)
        self._jobs: dict[Hashable, QueuedJob] = {}  # queued or running
        self._change = Condition()
        self._thread: Thread | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Number of queued jobs."""
        return len(self._queue)

    @property
    def working(self) -> bool:
        """Whether a job is running."""
        return len(self._jobs) > len(self._queue)

    def submit(
        self,
        key: Hashable,
        batch_key: Hashable,
        work: Work,
        payload: Any,
        deadline: float = math.inf,
        *,
        client: Hashable = None,
        expensive: bool = False,
    ) -> QueuedJob:
        """Return the job of this key: finished (from the cache), already queued or running, or newly queued.

        The result of a job that cannot finish before `deadline` (by `clock`) is `WouldExceedLimit`. `client` and
        `expensive` decide when a new job is computed, see `FairQueue`.

        Raises
        ------
        QueueFull
            If the job is new and the queue has no room, or none for this client.
        """
        cached = self.cache.get(key)
        if cached is not None:
            job = QueuedJob(key, batch_key, work, payload)
            job.result.set_result(cached)
            return job
        with self._change:
            job = self._jobs.get(key)
            if job is not None:
                job.waiting += 1
                job.deadline = max(job.deadline, deadline)
                return job
            job = QueuedJob(key, batch_key, work, payload, deadline, client, expensive)
            self._queue.put(job)
            self._jobs[key] = job
            self._start()
            self._change.notify()
            return job

    def leave(self, job: QueuedJob) -> None:
        """Stop waiting. A job without waiting requests is removed from the queue, or stopped at its next report."""
        with self._change:
            job.waiting -= 1
            if job.waiting <= 0 and job in self._queue:
                self._queue.remove(job)
                self._forget(job)

    def close(self, wait: float = 0.0) -> None:
        """Cancel what is queued and end the thread, which stops its current job at the next progress report.

        Waits up to `wait` seconds for that: an interpreter that exits while the thread computes is aborted by torch.
        """
        thread = self._thread
        with self._change:
            self._closed = True
            for job in self._queue.drain():
                self._forget(job)
                job.result.cancel()
            self._change.notify_all()
        if thread is not None and wait:
            thread.join(wait)

    # ── in the thread ────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self._closed = False
        if self._thread is None:
            self._thread = Thread(target=self._run, name="vitreous-models", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: len(self._queue) or self._closed)
                if self._closed:
                    self._thread = None  # the next request starts another thread
                    return
                jobs = self._take_batch()
            self._compute(jobs)

    def _take_batch(self) -> list[QueuedJob]:
        first = self._queue.take()
        return [first, *self._queue.take_similar(lambda job: job.batch_key == first.batch_key, MAX_BATCH - 1)]

    def _compute(self, jobs: list[QueuedJob]) -> None:
        from vitreous.core.progress import reporting

        self.done = self.total = 0
        projection = Projection()
        try:
            with reporting(lambda done, total: self._report(jobs, projection, done, total)):
                results = jobs[0].work([job.payload for job in jobs])
        except Abandoned:
            return
        except Exception as problem:  # noqa: BLE001 - passed on to the waiting requests
            if len(jobs) > 1:  # one payload may have failed the whole batch: compute each alone
                for job in jobs:
                    self._compute([job])
                return
            self._release(jobs[0]).set_exception(problem)
        else:
            for job, result in zip(jobs, results, strict=True):
                self.cache.put(job.key, result)
                self._release(job).set_result(result)

    def _report(self, jobs: list[QueuedJob], projection: Projection, done: int, total: int) -> None:
        self.done, self.total = done, total
        now = self.clock()
        seconds = projection.seconds_left(done, total, now)
        with self._change:
            if self._closed or all(job.waiting <= 0 for job in jobs):
                for job in jobs:
                    self._forget(job)
                raise Abandoned
            if seconds is not None and now + seconds > max(job.deadline for job in jobs):
                raise WouldExceedLimit(seconds, done, total)

    def _release(self, job: QueuedJob) -> Future[Any]:
        """Return the future that the requests wait for; a request that comes from now on is computed anew."""
        with self._change:
            self._forget(job)
        return job.result

    def _forget(self, job: QueuedJob) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
