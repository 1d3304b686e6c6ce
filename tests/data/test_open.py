"""Specs name a reader, a path and options; a path alone is recognised by its content; errors have a message."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.data.making import TENCH, noise, save, write
from vitreous.core.errors import Caveat, DataError, SpecError
from vitreous.data import READERS, Album, Dataset, Sample, open_dataset, reader
from vitreous.data.reader import check_options, expand_path, import_package, recognise, split_spec


@pytest.mark.parametrize(
    ("spec", "kind", "place", "options"),
    [
        ("scenes:pair?count=64&seed=0", "scenes", "pair", {"count": "64", "seed": "0"}),
        (
            "imagenet-s:/data/x?cover=0.05&ignored=exclude",
            "imagenet-s",
            "/data/x",
            {"cover": "0.05", "ignored": "exclude"},
        ),
        ("cifar100:~/c?coarse=true&split=none", "cifar100", "~/c", {"coarse": "true", "split": "none"}),
        ("/data/why?/pictures", "", "/data/why?/pictures", {}),
        ("/data/x?ignore=255", "", "/data/x", {"ignore": "255"}),
        (r"C:\pictures", "", r"C:\pictures", {}),
        ("wds:/x/s-{000..003}.tar", "wds", "/x/s-{000..003}.tar", {}),
        ("assets:oxford", "assets", "oxford", {}),
        ("hf:ILSVRC/imagenet-1k?split=validation", "hf", "ILSVRC/imagenet-1k", {"split": "validation"}),
    ],
)
def test_a_spec_is_kind_place_and_options(spec, kind, place, options):
    assert split_spec(spec) == (kind, place, options)


def test_options_come_from_the_spec_or_the_call():
    assert len(open_dataset("scenes:single?count=3")) == len(open_dataset("scenes:single", count=3)) == 3
    assert len(open_dataset("scenes:single?count=3", count=5)) == 5


def test_values_of_options_are_what_the_reader_takes():
    def read(place, a: int = 0, b: float | None = None, c: str | None = None, d: bool = False, e: int | str = 0): ...

    given = check_options("x", read, {"a": "3", "b": "2", "c": "007", "d": "true", "e": "zebra"}, {"c": "text"})

    assert given == {"a": 3, "b": 2, "c": "text", "d": True, "e": "zebra"}
    assert check_options("x", read, {"c": "007", "b": "none", "e": "12"}, {}) == {"c": "007", "b": None, "e": 12}
    for texts in ({"a": "2.5"}, {"a": "true"}, {"b": "x"}, {"d": "1"}):
        with pytest.raises(SpecError, match=f"dataset 'x' cannot take {next(iter(texts))}="):
            check_options("x", read, texts, {})


def test_an_option_without_a_type_hint_takes_any_value():
    def read(place, a=0): ...

    assert check_options("x", read, {"a": "3"}, {}) == {"a": 3}
    assert check_options("x", read, {"a": "text"}, {}) == {"a": "text"}


def test_wrong_names_are_refused_with_valid_names():
    with pytest.raises(SpecError, match="no dataset 'scene'; did you mean 'scenes'"):
        open_dataset("scene:pair")
    with pytest.raises(SpecError, match="dataset 'scenes' has no option 'sed'; did you mean 'seed'"):
        open_dataset("scenes:pair?sed=1")
    with pytest.raises(SpecError, match="no kind of scene 'trio'; known: single, pair"):
        open_dataset("scenes:trio")
    with pytest.raises(SpecError, match="mask='shadow'; known: 'object', 'evidence'"):
        open_dataset("scenes:pair?mask=shadow")
    with pytest.raises(DataError, match=r"no dataset at '/nowhere'.*imagenet-val:"):
        open_dataset("/nowhere")


def test_assets_are_in_the_folder_of_the_environment_variable(monkeypatch, tmp_path):
    save(noise(), tmp_path / "some" / "a.png")
    monkeypatch.setenv("VITREOUS_ASSETS", str(tmp_path))
    assert open_dataset("assets:some").keys == ["a.png"]
    assert open_dataset("folder:assets:some").keys == ["a.png"]

    monkeypatch.delenv("VITREOUS_ASSETS")
    with pytest.raises(DataError, match="VITREOUS_ASSETS names; it is not set"):
        open_dataset("assets:some")
    assert expand_path("~/x") == Path.home() / "x"


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["a.jpg"], "folder"),
        (["cats/a.jpg", "dogs/b.jpg"], "folder"),
        (["a.jpg", "labels.csv"], "folder"),
        (["images/ILSVRC2012_val_00000001.JPEG", "boxes.csv"], "folder"),
        ([f"val/{TENCH}/x.JPEG"], "imagenet-val"),
        ([f"{TENCH}/x.JPEG"], "imagenet-val"),
        (["ILSVRC2012_val_00000001.JPEG"], "imagenet-val"),
        (["images/x.jpg", "trimaps/x.png", "labels.csv"], "pets"),
        (["annotations/list.txt", "images/x.jpg"], "pets"),
        ([f"validation-segmentation/{TENCH}/x.png"], "imagenet-s"),
        (["annotations/instances_val2017.json", "val2017/x.jpg"], "coco"),
        (["cifar-10-batches-py/test_batch"], "cifar10"),
        (["test_batch"], "cifar10"),
        (["train", "test", "meta"], "cifar100"),
        (["valid_image_paths.csv"], "mura"),
        (["MURA-v1.1/valid/XR_WRIST/x"], "mura"),
        (["dataset_dict.json"], "hf"),
        (["shard-000.tar"], "wds"),
        (["shard-000.tar", "labels.csv", f"{TENCH}/x.JPEG"], "wds"),
        ([f"{TENCH}/x.JPEG", "labels.csv"], "folder"),
        ([f"{TENCH}/x.JPEG", "masks/x.png"], "folder"),
    ],
)
def test_a_folder_is_recognised_by_its_layout(tmp_path, files, kind):
    for file in files:
        write(tmp_path / file, "")

    assert recognise(tmp_path) == kind


def test_files_are_recognised_by_their_names(tmp_path):
    assert recognise(tmp_path / "gtsegs_ijcv.mat") == "imagenet-seg"
    assert recognise(tmp_path / "s-{000..003}.tar") == "wds"
    with pytest.raises(DataError, match="put its kind before it"):
        recognise(write(tmp_path / "list.txt", ""))


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("folder", "images/"),
        ("pets", "annotations/list.txt"),
        ("imagenet-val", "val/<wnid>"),
        ("imagenet-s", "validation-segmentation"),
        ("imagenet-seg", "/value/img"),
        ("coco", "annotations/instances_<split>.json"),
        ("cifar10", "data_batch_1"),
        ("cifar100", "cifar-100-python"),
        ("mura", "study<k>"),
        ("wds", "key.cls"),
    ],
)
def test_errors_of_missing_files_show_the_layout(tmp_path, kind, layout):
    with pytest.raises(DataError) as caught:
        open_dataset(f"{kind}:{tmp_path / 'none'}")
    assert "none" in str(caught.value)
    assert layout in str(caught.value)
    assert "\n" not in str(caught.value)


def test_readers_can_be_registered():
    @reader("mine-too")
    def mine(place: str, size: int = 2) -> Album:
        return Album("mine", [f"{place}/{i}" for i in range(size)], lambda index: Sample(f"{place}/{index}", noise()))

    try:
        dataset = open_dataset("mine-too:there?size=3")
    finally:
        READERS.discard("mine-too")

    assert isinstance(dataset, Dataset)
    assert dataset.keys == ["there/0", "there/1", "there/2"]


def test_a_reader_of_a_plugin_recognises_its_paths_first(tmp_path):
    write(tmp_path / "test_batch", "")  # CIFAR-10 by its looks
    assert recognise(tmp_path) == "cifar10"

    @reader("zz-mine", recognises=lambda path: (path / "test_batch").exists())
    def mine(place: str) -> Album:
        return Album("mine", ["a"], lambda index: Sample("a", noise()))

    try:
        assert recognise(tmp_path) == "zz-mine"
        assert open_dataset(tmp_path).keys == ["a"]
    finally:
        READERS.discard("zz-mine")


def test_a_description_does_not_depend_on_the_folder(tmp_path):
    for place in ("one", "two"):
        save(noise(), tmp_path / place / "pets" / "a.png")
        write(tmp_path / place / "pets" / "labels.csv", "file,label\na.png,3\n")

    one, two = (open_dataset(tmp_path / place / "pets").describe() for place in ("one", "two"))
    write(tmp_path / "two" / "pets" / "labels.csv", "file,label\na.png,4\n")

    assert one == two
    assert open_dataset(tmp_path / "two" / "pets").describe() != one
    scenes = [open_dataset(f"scenes:pair?count=2&{rest}").describe() for rest in ("seed=0", "seed=1", "mask=evidence")]
    assert all(scenes.count(one) == 1 for one in scenes)


def test_datasets_travel_to_other_processes():
    dataset = open_dataset("scenes:pair?count=3&seed=5")

    copy = pickle.loads(pickle.dumps(dataset))

    assert copy.describe() == dataset.describe()
    assert copy[2].image.tobytes() == dataset[2].image.tobytes()


def test_a_missing_package_gives_an_error_message():
    with pytest.raises(
        DataError, match=r"'x' needs the package nothing_such; pip install 'vitreous\[data\]' brings it"
    ):
        import_package("nothing_such.io", "'x'")


def test_an_empty_name_is_not_the_current_folder():
    with pytest.raises(SpecError, match="no dataset is named"):
        open_dataset("")


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("photos", "ILSVRC2012_val_0000000{}.JPEG"),
        ("photos/val", "ILSVRC2012_val_0000000{}.JPEG"),
        ("photos/images", "ILSVRC2012_val_0000000{}.JPEG"),
        ("photos", "n01440764_{}.JPEG"),
    ],
)
def test_unlabelled_files_named_as_imagenets_are_a_plain_folder(tmp_path, where, name):
    for number in (1, 2):
        save(noise(8, 8), tmp_path / where / name.format(number))

    with pytest.warns(Caveat, match=f"plain folder of images; .* write imagenet-val:{tmp_path / 'photos'}") as caveats:
        dataset = open_dataset(tmp_path / "photos")

    assert len(caveats) == 1
    assert list(dataset.keys) == [name.format(1), name.format(2)]
    assert (dataset.classes, dataset[0].label) == (None, None)
    for spec, options in ((f"imagenet-val:{tmp_path / 'photos'}", {}), (str(tmp_path / "photos"), {"ids": "caffe"})):
        with pytest.raises(DataError, match="has 2 images and no label file; expected val/<wnid>"):
            open_dataset(spec, **options)
