"""MURA: classes from the names of studies, order from the list."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.data.making import noise, save, write
from vitreous.core.errors import DataError, SpecError
from vitreous.data import open_dataset

NAMES = [
    "valid/XR_WRIST/patient11185/study1_positive/image2.png",
    "valid/XR_WRIST/patient11185/study1_positive/image1.png",
    "valid/XR_ELBOW/patient11186/study2_negative/image1.png",
]


@pytest.fixture
def archive(tmp_path):
    for name in NAMES:
        save(Image.fromarray(np.asarray(noise())[..., 0]), tmp_path / "MURA-v1.1" / name)
    write(tmp_path / "MURA-v1.1" / "valid_image_paths.csv", "".join(f"MURA-v1.1/{name}\n" for name in NAMES))
    return tmp_path


@pytest.mark.parametrize("inner", ["", "MURA-v1.1"])
def test_the_list_gives_the_order(archive, inner):
    dataset = open_dataset(archive / inner)

    assert list(dataset.keys) == NAMES
    assert dataset.classes == ("negative", "positive")
    assert [dataset[index].label for index in range(3)] == [1, 1, 0]
    assert dataset[0].image.mode == "RGB"


def test_folders_do_without_a_list(archive):
    (archive / "MURA-v1.1" / "valid_image_paths.csv").unlink()

    assert list(open_dataset(archive).keys) == sorted(NAMES)


def test_one_part_of_the_body(archive):
    assert list(open_dataset(f"mura:{archive}?body=elbow").keys) == NAMES[2:]
    with pytest.raises(SpecError, match="body='XR_HAND'; known: 'XR_ELBOW', 'XR_WRIST'"):
        open_dataset(f"mura:{archive}?body=hand")


def test_missing_files_are_reported(archive):
    with pytest.raises(DataError, match=r"train' does not exist; expected MURA-v1.1"):
        open_dataset(f"mura:{archive}?split=train")
    (archive / "MURA-v1.1" / NAMES[0]).unlink()
    with pytest.raises(DataError, match=r"no image at '.*image2.png'"):
        open_dataset(archive)[0]
    write(archive / "MURA-v1.1" / "valid_image_paths.csv", "something.png\n")
    with pytest.raises(DataError, match=r"has the line 'something.png'"):
        open_dataset(archive)
    write(archive / "MURA-v1.1" / "valid_image_paths.csv", "MURA-v1.1/valid/XR_WRIST/image1.png\n")
    with pytest.raises(DataError, match="not in the folder of a study"):
        open_dataset(archive)
