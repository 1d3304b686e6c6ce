"""One thread that runs models. What is asked twice is computed once, what is alike is computed together, what nobody
waits for any more is dropped."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

from vitreous.web.cache import Cache

Work = Callable[[Sequence[Any]], Sequence[Any]]  # payloads that are alike → one result each
TOGETHER = 8  # requests computed in one batch

log = logging.getLogger("vitreous.web")


class Busy(Exception):  # noqa: N818 - an answer, not a fault
    """Too many wait already."""


class Left(Exception):  # noqa: N818 - raised by a report, to end work that nobody waits for
    """Everybody who waited has gone."""


@dataclass(slots=True, eq=False)
class Job:
    """One thing to compute, and how many wait for it."""

    key: Hashable
    alike: Hashable  # jobs that share it can be computed together
    work: Work
    payload: Any
    waiting: int = 1
    answer: Future[Any] = field(default_factory=Future)


class Worker:
    """A bounded queue before a single thread."""

    def __init__(self, most: int, cache: Cache) -> None:
        self.most, self.cache = most, cache
        self.done, self.total = 0, 0  # pieces of the work at hand
        self._queue: deque[Job] = deque()
        self._known: dict[Hashable, Job] = {}  # waiting or at work
        self._change = Condition()
        self._thread: Thread | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def working(self) -> bool:
        return len(self._known) > len(self._queue)

    def submit(self, key: Hashable, alike: Hashable, work: Work, payload: Any) -> Job:
        """A job to wait for: known, under way, or new at the end of the queue."""
        known = self.cache.get(key)
        if known is not None:
            job = Job(key, alike, work, payload)
            job.answer.set_result(known)
            return job
        with self._change:
            job = self._known.get(key)
            if job is not None:
                job.waiting += 1
                return job
            if len(self._queue) >= self.most:
                raise Busy
            job = self._known[key] = Job(key, alike, work, payload)
            self._queue.append(job)
            self._start()
            self._change.notify()
            return job

    def leave(self, job: Job) -> None:
        """Stop waiting; a job that was waited for by nobody else is dropped, or stopped at its next report."""
        with self._change:
            job.waiting -= 1
            if job.waiting <= 0 and job in self._queue:
                self._queue.remove(job)
                self._forget(job)

    def close(self) -> None:
        with self._change:
            self._closed = True
            for job in [*self._queue]:
                self._forget(job)
                job.answer.cancel()
            self._queue.clear()
            self._change.notify_all()

    # ── in the thread ────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self._closed = False
        if self._thread is None:
            self._thread = Thread(target=self._run, name="vitreous-models", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    self._thread = None  # whoever asks again starts another
                    return
                jobs = self._take()
            self._do(jobs)

    def _take(self) -> list[Job]:
        first = self._queue.popleft()
        alike = [job for job in self._queue if job.alike == first.alike][: TOGETHER - 1]
        for job in alike:
            self._queue.remove(job)
        return [first, *alike]

    def _do(self, jobs: list[Job]) -> None:
        from vitreous.capture.progress import reporting

        self.done = self.total = 0
        try:
            with reporting(lambda done, total: self._report(jobs, done, total)):
                answers = jobs[0].work([job.payload for job in jobs])
        except Left:
            return
        except Exception as problem:  # noqa: BLE001 - whoever waits is told
            if len(jobs) > 1:  # one of them spoils the batch: each for itself
                for job in jobs:
                    self._do([job])
                return
            self._finish(jobs[0], None, problem)
        else:
            for job, answer in zip(jobs, answers, strict=True):
                self.cache.put(job.key, answer)
                self._finish(job, answer, None)

    def _report(self, jobs: list[Job], done: int, total: int) -> None:
        self.done, self.total = done, total
        with self._change:
            if self._closed or all(job.waiting <= 0 for job in jobs):
                for job in jobs:
                    self._forget(job)
                raise Left

    def _finish(self, job: Job, answer: Any, problem: Exception | None) -> None:
        with self._change:
            self._forget(job)
        if problem is None:
            job.answer.set_result(answer)
        else:
            job.answer.set_exception(problem)

    def _forget(self, job: Job) -> None:
        if self._known.get(job.key) is job:
            del self._known[job.key]
