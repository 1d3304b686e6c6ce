"""Differences between two runs."""

from __future__ import annotations

import json
from math import isnan, nan
from pathlib import Path

import pytest

from tests.report.stores import put, row, rows_of
from vitreous.cli.main import main
from vitreous.core.errors import DataError
from vitreous.report.compare import Change, compare_runs, render_comparison


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """a is 0.1 better on every image, b is 0.1 worse in a metric where less is better, c is the same, d is gone."""
    base = [0.1, 0.5, 0.9, 0.3]
    old = rows_of({"ap": {"a": base, "c": base, "d": base}, "deletion_accuracy": {"b": base}})
    new = rows_of(
        {
            "ap": {"a": [x + 0.1 for x in base], "c": base, "e": base},
            "deletion_accuracy": {"b": [x + 0.1 for x in base]},
        },
        vitreous="1",
    )
    new += [row(method="a", metric="ap", image="p9", index=9, value=0.5, vitreous="1")]
    return put(tmp_path / "old", old), put(tmp_path / "new", new, run="again")


def by_method(two: tuple[Path, Path]) -> dict[tuple[str, str], Change]:
    return {(one.method, one.metric): one for one in compare_runs(*two).changes if one.paired}


def test_changes_are_paired_and_signed_by_the_better_direction(two: tuple[Path, Path]) -> None:
    found = by_method(two)

    a = found["a", "ap"]
    assert (a.before, a.after, a.change) == pytest.approx((0.45, 0.55, 0.1))
    assert (a.low, a.high) == pytest.approx((0.1, 0.1))
    assert (a.paired, a.equal, a.only_before, a.only_after) == (4, 0, 0, 1)
    assert a.verdict == "better"
    assert found["b", "deletion_accuracy"].verdict == "worse"
    assert found["c", "ap"].verdict == "the same"


def test_entries_of_only_one_run_are_listed(two: tuple[Path, Path]) -> None:
    found = compare_runs(*two)

    assert ("before", "method", "d (m on d)") in found.only
    assert ("after", "method", "e (m on d)") in found.only
    assert ("after", "questions", "1 image × class (m on d)") in found.only
    assert "m on d: vitreous went from 0 to 1" in found.caveats


def test_rows_of_another_class_are_not_paired(tmp_path: Path) -> None:
    old = put(tmp_path / "old", rows_of({"ap": {"a": [0.1, 0.2]}}, target=3))
    new = put(tmp_path / "new", rows_of({"ap": {"a": [0.1, 0.2]}}, target=4))
    (one,) = compare_runs(old, new).changes

    assert (one.paired, one.only_before, one.only_after) == (0, 2, 2)
    assert isnan(one.change)
    assert one.verdict == "not comparable"


def test_a_change_that_may_be_chance_is_unclear(tmp_path: Path) -> None:
    old = put(tmp_path / "old", rows_of({"ap": {"a": [0.1, 0.9, nan]}, "sparseness": {"a": [0.1, 0.1, 0.1]}}))
    new = put(tmp_path / "new", rows_of({"ap": {"a": [0.9, 0.2, 0.3]}, "sparseness": {"a": [0.2, 0.2, 0.2]}}))
    chance, described = compare_runs(old, new).changes

    assert (chance.verdict, chance.paired, chance.only_after) == ("unclear", 2, 1)
    assert described.verdict == "changed"


@pytest.mark.parametrize("scale", [1e-6, 1.0, 100.0])
def test_differences_of_rounding_are_the_same_and_larger_ones_are_not(tmp_path: Path, scale: float) -> None:
    base = [0.1, 0.5, 0.9, 0.3]
    shifts = {"rounded": 1e-8, "scattered": -1e-6, "better": 1e-4}
    old = {name: [scale * x for x in base] for name in shifts}
    new = {name: [scale * (x + shift) for x in base] for name, shift in shifts.items()}
    new["scattered"] = [scale * (x + (-1) ** place * 1e-6) for place, x in enumerate(base)]
    changes = compare_runs(
        put(tmp_path / "old", rows_of({"ap": old})), put(tmp_path / "new", rows_of({"ap": new}))
    ).changes

    assert {one.method: (one.verdict, one.equal) for one in changes} == {
        "rounded": ("the same", 4),
        "scattered": ("the same", 4),
        "better": ("better", 0),
    }


def test_the_page_and_the_command_line(two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    before, after = map(str, two)

    assert main(["compare", before, after, "--html", str(tmp_path / "change.html")]) == 0
    said = capsys.readouterr().out
    assert "better" in said
    assert "+0.100 [0.100, 0.100]" in said
    assert "only before: method d (m on d)" in said
    page = (tmp_path / "change.html").read_text()
    assert page == render_comparison(compare_runs(*two))

    assert main(["compare", before, after, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["verdict"] for one in told["changes"]} == {"better", "worse", "the same", "not comparable"}


def test_a_folder_without_a_run_is_refused_with_a_message(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(DataError, match="holds no results"):
        compare_runs(tmp_path / "none", tmp_path / "none")
    put(tmp_path / "one", rows_of({"ap": {"a": [0.1]}}))
    with pytest.raises(DataError, match="holds no run 'x'; known: run"):
        compare_runs(tmp_path / "one", tmp_path / "one", "x", None)
    assert main(["report", str(tmp_path / "none")]) == 2
    assert not (tmp_path / "none").exists()
