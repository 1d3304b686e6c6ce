"""Data sets: pictures with their classes, masks and boxes, read lazily and carried through the model's preprocessing.

>>> from vitreous.data import batches, open_dataset
>>> pairs = open_dataset("scenes:pair?count=64")
>>> for batch in batches(pairs, vit.preprocess): batch.images, batch.labels, batch.objects
"""

from vitreous.data.batch import Batch, batches, subset
from vitreous.data.open import open_dataset
from vitreous.data.reader import READERS, reader
from vitreous.data.sample import Album, Dataset, Sample

__all__ = ["READERS", "Album", "Batch", "Dataset", "Sample", "batches", "open_dataset", "reader", "subset"]
