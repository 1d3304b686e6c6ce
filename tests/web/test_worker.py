"""One thread, a bounded queue: equal work once, like work together, unwanted work not at all."""

from __future__ import annotations

import threading

import pytest
import torch

from vitreous.capture.progress import Tally
from vitreous.core.errors import ShapeError
from vitreous.web.cache import ENTRY_BYTES, Cache, count_bytes
from vitreous.web.worker import MAX_BATCH, QueueFull, Worker

PATIENCE = 20


@pytest.fixture
def worker():
    made = Worker(4, Cache(1 << 20))
    yield made
    made.close()


class Gate:
    """Work that waits until it is let through, and remembers what it was given."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.seen: list[list] = []

    def __call__(self, payloads):
        self.seen.append(list(payloads))
        self.begun.set()
        assert self.open.wait(PATIENCE)
        return [f"{payload}!" for payload in payloads]


def hold(worker: Worker) -> Gate:
    """Keep the thread busy."""
    gate = Gate()
    worker.submit("held", "held", gate, None)
    assert gate.begun.wait(PATIENCE)
    return gate


def test_what_is_asked_twice_is_computed_once(worker):
    gate = hold(worker)
    work = Gate()
    first, second = (worker.submit("key", "key", work, 1) for _ in range(2))
    assert first is second
    for one in (gate, work):
        one.open.set()

    assert first.result.result(PATIENCE) == "1!"
    assert worker.submit("key", "key", work, 1).result.result(0) == "1!"  # from the cache
    assert work.seen == [[1]]


def test_what_is_alike_is_computed_together(worker):
    worker.max_waiting = 100
    gate, work, other = hold(worker), Gate(), Gate()
    for one in (gate, work, other):
        one.open.set() if one is not gate else None
    jobs = [worker.submit(("alike", i), "alike", work, i) for i in range(MAX_BATCH + 1)]
    worker.submit("other", "other", other, "x")
    gate.open.set()

    assert [job.result.result(PATIENCE) for job in jobs] == [f"{i}!" for i in range(MAX_BATCH + 1)]
    assert work.seen == [list(range(MAX_BATCH)), [MAX_BATCH]]


def test_one_that_fails_does_not_spoil_the_batch(worker):
    def work(payloads):
        if "bad" in payloads:
            raise ShapeError("no")
        return payloads

    gate = hold(worker)
    jobs = [worker.submit(("mixed", one), "mixed", work, one) for one in ("good", "bad", "fine")]
    gate.open.set()

    assert [jobs[0].result.result(PATIENCE), jobs[2].result.result(PATIENCE)] == ["good", "fine"]
    with pytest.raises(ShapeError):
        jobs[1].result.result(PATIENCE)
    again = worker.submit(("mixed", "bad"), "mixed", lambda payloads: ["now"], "bad")
    assert again.result.result(PATIENCE) == "now"  # failures are not remembered


def test_the_queue_is_bounded(worker):
    gate = hold(worker)
    for i in range(4):
        worker.submit(i, i, gate, i)
    with pytest.raises(QueueFull):
        worker.submit(4, 4, gate, 4)
    assert worker.waiting == 4
    worker.submit(3, 3, gate, 3)  # waits with the one that is there
    gate.open.set()


def test_what_nobody_waits_for_is_never_begun(worker):
    gate, work = hold(worker), Gate()
    job = worker.submit("left", "left", work, 1)
    twice = worker.submit("left", "left", work, 1)
    worker.leave(job)
    assert worker.waiting == 1
    worker.leave(twice)
    assert worker.waiting == 0
    gate.open.set()
    last = worker.submit("last", "last", lambda payloads: ["done"], None)

    assert last.result.result(PATIENCE) == "done"
    assert work.seen == []


def test_work_that_nobody_waits_for_stops_at_its_next_report(worker):
    begun, left, pieces = threading.Event(), threading.Event(), []

    def work(payloads):
        tally = Tally(100)
        for piece in range(100):
            pieces.append(piece)
            begun.set()
            assert left.wait(PATIENCE)
            tally.add(1)
        return payloads

    job = worker.submit("long", "long", work, 1)
    assert begun.wait(PATIENCE)
    worker.leave(job)
    left.set()

    assert worker.submit("next", "next", lambda payloads: ["done"], None).result.result(PATIENCE) == "done"
    assert pieces == [0]
    assert not job.result.done()
    anew = worker.submit("long", "long", lambda payloads: ["anew"], 1)
    assert anew.result.result(PATIENCE) == "anew"


def test_a_cache_keeps_the_latest_that_fit():
    cache = Cache(3 * (ENTRY_BYTES + 100))
    for name in "abc":
        cache.put(name, b"x" * 100)
    cache.get("a")
    cache.put("d", b"x" * 100)

    assert [cache.get(name) is not None for name in "abcd"] == [True, False, True, True]
    cache.put("huge", b"x" * 10_000)
    assert cache.get("huge") is None
    assert len(cache) == 3
    cache.put("a", b"y")
    assert cache.used_bytes == 3 * ENTRY_BYTES + 201


def test_everything_is_weighed():
    import vitreous

    assert count_bytes({"a": [torch.zeros(10), (b"123", "45")]}) == 45
    found = vitreous.explain("scenes", torch.zeros(1, 3, 112, 112), [[0]], "rollout")
    assert count_bytes(found) > 3 * 112 * 112 * 4


def test_a_closed_worker_opens_again_when_it_is_asked(worker):
    for key in range(3):
        assert worker.submit(key, key, lambda payloads: ["done"], None).result.result(PATIENCE) == "done"
        worker.close()
