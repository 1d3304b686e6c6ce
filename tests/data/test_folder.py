"""A plain folder of images, with and without annotations."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.data.making import noise, save, turned, write
from vitreous.core.errors import DataError
from vitreous.data import batches, open_dataset
from vitreous.models.image_input import Preprocess


def test_a_folder_of_images(tmp_path):
    for name in ("b.PNG", "a.jpg", "deep/c.webp", ".hidden.png", "._a.jpg"):
        save(noise(), tmp_path / name, format="PNG")
    write(tmp_path / "notes.txt", "")

    dataset = open_dataset(tmp_path)

    assert dataset.keys == ["a.jpg", "b.PNG", "deep/c.webp"]
    assert dataset.classes is None
    sample = dataset[1]
    assert (sample.key, sample.label, sample.mask, sample.boxes) == ("b.PNG", None, None, None)
    assert sample.image.tobytes() == noise().tobytes()


def test_a_folder_with_labels_boxes_and_masks(tmp_path):
    for name in ("a.png", "b.png", "c.png"):
        save(noise(), tmp_path / "images" / name)
    ids = np.zeros((8, 12), dtype=np.uint8)
    ids[2:5, 3:9], ids[0] = 7, 255
    save(ids, tmp_path / "masks" / "a.png")
    write(tmp_path / "labels.csv", "file,label\nimages/a.png,4\nb.png,2\n")
    write(
        tmp_path / "boxes.csv",
        "file,label,width,height,x0,y0,x1,y1\na.png,4,24,16,6,4,18,10\na.png,5,24,16,0,0,24,16\nb.png,,,,1,2,3,4\n",
    )

    dataset = open_dataset(f"{tmp_path}?ignore=255")
    a, b, c = (dataset[index] for index in range(3))

    assert [one.label for one in (a, b, c)] == [4, 2, None]
    assert a.boxes.tolist() == [[3, 2, 9, 5]]  # drawn in an image of twice the size; class 5 is another's
    assert b.boxes.tolist() == [[1, 2, 3, 4]]
    assert c.boxes is None
    assert np.array_equal(a.mask, np.where(ids == 255, -1, ids == 7))
    assert b.mask is None
    assert (open_dataset(tmp_path)[0].mask[0] == 1).all()  # 255 is an object unless it is declared as ignored


def test_one_folder_per_class(tmp_path):
    for name in ("dogs/a.png", "cats/b.png", "cats/c.png"):
        save(noise(), tmp_path / name)

    dataset = open_dataset(tmp_path)

    assert dataset.classes == ("cats", "dogs")
    assert [dataset[index].label for index in range(3)] == [0, 0, 1]
    assert open_dataset(f"folder:{tmp_path}?labels=none")[0].label is None


def test_imagenet_classes_by_wordnet_id(tmp_path):
    save(noise(), tmp_path / "a.png")
    write(tmp_path / "labels.csv", "file,wnid\na.png,n02391049\n")

    dataset = open_dataset(tmp_path)

    assert dataset[0].label == 340
    assert dataset.classes[340] == "zebra"


@pytest.mark.parametrize(
    ("table", "text", "said"),
    [
        (
            "labels.csv",
            "file,label,wnid\na.png,3,n02391049\n",
            "line 2 of '.*labels.csv' says class 3 and n02391049, which is class 340",
        ),
        ("labels.csv", "file,label\na.png,zebra\n", "line 2 of '.*labels.csv' has 'zebra' where a whole number"),
        ("labels.csv", "file,label\na.png,-2\n", "class -2; classes count from 0"),
        ("labels.csv", "picture,label\na.png,1\n", "labels.csv' has no column file"),
        ("labels.csv", "file,colour\na.png,1\n", "says no class"),
        ("labels.csv", "file,label\nother.png,1\n", "labels.csv' names none of the images"),
        ("labels.csv", "file,wnid\na.png,n1\n", "'n1', which is not a class"),
        ("boxes.csv", "file,x0,y0,x1,y1\na.png,1,2,3,\n", "line 2 of '.*boxes.csv' has '' where a number"),
        ("boxes.csv", "file,x0,y0,x1,y1\na.png,1\n", "line 2 of '.*boxes.csv' is cut short"),
        (
            "boxes.csv",
            "file,label,x0,y0,x1,y1\na.png,1,1,2,3,4\na.png,2,1,2,3,4\n",
            r"classes \[1, 2\] for 'a.png'; labels.csv must",
        ),
    ],
)
def test_a_wrong_table_names_its_line(tmp_path, table, text, said):
    save(noise(), tmp_path / "a.png")
    write(tmp_path / table, text)

    with pytest.raises(DataError, match=said):
        open_dataset(tmp_path)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_annotations_are_rotated_with_their_image(tmp_path, orientation):
    """Masks and boxes are of the pixels as stored; the image is shown upright, and they follow it."""
    pixels = np.zeros((10, 16, 3), dtype=np.uint8)
    pixels[2:5, 3:11] = 255
    save(pixels, tmp_path / "images" / "a.png", exif=turned(orientation))
    save(pixels[..., 0], tmp_path / "masks" / "a.png")
    write(tmp_path / "boxes.csv", "file,x0,y0,x1,y1,width,height\na.png,3,2,11,5,16,10\n")

    sample = open_dataset(tmp_path)[0]

    white = np.asarray(sample.image)[..., 0] > 0
    assert sample.image.size == ((10, 16) if orientation >= 5 else (16, 10))
    assert np.array_equal(sample.mask == 1, white)
    rows, columns = np.flatnonzero(white.any(1)), np.flatnonzero(white.any(0))
    assert sample.boxes.tolist() == [[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]]


def test_damaged_files_are_rows_of_failure(tmp_path):
    for name in ("a.png", "b.png", "c.png", "d.png"):
        save(noise(), tmp_path / "images" / name)
    (tmp_path / "images" / "b.png").write_bytes(b"no image")
    write(tmp_path / "masks" / "c.png", "no mask")
    save(noise(), tmp_path / "masks" / "d.png")

    (batch,) = batches(open_dataset(tmp_path), Preprocess.plain(8))

    assert batch.keys == ("a.png",)
    assert [key for key, _ in batch.failures] == ["b.png", "c.png", "d.png"]
    for (_, sentence), word in zip(batch.failures, ("not an image", "damaged", "in colour"), strict=True):
        assert word in sentence
        assert str(tmp_path) in sentence


def test_grey_and_palette_masks_are_numbers(tmp_path):
    ids = (np.arange(96).reshape(8, 12) % 3).astype(np.uint8)
    palette = Image.fromarray(ids)
    palette.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    for name, mask in {"a": palette, "b": Image.fromarray(ids).convert("RGB"), "c": Image.fromarray(ids > 0)}.items():
        save(noise(), tmp_path / "images" / f"{name}.png")
        save(mask, tmp_path / "masks" / f"{name}.png")

    dataset = open_dataset(tmp_path)

    for index in range(3):
        assert np.array_equal(dataset[index].mask, ids != 0)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="no image in"):
        open_dataset(tmp_path)
