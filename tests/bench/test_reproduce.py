"""Shipped plans of the papers' tables and figures, run on toy copies of their datasets with tiny models."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch

from tests.toy_data import MAKERS
from vitreous.bench.plan_check import check, suggest_checkpoint
from vitreous.bench.plan_parser import read_plan
from vitreous.bench.reproduce import find_reproduction, keep_models, list_reproductions, plan_reproduction
from vitreous.bench.run_plan import execute
from vitreous.bench.store import Store
from vitreous.bench.summary import summarise_metric
from vitreous.bench.work_cells import split_plan
from vitreous.cli.main import main
from vitreous.core.errors import Caveat, DataError, SpecError
from vitreous.data import open_dataset, read_subset
from vitreous.methods.spec import resolve
from vitreous.metrics.protocols import protocol
from vitreous.metrics.published import published_label, published_tables
from vitreous.report.map_loader import open_maps
from vitreous.report.page import name_sections
from vitreous.report.paper_figures import IMAGE_FIGURES, make_paper_figures
from vitreous.report.paper_tables import LAYOUTS, make_paper_tables
from vitreous.report.stored_run import read_run

TINY = {"img_size": 24, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 4}


@pytest.fixture(scope="module")
def toys(tmp_path_factory) -> Path:
    """All toy datasets."""
    folder = tmp_path_factory.mktemp("toys")
    for key, make in MAKERS.items():
        make(folder / key)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Function that returns the entry of a tiny model with its own random weights; EVA-L's head reads the mean of patches."""
    import timm
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("weights")

    def entry(key: str, classes: int, depth: int, seed: int = 0) -> dict[str, Any]:
        arguments = {**TINY, "depth": depth, "num_classes": classes}
        arguments |= {"global_pool": "avg"} if key == "eva-l" else {}
        path = folder / f"{key}-{classes}-{depth}-{seed}.safetensors"
        if not path.exists():
            with torch.random.fork_rng():
                torch.manual_seed(crc32(key.encode()) + seed)
                model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **arguments)
                state = {name: value + 0.3 * torch.randn(value.shape) for name, value in model.state_dict().items()}
            save_file(state, path)
        return {"name": "timm:vit_tiny_patch16_224", "checkpoint": str(path), **arguments}

    return entry


def run(name: str, toys: Path, weights: Any, folder: Path, images: int = 1, depth: int = 2, seed: int = 0) -> Path:
    """Run a shipped plan on toy data with tiny models."""
    wanted = find_reproduction(name)
    data = {key: str(toys / key) for key in wanted.data if key in MAKERS}
    data |= {"imagenet-seg": str(toys / "imagenet-seg" / "gtsegs_ijcv.mat")} if "imagenet-seg" in data else {}
    models = {
        key: {**weights(key, entry.get("num_classes", 1000), depth, seed), **pick_outputs(entry)}
        for key, entry in wanted.models.items()
    }
    plan = plan_reproduction(wanted, data, models=models, images=images, device="cpu")
    check(plan)
    with Store(folder) as store:
        progress = execute(plan, store)
    assert not progress.failed
    return folder


def pick_outputs(entry: Mapping[str, Any]) -> dict[str, Any]:
    """MURA's model has one output of two classes, as training/finetune.py makes it."""
    return {"outputs": entry["outputs"]} if "outputs" in entry else {}


def filled_tables(folder: Path, name: str) -> list:
    stored = read_run(folder)
    return make_paper_tables(name_sections(stored.whole_sections), stored.families, name)


def unfilled(table) -> list[tuple[str, str]]:
    """Columns and methods without a value."""
    cells = [(title, method, column) for title, column in table.columns.items() for method in table.methods]
    return [(title, method) for title, method, column in cells if isnan(column.values.get(method, nan))]


