"""The order in which waiting jobs are computed: no client, and nothing that takes long, keeps all others waiting."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from cachetools import LRUCache

CHEAP_RUN = 8  # cheap jobs in a row while an expensive one waits
CLIENTS = 1024  # whose last turn is remembered


class Waiting(Protocol):
    """What the queue reads of a job."""

    client: Hashable
    expensive: bool


Job = TypeVar("Job", bound=Waiting)


class QueueFull(Exception):  # noqa: N818 - an expected condition, answered with 429
    """As many requests wait as the queue holds, or as one client may have in it."""


class FairQueue(Generic[Job]):
    """Cheap jobs first; among equals, a job of the client whose last turn is longest ago, in the order of arrival.

    Jobs without a client (None) are of the server itself, and bounded by the size of the queue alone.
    """

    def __init__(self, size: int) -> None:
        self.size, self.share = size, max(1, size - size // 4)  # in the queue at most, and of these from one client
        self._jobs: list[Job] = []
        self._turns: LRUCache[Hashable, int] = LRUCache(CLIENTS)  # number of the last turn by client
        self._turn = self._cheap_run = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return job in self._jobs

    def put(self, job: Job) -> None:
        """Add a job; raise `QueueFull` if there is no room."""
        if len(self._jobs) >= self.size:
            raise QueueFull(f"{len(self._jobs)} requests wait already")
        own = sum(waiting.client == job.client for waiting in self._jobs)
        if job.client is not None and own >= self.share:
            raise QueueFull(f"{own} of your requests wait already")
        self._jobs.append(job)

    def remove(self, job: Job) -> None:
        self._jobs.remove(job)

    def take(self) -> Job:
        """Remove and return the next job."""
        cheap = [job for job in self._jobs if not job.expensive]
        expensive = [job for job in self._jobs if job.expensive]
        is_cheap = bool(cheap) and (not expensive or self._cheap_run < CHEAP_RUN)
        self._cheap_run = self._cheap_run + 1 if is_cheap and expensive else 0
        job = min(cheap if is_cheap else expensive, key=lambda job: self._turns.get(job.client, 0))
        self._turn += 1
        self._turns[job.client] = self._turn
        self._jobs.remove(job)
        return job

    def take_similar(self, matches: Callable[[Job], bool], most: int) -> list[Job]:
        """Remove and return up to `most` further jobs that can be computed together with one that was taken."""
        similar = [job for job in self._jobs if matches(job)][:most]
        for job in similar:
            self._jobs.remove(job)
        return similar

    def drain(self) -> list[Job]:
        """Remove and return all jobs."""
        jobs, self._jobs = self._jobs, []
        return jobs
