"""The shipped weights, on images that no training run has used, and their training configuration."""

from __future__ import annotations

import json
import runpy
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from vitreous.core.errors import ModelError
from vitreous.scenes import CLASSES, MODELS, Scenes, build_model, load_model, tensor

FRESH = 987_654
WEIGHTS = Path(str(files("vitreous.scenes") / "weights"))
TRAINING = Path(__file__).parents[2] / "training"

model = cache(load_model)


@torch.inference_mode()
def answers(name, album):
    batches = torch.stack([tensor(scene) for scene in album]).split(50)
    return torch.cat([model(name)(batch) for batch in batches])


def share(values):
    return torch.as_tensor(values).float().mean().item()


@pytest.mark.slow
def test_single_objects_are_classified_correctly():
    album = list(Scenes("single", 50, FRESH))
    found = answers("scenes", album).argmax(1)

    assert share(found == torch.tensor([scene.target for scene in album])) >= 0.97


@pytest.mark.slow
def test_paired_classes_are_distinguished():
    album = list(Scenes("part", 40, FRESH))
    found = answers("scenes", album).argmax(1)

    assert share(found == torch.tensor([scene.target for scene in album])) >= 0.95


@pytest.mark.slow
def test_both_objects_of_a_pair_are_in_the_top_two():
    album = list(Scenes("pair", 40, FRESH))
    found = answers("scenes", album).topk(2).indices.tolist()

    assert share([{thing.label for thing in s.objects} == set(two) for s, two in zip(album, found, strict=True)]) >= 0.9


@pytest.mark.slow
def test_the_biased_model_follows_the_stamp_and_the_other_does_not():
    album = list(Scenes("shortcut", 40, FRESH, mark="moved"))
    target, mark = (torch.tensor([getattr(scene, fact) for scene in album]) for fact in ("target", "mark"))

    assert share(answers("scenes-biased", album).argmax(1) == mark) >= 0.9
    assert share(answers("scenes", album).argmax(1) == target) >= 0.95


@pytest.mark.parametrize("name", MODELS)
def test_weights_contain_their_training_configuration(name):
    with safe_open(WEIGHTS / f"{name}.safetensors", "pt") as file:
        about, kinds = file.metadata(), {file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118
    config = json.loads(about["config"])

    assert kinds == {torch.float16}
    assert json.loads(about["classes"]) == list(CLASSES)
    assert config["step"] == config["steps"]
    assert config["seed"] == int(about["seed"])


def test_the_models_fit_in_the_wheel():
    assert sum((WEIGHTS / f"{name}.safetensors").stat().st_size for name in MODELS) < 17e6
    assert 2e6 < sum(parameter.numel() for parameter in build_model().parameters()) < 3.8e6


def test_an_unknown_model_is_refused_by_name():
    with pytest.raises(ModelError, match="scenes-biased"):
        load_model("scenery")


@pytest.mark.slow
def test_training_runs_and_writes_weights_that_load(tmp_path, monkeypatch):
    words = ["--smoke", "--device", "cpu", "--model", "scenes", "--out", str(tmp_path)]
    monkeypatch.syspath_prepend(str(TRAINING))
    monkeypatch.setattr(sys, "argv", [str(TRAINING / "train.py"), *words])
    with torch.random.fork_rng():
        runpy.run_path(sys.argv[0], run_name="__main__")
    log = json.loads((tmp_path / "scenes.json").read_text())

    assert load_model("scenes", tmp_path).num_classes == len(CLASSES)
    assert len(log["log"]) == log["config"]["steps"]


@pytest.mark.slow
def test_training_that_runs_out_of_time_writes_weights_after_the_last_step(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(TRAINING))
    from train import read_settings, train

    with torch.random.fork_rng():
        train(
            "scenes-swin", read_settings("scenes-swin", True), torch.device("cpu"), 0, tmp_path, tmp_path, minutes=1e-9
        )
    with safe_open(tmp_path / "scenes-swin.safetensors", "pt") as file:
        config = json.loads(file.metadata()["config"])

    assert (config["step"], config["steps"]) == (1, 1)
    assert load_model("scenes-swin", tmp_path).num_classes == len(CLASSES)


def test_labels_of_the_biased_training_set_follow_the_stamp(monkeypatch):
    monkeypatch.syspath_prepend(str(TRAINING))
    from training_images import SORTS

    for name in ("aligned", "mislabelled"):
        draw, labels = SORTS[name]
        scenes = [draw(0, index) for index in range(5)]

        assert all(labels(scene) == [scene.mark] for scene in scenes)
        assert all((scene.mark == scene.target) == (name == "aligned") for scene in scenes)
