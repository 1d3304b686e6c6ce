"""`vitreous bench` and `vitreous map`: tables, resuming after an interruption, shards, and files that other tools read."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.bench.fixture import SMALL, told
from vitreous.bench.cost import evaluate_cost
from vitreous.cli.main import main

FLAGS = ["--model", "scenes", "--data", SMALL["datasets"][0], "--device", "cpu", "--slice", "2"]
FLAGS += [word for name in SMALL["methods"] for word in ("--method", name)]
FLAGS += [word for name in SMALL["metrics"] for word in ("--metric", name)]


@pytest.fixture(autouse=True)
def nobody_debugs(monkeypatch):
    monkeypatch.delenv("VITREOUS_DEBUG", raising=False)


@pytest.mark.slow
def test_one_command_gives_the_table_and_a_second_computes_nothing(tmp_path, capsys, original):
    out = ["--out", str(tmp_path / "run")]

    assert main(["bench", *FLAGS, *out]) == 0
    first = capsys.readouterr().out.splitlines()
    assert main(["bench", *FLAGS, *out]) == 0
    second = capsys.readouterr().out.splitlines()

    assert first[0] == f"scenes on {SMALL['datasets'][0]}, 4 images"
    assert first[1].split("  ")[0] == "method"
    assert "pointing_game ↑" in first[1]
    assert first[2].startswith("genatt")
    assert "*" in first[2]
    assert "best" in first[4]
    assert first[-1] == f"32 new rows; results in {tmp_path / 'run'}"
    assert second[-1] == f"nothing new; results in {tmp_path / 'run'}"
    assert second[:-1] == first[:-1]
    assert told(tmp_path / "run") == told(original)


def test_one_image_has_no_intervals(tmp_path, capsys):
    flags = ["--model", "scenes", "--data", "scenes:single?count=1", "-x", "genatt", "-x", "random"]

    assert main(["bench", *flags, "--metric", "pointing_game", "--out", str(tmp_path)]) == 0

    said = capsys.readouterr()
    table = said.out.splitlines()
    assert table[0].endswith(", 1 image")
    assert not set("[*=") & set("".join(table[2:4]))
    assert "one image gives no interval" in said.err


def test_finished_maps_are_computed_again_with_recheck(tmp_path, capsys):
    from PIL import Image

    from vitreous.scenes import draw

    pictures, out = tmp_path / "pictures", str(tmp_path / "maps")
    pictures.mkdir()
    again = ["map", str(pictures), "--model", "scenes", "--method", "genatt", "--out", out, "--json"]
    found = []
    for place, flags in ((0, []), (1, []), (1, ["--recheck"])):
        Image.fromarray(draw("single", seed=3, index=place).image).save(pictures / "one.png")
        assert main([*again, *flags]) == 0
        found.append(json.loads(capsys.readouterr().out)["new_maps"])

    assert found == [1, 0, 1]


def test_a_plan_in_a_file_and_json(filled, tmp_path, capsys):
    path = tmp_path / "plan.toml"
    path.write_text(
        f"""
        models = ["scenes"]
        datasets = ["{SMALL["datasets"][0]}"]
        methods = {json.dumps(SMALL["methods"])}
        metrics = {json.dumps(SMALL["metrics"])}
        slice = 2
        device = "cpu"
        out = "{filled}"
        """
    )

    assert main(["bench", str(path), "--json"]) == 0

    said = json.loads(capsys.readouterr().out)
    assert (said["new_rows"], said["failed"], said["images"]) == (0, {}, 4)
    assert [column["metric"] for column in said["columns"]] == SMALL["metrics"]
    entry = said["columns"][0]["entries"][0]
    assert entry["low"] <= entry["value"] <= entry["high"]
    assert entry["rank"] == 1


def test_a_narrow_terminal_gets_some_columns_under_the_others(filled, capsys, monkeypatch):
    from rich.console import Console

    from vitreous.cli import console

    monkeypatch.setattr(
        console, "open_console", lambda **_: Console(width=60, highlight=False, markup=False, emoji=False)
    )

    assert main(["bench", *FLAGS, "--out", str(filled)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["method", "genatt", "random"] * 2
    assert not any("…" in line for line in lines)


def test_methods_of_different_scores_are_in_separate_tables(tmp_path, capsys):
    flags = ["--model", "scenes", "--data", "scenes:single?count=2", "-x", "genatt", "-x", "temper", "-x", "random"]
    flags += ["--metric", "sparseness", "--no-maps", "--device", "cpu", "--out", str(tmp_path)]

    assert main(["bench", *flags]) == 0
    said = capsys.readouterr()
    lines = [line.split()[:2] for line in said.out.splitlines()]
    assert [words for words in lines if words[0] in ("genatt", "temper", "random")] == [
        ["genatt", "logit"], ["random", "any"], ["temper", "probability"], ["random", "any"],
    ]  # fmt: skip
    assert "scenes on scenes:single?count=2, 2 images, score: probability" in said.out
    assert "--question logit explains the same score by all of them" in said.err
    assert main(["bench", *flags, "--question", "logit", "--json"]) == 0
    (column,) = json.loads(capsys.readouterr().out)["columns"]
    assert column["score"] == ""
    assert [(entry["method"], entry["score"]) for entry in column["entries"]] == [
        ("genatt", "logit"), ("temper", "logit"), ("random", ""),
    ]  # fmt: skip


def test_a_winner_is_marked_only_if_it_differs():
    from vitreous.bench.summary import MethodSummary
    from vitreous.cli.run_output import format_entry

    entry = MethodSummary("a", value=1.0, low=1.0, high=1.0, rank=1, tied=True, rows=2)
    assert format_entry(entry) == "1.000 [1.000, 1.000]*"
    assert format_entry(entry, has_winner=False) == "1.000 [1.000, 1.000]="


@pytest.mark.slow
def test_a_dry_run_estimates_the_cost_and_computes_nothing(tmp_path, filled, capsys):
    out = tmp_path / "nothing"

    assert main(["bench", *FLAGS, "--out", str(out), "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (told_of,) = said["estimates"]
    # the logits once; genatt one and back; random none; three steps of deletion for each of the two maps
    assert (told_of["cells"], told_of["images"], told_of["backwards"]) == (2, 4, 4)
    assert told_of["forwards"] == 4 * (1 + 1 + 2 * 3)
    assert told_of["seconds"] > 0
    assert told_of["device"] == "cpu"
    assert not out.exists()

    assert main(["bench", *FLAGS, "--out", str(filled), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 cells are known; nothing was computed" in said
    assert said.splitlines()[0].split()[-1] == "device"


@pytest.mark.parametrize(
    ("formula", "names", "value"),
    [
        (3, {}, 3),
        ("1 + masks", {"masks": 8}, 9),
        ("1 + 2 steps", {"steps": 28}, 57),
        ("1 + 2 * clusters", {"clusters": 5}, 11),
        ("1 + cells²", {"cells": 7}, 50),
        ("levels", {"levels": (0.1, 0.2)}, 2),
        ("1 + regions", {}, None),
        ("as many as it likes", {}, None),
        ("patches / stride", {"patches": 16, "stride": 0}, None),
    ],
)
def test_costs_are_read_as_they_are_stated(formula, names, value):
    assert evaluate_cost(formula, names) == value


@pytest.mark.slow
def test_shards_and_their_merge(tmp_path, capsys, original):
    out = ["--out", str(tmp_path)]
    assert main(["bench", *FLAGS, *out, "--shard", "1/2"]) == 0
    assert main(["bench", *FLAGS, *out, "--merge"]) == 1
    assert "1 of 2 pieces of work missing" in capsys.readouterr().err
    assert main(["bench", *FLAGS, *out, "--shard", "2/2"]) == 0
    assert main(["bench", *FLAGS, *out, "--merge"]) == 0

    assert told(tmp_path) == told(original)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["bench"], "error: the plan names no models; add --model"),
        (["bench", "nowhere.toml"], "error: there is no plan at 'nowhere.toml'"),
        (["bench", *FLAGS, "--checkpoint", "gone.pt"], "error: --checkpoint: the checkpoint 'gone.pt' of 'scenes' does not exist"),
        (["bench", *FLAGS, "--model", "scenes-biased", "--checkpoint", "a.pt"], "error: --checkpoint, --model-arg, --classes"),
        (["bench", *FLAGS, "--shard", "3/2"], "error: --shard '3/2' is not understood"),
        (["bench", *FLAGS, "--merge", "--out", "{tmp}"], "holds no shards"),
        (["map", "nowhere", "--model", "scenes"], "error: --data: there is no dataset at 'nowhere'"),
        (["map", "scenes:single", "--model", "scenes", "--format", "png"], "error: --format 'png' is not known"),
    ],
)  # fmt: skip
def test_invalid_commands_give_an_error_message(line, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert main([word.replace("{tmp}", str(tmp_path)) for word in line]) == 2

    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_failures_are_reported_and_the_exit_code_is_one(tmp_path, capsys):
    (tmp_path / "pictures").mkdir()
    from PIL import Image

    from vitreous.scenes import draw

    for place in range(2):
        Image.fromarray(draw("single", 0, place).image).save(tmp_path / "pictures" / f"{place}.png")
    (tmp_path / "pictures" / "1.png").write_bytes(b"\x89PNG cut short")
    line = [
        "bench",
        "--model",
        "scenes",
        "--data",
        f"folder:{tmp_path / 'pictures'}",
        "--method",
        "genatt",
        "--device",
        "cpu",
    ]

    assert main([*line, "--metric", "sparseness", "--out", str(tmp_path / "run")]) == 1

    held = capsys.readouterr()
    assert "failed: " in held.err
    assert "1.png" in held.err
    assert ", 1 image\n" in held.out


@pytest.mark.slow
def test_maps_are_read_without_us(tmp_path, capsys):
    import pyarrow.parquet as pq
    from safetensors import safe_open
    from safetensors.numpy import load_file

    import vitreous
    from vitreous.data import batches, open_dataset

    line = [
        "map",
        "scenes:pair?count=3",
        "--model",
        "scenes",
        "--method",
        "genatt",
        "--targets",
        "pair",
        "--device",
        "cpu",
    ]
    line += ["--out", str(tmp_path)]

    assert main(line) == 0
    assert "6 new rows" in capsys.readouterr().out
    assert main([*line, "--format", "safetensors", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)

    assert (said["new_maps"], said["files"]) == (0, ["_safetensors/maps-00000.safetensors"])
    rows = pq.read_table(tmp_path / "maps-00000.parquet").to_pylist()
    tensors = load_file(tmp_path / "_safetensors" / "maps-00000.safetensors")
    with safe_open(tmp_path / "_safetensors" / "maps-00000.safetensors", framework="np") as file:
        about = json.loads(file.metadata()["maps"])
    vit = vitreous.load("scenes")
    (batch,) = batches(open_dataset("scenes:pair?count=3"), vit.preprocess)
    import torch

    expected = vitreous.explain(vit, batch.images, torch.stack([batch.labels, batch.rival_labels], 1), "genatt").maps()
    for place, map_ in enumerate(expected.numpy()):
        tolerance = 1e-3 * np.abs(map_).max()
        parquet = np.array(rows[place]["grid"], dtype=np.float32).reshape(14, 14) * rows[place]["scale"]
        other = tensors["grids"][place].astype(np.float32) * tensors["scales"][place]
        assert np.abs(parquet - map_).max() < tolerance
        assert np.abs(other - map_).max() < tolerance
        assert about[place]["image"] == about[place]["key"] == rows[place]["key"]
        assert about[place]["target"] == rows[place]["target"] == tensors["targets"][place]


def test_help_needs_no_torch():
    import subprocess
    import sys

    program = "import sys; from vitreous.cli.main import main; main(['bench', '--help']); main(['map', '--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "--dry-run" in done.stdout
