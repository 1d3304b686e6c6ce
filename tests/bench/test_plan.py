"""Invalid plans are refused before anything starts, with the line, the error and valid values."""

from __future__ import annotations

import pytest
from PIL import Image

from tests.bench.fixture import SMALL, small_plan
from vitreous.bench.plan import Evaluation, to_toml
from vitreous.bench.plan_check import check
from vitreous.bench.plan_parser import plan_from_flags, read_plan
from vitreous.bench.run_plan import execute
from vitreous.bench.store import Store
from vitreous.bench.work_cells import select_shard, split_plan
from vitreous.core.errors import SpecError, VitreousError

GOOD = """\
images = 2
methods = ["genatt", "random"]
metrics = ["pointing_game"]
device = "cpu"

[[models]]
name = "scenes"

[[datasets]]
spec = "scenes:single?count=4"
"""

# old text, new text, and the parts of the error message: line, error, valid values
BROKEN = {
    "not TOML": ("images = 2", "images = = 2", ["line 1, column 10", "TOML"]),
    "unknown entry": ("images = 2", "imags = 2", ["line 1", "no entry 'imags'", "did you mean 'images'?"]),
    "no models": ('[[models]]\nname = "scenes"', "", ["names no models", 'add models = ["scenes"]']),
    "no data": ('[[datasets]]\nspec = "scenes:single?count=4"', "", ["names no datasets", "add datasets"]),
    "no methods": ('methods = ["genatt", "random"]', "", ["names no methods", "add methods"]),
    "no metrics": ('metrics = ["pointing_game"]', "", ["names no metrics", "add metrics"]),
    "empty methods": ('["genatt", "random"]', "[]", ["line 2", "names no methods"]),
    "unknown method": ('"genatt"', '"genat"', ["line 2", "no method 'genat'", "did you mean 'genatt'?"]),
    "unknown option": ('"genatt"', '"genatt(strat=1)"', ["line 2", "no option 'strat'", "'start'"]),
    "method twice": ('"genatt"', '"GAE", "genatt"', ["line 2", "'genatt' and 'GAE' are the same"]),
    "a number for a method": ('"genatt"', "3", ["line 2", "TOML|spec in quotes"]),
    "unknown metric": ('"pointing_game"', '"pointing_gam"', ["line 3", "did you mean 'pointing_game'?"]),
    "unknown metric option": ('"pointing_game"', '"pointing_game(tolerence=3)"', ["line 3", "did you mean 'tolerance'?"]),
    "unknown protocol": ('metrics = ["pointing_game"]', 'protocol = "skiplus"', ["line 3", "skiplus", "skipplus"]),
    "protocol and metrics": ("images = 2", 'protocol = "skipplus"', ["line 1", "metrics or a protocol, not both"]),
    "images below one": ("images = 2", "images = 0", ["line 1", "whole number from 1 on, not 0"]),
    "images in words": ("images = 2", 'images = "two"', ["line 1", "not 'two'"]),
    "too many images": ("images = 2", "images = 9", ["line 1", "has 4 images", "1 to 4 would work"]),
    "seed": ("images = 2", "seed = -1", ["line 1", "from 0 on", "'first'"]),
    "precision": ("images = 2", 'precision = "fp8"', ["line 1", "'fp8'", "float32, tf32, bf16, auto, float64"]),
    "targets": ("images = 2", 'targets = "best"', ["line 1", "'best'", "'predicted', 'label', 'predicted+label', 'pair', 'top 2'"]),
    "class by number": ("images = 2", "targets = [99]", ["line 1", "99", "0 to 19"]),
    "class by name": ("images = 2", 'targets = ["zebra"]', ["line 1", "no class named 'zebra'"]),
    "question": ("images = 2", 'question = "logits"', ["line 1", "did you mean 'logit'?"]),
    "slice": ("images = 2", "slice = true", ["line 1", "slice is a whole number"]),
    "maps": ("images = 2", "maps = 1", ["line 1", "true or false"]),
    "device": ('device = "cpu"', 'device = "cuda:77"', ["line 4", "cuda:77", "'cpu' is"]),
    "unknown model": ('name = "scenes"', 'name = "timm:vit_tiny_patch61"', ["line 7", "timm has no model", "did you mean"]),
    "unknown source": ('name = "scenes"', 'name = "tim:vit"', ["line 7", "no source 'tim'", "'timm:…'"]),
    "no checkpoint": ('name = "scenes"', 'name = "scenes"\ncheckpoint = "gone.pt"', ["line 8", "'gone.pt'", "does not exist"]),
    "a model that is none": ('[[models]]\nname = "scenes"', "models = [3]", ["line 6", "a model is a name"]),
    "models alike": ('[[datasets]]', '[[models]]\nname = "scenes"\n[[datasets]]', ["line 7", "called 'scenes'", "another label"]),
    "unknown data": ("scenes:single?", "scene:single?", ["line 10", "no dataset 'scene'", "did you mean 'scenes'?"]),
    "unknown data option": ("count=4", "cout=4", ["line 10", "did you mean 'count'?"]),
    "no folder": ("scenes:single?count=4", "folder:nowhere", ["line 10", "does not exist"]),
    "data for nobody": ("count=4\"", 'count=4"\nmodels = ["vit"]', ["line 11", "which the plan does not have"]),
    "classes that are no file": ('name = "scenes"', 'name = "scenes"\nclasses = -1', ["line 8", "file of class names, not -1"]),
    "device of a model": ('name = "scenes"', 'name = "scenes"\ndevice = 5', ["device is an entry of the plan"]),
    "a table in a list": ('name = "scenes"', 'name = "scenes"\nsize = [{a = 1}]', ["line 8", "size of model 'scenes'", "[{'a': 1}]"]),
    "nested too deep": ("images = 2", "images = " + "[" * 5000 + "]" * 5000, ["nests lists or tables too deep"]),
    "nested tables": ("images = 2", "images = " + "{a = " * 2000 + "1" + "}" * 2000, ["nests lists or tables too deep"]),
    "too many digits": ("images = 2", "images = " + "9" * 5000, ["thousands of digits"]),
    "data entry": ("spec = ", "place = ", ["line 9", "a dataset is a spec"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plan_gives_a_clear_error_message(kind, tmp_path):
    old, new, said = BROKEN[kind]
    assert old in GOOD
    path = tmp_path / "plan.toml"
    path.write_text(GOOD.replace(old, new, 1))

    with pytest.raises(VitreousError) as problem:
        check(read_plan(path))

    sentence = str(problem.value)
    assert sentence.startswith(f"'{path}'"), sentence
    assert "\n" not in sentence
    for words in said:
        assert any(word in sentence for word in words.split("|")), sentence


def test_the_unbroken_plan_is_fine(tmp_path):
    (tmp_path / "plan.toml").write_text(GOOD)

    plan = read_plan(tmp_path / "plan.toml")

    assert check(plan) == []
    assert (plan.methods, plan.metrics, plan.images) == (("genatt", "random"), ("pointing_game",), 2)
    assert read_plan(tmp_path / "plan.toml", images=3, methods=["rollout"]).methods == ("rollout",)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "there is no plan at"),
        (lambda path: path.mkdir(), "is a folder; a plan is a TOML file"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not text in UTF-8"),
    ],
)
def test_a_missing_plan_file_is_reported(make, said, tmp_path):
    make(tmp_path / "plan.toml")

    with pytest.raises(VitreousError, match=said):
        read_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": ["genat"]}, "--method: no method 'genat'"),
        ({"metrics": ["pointing"]}, "--metric: no metric 'pointing'"),
        ({"models": None}, "add --model"),
        ({"datasets": None}, "add --data"),
        ({"images": -1}, "--images: images is a whole number"),
    ],
)
def test_flags_are_named_where_there_is_no_line(changes, said):
    with pytest.raises(SpecError) as problem:
        check(plan_from_flags(**{**SMALL, **changes}))

    assert said in str(problem.value)


