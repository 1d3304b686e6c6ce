"""gtsegs_ijcv.mat: references, transposes, a file per thread."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from tests.data.making import noise, write
from tests.lazy import LazyModule
from vitreous.core.errors import DataError
from vitreous.data import batches, open_dataset
from vitreous.models.image_input import Preprocess

h5py = LazyModule("h5py")
SIZES = [(7, 5), (6, 9), (8, 4)]  # width, height


def outline(index: int) -> np.ndarray:
    width, height = SIZES[index]
    return np.random.default_rng(index).integers(0, 2, (height, width), dtype=np.uint8)


@pytest.fixture
def matlab(tmp_path):
    """As MATLAB writes it: columns first, cells as references, an outline within a cell of its own."""
    path = tmp_path / "gtsegs_ijcv.mat"
    with h5py.File(path, "w") as file:
        store = file.create_group("#refs#")
        img, gt = (file.create_dataset(f"value/{name}", (3, 1), dtype=h5py.ref_dtype) for name in ("img", "gt"))
        for index, size in enumerate(SIZES):
            pixels = np.asarray(noise(*size, index))
            stored = pixels[..., 0].T if index == 1 else pixels.transpose(2, 1, 0)  # some are grey
            img[index, 0] = store.create_dataset(f"i{index}", data=stored).ref
            inner = store.create_dataset(f"c{index}", (1, 1), dtype=h5py.ref_dtype)
            inner[0, 0] = store.create_dataset(f"g{index}", data=outline(index).T).ref
            gt[index, 0] = inner.ref
    return path


def test_images_and_outlines_are_read(matlab):
    dataset = open_dataset(matlab)

    assert dataset.keys == ["00000", "00001", "00002"]
    for index, size in enumerate(SIZES):
        sample = dataset[index]
        pixels = np.asarray(noise(*size, index))
        expected = np.repeat(pixels[..., :1], 3, 2) if index == 1 else pixels
        assert np.array_equal(np.asarray(sample.image), expected)
        assert np.array_equal(sample.mask, outline(index))
        assert sample.label is None


def test_every_thread_and_process_opens_the_file(matlab):
    dataset = open_dataset(f"imagenet-seg:{matlab}")
    dataset[0]

    sees = Preprocess((8, 8), (8, 8))
    (alone,), (together,) = (list(batches(dataset, sees, workers=n)) for n in (0, 3))
    copy = pickle.loads(pickle.dumps(dataset))

    assert torch.equal(alone.images, together.images)
    assert torch.equal(alone.objects, together.objects)
    assert alone.labels.tolist() == [-1, -1, -1]
    assert np.array_equal(copy[2].mask, outline(2))


def test_damaged_files_are_reported(matlab, tmp_path):
    with pytest.raises(DataError, match=r"no.mat' is damaged or not HDF5"):
        open_dataset(write(tmp_path / "no.mat", "MATLAB 5.0 MAT-file"))
    with h5py.File(tmp_path / "odd.mat", "w") as file:
        file.create_dataset("value/img", (3, 1), dtype=h5py.ref_dtype)
    with pytest.raises(DataError, match=r"odd.mat' has no /value/gt"):
        open_dataset(tmp_path / "odd.mat")
    with h5py.File(matlab, "a") as file:
        file["#refs#/g0"][0, 0] = 9
        file["value/img"][1, 0] = h5py.Reference()
    (batch,) = batches(open_dataset(matlab), Preprocess.plain(8))
    assert batch.keys == ("00002",)
    assert "outline of image 0" in batch.failures[0][1]
    assert "image 1 of" in batch.failures[1][1]
