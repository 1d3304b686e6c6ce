"""Datasets: images with classes, masks and boxes, read lazily and converted by the model's preprocessing.

Examples
--------
>>> from vitreous import Preprocess
>>> from vitreous.data import batches, open_dataset
>>> pairs = open_dataset("scenes:pair?count=64")
>>> preprocess = Preprocess(size=(64, 64), resize=(64, 64))
>>> [len(batch) for batch in batches(pairs, preprocess, batch_size=32)]
[32, 32]
"""

from vitreous.data.batch import Batch, batches, subset
from vitreous.data.reader import READERS, open_dataset, reader
from vitreous.data.sample import Album, Dataset, Sample
from vitreous.data.subset_list import read_subset

__all__ = [
    "READERS",
    "Album",
    "Batch",
    "Dataset",
    "Sample",
    "batches",
    "open_dataset",
    "read_subset",
    "reader",
    "subset",
]


def __dir__() -> list[str]:
    return sorted(__all__)
