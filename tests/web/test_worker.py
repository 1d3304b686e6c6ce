"""The worker: a bounded queue in front of one thread, batches, abandoned jobs, deadlines, and its cache."""

from __future__ import annotations

import threading

import pytest
import torch

from vitreous.core.errors import ShapeError
from vitreous.core.progress import Tally
from vitreous.web.cache import ENTRY_BYTES, NUMBER_BYTES, Cache, count_bytes
from vitreous.web.fair_queue import CHEAP_RUN
from vitreous.web.schemas import LayerMap
from vitreous.web.worker import MAX_BATCH, Projection, QueueFull, Worker, WouldExceedLimit

PATIENCE = 20


@pytest.fixture
def worker(request):
    made = Worker(getattr(request, "param", 4), Cache(1 << 20))
    yield made
    made.close()


class Gate:
    """A job that waits until it is released, and records its inputs."""

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


def test_equal_requests_are_computed_once(worker):
    gate = hold(worker)
    work = Gate()
    first, second = (worker.submit("key", "key", work, 1) for _ in range(2))
    assert first is second
    for one in (gate, work):
        one.open.set()

    assert first.result.result(PATIENCE) == "1!"
    assert worker.submit("key", "key", work, 1).result.result(0) == "1!"  # from the cache
    assert work.seen == [[1]]


@pytest.mark.parametrize("worker", [100], indirect=True)
def test_similar_requests_are_computed_in_one_batch(worker):
    gate, work, other = hold(worker), Gate(), Gate()
    for one in (gate, work, other):
        one.open.set() if one is not gate else None
    jobs = [worker.submit(("alike", i), "alike", work, i) for i in range(MAX_BATCH + 1)]
    worker.submit("other", "other", other, "x")
    gate.open.set()

    assert [job.result.result(PATIENCE) for job in jobs] == [f"{i}!" for i in range(MAX_BATCH + 1)]
    assert work.seen == [list(range(MAX_BATCH)), [MAX_BATCH]]


def test_a_failing_request_does_not_fail_its_batch(worker):
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


def names_in_order(worker: Worker, jobs: list[tuple[str, str | None, bool]]) -> list[str]:
    """The order in which jobs of (name, client, expensive) are computed that were submitted in this order."""
    gate, order = hold(worker), []
    submitted = [
        worker.submit(name, name, lambda names: order.extend(names) or names, name, client=client, expensive=expensive)
        for name, client, expensive in jobs
    ]
    gate.open.set()
    for job in submitted:
        job.result.result(PATIENCE)
    return order


@pytest.mark.parametrize("worker", [100], indirect=True)
def test_clients_take_turns(worker):
    jobs = [*((f"a{i}", "a", True) for i in range(4)), ("b0", "b", True), ("b1", "b", True), ("c0", "c", True)]

    assert names_in_order(worker, jobs) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


@pytest.mark.parametrize("worker", [100], indirect=True)
def test_cheap_requests_come_first_but_not_for_ever(worker):
    cheap = [(f"cheap{i}", "a", False) for i in range(CHEAP_RUN + 2)]
    order = names_in_order(worker, [("slow0", "b", True), ("slow1", "b", True), *cheap])

    assert order == [
        *(name for name, *_ in cheap[:CHEAP_RUN]), "slow0", *(name for name, *_ in cheap[CHEAP_RUN:]), "slow1",
    ]  # fmt: skip


def test_one_client_cannot_fill_the_queue(worker):
    gate = hold(worker)
    for i in range(3):
        worker.submit(i, i, gate, i, client="a")
    with pytest.raises(QueueFull, match="3 of your requests wait already"):
        worker.submit(3, 3, gate, 3, client="a")
    worker.submit(4, 4, gate, 4, client="b")
    with pytest.raises(QueueFull, match="4 requests wait already"):
        worker.submit(5, 5, gate, 5, client="c")
    gate.open.set()


def test_abandoned_requests_are_not_started(worker):
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


def test_abandoned_work_stops_at_its_next_progress_report(worker):
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


def test_time_left_is_projected_from_the_speed_of_the_current_count():
    projection = Projection()
    assert projection.seconds_left(10, 100, now=50.0) is None  # preparation before the first report is not counted
    assert projection.seconds_left(11, 100, now=51.0) is None  # too short to tell
    assert projection.seconds_left(20, 100, now=60.0) == 80.0
    assert projection.seconds_left(5, 100, now=61.0) is None  # counts from the beginning again
    assert projection.seconds_left(25, 100, now=71.0) == 37.5


def test_work_that_would_miss_its_deadline_is_stopped_and_work_that_meets_it_is_not(worker):
    now = [0.0]
    worker.clock = lambda: now[0]

    def work(payloads):
        tally = Tally(10)
        for _ in range(10):
            now[0] += 3.0
            tally.add(1)
        return payloads

    assert worker.submit("fits", "fits", work, 1, deadline=30.0).result.result(PATIENCE) == 1
    with pytest.raises(WouldExceedLimit, match="24 s more; stopped at 2 of 10"):
        worker.submit("late", "late", work, 1, deadline=now[0] + 29.0).result.result(PATIENCE)


def test_the_cache_evicts_least_recently_used_entries():
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


def test_bytes_of_nested_values_are_counted():
    import vitreous

    assert count_bytes({"a": [torch.zeros(10), (b"123", "45")]}) == 45
    frame = LayerMap(layer=0, scores=[0.5] * 1000, start="", total=[])
    assert count_bytes([frame, frame]) >= 2 * 1000 * NUMBER_BYTES  # numbers of a response fill memory, too
    found = vitreous.explain("scenes", torch.zeros(1, 3, 112, 112), [[0]], "rollout")
    assert count_bytes(found) > 3 * 112 * 112 * 4


def test_closing_waits_until_the_current_work_has_stopped(worker):
    begun, ended = threading.Event(), threading.Event()

    def work(payloads):
        tally = Tally(10_000)
        begun.set()
        try:
            for _ in range(10_000):
                threading.Event().wait(0.005)
                tally.add(1)
        finally:
            ended.set()

    worker.submit("long", "long", work, 1)
    assert begun.wait(PATIENCE)
    worker.close(wait=PATIENCE)

    assert ended.is_set()


def test_a_closed_worker_restarts_on_the_next_request(worker):
    for key in range(3):
        assert worker.submit(key, key, lambda payloads: ["done"], None).result.result(PATIENCE) == "done"
        worker.close()