# ── required annotations ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def plain_folder(tmp_path):
    folder = tmp_path / "plain"
    folder.mkdir()
    for number in range(2):
        Image.new("RGB", (40, 30), (number * 90, 80, 70)).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": ["pointing_game"]}, "metric 'pointing_game' needs masks or boxes, and dataset"),
        ({"metrics": ["class_discrimination"]}, "needs masks and masks of a second class"),
        ({"targets": "label", "metrics": ["sparseness"]}, 'targets = "label" needs labels'),
        ({"targets": "pair", "metrics": ["sparseness"]}, 'targets = "pair" needs masks of a second class'),
    ],
)
def test_missing_annotations_are_reported_before_the_run(changes, said, plain_folder):
    with pytest.raises(SpecError) as problem:
        check(small_plan(datasets=[f"folder:{plain_folder}"], **changes))

    assert said in str(problem.value)


def test_a_folder_of_damaged_images_is_refused(plain_folder):
    for path in plain_folder.iterdir():
        path.write_bytes(b"no image")

    with pytest.raises(SpecError, match="none of the first 16 images"):
        check(small_plan(datasets=[f"folder:{plain_folder}"], metrics=["sparseness"]))


def test_classes_that_mean_something_else_are_pointed_out(plain_folder):
    (plain_folder / "labels.csv").write_text("file,imagenet_label\n0.png,3\n1.png,4\n")

    (note,) = check(small_plan(datasets=[f"folder:{plain_folder}"], metrics=["sparseness"]))

    assert "are not those of scenes" in note


