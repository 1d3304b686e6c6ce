"""Oxford-IIIT Pet in its original layout."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.making import noise, save, write
from vitreous.core.errors import DataError, SpecError
from vitreous.data import open_dataset

TRIMAP = np.array([[1, 2, 3, 2]] * 4, dtype=np.uint8)


@pytest.fixture
def archive(tmp_path):
    for name in ("Abyssinian_1", "Egyptian_Mau_2", "pug_3"):
        save(noise(4, 4), tmp_path / "images" / f"{name}.jpg")
        save(TRIMAP, tmp_path / "annotations" / "trimaps" / f"{name}.png")
        write(tmp_path / "annotations" / "trimaps" / f"._{name}.png", "")
    header = "#Image CLASS-ID SPECIES BREED ID\n#ID: 1:37 Class ids\n"
    write(tmp_path / "annotations" / "list.txt", f"{header}Abyssinian_1 1 1 1\nEgyptian_Mau_2 2 1 2\npug_3 3 2 1\n")
    write(tmp_path / "annotations" / "test.txt", "pug_3 3 2 1\n")
    return tmp_path


def test_breeds_and_trimaps(archive):
    dataset = open_dataset(archive)

    assert dataset.keys == ["Abyssinian_1", "Egyptian_Mau_2", "pug_3"]
    assert dataset.classes == ("Abyssinian", "Egyptian_Mau", "pug")
    assert [dataset[index].label for index in range(3)] == [0, 1, 2]
    assert dataset[0].mask.tolist() == [[1, 0, -1, 0]] * 4


@pytest.mark.parametrize(("border", "value"), [("ignore", -1), ("object", 1), ("background", 0)])
def test_the_border_is_an_option(archive, border, value):
    assert open_dataset(f"pets:{archive}?border={border}")[0].mask[0, 2] == value


def test_breeds_that_are_imagenet_classes(archive):
    dataset = open_dataset(f"pets:{archive}?labels=imagenet")

    assert [(key, dataset[index].label) for index, key in enumerate(dataset.keys)] == [
        ("Egyptian_Mau_2", 285),
        ("pug_3", 254),
    ]
    assert dataset.classes[254] == "pug"


def test_splits(archive):
    assert open_dataset(f"pets:{archive}?split=test").keys == ["pug_3"]
    assert open_dataset(f"pets:{archive}?split=test").classes == ("Abyssinian", "Egyptian_Mau", "pug")
    with pytest.raises(DataError, match=r"no list at '.*trainval.txt'"):
        open_dataset(f"pets:{archive}?split=trainval")
    with pytest.raises(SpecError, match="split='train'"):
        open_dataset(f"pets:{archive}?split=train")


def test_damage_names_its_file(archive):
    save(TRIMAP + 1, archive / "annotations" / "trimaps" / "Abyssinian_1.png")
    (archive / "annotations" / "trimaps" / "pug_3.png").unlink()
    dataset = open_dataset(archive)

    with pytest.raises(DataError, match=r"Abyssinian_1.png' has the numbers \[4\]"):
        dataset[0]
    with pytest.raises(DataError, match=r"no mask at '.*pug_3.png'"):
        dataset[2]
    write(archive / "annotations" / "list.txt", "pug_3 3\n")
    with pytest.raises(DataError, match=r"line 1 of '.*list.txt' is 'pug_3 3'"):
        open_dataset(archive)


def test_masks_of_another_size_are_refused(archive):
    save(TRIMAP[:2], archive / "annotations" / "trimaps" / "Abyssinian_1.png")

    with pytest.raises(DataError, match="mask of 'Abyssinian_1' has 4×2 pixels and its image 4×4"):
        open_dataset(archive)[0]
