"""ImageNet's validation set: both layouts, every label file, boxes as XML and CSV."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.data.making import GOLDFISH, TENCH, ZEBRA, noise, save, write
from vitreous.core.errors import DataError
from vitreous.data import batches, open_dataset
from vitreous.models.class_names import wnids
from vitreous.models.image_input import Preprocess

NAMES = [f"ILSVRC2012_val_{number:08d}" for number in (1, 2, 3)]
CLASSES = [ZEBRA, TENCH, GOLDFISH]  # 340, 0, 1
KEYS = sorted(f"val/{wnid}/{name}" for wnid, name in zip(CLASSES, NAMES, strict=True))


@pytest.fixture
def flat(tmp_path):
    for seed, name in enumerate(NAMES):
        save(noise(20, 10, seed), tmp_path / "val" / f"{name}.JPEG")
    return tmp_path


@pytest.fixture
def per_class(tmp_path):
    for seed, (wnid, name) in enumerate(zip(CLASSES, NAMES, strict=True)):
        save(noise(20, 10, seed), tmp_path / "val" / wnid / f"{name}.JPEG")
    return tmp_path


def labels(dataset) -> dict[str, int]:
    return {dataset.keys[index]: dataset[index].label for index in range(len(dataset))}


RIGHT = dict(zip(KEYS, [0, 1, 340], strict=True))


@pytest.mark.parametrize("inner", ["", "val"])
def test_a_folder_per_class_also_when_classes_are_missing(per_class, inner):
    dataset = open_dataset(per_class / inner)

    assert list(dataset.keys) == KEYS
    assert labels(dataset) == RIGHT  # not their place among the folders that are there
    assert dataset.classes[340] == "zebra"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ILSVRC2012_validation_ground_truth_caffe.txt", "340\n0\n1\n"),
        (
            "ILSVRC2012_validation_ground_truth_caffe.txt",
            "".join(f"{n}.JPEG {c}\n" for n, c in zip(NAMES, (340, 0, 1), strict=True)),
        ),
        ("val.txt", "".join(f"{n}.JPEG {c}\n" for n, c in zip(reversed(NAMES), (1, 0, 340), strict=True))),
        ("val/val.txt", "340\n0\n1\n"),
        (
            "LOC_val_solution.csv",
            "ImageId,PredictionString\n" + "".join(f"{n},{w} 1 2 11 8 \n" for n, w in zip(NAMES, CLASSES, strict=True)),
        ),
    ],
)
def test_label_files_give_the_same_classes_and_keys(flat, file, text):
    write(flat / file, text)

    assert labels(open_dataset(flat)) == RIGHT


def ids_in_another_order() -> dict[str, int]:
    order = np.random.default_rng(0).permutation(1000)
    return {wnids()[index]: place + 1 for place, index in enumerate(order.tolist())}


def write_meta(path):
    io = pytest.importorskip("scipy.io")
    ids = ids_in_another_order()
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    rows = [(number, wnid, "some words", 0) for wnid, number in ids.items()]
    rows += [(1001, "n00001740", "entity", 3)]  # a group of classes
    synsets = np.array(rows, dtype=kinds)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    io.savemat(path, {"synsets": synsets})
    return ids


DEVKIT = "ILSVRC2012_validation_ground_truth.txt"


@pytest.mark.parametrize("place", ["meta.mat", "data/meta.mat"])
def test_devkit_ids_become_classes_through_meta_mat(flat, place):
    ids = write_meta(flat / place)
    write(flat / DEVKIT, "".join(f"{ids[wnid]}\n" for wnid in CLASSES))

    assert labels(open_dataset(flat)) == RIGHT


def test_devkit_ids_without_meta_mat_are_refused(flat):
    write(flat / DEVKIT, "490\n361\n171\n")

    with pytest.raises(DataError, match=r"ILSVRC ids, which are no classes; put the devkit's meta.mat beside it"):
        open_dataset(flat)


def test_devkit_ids_under_another_name_are_recognised(flat):
    write(flat / "val.txt", "490\n1000\n171\n")  # 1000 is no class

    with pytest.raises(DataError, match="ILSVRC ids, which are no classes"):
        open_dataset(flat)


def test_numbers_that_may_be_either_must_be_named(flat):
    write(flat / "val.txt", "340\n5\n1\n")

    with pytest.raises(DataError, match="ids=caffe or ids=devkit"):
        open_dataset(flat)
    assert labels(open_dataset(f"imagenet-val:{flat}?ids=caffe")).values() != RIGHT.values()
    assert sorted(labels(open_dataset(flat, ids="caffe")).values()) == [1, 5, 340]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("val.txt", "0\n1\n", "has 2 lines, and none is for the image 'ILSVRC2012_val_00000003'"),
        ("val.txt", "x.JPEG 0\n", "no class for 'ILSVRC2012_val_00000001'"),
        ("val.txt", "0\n1\nzebra\n", "line 3 of '.*val.txt' has 'zebra'"),
        ("val.txt", "0\n1\n1400\n", "classes from 0 to 1400"),
        ("val.txt", "", "val.txt' is empty"),
        ("LOC_val_solution.csv", "ImageId,PredictionString\na,n01440764 1 2 3\n", "line 2 of '.*csv' has 4 entries"),
        (DEVKIT + ".bak", "1", "3 images and no label file"),
    ],
)
def test_errors_of_label_files_name_the_file(flat, file, text, said):
    write(flat / file, text)

    with pytest.raises(DataError, match=said):
        open_dataset(f"imagenet-val:{flat}")


def test_an_invalid_meta_mat_is_refused(flat):
    pytest.importorskip("scipy.io")
    write(flat / "meta.mat", "nothing of the kind")
    write(flat / DEVKIT, "490\n361\n171\n")

    with pytest.raises(DataError, match=r"meta.mat' is damaged or not the devkit's"):
        open_dataset(flat)


# ── boxes ────────────────────────────────────────────────────────────────────────────────────────


def annotation(width: int, height: int, *objects: tuple[str, int, int, int, int]) -> str:
    inner = "".join(
        f"<object><name>{name}</name><pose>Unspecified</pose><bndbox><xmin>{a}</xmin><ymin>{b}</ymin>"
        f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for name, a, b, c, d in objects
    )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><folder>val</folder>{size}<segmented>0</segmented>{inner}</annotation>"


def test_xml_boxes_of_the_own_class_only(per_class):
    boxes = per_class / "bbox" / "val"
    write(
        boxes / f"{NAMES[0]}.xml",
        annotation(20, 10, (ZEBRA, 1, 2, 11, 8), (TENCH, 0, 0, 20, 10), (ZEBRA, 12, 0, 15, 3)),
    )
    write(boxes / f"{NAMES[1]}.xml", annotation(40, 20, (TENCH, 2, 4, 20, 10)))  # drawn before the image was halved
    write(boxes / f"{NAMES[2]}.xml", annotation(20, 10, (TENCH, 2, 4, 20, 10)))

    dataset = open_dataset(per_class)
    found = {dataset[index].label: dataset[index].boxes.tolist() for index in range(3)}

    assert found == {340: [[1, 2, 11, 8], [12, 0, 15, 3]], 0: [[1, 2, 10, 5]], 1: []}
    assert dataset.describe()["boxes"] is True


def test_csv_boxes(per_class):
    rows = {NAMES[0]: f"{ZEBRA} 1 2 11 8 {TENCH} 0 0 5 5 ", NAMES[1]: f"{TENCH} 3 3 4 4"}
    write(
        per_class / "LOC_val_solution.csv",
        "ImageId,PredictionString\n" + "".join(f"{k},{v}\n" for k, v in rows.items()),
    )

    (batch,) = batches(open_dataset(per_class), Preprocess((10, 20), (10, 20)))

    assert [one.tolist() for one in batch.boxes] == [[[3, 3, 4, 4]], [[1, 2, 11, 8]]]
    assert batch.failures[0][0] == KEYS[1]
    assert "LOC_val_solution.csv' has no boxes for 'ILSVRC2012_val_00000003'" in batch.failures[0][1]


def test_boxes_can_be_named_and_missing_ones_are(per_class, tmp_path):
    with pytest.raises(DataError, match="no boxes at"):
        open_dataset(f"imagenet-val:{per_class}", boxes=tmp_path / "none")
    elsewhere = write(tmp_path / "elsewhere" / f"{NAMES[0]}.xml", "<annotation><size>")
    write(tmp_path / "elsewhere" / f"{NAMES[1]}.xml", "<annotation></annotation>")
    dataset = open_dataset(f"imagenet-val:{per_class}", boxes=elsewhere.parent)

    for key, said in ((NAMES[0], "damaged"), (NAMES[1], "has no width, height"), (NAMES[2], "no boxes at")):
        index = next(place for place, one in enumerate(dataset.keys) if one.endswith(key))
        with pytest.raises(DataError, match=rf"{said}") as caught:
            dataset[index]
        assert f"{key}.xml" in str(caught.value)
    assert open_dataset(per_class)[0].boxes is None


def test_a_folder_that_is_no_class_is_refused(per_class):
    save(noise(), per_class / "val" / "n00000000" / "x.JPEG")

    with pytest.raises(DataError, match="'n00000000', which is not a class of ImageNet-1k"):
        open_dataset(per_class)


def test_a_label_file_can_be_named_and_datasets_travel(flat, tmp_path):
    named = write(tmp_path / "elsewhere.txt", "340\n0\n1\n")
    dataset = open_dataset(f"imagenet-val:{flat}?labels={named}")

    copy = pickle.loads(pickle.dumps(dataset))

    assert labels(dataset) == labels(copy) == RIGHT
    with pytest.raises(DataError, match=r"no label file at '.*none.txt'"):
        open_dataset(flat, labels=tmp_path / "none.txt")