def test_all_metrics_are_those_that_the_data_can_serve(plain_folder):
    everything = small_plan(metrics="all").metrics
    usual = small_plan(metrics="usual").metrics
    blind = small_plan(metrics="all", datasets=[f"folder:{plain_folder}"]).metrics

    assert {"pointing_game", "sparseness", "deletion_aopc"} <= set(everything)
    assert "road" in everything
    assert usual == ("deletion_aopc", "insertion_aopc", "pointing_game", "energy_pointing", "ap", "sparseness")
    assert "sparseness" in blind
    assert "pointing_game" not in blind


def test_models_without_removable_tokens_have_pixels_removed():
    metrics = small_plan(metrics="usual", models=["scenes", "scenes-swin"]).metrics

    assert metrics[:2] == ("deletion(steps=10)", "insertion(steps=10)")


def test_flags_override_entries_of_a_file_and_of_its_datasets(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        """
        models = ["scenes"]
        methods = ["genatt"]
        protocol = "skipplus"
        question = "logit"
        [[datasets]]
        spec = "scenes:single?count=4"
        columns = ["AP"]
        images = "all"
        """
    )
    changed = read_plan(path, metrics=["sparseness"], images=2, question="own")

    assert changed.metrics == ("sparseness",)
    assert changed.protocol is None
    assert changed.evaluations[0].images == 2
    assert changed.question is None
    assert read_plan(path, protocol="tis").protocol == "tis"
    path.write_text(
        path.read_text().replace('protocol = "skipplus"', 'metrics = ["ap"]').replace('columns = ["AP"]', "")
    )
    assert read_plan(path, protocol="tis").protocol == "tis"


# ── datasets that differ ─────────────────────────────────────────────────────────────────────────


def test_every_dataset_gets_the_metrics_that_it_can_serve(plain_folder, tmp_path):
    plan = small_plan(metrics="usual", datasets=["scenes:single?count=4", f"folder:{plain_folder}"])
    scenes, plain = plan.evaluations

    assert "pointing_game" in scenes.metrics
    assert "pointing_game" not in plain.metrics
    assert "sparseness" in plain.metrics
    check(plan)
    (tmp_path / "plan.toml").write_text(plan.toml)
    assert read_plan(tmp_path / "plan.toml") == plan


@pytest.mark.slow
def test_a_protocol_explains_labels_only_if_the_dataset_has_them(plain_folder, tmp_path):
    data = ["scenes:single?count=1", f"folder:{plain_folder}"]
    plan = small_plan(metrics=None, protocol="tokentm", datasets=data, methods=["genatt"])
    scenes, plain = plan.evaluations

    assert (scenes.targets, plain.targets) == ("predicted+label", "predicted")
    assert "negative_auc(preset='tokentm')" in scenes.metrics
    assert plain.metrics == ("aopc(preset='tokentm')", "lodds(preset='tokentm')")
    check(plan)
    (tmp_path / "plan.toml").write_text(plan.toml)
    assert read_plan(tmp_path / "plan.toml") == plan
    with Store(tmp_path / "run") as store:
        assert not execute(plan, store).failed
        rows = store.table().to_pylist()
    measured = {(row["dataset"], row["metric"], row["role"]) for row in rows}
    evaluations = zip(plan.datasets, plan.evaluations, strict=True)
    assert measured == {
        (data.label, spec, role)
        for data, evaluation in evaluations
        for spec, roles in zip(evaluation.metrics, evaluation.roles, strict=True)
        for role in roles
    }


