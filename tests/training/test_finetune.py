"""The recipes for fine-tuned models run on data in the published layouts, and their weights load."""

from __future__ import annotations

import json
import pickle
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import vitreous
from vitreous.bench.model_options import load_model
from vitreous.bench.reproduce import find_reproduction

SCRIPT = Path(__file__).parents[2] / "training" / "finetune.py"
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
NAME = "deit_tiny_patch16_224"


def coloured(count: int, seed: int) -> tuple[np.ndarray, list[int]]:
    """Images in CIFAR's rows whose class is their colour channel."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, count)
    pixels = draw.integers(0, 60, (count, 3, 1024))
    pixels[np.arange(count), labels] += 180
    return pixels.reshape(count, 3072).astype(np.uint8), labels.tolist()


def write_cifar10(root: Path) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for seed, name in enumerate([*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"]):
        data, labels = coloured(24, seed)
        (folder / name).write_bytes(pickle.dumps({b"data": data, b"labels": labels}, 2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"red", b"green", b"blue"]}, 2))
    return root


def write_cifar100(root: Path) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for seed, name in enumerate(("train", "test")):
        data, labels = coloured(48, seed)
        content = {b"data": data, b"fine_labels": labels, b"coarse_labels": labels}
        (folder / name).write_bytes(pickle.dumps(content, 2))
    names = [b"red", b"green", b"blue"]
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names, b"coarse_label_names": names}, 2))
    return root


def write_mura(root: Path) -> Path:
    for split, count in (("train", 8), ("valid", 4)):
        for patient in range(count):
            label = ("negative", "positive")[patient % 2]
            path = root / "MURA-v1.1" / split / "XR_WRIST" / f"patient{patient}" / f"study1_{label}" / "image1.png"
            path.parent.mkdir(parents=True)
            Image.new("L", (40, 30), 60 + 120 * (patient % 2)).save(path)
    return root


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the script as it is typed, in this process; return its status and what it printed to stderr."""

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.syspath_prepend(str(SCRIPT.parent))
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments), "--device", "cpu"])
        with torch.random.fork_rng(), pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return ended.value.code, capsys.readouterr().err

    return call


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "write"), [("cifar10", write_cifar10), ("cifar100", write_cifar100)])
def test_a_cifar_model_is_fine_tuned_by_one_command(tmp_path, recipe, write, run):
    torch.manual_seed(0)
    start = timm.create_model(NAME, num_classes=1000, **SMALL)
    save_file({f"backbone.{k}": v for k, v in start.state_dict().items()}, tmp_path / "deit.safetensors")
    status, stderr = run(
        "--recipe", recipe, "--data", write(tmp_path / "data"), "--init", tmp_path / "deit.safetensors", "--out", tmp_path / "out",
        "--model", NAME, "--arguments", json.dumps(SMALL), "--epochs", 2, "--batch", 16,
    )  # fmt: skip

    assert status == 0, stderr
    path = tmp_path / "out" / f"{NAME}-{recipe}.safetensors"
    log = json.loads(path.with_suffix(".json").read_text())
    assert [entry["epoch"] for entry in log["log"]] == [1, 2]
    vit = vitreous.load(f"timm:{NAME}", checkpoint=path, **SMALL)
    assert vit.module.num_classes == 3
    # only the classifier has new weights, and two epochs change the rest by little
    moved = (vit.module.blocks[0].mlp.fc1.weight - start.blocks[0].mlp.fc1.weight).abs().max()
    assert 0 < moved < 0.05


@pytest.mark.slow
def test_a_mura_model_has_one_output_and_learns_with_patches_missing(tmp_path, run):
    status, stderr = run(
        "--recipe", "mura", "--data", write_mura(tmp_path / "data"), "--random", "--out", tmp_path / "out",
        "--model", "vit_tiny_patch16_224", "--arguments", json.dumps(SMALL), "--epochs", 2, "--batch", 4,
    )  # fmt: skip

    assert status == 0, stderr
    path = tmp_path / "out" / "vit_tiny_patch16_224-mura.safetensors"
    planned = find_reproduction("skipplus:figure9").models["mura-vit-b"]
    arguments = {**SMALL, **{name: planned[name] for name in ("num_classes", "outputs")}}
    vit = load_model("timm:vit_tiny_patch16_224", path, arguments=arguments)
    assert vit.module.num_classes == 1
    assert vit.outputs == 2  # it fits the plan that needs it


@pytest.mark.slow
def test_errors_are_one_line(tmp_path, run):
    write_cifar10(tmp_path / "data")
    save_file({"fc.weight": torch.zeros(2, 2)}, tmp_path / "odd.safetensors")
    cases = {
        "no recipe 'svhn'; known: cifar10, cifar100, mura": ("svhn", tmp_path / "data", "--random"),
        "expected cifar-10-batches-py/": ("cifar10", tmp_path / "nowhere", "--random"),
        "does not fit": ("cifar10", tmp_path / "data", "--init", tmp_path / "odd.safetensors"),
    }
    for words, (recipe, data, *rest) in cases.items():
        small = ["--model", NAME, "--arguments", json.dumps(SMALL)]
        status, stderr = run("--recipe", recipe, "--data", data, "--out", tmp_path / "out", *small, *rest)
        assert status == 1
        assert words in stderr
        assert stderr.startswith("finetune: ")
        assert stderr.count("\n") == 1