FAITHFULNESS = ("Deletion Accuracy", "Deletion AOPC", "Insertion Accuracy", "Insertion AOPC")
IMAGENET_AXES = (*(f"ImageNet val: {title}" for title in FAITHFULNESS), "ImageNet-S-919: AP")
AXES = (IMAGENET_AXES, IMAGENET_AXES, tuple(f"MURA: {title}" for title in FAITHFULNESS))  # EVA-L, ViT-B/8, MURA ViT-B
TABLES = {  # columns of the tables of every plan whose numbers are not published
    **{f"skipplus:figure{number}": AXES for number in (3, 4, 8, 9, 10, 11, 12)},
    "skipplus:figure7": (IMAGENET_AXES,),
    "skipplus:figure7-eva": (IMAGENET_AXES,),
    "tis:sparseness": (("sparseness: DeiT-B", "sparseness: ViT-B"),),
    "tis:masks": (("Insertion: Black", "Deletion: Black", "Insertion - Deletion: Black"),),
    **{name: (table.columns,) for name, table in published_tables().items()},
}
DEPTHS = {"skipplus:figure2": 12, "skipplus:figure7": 12, "skipplus:figure7-eva": 24}
QUICK = ("tokentm:table1", "tokentm:table2")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TABLES]
)
def test_every_cell_of_the_table_is_filled(name, toys, weights, tmp_path):
    """With at least two models: plans of one model are run with two, whose rollouts are not 0 everywhere."""
    images = 3 if name.startswith("tokentm") else 1
    for seed in (0, 2) if len(find_reproduction(name).models) == 1 else (0,):
        folder = run(name, toys, weights, tmp_path / str(seed), images, DEPTHS.get(name, 2), seed)
        tables = filled_tables(folder, name)

        assert [tuple(table.columns) for table in tables] == list(TABLES[name])
        for table in tables:
            assert not table.missing
            assert set(table.methods) == {resolve(spec).spec for spec in find_reproduction(name).methods}
            assert not unfilled(table)


def test_table_1_has_two_fine_tuned_models(toys, weights):
    wanted = find_reproduction("tokentm:table1")
    entries = {key: weights(key, entry["num_classes"], 2) for key, entry in wanted.models.items()}

    assert [entry["num_classes"] for entry in entries.values()] == [10, 100]
    assert {entry["family"] for entry in wanted.models.values()} == {"DeiT-B"}


FIGURES = {  # images, and cards of the figure
    "skipplus:figure1": (1, 1 + 4),
    "skipplus:figure2": (1, 1 + 12),
    "skipplus:figure5": (1, 1 + 12),
    "skipplus:figure6": (1, 2 * (1 + 9)),
    "skipplus:figure18": (2, 2 * (1 + 12)),
    "tis:figure2": (1, 1 + 11),
    "tis:figure3": (3, 2 * 3),
    "tis:figure4": (2, 2 * 2),
    "tokentm:figure4": (1, 1 + 9),
}


@pytest.mark.parametrize(
    "name", [name if name == "skipplus:figure6" else pytest.param(name, marks=pytest.mark.slow) for name in FIGURES]
)
def test_every_image_of_the_figure_is_drawn(name, toys, weights, tmp_path):
    images, cards = FIGURES[name]
    stored = read_run(run(name, toys, weights, tmp_path, images, DEPTHS.get(name, 2)))
    loader = open_maps(stored, stored.sections[0].of_score(""))
    summaries = [summarise_metric(scores) for scores in loader.section.metrics]
    (figure,) = make_paper_figures(loader, summaries, name)

    assert not figure.missing
    assert sum(len(strip.cards) for strip in figure.strips) == cards
    assert not loader.remade


def test_every_plan_has_a_layout_and_a_test():
    plans = list_reproductions()

    assert {*TABLES, *FIGURES} == set(plans)
    assert set(TABLES) == set(LAYOUTS) == {name for name, plan in plans.items() if not plan.shows_images}
    assert set(FIGURES) == set(IMAGE_FIGURES) == {name for name, plan in plans.items() if plan.shows_images}


# ── content of a plan ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", list_reproductions())
def test_models_rows_and_columns_exist(name):
    import timm

    wanted = find_reproduction(name)
    columns = protocol(wanted.protocol).columns

    for entry in wanted.models.values():
        model = entry["name"].removeprefix("timm:")
        assert timm.is_model(model)
        assert "needs" in entry or model in timm.list_pretrained()
    assert all(title in columns for dataset in wanted.datasets for title in dataset["columns"])
    for spec in wanted.methods:
        resolve(spec)
    if name in published_tables():
        assert set(wanted.methods) == set(published_tables()[name].rows)


def test_missing_inputs_give_an_error_message_with_their_source():
    with pytest.raises(SpecError) as problem:
        plan_reproduction(find_reproduction("tokentm:table1"), {"cifar10": "/x"})

    assert "--data cifar100=PATH, where PATH is a folder with cifar-100-python/" in str(problem.value)
    assert "--checkpoint deit-b-cifar10=FILE" in str(problem.value)
    assert "cifar10=PATH" not in str(problem.value)
    with pytest.raises(SpecError, match="has no 'cifar'; did you mean 'cifar10'"):
        plan_reproduction(find_reproduction("tokentm:table1"), {"cifar": "/x"})
    with pytest.raises(SpecError, match="did you mean 'tis:table1'"):
        find_reproduction("tis:tabel1")


