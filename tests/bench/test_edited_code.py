"""Code that was edited between two commands: what it computes is computed again, and nothing else."""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench.fixture import small_plan
from tests.forked import run_forked
from tests.test_contributing import install
from vitreous import maps
from vitreous.bench.code_record import format_plan_code
from vitreous.bench.run import run_cell
from vitreous.bench.store import Store
from vitreous.bench.work_cells import PlanJob, split_plan
from vitreous.cli.main import main
from vitreous.core.errors import DataError
from vitreous.data.reader import READERS
from vitreous.methods.method import METHODS
from vitreous.metrics.metric import METRICS
from vitreous.models.model_registry import ADAPTERS, SOURCES

BENCH = "bench --model small:tiny --data stripes:x?count=2 --method meanhead --method random --metric mass_in_top --metric sparseness"
MAP = "map stripes:x?count=2 --model small:tiny --method meanhead --method random"
Rows = dict[tuple[str, ...], Any]


def execute_line(folder: Path, line: str) -> None:
    """Run a command in a forked process that finds the package, as a new process would."""
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # files are edited within a second
    os.chdir(folder)
    for registry in (METHODS, METRICS, READERS, ADAPTERS, SOURCES):
        registry._is_loaded = False  # it was loaded before the fork
    torch.manual_seed(0)
    output, errors = ((folder / name).open("w") for name in ("output", "errors"))
    with output, errors, redirect_stdout(output), redirect_stderr(errors):
        status = main([*line.split(), "--device", "cpu", "--json", "--out", "results"])
    os._exit(status)


def run(folder: Path, line: str, status: int = 0) -> dict[str, Any]:
    assert run_forked(execute_line, folder, line) == status, (folder / "errors").read_text()
    return json.loads((folder / "output").read_text())


def edit(folder: Path, name: str, old: str, new: str) -> None:
    path = next(folder.rglob(name))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def values(folder: Path) -> Rows:
    with Store(folder / "results", create=False) as store:
        rows = store.table().to_pylist()
    return {(row["image"], row["method"], row["metric"]): row["value"] for row in rows}


def bench_again(folder: Path, *change: str) -> tuple[int, Rows]:
    """Number of new rows and all values after an edit."""
    edit(folder, *change)
    new_rows = run(folder, BENCH)["new_rows"]
    assert run(folder, BENCH)["new_rows"] == 0
    return new_rows, values(folder)


@pytest.mark.slow
def test_an_edited_method_or_metric_is_computed_again_and_no_other(tmp_path):
    install(tmp_path)
    assert run(tmp_path, BENCH)["new_rows"] == 2 * 2 * 3  # two metrics and a map
    first = values(tmp_path)
    code = json.loads(code_of(tmp_path, "meanhead"))
    assert code["method"][0].startswith("my_package.methods.meanhead (my-package 0.1) ")
    assert [name for name in ("metric", "model", "dataset") if name in code] == ["metric", "model", "dataset"]
    assert "method" not in json.loads(code_of(tmp_path, "random"))

    new_rows, second = bench_again(tmp_path, "methods.py", "mean(dim=1)", "mean(dim=1).cumsum(-1)  # changed")
    assert new_rows == 2 * 3
    assert {key for key in first if first[key] != second[key]} == {key for key in first if key[1] == "meanhead"}

    new_rows, third = bench_again(tmp_path, "metrics.py", "values.sum(-1)", "values.sum(-1).sqrt()")
    assert new_rows == 2 * 2
    assert {key for key in second if second[key] != third[key]} == {key for key in second if key[2] == "mass_in_top"}

    new_rows, fourth = bench_again(tmp_path, "methods.py", '"""Attention', '"""The attention')
    assert (new_rows, fourth) == (0, third)


def code_of(folder: Path, method: str) -> str:
    with Store(folder / "results", create=False) as store:
        return next(row["code"] for row in store.table().to_pylist() if row["method"] == method)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "new_rows"),
    [
        (("datasets.py", "(200, 30, 30)", "(90, 30, 30)"), 2 * 3),  # of one image
        (("datasets.py", "for index in range(count)", "for index in range(count + 0)"), 0),
        (("models.py", "* width", "* (width + 0)"), 2 * 2 * 3),
        (("METADATA", "Version: 0.1", "Version: 0.2"), 2 * 2 * 3),
    ],
)
def test_edited_readers_models_and_versions(change, new_rows, tmp_path):
    install(tmp_path)
    run(tmp_path, BENCH)

    assert bench_again(tmp_path, *change)[0] == new_rows


@pytest.mark.slow
def test_maps_of_an_edited_method_are_computed_again(tmp_path):
    install(tmp_path)
    assert run(tmp_path, MAP)["new_maps"] == 4
    before = read_maps(tmp_path)
    assert run(tmp_path, MAP)["new_maps"] == 0

    edit(tmp_path, "methods.py", "mean(dim=1)", "mean(dim=1).cumsum(-1)")
    again = run(tmp_path, MAP)

    assert again["new_maps"] == 4  # a file holds all methods
    assert again["mended"] == [
        "other code of my_package.methods.meanhead computed 'maps-00000.parquet'; the images are explained again"
    ]
    after = read_maps(tmp_path)
    assert {key for key in before if before[key] != after[key]} == {key for key in before if key[1] == "meanhead"}
    assert run(tmp_path, MAP)["new_maps"] == 0
    assert "my_package.methods.meanhead (my-package 0.1)" in maps.read(tmp_path / "results").about["code"]


def read_maps(folder: Path) -> Rows:
    rows = maps.read(folder / "results").rows()
    return {(row.key, str(row.attribution.method)): row.attribution.patches.tolist() for row in rows}


@pytest.mark.slow
def test_rows_are_computed_again_on_request(tmp_path):
    install(tmp_path)
    run(tmp_path, BENCH)
    first = values(tmp_path)

    for specs, new_rows in (("mean*", 2 * 3), ("mass_in_top", 2 * 2), ("random --recompute sparseness", 2 * 3 + 2)):
        assert run(tmp_path, f"{BENCH} --recompute {specs}")["new_rows"] == new_rows
        assert values(tmp_path) == first
        assert run(tmp_path, BENCH)["new_rows"] == 0
    assert run_forked(execute_line, tmp_path, f"{BENCH} --recompute genatt") == 2
    assert "--recompute 'genatt' is none of the methods and metrics of this run" in (tmp_path / "errors").read_text()


@pytest.mark.slow
def test_code_that_is_edited_during_a_run_ends_it(tmp_path):
    """Workers that start later would compute other numbers than those that started before."""
    plan = small_plan(datasets=["scenes:single?count=2"])
    job = PlanJob(plan, code=format_plan_code(plan))
    (cell,) = split_plan(plan)
    assert next(run_cell(job, cell))
    with pytest.raises(DataError, match=r"is not the one that the run began with; .* Run the same command again"):
        next(run_cell(replace(job, code="{}"), cell))