def test_a_dataset_may_have_its_own_entries(plain_folder, tmp_path):
    own = {"metrics": ["sparseness"], "targets": "top 2", "images": "all", "seed": "first", "preprocess": "tis"}
    data = [{"spec": "scenes:single?count=4", "metrics": ["ap"]}, {"spec": f"folder:{plain_folder}", **own}]
    plan = small_plan(metrics=None, datasets=data, images=3, targets="label")

    assert plan.evaluations[0] == Evaluation(("ap",), (), "label", 3, 0)
    assert plan.evaluations[1] == Evaluation(("sparseness",), (), "top 2", None, None, "tis")
    assert plan.metrics == ("ap", "sparseness")
    assert [len(cell.places) for cell in split_plan(plan)] == [2, 1, 2]
    (tmp_path / "plan.toml").write_text(plan.toml)
    assert read_plan(tmp_path / "plan.toml") == plan


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protocol": "skipplus", "metrics": None}, "no column 'APP'; did you mean 'AP'"),
        ({}, "titles of a protocol's columns; add one"),
    ],
)
def test_columns_are_those_of_a_protocol(changes, said):
    with pytest.raises(SpecError) as problem:
        small_plan(datasets=[{"spec": "scenes:single?count=4", "columns": ["APP"]}], **changes)

    assert said in str(problem.value)


def test_metrics_that_count_hits_need_labels(plain_folder):
    with pytest.raises(SpecError, match="needs labels, and dataset"):
        check(small_plan(datasets=[f"folder:{plain_folder}"], metrics=["positive_auc(preset='tokentm')"]))


# ── identity of a plan ────────────────────────────────────────────────────────────────────────────


def test_a_plan_from_flags_is_written_as_an_equivalent_file(tmp_path):
    plan = small_plan(targets=[3, "cup"], images=3, seed="first", maps=False, question="prob")
    (tmp_path / "plan.toml").write_text(to_toml(plan))

    again = read_plan(tmp_path / "plan.toml")

    assert again == plan
    assert again.run == plan.run


@pytest.mark.parametrize("changes", [{}, {"targets": "predicted"}, {"methods": "protocol"}])
def test_a_protocol_is_written_as_its_name(tmp_path, changes):
    plan = small_plan(**{"metrics": None, "protocol": "skipplus", **changes})
    (tmp_path / "plan.toml").write_text(to_toml(plan))

    assert read_plan(tmp_path / "plan.toml") == plan
    assert plan.targets == changes.get("targets", "label")
    assert bool(plan.evaluations[0].roles) == ("targets" not in changes)
    assert (len(plan.methods) > 30) == ("methods" in changes)


def test_changes_by_flags_are_stored(tmp_path):
    (tmp_path / "plan.toml").write_text(GOOD)
    plan = read_plan(tmp_path / "plan.toml", images=3, methods=["rollout"])
    (tmp_path / "again.toml").write_text(plan.toml)

    assert read_plan(tmp_path / "again.toml") == plan


def test_a_run_is_named_by_a_hash_of_its_rows():
    plan = small_plan()

    assert small_plan(batch_size=1, out="elsewhere").run == plan.run
    others = [{"methods": ["genatt"]}, {"targets": "label"}, {"precision": "float64"}, {"seed": 3}, {"slice": 4}]
    assert len({plan.run, *(small_plan(**change).run for change in others)}) == len(others) + 1


def test_more_images_do_not_change_earlier_slices():
    few = [cell.places for cell in split_plan(small_plan(datasets=["scenes:single?count=50"], images=8, slice=4))]
    many = [cell.places for cell in split_plan(small_plan(datasets=["scenes:single?count=50"], images=18, slice=4))]

    assert many[: len(few)] == few
    assert [len(places) for places in many] == [4, 4, 4, 4, 2]


def test_a_dataset_may_be_for_some_models_only():
    models = ["scenes", "scenes-biased"]
    data = ["scenes:single?count=2", {"spec": "scenes:shortcut?count=2", "models": ["scenes-biased"]}]

    cells = split_plan(small_plan(models=models, datasets=data))

    assert [(cell.model, cell.dataset) for cell in cells] == [(0, 0), (1, 0), (1, 1)]


def test_shards_are_all_of_the_work_and_no_piece_twice():
    cells = split_plan(small_plan(datasets=["scenes:single?count=23"]))

    shards = [select_shard(cells, f"{number}/3") for number in (1, 2, 3)]

    assert sorted(cell.number for shard in shards for cell in shard) == list(range(12))
    for wrong in ("0/3", "4/3", "3", "a/b", "1/0"):
        with pytest.raises(SpecError, match=r"write i/n with i from 1 to n"):
            select_shard(cells, wrong)