def test_data_of_another_table_of_the_paper_is_not_used(toys):
    data = {"imagenet-val": str(toys / "imagenet-val"), "boxes": str(toys / "imagenet-val" / "bbox" / "val")}

    with pytest.warns(Caveat, match="tis:table1 does not use boxes"):
        plan = plan_reproduction(find_reproduction("tis:table1"), data)
    assert plan.datasets[0].spec == f"imagenet-val:{toys / 'imagenet-val'}"
    assert plan.reduced == ""
    with pytest.raises(SpecError, match="has no 'cifar10'"):
        plan_reproduction(find_reproduction("tis:table1"), {"cifar10": "/x"})


def test_the_error_for_a_missing_path_describes_its_content(tmp_path):
    wanted = find_reproduction("tis:table1")
    with pytest.raises(SpecError, match=r"a folder with val/<wnid>/.*: ImageNet's validation images"):
        plan_reproduction(wanted, {"imagenet-val": str(tmp_path / "nowhere")})
    with pytest.raises(SpecError, match=r"--checkpoint vit-b: .* does not exist; it is to be weights of timm:vit_base"):
        plan_reproduction(wanted, {"imagenet-val": str(tmp_path)}, checkpoints={"vit-b": str(tmp_path / "w.pth")})
    cifar = {key: str(tmp_path) for key in ("cifar10", "cifar100")}
    files = dict.fromkeys(("deit-b-cifar10", "deit-b-cifar100"), str(tmp_path / "w.pth"))
    with pytest.raises(SpecError, match="it is to be a DeiT-B with 10 classes, fine-tuned on CIFAR-10"):
        plan_reproduction(find_reproduction("tokentm:table1"), cifar, checkpoints=files)


def small_plan(toys: Path, weights: Any, **changes: Any):
    data = {"imagenet-val": str(toys / "imagenet-val"), "imagenet-seg": str(toys / "imagenet-seg/gtsegs_ijcv.mat")}
    return plan_reproduction(
        find_reproduction("tokentm:table2"), data, **{"models": {"deit-b": weights("deit-b", 1000, 2)}, **changes}
    )


def test_datasets_of_a_plan_have_their_own_metrics_targets_and_roles(toys, weights):
    plan = small_plan(toys, weights)
    segmentation, accuracy = plan.evaluations

    assert segmentation.metrics == ("pixel_accuracy", "map_two_channel", "miou")
    assert segmentation.targets == "predicted"
    assert accuracy.targets == "predicted+label"
    assert accuracy.roles == (("predicted", "label"),) * 2
    assert {segmentation.preprocess, accuracy.preprocess} == {"tokentm"}
    assert plan.targets is None


def test_the_plan_is_written_as_an_equivalent_file(toys, weights, tmp_path):
    plan = small_plan(toys, weights, images=2)
    (tmp_path / "plan.toml").write_text(plan.toml)

    again = read_plan(tmp_path / "plan.toml")

    assert again == plan
    assert again.run == plan.run


def test_other_numbers_of_images_and_other_models_are_called_reduced(toys, weights):
    said = small_plan(toys, weights, images=2).reduced

    assert "2 images of ImageNet val instead of all" in said
    assert "DeiT-B is timm:vit_tiny_patch16_224" in said
    whole = find_reproduction("tis:table1")
    plan = plan_reproduction(whole, {"imagenet-val": str(toys / "imagenet-val")}, images=5000)
    assert plan.reduced == ""
    assert plan.evaluations[0].images == 5000


def test_a_substituted_dataset_is_reported(toys, weights):
    data = {"imagenet-val": f"folder:{toys / 'imagenet-val' / 'val'}", "imagenet-seg": "scenes:single?count=2"}
    plan = plan_reproduction(find_reproduction("tokentm:table2"), data, models={"deit-b": weights("deit-b", 1000, 2)})

    assert "ImageNet-Segmentation is scenes:single?count=2" in plan.reduced
    assert [model.label for model in plan.models] == ["timm:vit_tiny_patch16_224 in place of DeiT-B"]
    assert "scenes:single?count=2 in place of ImageNet-Segmentation" in [data.label for data in plan.datasets]
    assert published_label(plan.models[0].label) == published_label("DeiT-B") == "DeiT-B"
    assert "--models deit-b=NAME" in suggest_checkpoint(plan, plan.models[0].label)


def test_weights_that_cannot_be_loaded_name_the_flag_that_gives_others(toys, weights):
    plan = small_plan(toys, weights)

    assert (
        suggest_checkpoint(plan, "DeiT-B")
        == "; here: --checkpoint deit-b=FILE, or --models deit-b=NAME for another model"
    )
    assert suggest_checkpoint(replace(plan, reproduces=""), "DeiT-B") == ""


