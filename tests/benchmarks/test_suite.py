"""The suite runs from end to end on a tiny model, and its arithmetic is correct; no timing is tested."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from suite import bare, clock, command, growth, memory, profile, startup, table, whitebox
from suite.case import Case
from suite.row import Row
from suite.workload import make_workload, run_backward
from torch import Tensor

import vitreous
from tests.forked import run_script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def workload():
    return make_workload("test", batch=2)


def case(**changes):
    given = {"group": "one backward", "what": "ours", "against": "theirs", "ours": lambda: None, "theirs": lambda: None}
    return Case(**{**given, **changes})


def row(targets=None, ratio=None, what="a", **changes):
    return Row("test", "peers", what, "b", targets=targets or {}, ratio=ratio, **changes)


# ── from end to end ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_command_measures_prints_and_keeps_everything(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "MODULES", ("whitebox",))
    kept = tmp_path / "out.json"
    asked = [
        "--size",
        "test",
        "--batch",
        "2",
        "--rounds",
        "2",
        "--only",
        "one backward",
        "--only",
        "attention",
        "--match",
        "fullgrad+skipplus",
        "--match",
        "tokentm",
        "--json",
        str(kept),
    ]

    assert command.main(asked) == 0

    printed, found = capsys.readouterr().out, json.loads(kept.read_text())
    whats = {one["what"] for one in found["rows"]}
    assert whats == {"fullgrad+skipplus", "tokentm"}
    assert found["machine"].keys() >= {"device", "clock", "memory", "threads", "torch", "timm", "python"}
    assert found["commands"] == ["benchmarks/run " + " ".join(asked).replace("one backward", "'one backward'")]
    assert [one["error"] for one in found["rows"]] == [None] * len(found["rows"])
    ratios = [one for one in found["rows"] if not one["unit"]]
    assert all(len(one["seconds"]["ours"]) == len(one["seconds"]["theirs"]) == 2 for one in ratios)
    assert all(one["spread"][0] <= one["ratio"] <= one["spread"][1] for one in ratios)
    assert all(one["peaks"]["ours"] > 0 and one["peaks"]["theirs"] > 0 and one["smaller"] > 0 for one in ratios)
    assert all(one["verdict"] in ("met", "missed") for one in found["rows"])
    assert all(f"`{what}`" in printed for what in {one["what"] for one in ratios})


@pytest.mark.slow
def test_the_script_starts_by_itself(tmp_path):
    script, output = ROOT / "benchmarks" / "run", tmp_path / "output.txt"

    assert run_script(script, "--size", "test", "--list", output=output) == 0
    assert "decompx+skipplus against forward + backward" in output.read_text(encoding="utf-8")
    assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env python3\n")
    assert os.access(script, os.X_OK)


@pytest.mark.slow
def test_rows_measured_again_take_the_place_of_old_ones(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "MODULES", ("whitebox",))
    kept = tmp_path / "out.json"
    asked = ["--size", "test", "--batch", "1", "--rounds", "1", "--only", "one backward", "--json", str(kept), "--add"]

    command.main([*asked, "--match", "cam+skipplus"])
    before = json.loads(kept.read_text())
    command.main([*asked, "--match", "gradcam"])
    after = json.loads(kept.read_text())

    names = [one["what"] for one in after["rows"]]
    assert len(set(names)) == len(names) > len(before["rows"])
    assert len(after["commands"]) == 2
    strange = {**before, "machine": {**before["machine"], "torch": "0.0"}}
    with pytest.raises(SystemExit, match="differ in torch"):
        table.merge_documents(strange, after)


def test_only_the_requested_modules_run(workload, monkeypatch):
    def closed(_):
        raise AssertionError("nobody asked")

    monkeypatch.setattr(memory, "cases", closed)

    found = list(command.list_cases(workload, ["relevance", "stand-ins"]))

    assert {"relevance", "stand-ins"} <= {one.group for one in found}
    assert not [one for one in found if isinstance(one, Row)]


@pytest.mark.parametrize("name", command.MODULES)
def test_every_module_lists_all_its_groups(workload, name):
    room = importlib.import_module(f"suite.{name}")

    assert {one.group for one in room.cases(workload)} == set(room.GROUPS) <= set(table.GROUPS)


def test_growth_that_was_kept_is_drawn_without_measuring(tmp_path, monkeypatch, capsys):
    curve = {"what": "ixg", "axis": "depth", "at": [1, 2], "seconds": [1.0, 2.0], "exponent": 1.0, "theory": 1.0}
    kept, figure = tmp_path / "out.json", tmp_path / "growth.svg"
    table.write_json(kept, table.make_document({"torch": "0"}, ["measured elsewhere"], [], [curve]))
    before = kept.read_text()
    monkeypatch.setattr(growth, "measure_growth", raising)

    command.main(["--growth", str(figure), "--json", str(kept), "--kept"])

    assert "theory 1.00" in figure.read_text()
    assert "ixg over depth: n^1.00" in capsys.readouterr().out
    assert kept.read_text() == before
    with pytest.raises(SystemExit):
        command.main(["--growth", str(figure), "--kept"])


def test_growth_without_matplotlib_is_kept(tmp_path, monkeypatch, capsys):
    curve = {"what": "ixg", "axis": "depth", "at": [1, 2], "seconds": [1.0, 2.0], "exponent": 1.0, "theory": 1.0}
    monkeypatch.setattr(growth, "measure_growth", lambda *_: [curve])
    monkeypatch.setattr(growth, "draw_growth", raising)

    command.main(["--growth", str(tmp_path / "growth.svg"), "--json", str(tmp_path / "out.json")])

    assert "not drawn" in capsys.readouterr().err
    assert json.loads((tmp_path / "out.json").read_text())["growth"] == [curve]


def test_the_slowest_rows_are_closest_to_their_targets():
    rows = [
        row({"at_most": 2.0}, 1.0, seconds={}),
        Row("b", "sampling", "half", "itself", targets={"at_least": 5.0}, ratio=0.25),
        Row("b", "paths", "near", "floor", targets={"at_most": 1.1}, ratio=1.0),
        Row("b", "attention", "far", "floor", targets={"at_most": 2.0}, ratio=0.5),
        Row("b", "attention", "far", "floor", targets={"at_most": 2.0}, ratio=1.9, note="streaming"),
        Row("b", "paths", "broken", "floor", targets={"at_most": 1.0}, error="raised"),
        Row("b", "peers", "other", "captum", targets={"at_most": 1.0}, ratio=9.0),
        Row("l", "paths", "large", "floor", targets={"at_most": 1.0}, ratio=9.0),
    ]

    found = profile.find_slowest(rows, ["b"], 3)

    assert [(one.what, one.note) for one in found] == [("half", ""), ("far", "streaming"), ("near", "")]


def test_the_slowest_rows_are_profiled_from_the_file(tmp_path, capsys):
    kept = tmp_path / "out.json"
    asked = ["--size", "test", "--batch", "1", "--only", "one backward", "--json", str(kept)]
    command.main([*asked, "--rounds", "1", "--match", "gradcam+skipplus"])
    capsys.readouterr()

    command.main(["--size", "test", "--batch", "1", "--json", str(kept), "--profile", "slowest"])

    printed = capsys.readouterr().out
    assert printed.count(" against ") == 1
    assert "gradcam+skipplus against forward + backward" in printed
    assert "without a profiler" in printed


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    kept = tmp_path / "out.json"
    table.write_json(kept, {"rows": 1})
    monkeypatch.setattr(Path, "replace", raising)

    with pytest.raises(ImportError):
        table.write_json(kept, {"rows": 2})

    assert json.loads(kept.read_text()) == {"rows": 1}


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is a shell's")
def test_the_gpu_script_continues_after_a_failure_and_stops_when_time_is_up(tmp_path):
    python = tmp_path / "python3"  # replaces the suite: prints its arguments, and fails for peers
    python.write_text(
        '#!/bin/sh\nprintf "%s\\t" "$@" >>"$ASKED"\ncase "$*" in *peers*) echo broken >&2; exit 3;; esac\n'
    )
    python.chmod(0o755)
    given = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "ASKED": str(tmp_path / "asked")}

    def said(**more):
        script = ["bash", str(ROOT / "benchmarks" / "cuda"), str(tmp_path / "out.json"), str(tmp_path / "folder")]
        return subprocess.run(script, env={**given, **more}, capture_output=True, text=True, check=True).stdout

    whole, late = said(), said(BUDGET="0")
    parts = ("peers", "growth", "memory", "wide", "sampled", "profiles", "inside")
    parts += ("peers-tf32", "tf32", "peers-bf16", "bf16", "large")

    calls = [one.split("\t")[:-1] for one in (tmp_path / "asked").read_text().split("benchmarks/run\t")[1:]]
    parsed = [command.make_parser().parse_args(one) for one in calls]
    assert len(parsed) == len(parts)
    assert all(one.device == "cuda" and one.rounds == 3 and one.add for one in parsed)
    assert {one.json for one in parsed} == {tmp_path / "out.json"}
    assert {size for one in parsed for size in one.size or ()} == {"ti", "b", "l", "eva"}
    assert {group for one in parsed for group in one.only or ()} == set(table.GROUPS) - {"start-up"}
    assert "rc 3; 0 met" in whole
    assert "broken" in whole
    assert [line.split(": ")[0] for line in whole.splitlines() if ": " in line] == [*parts, "all"]
    assert late.count("left out, the time is up") == len(parts)
    assert [line.split(": ")[0] for line in said(ONLY="growth wide").splitlines()] == ["growth", "wide", "all"]


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("targets", "found", "verdict", "said"),
    [
        ({"at_most": 1.25}, {"ratio": 1.25}, "met", []),
        ({"at_most": 1.25}, {"ratio": 1.5}, "missed", ["1.50 is 20% over 1.25"]),
        ({"at_most": 1.0}, {"ratio": 1.004}, "missed", ["1.00 is 0.4% over 1"]),
        ({"at_least": 5.0}, {"ratio": 0.2}, "met", []),
        ({"at_least": 5.0}, {"ratio": 0.25}, "missed", ["the gain 4.00 is 20% short of 5"]),
        ({"smaller": 20.0}, {"ratio": 1.0, "peaks": {"ours": 1, "theirs": 30}}, "met", []),
        (
            {"smaller": 20.0},
            {"ratio": 1.0, "peaks": {"ours": 3, "theirs": 30}},
            "missed",
            ["memory 10 is 50% short of 20"],
        ),
        ({"agreement": 0.99}, {"ratio": 1.0, "agreement": 0.995}, "met", []),
        ({"agreement": 0.99}, {"ratio": 1.0, "agreement": math.nan}, "missed", ["agreement is not defined"]),
        ({"at_most": 1.0, "at_least": 2.0}, {"ratio": 0.8}, "missed", ["the gain 1.25 is 38% short of 2"]),
        ({}, {"ratio": 7.0}, "no target", []),
        ({"at_most": 1.0}, {"error": "theirs: ImportError"}, "failed", None),
    ],
)
def test_a_verdict_is_met_or_describes_the_miss(targets, found, verdict, said):
    one = row(targets, **found)

    assert one.verdict == verdict
    assert said is None or one.list_missed() == said


def test_ratios_are_per_image_and_taken_within_rounds():
    one = row(pictures=(32, 1))

    one.set_rounds([(32.0, 10.0), (64.0, 4.0), (3.2, 1.0)])

    assert one.ratio == pytest.approx(0.1)
    assert one.spread == pytest.approx((0.1, 0.5))


def test_memory_is_per_image():
    assert row(pictures=(8, 2), peaks={"ours": 800, "theirs": 600}).smaller == pytest.approx(3)


def test_a_row_survives_its_record():
    one = row({"at_least": 2.0}, 0.4, spread=(0.3, 0.5), peaks={"ours": 3, "theirs": 9}, agreement=0.5, note="n")

    again = Row.from_record(json.loads(json.dumps(one.to_record())))

    assert again == one
    assert json.loads(json.dumps(row(agreement=math.nan).to_record(), allow_nan=False))["agreement"] is None


def test_batch_sizes_have_separate_tables():
    rows = [
        row(what="x", batch=8),
        row(what="y", batch=32),
        row(what="z", unit="layers"),
        row(what="w", error="raised"),
    ]

    tables = table.format_markdown(rows).split("**a test model · peers**")[1:]

    assert [("batch 8" in one, "batch 32" in one) for one in tables] == [(True, False), (False, True)]
    assert [[name for name in "xyzw" if f"`{name}`" in one] for one in tables] == [["x", "z", "w"], ["y"]]


def test_work_takes_turns_and_stops_at_the_cap():
    calls = []

    found = clock.alternate(lambda: calls.append("a"), lambda: calls.append("b"), "cpu", 3)
    clock.alternate(lambda: calls.append("a"), lambda: calls.append("b"), "cpu", 50, cap=0)

    assert calls == ["a", "b"] * 4
    assert len(found) == 3


def test_peak_memory_counts_tensors_alive_at_once():
    mebi = 2**20

    def work():
        first = torch.ones(mebi)  # 4 MiB, and as much for its double
        second = first * 2
        del first
        return second + 1  # again two at once

    assert clock.measure_peak(work, "cpu") == pytest.approx(8 * mebi, rel=0.01)
    assert clock.find_peak([5, -5, 3, 4, -7]) == 7


# ── failures become rows ──────────────────────────────────────────────────────────────────────────


def raising(*_):
    raise ImportError("No module named 'captum'\nand more lines")


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_a_side_that_raises_becomes_a_row_with_the_error(workload, side):
    found = clock.measure_case(case(**{side: raising}, at_most=1.0), workload, 1)

    assert found.verdict == "failed"
    assert found.error == f"{side}: ImportError: No module named 'captum'"
    assert "failed: " in table.format_markdown([found])


def test_a_library_that_is_not_installed_is_skipped(workload):
    calls = []

    clock.measure_case(case(ours=lambda: calls.append("ours"), theirs=raising), workload, 1)

    assert calls == []


def test_a_module_that_cannot_name_its_cases_is_a_row(monkeypatch, capsys):
    monkeypatch.setattr(command, "MODULES", ("absent", "whitebox"))

    command.main(["--size", "test", "--batch", "1", "--rounds", "1", "--match", "gradcam+skipplus"])

    printed = capsys.readouterr().out
    assert "No module named 'suite.absent'" in printed
    assert "`gradcam+skipplus`" in printed


def test_invalid_requests_are_refused(capsys):
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            command.main(["--device", "cuda"])
        assert "torch sees no CUDA device" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--size", "test", "--rounds", "0"])


# ── modules of cases ──────────────────────────────────────────────────────────────────────────────


def test_the_floor_is_the_plain_gradient(workload):
    images = workload.images.clone().requires_grad_()
    workload.model(images).max(-1).values.sum().backward()

    torch.testing.assert_close(run_backward(workload.model, workload.images), images.grad)


def test_the_floor_runs_every_sequence_also_when_memory_is_freed(workload, monkeypatch):
    lengths, seen = [9] * 40 + [17] * 12, []
    monkeypatch.setattr(bare, "rows_that_fit", lambda *_: 8)
    run = bare.make_sequence_forwards(workload, lengths, 2)
    monkeypatch.setattr(bare, "rows_that_fit", lambda *_: 1000)
    hook = workload.model.norm.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[:2]))

    run()
    hook.remove()

    assert sum(rows for rows, length in seen if length == 9) == 40
    assert sum(rows for rows, length in seen if length == 17) == 12 + 2


def test_the_floor_runs_the_stated_number_of_images(workload):
    assert bare.make_noise(workload, 70).shape == (70, *workload.images.shape[1:])
    assert not (bare.make_noise(workload, 70)[0] == bare.make_noise(workload, 70)[1]).all()


def test_attention_is_freed_while_streaming_and_kept_while_held():
    deep = make_workload("test", batch=1, depth=5)

    assert whitebox.count_layers_alive(deep, "genatt", hold=True) == 5
    assert whitebox.count_layers_alive(deep, "genatt", hold=False) <= 2


@pytest.mark.parametrize("spec", ["ixg", "ig(steps=16)", "smoothgrad(samples=24)"])
def test_the_backward_pass_uses_the_memory_of_the_plain_graph(spec):
    deep = make_workload("test", batch=4, depth=12, img_size=64)
    points = deep.images if spec == "ixg" else deep.images.repeat(8, 1, 1, 1)  # as many as are held at once

    ours = clock.measure_peak(lambda: vitreous.explain(deep.vit, deep.images, method=spec), "cpu")

    assert ours < 1.09 * clock.measure_peak(
        lambda: run_backward(deep.model, points), "cpu"
    )  # checked calls keep their arguments


def test_memory_of_doubled_work_is_compared_with_single_work(workload):
    block = torch.ones(1000)

    def both() -> Tensor:
        one, two = block + 1, block + 2
        return one.add_(two)

    found = memory.compare_doubled(workload, "a", "twice", both, lambda: block + 1)
    kept = memory.compare_doubled(workload, "a", "twice", lambda: {"map": torch.ones(2000)}, lambda: [torch.ones(1000)])
    failed = command.measure_figure(memory.make_figure(workload, "a", "twice", raising, lambda: None), "test")

    assert found.ratio == pytest.approx(2, rel=0.01)
    assert found.verdict == "missed"
    assert found.note == ""
    assert kept.ratio == pytest.approx(1, rel=0.01)
    assert kept.note == "without the 0.00381 MiB of additional results"
    assert failed.error == "ImportError: No module named 'captum'"


def test_a_statement_is_timed_in_a_new_interpreter():
    found = startup.measure_startup(
        "a line", "nothing", lambda: startup.measure_process_time("x = sum(range(10))", "import json"), 1, 0.5
    )

    assert found.unit == "s"
    assert 0 <= found.ratio < math.inf
    with pytest.raises(subprocess.CalledProcessError):
        startup.measure_process_time("import no_such_module")


def test_the_exponent_is_the_slope_in_logarithms():
    assert growth.fit_exponent([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2)
    assert growth.compute_theory_line({"at": [1, 2, 4], "seconds": [5.0, 10.0, 20.0], "theory": 1.0}) == pytest.approx(
        [5, 10, 20]
    )


def test_theory_counts_the_executed_multiplications(workload):
    half, whole = (growth.count_multiplications(spec, workload, 17) for spec in ("ixg+skipplus", "ixg"))

    assert 0.7 < half / whole < 0.8  # two blocks forward, one of two back
    assert growth.count_multiplications("tis(masks=32)", workload, 17) < growth.count_multiplications(
        "rise(masks=32)", workload, 17
    )


@pytest.mark.slow
def test_growth_is_measured_and_drawn(tmp_path):
    found = growth.measure_growth("cpu", 1, quick=True)
    growth.draw_growth(found, tmp_path / "growth.svg")

    assert {one["axis"] for one in found} == {"tokens", "depth", "pictures", "masks"}
    assert all(math.isfinite(one["exponent"]) and one["theory"] > 0.5 for one in found)
    assert "decompx+skipplus" in (tmp_path / "growth.svg").read_text()


def test_a_profile_names_operators(workload):
    said = profile.profile_case(next(one for one in whitebox.cases(workload) if one.what == "ixg"), workload, rows=3)

    assert said.count("aten::") >= 4
    assert "ours" in said
    assert "theirs" in said


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("performance_page", ROOT / "docs" / "performance_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_agrees_with_the_measurements(page):
    assert page.main(["--check"]) == 0


def test_the_page_marks_missing_measurements(page, tmp_path):
    text = "Words.\n<!-- cpu table -->\nold\n<!-- end -->\nMore.\n<!-- h200 table -->\n<!-- end -->\n<!-- cpu growth -->\n<!-- end -->\n"
    one = row({"at_most": 1.0}, 1.5, spread=(1.4, 1.6), seconds={"ours": [3.0], "theirs": [2.0]})
    curve = {"what": "ixg", "axis": "depth", "at": [1, 2], "seconds": [1.0, 2.0], "exponent": 1.0, "theory": 1.0}
    facts = {"device": "A Machine", "clock": "c", "memory": "m", "threads": 1, "torch": "2"}
    table.write_json(tmp_path / "cpu.json", table.make_document(facts, ["benchmarks/run"], [one], [curve]))

    made = page.filled(text, tmp_path)

    assert "old" not in made
    assert "Words." in made
    assert made.count("Not measured yet.") == 1
    assert "**missed**: 1.50 is 50% over 1" in made
    assert "| `ixg` | depth | 1 … 2 | 1.00 | 1.00 |" in made
    assert page.filled(made, tmp_path) == made
