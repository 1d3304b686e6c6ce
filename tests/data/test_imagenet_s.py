"""ImageNet-S: classes from colours; the largest visible class is explained."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.making import GOLDFISH, TENCH, ZEBRA, noise, save, write
from vitreous.core.errors import DataError, SpecError
from vitreous.data import batches, open_dataset
from vitreous.models.class_names import wnids
from vitreous.models.image_input import Preprocess


def painted(ids: np.ndarray) -> np.ndarray:
    """R + 256·G, as the authors store it."""
    return np.stack([ids % 256, ids // 256, np.zeros_like(ids)], -1).astype(np.uint8)


def put(root, wnid: str, name: str, ids: np.ndarray) -> None:
    save(noise(ids.shape[1], ids.shape[0]), root / "validation" / wnid / f"{name}.JPEG")
    save(painted(ids), root / "validation-segmentation" / wnid / f"{name}.png")


def strip(*counts: tuple[int, int]) -> np.ndarray:
    """Columns of classes, 10 high."""
    return np.repeat(np.concatenate([np.full(width, one) for one, width in counts])[None], 10, 0)


@pytest.fixture
def three(tmp_path):
    root = tmp_path / "ImageNetS3"
    write(root / "ImageNetS_categories_im3.txt", f"{TENCH}\n{GOLDFISH}\n{ZEBRA}\n")
    put(root, ZEBRA, "ILSVRC2012_val_00000002", strip((0, 10), (3, 6), (1000, 4)))
    put(root, TENCH, "ILSVRC2012_val_00000001", strip((1, 8), (0, 4), (2, 5), (0, 3)))
    return root


def test_classes_masks_and_rivals(three):
    dataset = open_dataset(three)
    tench, zebra = dataset[0], dataset[1]

    assert dataset.keys == [
        f"validation/{TENCH}/ILSVRC2012_val_00000001",
        f"validation/{ZEBRA}/ILSVRC2012_val_00000002",
    ]
    assert dataset.name == "imagenet-s-3"
    assert (tench.label, list(tench.rivals), zebra.label) == (0, [1], 340)
    assert np.array_equal(tench.mask, strip((1, 8), (0, 12)))
    assert np.array_equal(tench.rivals[1], strip((0, 12), (1, 5), (0, 3)))
    assert np.array_equal(zebra.mask, strip((0, 10), (1, 6), (0, 4)))  # ignored pixels count as background
    assert dataset.classes[340] == "zebra"


def test_ignored_pixels_can_be_left_out(three):
    zebra = open_dataset(f"imagenet-s:{three}?ignored=exclude")[1]

    assert np.array_equal(zebra.mask, strip((0, 10), (1, 6), (-1, 4)))


def test_the_class_is_the_largest_visible_and_small_ones_are_skipped(three):
    sees = Preprocess((10, 10), (10, 10), "shortest")  # columns 5 to 15: 3 of class 1, 3 of class 2; 5 of class 3

    (batch,) = batches(open_dataset(three), sees)
    assert batch.labels.tolist() == [0, 340]  # of equals the first
    assert batch.rival_labels.tolist() == [1, -1]
    (batch,) = batches(open_dataset(f"imagenet-s:{three}?cover=0.4"), sees)
    assert batch.labels.tolist() == [340]
    assert [key for key, _ in batch.skipped] == [f"validation/{TENCH}/ILSVRC2012_val_00000001"]


def test_an_image_without_a_class_is_skipped(three):
    put(three, TENCH, "ILSVRC2012_val_00000000", strip((0, 10), (1000, 10)))

    (batch,) = batches(open_dataset(three), Preprocess.plain(10), [0])

    assert (len(batch), len(batch.skipped), batch.failures) == (0, 1, [])


def fifty(root, count: int = 50) -> None:
    for wnid in wnids()[:count]:
        (root / "validation-segmentation" / wnid).mkdir(parents=True)


def test_classes_beyond_a_byte(tmp_path):
    listed = "\n".join(wnids()[:400])
    write(tmp_path / "ImageNetS_categories_im400.txt", listed)
    put(tmp_path, wnids()[299], "a", strip((300, 20)))

    sample = open_dataset(tmp_path)[0]

    assert sample.label == 299
    assert (sample.mask == 1).all()


def test_all_folders_are_as_good_as_the_list(tmp_path):
    fifty(tmp_path)
    put(tmp_path, wnids()[7], "a", strip((8, 20)))
    assert open_dataset(tmp_path)[0].label == 7
    assert open_dataset(tmp_path).name == "imagenet-s-50"

    (tmp_path / "validation-segmentation" / wnids()[3]).rmdir()
    with pytest.raises(DataError, match="49 folders are not all of 50, 300 or 919"):
        open_dataset(tmp_path)


def test_the_list_may_be_next_to_the_folder(tmp_path):
    put(tmp_path / "ImageNetS2", GOLDFISH, "a", strip((2, 20)))
    write(tmp_path / "categories" / "ImageNetS_categories_im2.txt", f"{TENCH}\n{GOLDFISH}\n")

    assert open_dataset(tmp_path / "ImageNetS2")[0].label == 1
    other = write(tmp_path / "own.txt", f"{TENCH}\n{ZEBRA}\n")
    assert open_dataset(tmp_path / "ImageNetS2", categories=other)[0].label == 340


def test_merged_classes(tmp_path):
    """Sunglasses (837) are painted as sunglass (836); an image that still lies in its own folder keeps its class."""
    write(tmp_path / "ImageNetS_categories_im1.txt", "n04355933\n")
    put(tmp_path, "n04355933", "a", strip((1, 20)))
    put(tmp_path, "n04356056", "b", strip((1, 20)))

    dataset = open_dataset(tmp_path)

    assert [dataset[0].label, dataset[1].label] == [836, 837]


def test_invalid_arguments_are_refused(three):
    with pytest.raises(SpecError, match=r"cover=5; a share from 0 to 1"):
        open_dataset(f"imagenet-s:{three}?cover=5")
    save(painted(strip((9, 20))), three / "validation-segmentation" / TENCH / "ILSVRC2012_val_00000001.png")
    with pytest.raises(DataError, match=r"00000001.png' has the class 9; 3 are known"):
        open_dataset(three)[0]
    save(np.zeros((10, 20), dtype=np.uint8), three / "validation-segmentation" / TENCH / "ILSVRC2012_val_00000001.png")
    with pytest.raises(DataError, match="not in colour"):
        open_dataset(three)[0]
    (three / "validation-segmentation" / ZEBRA / "ILSVRC2012_val_00000002.png").unlink()
    with pytest.raises(DataError, match=r"no mask at '.*00000002.png'"):
        open_dataset(three)[1]
