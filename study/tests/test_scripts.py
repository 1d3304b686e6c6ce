"""The script that runs plans, and the two measurements that are scripts of their own."""

from __future__ import annotations

import warnings

import pytest
from PIL import Image

import vitreous
from study import run, shortcut, zebras
from study.sheets import read_store
from vitreous.core.errors import Caveat
from vitreous.scenes import Scenes

PLAN = """\
methods = ["genatt", "random"]
metrics = ["pointing_game"]
images = 3
slice = 2
maps = false

[[models]]
name = "scenes"

[[datasets]]
spec = "scenes:single?count=4"
"""


@pytest.fixture
def small(tmp_path):
    """A study of one small plan, and a function that runs it."""
    (tmp_path / "small.toml").write_text(PLAN)
    return lambda *flags: run.main(
        ["--plans", str(tmp_path), "--out", str(tmp_path / "runs"), "--device", "cpu", *flags]
    )


@pytest.mark.slow
def test_a_plan_is_run_once_and_continues_where_it_stopped(small, capsys):
    assert small("small", "--images", "2") == 0
    assert "2 images, 4 new rows" in capsys.readouterr().out
    assert small() == 0
    assert "3 images, 2 new rows" in capsys.readouterr().out
    assert small() == 0
    assert "3 images, 0 new rows" in capsys.readouterr().out


@pytest.mark.slow
def test_shards_of_one_model_are_merged_into_its_store(small, capsys, tmp_path):
    for shard in ("1/2", "2/2"):
        assert small("small", "--model", "scenes", "--shard", shard) == 0
    assert small("small", "--model", "scenes", "--merge") == 0
    assert "6 rows added" in capsys.readouterr().out
    sheets = read_store(tmp_path / "runs" / "small@scenes")
    assert [(sheet.methods, len(sheet.images)) for sheet in sheets] == [(("genatt", "random"), 3)]


def test_the_time_limit_ends_a_run(small, capsys):
    assert small("--minutes", "0") == 1
    assert "time is up" in capsys.readouterr().out


@pytest.mark.slow
def test_a_failing_plan_is_reported_and_the_others_run(small, capsys, tmp_path):
    (tmp_path / "fails.toml").write_text(PLAN.replace("genatt", "genat"))

    assert small() == 1
    said = capsys.readouterr().out.splitlines()
    assert "no method 'genat'; did you mean 'genatt'?" in said[0]
    assert "3 images, 6 new rows" in said[1]


@pytest.mark.slow
def test_parallel_plans_run_in_processes_and_failures_are_reported_by_name(small, capsys, tmp_path):
    (tmp_path / "fails.toml").write_text(PLAN.replace("genatt", "genat"))

    assert small("--jobs", "2") == 1
    said = sorted(capsys.readouterr().out.splitlines())
    assert [line.split(":")[0] for line in said] == ["fails", "small"]
    assert "no method 'genat'" in said[0]
    assert "3 images, 6 new rows" in said[1]
    assert small("small") == 0  # other files are unchanged
    assert capsys.readouterr().out.count("0 new rows") == 1


def test_the_time_limit_ends_all_plans(small, capsys, tmp_path):
    (tmp_path / "other.toml").write_text(PLAN)

    assert small("--jobs", "2", "--minutes", "0") == 1
    assert capsys.readouterr().out.count("time is up") == 2


def test_a_name_that_is_no_plan_is_refused(small, capsys):
    with pytest.raises(SystemExit):
        small("smal")
    assert "'smal' is no plan of the study; known: small" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        small("--jobs", "0")
    assert "--jobs 0 must be 1 or more" in capsys.readouterr().err


@pytest.mark.slow
def test_a_class_agnostic_map_does_not_separate_zebra_and_elephant(assets):
    vit = vitreous.load(
        "timm:vit_tiny_patch16_224",
        checkpoint=assets / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors",
    )
    frames = [assets / "multiclass-samples" / "el1.png"]
    blind, knows = (
        {metric: value for _, _, metric, value in zebras.measure_method(vit, frames, method)}
        for method in ("rollout", "decompx+skipplus")
    )

    assert (blind["rank_correlation"], blind["own_less_other"]) == (pytest.approx(1), pytest.approx(0))
    assert knows["rank_correlation"] < 0.9
    assert knows["own_less_other"] == pytest.approx(knows["own_drop"] - knows["other_drop"])
    assert knows["own_drop"] > 0


@pytest.mark.slow
def test_stamp_and_object_are_separated_by_pixel():
    vit = vitreous.load("scenes-biased")
    scenes = list(Scenes("shortcut", 2, shortcut.SEED, mark="moved"))

    found = {(picture, metric): value for picture, _, metric, value in shortcut.measure_method(vit, scenes, "decompx")}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        maps = vitreous.explain(vit, [Image.fromarray(one.image) for one in scenes], None, "decompx").pixels()
    for place, scene in enumerate(scenes):
        pixels = maps[place].double()
        stamp, thing = (pixels[mask.astype(bool)] for mask in (scene.spurious, scene.objects[0].evidence))
        above = (stamp[:, None] > thing).double() + 0.5 * (stamp[:, None] == thing).double()
        assert found[f"shortcut/{place:03d}", "stamp_above_thing"] == pytest.approx(float(above.mean()), abs=1e-6)
        assert 0 <= found[f"shortcut/{place:03d}", "stamp_ap"] <= 1
