"""Options of a model on the command line: class names, preprocessing, black box."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.front_ends.test_cli import TINY, picture
from vitreous.bench.model_options import ModelOptions, change_preprocess, load_model
from vitreous.cli.bench import make_model_entries
from vitreous.cli.main import main
from vitreous.core.errors import DataError, ModelError, SpecError
from vitreous.models.class_names import read_class_names
from vitreous.models.image_input import Preprocess

SEVEN = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]


@pytest.mark.parametrize(
    "text",
    [
        "ant\nbee\ncat\n\n",
        "\ufeffant\r\nbee \r\ncat",
        '["ant", "bee", "cat"]',
        '{"0": "ant", "1": "bee", "2": "cat"}',
        '{"2": "cat", "0": "ant", "1": "bee"}',
        '{"0": ["n1", "ant"], "1": ["n2", "bee"], "2": ["n3", "cat"]}',
    ],
)
def test_class_names_are_read_from_every_usual_format(tmp_path, text):
    file = tmp_path / "names"
    file.write_bytes(text.encode())

    assert read_class_names(file) == ("ant", "bee", "cat")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("ant\n\ncat\n", "has '' as the name of class 1"),
        ('["ant", 3]', "has 3 as the name of class 1"),
        ('["ant"', "begins as JSON and is not"),
        ('{"0": "ant", "2": "cat"}', "has 2 entries and no class 1"),
        ('{"ant": 0}', "has the key 'ant', which is no index"),
        ('{"0": "ant", "00": "bee"}', "has 2 entries and no class 1"),
        ("\x00\x80", "is not text in UTF-8"),
    ],
)
def test_files_without_class_names_are_refused_with_a_message(tmp_path, text, sentence):
    file = tmp_path / "names"
    file.write_bytes(text.encode("latin-1"))

    with pytest.raises(DataError, match=sentence):
        read_class_names(file)


def test_explain_takes_class_names_and_preprocessing(tmp_path, capsys):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(SEVEN))
    given = ["--classes", str(names), "--mean", "0.4,0.5,0.6", "--std", "0.25", "--crop", "0.5", "--target", "fox"]

    assert (
        main(["explain", picture(tmp_path / "x.png"), *TINY, *given, "-x", "random", "-o", str(tmp_path), "--json"])
        == 0
    )

    (record,) = json.loads(capsys.readouterr().out)["images"]
    assert [(entry["class"], entry["index"]) for entry in record["explained"]] == [("fox", 5)]
    assert {entry["class"] for entry in record["top"]} <= set(SEVEN)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--mean", "0.1,,2"], "mean 0.1,,2 is not understood; write one number, or one per channel"),
        (["--mean", "0.1,0.2"], "--mean has 2 numbers, and"),
        (["--mean", "123.7,116.3,103.5"], "divide values from 0 to 255 by 255"),
        (["--std", "0"], "std 0 is not of pixel values from 0 to 1"),
        (["--std", "a,b,c"], "std a,b,c is not understood"),
        (["--size", "big"], "size big is not understood; write pixels such as 384"),
        (["--size", "0"], "size 0 is not understood"),
        (["--size", "96"], "does not take images of 96 × 96"),
        (["--crop", "1.5"], "crop 1.5 is not understood; write the share that is kept"),
        (["--classes", "nowhere.txt"], "no file of class names at 'nowhere.txt'"),
        (["--classes", str(Path(__file__).with_name("__init__.py"))], "is empty; expected one name per line"),
        (["--model-arg", "mean=0.5"], "--model-arg mean=… has an option of its own"),
    ],
)
def test_invalid_options_are_refused_with_a_message(arguments, sentence, tmp_path, capsys):
    assert main(["explain", picture(tmp_path / "x.png"), *TINY, *arguments, "-o", str(tmp_path / "o")]) == 2

    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert sentence in said.err


def test_class_names_of_another_number_are_refused(tmp_path, capsys):
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    given = ["--classes", str(tmp_path / "names.txt"), "-o", str(tmp_path / "o")]

    assert main(["explain", picture(tmp_path / "x.png"), *TINY, *given]) == 2
    assert "classes has 3 names for the 7 outputs of 'timm:vit_tiny_patch16_224'" in capsys.readouterr().err


@pytest.mark.slow
def test_any_classifier_is_explained_as_a_black_box(tmp_path, capsys):
    names = tmp_path / "names.json"
    names.write_text(json.dumps(SEVEN))
    model = ["--model", "timm:resnet10t", "--no-pretrained", "--model-arg", "num_classes=7"]
    given = ["--black-box", "--size", "64", "--classes", str(names), "-x", "occlusion", "-t", "gnu"]

    assert main(["explain", picture(tmp_path / "x.png"), *model, *given, "-o", str(tmp_path / "o"), "--json"]) == 0

    (record,) = json.loads(capsys.readouterr().out)["images"]
    assert [entry["class"] for entry in record["explained"]] == ["gnu"]


def test_a_black_box_answers_as_the_model_does():
    arguments = {"depth": 2, "embed_dim": 48, "num_heads": 3, "img_size": 64, "num_classes": 7}
    torch.manual_seed(0)
    seen = load_model("timm:vit_tiny_patch16_224", pretrained=False, arguments=arguments)
    torch.manual_seed(0)
    opaque = load_model("timm:vit_tiny_patch16_224", pretrained=False, arguments={**arguments, "black_box": True})
    images = torch.randn(2, 3, 64, 64)

    assert torch.equal(seen.forward(images), opaque.forward(images))
    assert (opaque.outputs, opaque.preprocess) == (7, seen.preprocess)


CONFIG = {"input_size": (3, 224, 224), "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3}


def test_a_changed_preprocess_is_that_of_a_model_with_these_settings():
    own = Preprocess.from_timm({**CONFIG, "crop_pct": 0.9})
    for given, config in (
        ({"crop": 0.875}, {"crop_pct": 0.875}),
        ({"mean": "0.1,0.2,0.3", "std": "0.4"}, {"crop_pct": 0.9, "mean": (0.1, 0.2, 0.3), "std": (0.4,) * 3}),
        ({"size": "448", "crop": 1}, {"input_size": (3, 448, 448), "crop_pct": 1.0}),
        ({}, {"crop_pct": 0.9}),
    ):
        options, builder = ModelOptions.split({**given, "depth": 2})
        assert builder == {"depth": 2}
        assert change_preprocess(own, options, "m", (224, 224)) == Preprocess.from_timm({**CONFIG, **config})


def test_a_model_without_preprocessing_needs_mean_and_deviation():
    with pytest.raises(ModelError, match="give --mean and --std"):
        change_preprocess(None, ModelOptions(crop=0.9), "m", (32, 32))
    stated = change_preprocess(None, ModelOptions(mean=(0.1, 0.1, 0.1), std=(0.2, 0.2, 0.2)), "m", (32, 32))

    assert stated == Preprocess.plain((32, 32), 0.1, 0.2)


def test_options_of_a_model_belong_to_one_model():
    assert make_model_entries(["scenes"], None, {"black_box": True}) == [{"name": "scenes", "black_box": True}]
    assert make_model_entries(None, None, {}) is None
    for names in (None, ["a", "b"]):
        with pytest.raises(SpecError, match="--black-box"):
            make_model_entries(names, None, {"black_box": True})


def test_a_plan_states_class_names_and_preprocessing(tmp_path: Path, capsys):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(SEVEN))
    images = tmp_path / "ILSVRC2012"
    images.mkdir()
    for number in (1, 2):
        picture(images / f"ILSVRC2012_val_0000000{number}.png")
    given = ["--model", "scenes"]
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f"""
        datasets = ["{images}"]
        methods = ["random"]
        metrics = ["sparseness"]
        targets = ["fox"]
        out = "{tmp_path / "run"}"

        [[models]]
        name = "timm:vit_tiny_patch16_224"
        pretrained = false
        depth = 2
        embed_dim = 48
        num_heads = 3
        img_size = 64
        num_classes = 7
        classes = "{names}"
        mean = [0.4, 0.4, 0.4]
        std = 0.25
        """
    )

    assert main(["bench", str(plan), "--json"]) == 0

    said = capsys.readouterr()
    assert json.loads(said.out)["images"] == 2
    assert said.err.count("note: ") == 1
    assert (
        f"read as a plain folder of images; to read it as ImageNet's validation set, add a label file and write imagenet-val:{images}"
        in said.err
    )
    assert main(["bench", "--data", f"imagenet-val:{images}", *given, "--out", str(tmp_path / "no")]) == 2
    assert "has 2 images and no label file" in capsys.readouterr().err
