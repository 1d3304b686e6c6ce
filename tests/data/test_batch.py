"""Images, masks and boxes are transformed alike; a broken image becomes a failure and does not stop the others."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.making import noise
from vitreous.core.errors import DataError, SpecError
from vitreous.data import Album, Sample, batches, open_dataset, subset
from vitreous.models.image_input import Preprocess

SEES = Preprocess((16, 16), (20, 20), "shortest")


def album(samples: list[Sample | None], name: str = "test") -> Album:
    def read(index: int) -> Sample:
        sample = samples[index]
        if sample is None:
            raise DataError(f"'{index}.jpg' is damaged")
        return sample

    keys = [f"a/{index}" if one is None else one.key for index, one in enumerate(samples)]
    return Album(name, keys, read)


def mask_of(width: int, height: int, x0: int, y0: int, x1: int, y1: int) -> np.ndarray:
    mask = np.zeros((height, width), dtype=np.int8)
    mask[y0:y1, x0:x1] = 1
    return mask


def test_a_batch_has_annotations_in_model_coordinates():
    samples = [
        Sample("a", noise(40, 30), 3, mask_of(40, 30, 5, 0, 35, 30), np.array([[5.0, 0, 35, 30]])),
        Sample("b", noise(30, 40, 1)),
        Sample("c", noise(40, 30, 2), 1, mask_of(40, 30, 0, 0, 4, 4), np.array([[0.0, 0, 4, 4]])),
    ]

    (batch,) = batches(album(samples), SEES)

    assert batch.keys == ("a", "b", "c")
    assert torch.equal(batch.images, SEES.batch([one.image for one in samples]))
    assert batch.labels.tolist() == [3, -1, 1]
    assert [one.size for one in batch.originals] == [(40, 30), (30, 40), (40, 30)]
    assert torch.equal(batch.objects[0], SEES.masks(samples[0].mask))
    assert (batch.objects[1] == -1).all()  # it has no annotation
    assert (batch.objects[2] == 0).all()  # cut away
    assert batch.boxes[0].tolist() == SEES.boxes(samples[0].boxes, (30, 40)).tolist()
    assert batch.boxes[1] is None
    assert batch.boxes[2].shape == (0, 4)
    assert batch.rivals is None
    assert batch.failures == batch.skipped == []


def test_annotations_that_no_image_has_are_none():
    (batch,) = batches(album([Sample("a", noise())]), SEES)

    assert (batch.objects, batch.boxes, batch.rivals, batch.rival_labels) == (None, None, None, None)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_damaged_image_is_a_failure_and_the_others_are_read(workers):
    samples = [Sample(str(i), noise(seed=i), i) if i not in (1, 4, 5) else None for i in range(7)]

    found = list(batches(album(samples), SEES, batch_size=2, workers=workers))

    assert [batch.keys for batch in found] == [("0",), ("2", "3"), (), ("6",)]
    assert [len(batch) for batch in found] == [1, 2, 0, 1]
    assert found[2].images.shape == (0, 3, 16, 16)
    assert [key for batch in found for key, _ in batch.failures] == ["a/1", "a/4", "a/5"]
    assert found[0].failures == [("a/1", "'1.jpg' is damaged")]


@pytest.mark.slow
def test_the_number_of_threads_does_not_matter():
    dataset = open_dataset("scenes:pair?count=7")
    order = subset(dataset, 6, seed=1)

    alone, together = (list(batches(dataset, SEES, order, batch_size=4, workers=n)) for n in (0, 3))

    assert [batch.keys for batch in alone] == [
        tuple(dataset.keys[i] for i in order[:4]),
        tuple(dataset.keys[i] for i in order[4:]),
    ]
    for one, other in zip(alone, together, strict=True):
        assert one.keys == other.keys
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.objects, other.objects)
        assert torch.equal(one.rivals, other.rivals)
        assert one.rival_labels.tolist() == other.rival_labels.tolist()


def test_reading_ahead_is_bounded_and_ends_with_the_reader():
    begun = []

    def read(index: int) -> Sample:
        begun.append(index)
        return Sample(str(index), noise())

    before = threading.active_count()
    running = batches(Album("long", [str(i) for i in range(1000)], read), SEES, batch_size=4, workers=2)
    assert begun == []  # images are read lazily
    next(running)
    running.close()

    assert len(begun) <= 4 + 4 + 2 + 1
    assert threading.active_count() == before


def test_a_mistake_in_a_reader_is_not_hidden():
    def read(index: int) -> Sample:
        raise KeyError(index)

    with pytest.raises(KeyError):
        list(batches(Album("wrong", ["a"], read), SEES))


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"workers": -1}])
def test_senseless_sizes_are_refused(options):
    with pytest.raises(SpecError, match="would work"):
        batches(album([]), SEES, **options)


def test_a_mask_must_fit_its_image():
    with pytest.raises(DataError, match=r"mask of 'a' has 12×9 pixels and its image 12×8"):
        Sample("a", noise(12, 8), 0, np.zeros((9, 12), dtype=np.int8))


# ── the largest visible class ─────────────────────────────────────────────────────────────────────


def two_classes(cover: float) -> Sample:
    """Class 5 is largest in the image but near its border; class 9 is largest after the crop."""
    rim, middle = mask_of(64, 16, 0, 0, 22, 16), mask_of(64, 16, 28, 4, 36, 12)
    return Sample("a", noise(64, 16), 5, rim, None, {9: middle}, cover)


def test_the_default_class_is_the_largest_visible_object():
    sees = Preprocess((16, 16), (16, 16), "shortest")

    (batch,) = batches(album([two_classes(0.0)]), sees)

    assert batch.labels.tolist() == [9]
    assert batch.objects.sum() == 64
    assert batch.rivals is None  # nothing of class 5 is in sight


@pytest.mark.parametrize(("cover", "kept"), [(0.0, 1), (0.25, 1), (0.26, 0)])
def test_a_class_too_small_is_skipped_not_broken(cover, kept):
    (batch,) = batches(album([two_classes(cover)]), Preprocess((16, 16), (16, 16), "shortest"))

    assert len(batch) == kept
    assert batch.failures == []
    assert batch.skipped == ([] if kept else [("a", "the largest class covers 25.0% of what the model sees")])


def test_an_image_without_class_is_skipped():
    (batch,) = batches(album([Sample("a", noise(), cover=0.0)]), SEES)

    assert batch.skipped == [("a", "the largest class covers 0.0% of what the model sees")]


def test_the_largest_other_object_is_the_rival():
    sees = Preprocess((16, 16), (16, 16), "shortest")
    masks = {label: mask_of(16, 16, 0, 0, side, side) for label, side in ((2, 4), (7, 9), (8, 9))}
    samples = [
        Sample("a", noise(16, 16), 1, mask_of(16, 16, 12, 12, 16, 16), None, masks),
        Sample("b", noise(16, 16), 1),
    ]

    (batch,) = batches(album(samples), sees)

    assert batch.rival_labels.tolist() == [7, -1]
    assert batch.rivals[0].sum() == 81
    assert (batch.rivals[1] == -1).all()


# ── which images ───────────────────────────────────────────────────────────────────────────────


def test_a_subset_is_numpys_permutation_of_the_sorted_names():
    keys = ["val/n2/c", "val/n1/d", "val/n3/a", "val/n0/b", "val/n9/e"]  # by name: a b c d e
    dataset = Album("five", keys, lambda index: Sample(keys[index], noise()))

    chosen = subset(dataset, 3, seed=42)

    names = np.array(["a", "b", "c", "d", "e"])[np.random.default_rng(42).permutation(5)[:3]]
    assert [keys[index].rsplit("/", 1)[-1] for index in chosen] == names.tolist()
    assert subset(dataset, 2, None) == (0, 1)
    assert sorted(subset(dataset, None, 0)) == [0, 1, 2, 3, 4]
    with pytest.raises(SpecError, match="five has 5 images, so 6 cannot be chosen"):
        subset(dataset, 6, 0)


def test_places_count_from_both_ends_and_no_further():
    dataset = open_dataset("scenes:single?count=3")

    assert dataset[-1].key == dataset[2].key == dataset.keys[2]
    with pytest.raises(IndexError, match="scenes has 3 images, none at 3"):
        dataset[3]


def test_an_upright_image_is_not_rotated_again():
    picture = Image.fromarray(np.asarray(noise(20, 10)))
    (batch,) = batches(album([Sample("a", picture)]), SEES)

    assert torch.equal(batch.images[0], SEES(picture))


def test_an_inverted_box_is_an_error():
    with pytest.raises(DataError, match="a box of 'a' ends before it begins"):
        Sample("a", noise(20, 10), 1, boxes=np.asarray([[9.0, 2.0, 3.0, 4.0]]))