def test_one_model_of_several_needs_no_data_of_the_others(toys):
    wanted = keep_models(find_reproduction("skipplus:figure9"), ["vit-b8"])

    assert list(wanted.data) == ["imagenet-val", "imagenet-s"]
    data = {key: str(toys / key) for key in wanted.data}
    assert plan_reproduction(wanted, data).reduced == "without EVA-L; without MURA ViT-B"


def test_boxes_may_be_in_another_folder(toys):
    boxes = toys / "imagenet-val" / "bbox" / "val"
    data = {"imagenet-val": str(toys / "imagenet-val")}
    wanted = find_reproduction("tis:table3")

    assert plan_reproduction(wanted, data).datasets[0].spec == f"imagenet-val:{toys / 'imagenet-val'}"
    given = plan_reproduction(wanted, {**data, "boxes": str(boxes)})
    assert given.datasets[0].spec == f"imagenet-val:{toys / 'imagenet-val'}?boxes={boxes}"


# ── lists of images ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("2\n0\n", [2, 0]),
        ("# the authors' list\n- 1\n- 2\n", [1, 2]),
        ("[2, 1]", [2, 1]),
        ("ILSVRC2012_val_00000003.JPEG\n", [2]),
        ("val/n01443537/ILSVRC2012_val_00000002\n", [1]),
    ],
)
def test_a_list_of_images_gives_their_indices(text, places, toys, tmp_path):
    (tmp_path / "list.txt").write_text(text)
    data = {"imagenet-val": str(toys / "imagenet-val")}
    plan = plan_reproduction(
        find_reproduction("tis:table1"), data, subsets={"imagenet-val": str(tmp_path / "list.txt")}
    )

    assert list(split_plan(plan)[0].places) == places
    assert plan.reduced == f"{len(places)} image{'s' * (len(places) > 1)} of ImageNet val instead of 5000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lists no images"),
        ("7\n", "index 7, and imagenet-val has 3 images"),
        ("cat.jpg\n", "'cat.jpg', and imagenet-val has no such image"),
        ("0\n0\n", "twice"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(text, said, toys, tmp_path):
    (tmp_path / "list.txt").write_text(text)

    with pytest.raises(DataError, match=said):
        read_subset(open_dataset(toys / "imagenet-val"), tmp_path / "list.txt")


# ── the command ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_command_prints_and_reports_the_table(toys, weights, tmp_path, capsys):
    model = weights("vit-b", 1000, 2)
    name = model.pop("name")
    arguments = "&".join(f"{key}={value}" for key, value in model.items())
    words = ["reproduce", "tokentm:table4", "--models", f"vit-b={name}?{arguments}", "--images", "2", "--device", "cpu"]
    words += ["--data", f"imagenet-val={toys / 'imagenet-val'}", "--out", str(tmp_path / "run")]
    words += ["--data", f"imagenet-seg={toys / 'imagenet-seg' / 'gtsegs_ijcv.mat'}"]

    assert main(words) == 0
    said = capsys.readouterr()
    assert "| `+ AF + L + NECC` |" in said.out
    assert "the order of methods is" in said.out
    assert "reduced: 2 images of ImageNet-Segmentation instead of all" in said.err
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<b>Reduced</b>" in page
    assert "The paper's numbers and ours" in page
    assert ">55.42<" in page  # printed in the paper
    stand_in = "timm:vit_tiny_patch16_224 in place of ViT-B"
    outputs = {path.name: path.read_text() for path in (tmp_path / "run" / "tables").iterdir()}
    assert {name.split(".")[-1] for name in outputs} == {"md", "tex", "csv"}
    for text in (page, said.out, *outputs.values()):
        assert stand_in in text.replace("\\", "")
        assert "2 images of ImageNet-Segmentation instead of all" in text

    assert main([*words, "--precision", "tf32", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert tomllib.loads(said.out)["precision"] == "tf32"
    assert "forwards" in said.err
    assert said.err.splitlines()[-2].split()[-1] == "cpu"
    shards = [*words[:-4], "--out", str(tmp_path / "shards"), *words[-2:]]
    for number in (1, 2):
        assert main([*shards, "--shard", f"{number}/2"]) == 0
        assert not (tmp_path / "shards" / "report.html").exists()
    capsys.readouterr()
    assert main([*shards, "--merge"]) == 0
    assert "| `+ AF + L + NECC` |" in capsys.readouterr().out
    assert main([*words, "--merge"]) == 2
    assert "holds no shards" in capsys.readouterr().err


def test_the_list_names_every_table(capsys):
    assert main(["reproduce", "--list"]) == 0

    said = capsys.readouterr().out
    assert all(name in said for name in list_reproductions())
    assert main(["reproduce"]) == 2
    assert "reproduce --list" in capsys.readouterr().err
