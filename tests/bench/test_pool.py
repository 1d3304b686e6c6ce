"""Workers, their order and killed workers do not change any row."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.bench.fixture import compute_cell, fill, small_plan, told
from tests.forked import forked_context, run_forked
from vitreous.bench import child_processes, pool
from vitreous.bench.child_processes import ChildProcesses
from vitreous.bench.model_options import load_cached
from vitreous.bench.plan import Plan
from vitreous.bench.pool import make_failed_outcome, processes, run_serially
from vitreous.bench.run_plan import execute
from vitreous.bench.store import Store
from vitreous.bench.work_cells import PlanJob, open_cached, split_plan


def same(folder: Path, other: Path) -> bool:
    return all(told(folder, kind) == told(other, kind) for kind in ("scores", "maps"))


def backwards(job, cells):
    yield from run_serially(job, list(reversed(cells)))


def shuffled_and_doubled(job, cells):
    """Some cells come twice, as from a worker that was thought to be lost."""
    order = [*cells, *cells[:1]]
    random.Random(0).shuffle(order)
    yield from run_serially(job, order)


@pytest.mark.slow
@pytest.mark.parametrize("executor", [backwards, shuffled_and_doubled])
def test_the_order_of_cells_does_not_matter_and_no_row_is_duplicated(executor, tmp_path, original):
    fill(tmp_path, executor)

    assert same(tmp_path, original)


@pytest.fixture
def forked_workers():
    """Workers are forked from a process that has imported what tests need; what they run does not depend on it."""
    forked_context()


def die_once(pipe, job, mark):
    """Body of a worker: the first one that gets the second cell is killed."""
    while True:
        cell = pipe.recv()
        if cell.number == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        pipe.send(compute_cell(job, cell))


def always_die(pipe, job):
    while True:
        cell = pipe.recv()
        if cell.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        pipe.send(compute_cell(job, cell))


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_two_processes_give_the_rows_of_one_even_if_one_is_killed(tmp_path, original, monkeypatch):
    """The killed worker is replaced, no row is lost, and rows do not depend on the worker."""
    monkeypatch.setattr(pool, "compute_cells", partial(die_once, mark=tmp_path / "mark"))

    done = fill(tmp_path / "run", processes(2, threads=1))

    assert (tmp_path / "mark").exists()
    assert done.failed == {}
    assert same(tmp_path / "run", original)


def start_process_first(pipe, job):
    """Body of a worker that starts a process of its own, as a `DataLoader` in a dataset of a plugin does."""
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    while True:
        pipe.send(compute_cell(job, pipe.recv()))


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_workers_may_start_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "compute_cells", start_process_first)

    assert fill(tmp_path, processes(1, threads=1)).failed == {}


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_a_cell_that_kills_every_worker_is_skipped_and_reported(tmp_path, monkeypatch, original):
    monkeypatch.setattr(pool, "compute_cells", always_die)
    monkeypatch.setattr(pool, "LOSSES", 1)

    done = fill(tmp_path, processes(1, threads=1))

    (sentence,) = done.failed
    assert "took its worker down 1 times" in sentence
    assert len(told(tmp_path)) == 2 * 2 * 3  # of two images, two methods and three metrics
    fill(tmp_path)  # it is not taken for done
    assert same(tmp_path, original)


def test_cores_are_shared_and_devices_go_round(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert pool.count_cores() == 8
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= pool.count_cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(pool.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(pool.torch.cuda, "device_count", lambda: 3)
    assert pool.list_devices(small_plan(device=None)) == ["cuda:0", "cuda:1", "cuda:2"]
    assert pool.list_devices(small_plan(device="cuda:1")) == ["cuda:1"]
    assert pool.list_devices(small_plan()) == ["cpu"]


def test_results_of_an_interrupted_run_are_kept(tmp_path):
    plan = small_plan()

    def interrupted(job, cells):
        yield compute_cell(job, cells[0])
        raise KeyboardInterrupt

    with Store(tmp_path) as store:
        with pytest.raises(KeyboardInterrupt):
            execute(plan, store, interrupted)

        assert store.done(plan.run) == {0}


def test_a_skipped_cell_is_not_finished(tmp_path):
    plan = small_plan()
    with Store(tmp_path) as store:
        store.record(plan.run, [make_failed_outcome(PlanJob(plan), split_plan(plan)[0])])

        assert store.done(plan.run) == set()


# ── kill -9 ──────────────────────────────────────────────────────────────────────────────────────

# Every run is killed at one step of its writing: when it opens, renames or removes a file of the store, or connects to its
# index. A file that was about to be renamed is cut in half, as if the machine had stopped before it was written.
KILLING_STEPS = (1, 2, 3, 4, 5, 7, 9, 12, 19, 12)  # of the first image, then of later ones: each takes eight steps
WHOLE = {"slice": 1, "datasets": ["scenes:single?count=6"], "metrics": ["sparseness"]}


def kill_ten_times(folder: str, report: Path) -> None:
    """Run a plan in ten processes that are killed and in one that is not; report the deaths and the cells done after each."""
    torch.set_num_threads(1)
    plan = small_plan(**WHOLE)
    (
        load_cached(plan.models[0], plan.precision, "cpu"),
        open_cached(plan.datasets[0]),
    )  # long work is done before the fork
    done, deaths = [], 0
    for step in KILLING_STEPS:
        child = os.fork()
        if not child:
            try:
                kill_at(step, folder)
                fill_patiently(folder, plan)
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        deaths += os.WIFSIGNALED(status)
        with Store(folder) as store:
            done.append(len(store.done(plan.run)))
    report.write_text(json.dumps([deaths, done]))
    fill_patiently(folder, plan)


def fill_patiently(folder: str, plan: Plan) -> None:
    with Store(folder) as store:
        execute(plan, store, patience=0)


def kill_at(step: int, folder: str) -> None:
    """Kill this process at a step of its writing."""
    steps = 0

    def count_step(event: str, arguments: tuple) -> None:
        nonlocal steps
        if event not in ("open", "os.rename", "os.remove", "sqlite3.connect"):
            return
        if not str(arguments[0]).startswith(folder):
            return
        steps += 1
        if steps == step:
            if event == "os.rename" and os.path.isfile(arguments[0]):
                os.truncate(arguments[0], os.path.getsize(arguments[0]) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_step)


@pytest.mark.slow
def test_killed_ten_times_and_resumed_it_is_the_table_of_an_unbroken_run(tmp_path):
    assert run_forked(kill_ten_times, str(tmp_path / "killed"), tmp_path / "report") == 0

    deaths, done = json.loads((tmp_path / "report").read_text())
    assert deaths == len(done) == 10
    assert done == sorted(done)  # nothing that was done is undone
    assert any(0 < count < 6 for count in done)  # it was killed in the middle
    fill(tmp_path / "whole", **WHOLE)
    assert same(tmp_path / "killed", tmp_path / "whole")
    assert not list((tmp_path / "killed" / "parts").glob(".*"))


def report_variables(pipe, *names):
    pipe.send([os.getenv(name) for name in names])


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("value", ["set", "changed", None])
def test_workers_have_the_environment_variables_of_their_run(value, monkeypatch):
    """The process that workers are forked from keeps those of the first run."""
    monkeypatch.delenv("VITREOUS_EXAMPLE", raising=False)
    if value is not None:
        monkeypatch.setenv("VITREOUS_EXAMPLE", value)

    with ChildProcesses() as workers:
        workers.start(0, report_variables, "VITREOUS_EXAMPLE", "HOME")
        assert next(workers.messages()) == (0, [value, os.getenv("HOME")])


def test_a_worker_loses_variables_that_its_parent_has_removed(monkeypatch):
    monkeypatch.setenv("VITREOUS_EXAMPLE", "of the first run")
    kept = dict(os.environ)
    try:
        child_processes.set_environment({"VITREOUS_OTHER": "new"})
        assert dict(os.environ) == {"VITREOUS_OTHER": "new"}
    finally:
        child_processes.set_environment(kept)
    assert dict(os.environ) == kept


def list_blocked_signals(results):
    results.put(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
def test_workers_start_with_the_signals_of_a_terminal_blocked():
    context = forked_context()
    results = context.SimpleQueue()
    process = context.Process(target=list_blocked_signals, args=(results,))

    process.start()
    process.join()

    assert {signal.SIGINT, signal.SIGHUP} <= results.get()
