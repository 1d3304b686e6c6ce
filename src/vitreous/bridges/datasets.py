"""Maps as columns of a Hugging Face dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitreous import __version__
from vitreous.bench.keys import hash_weights
from vitreous.capture.argument_types import ModelInput
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.core.digests import digest
from vitreous.core.errors import DataError
from vitreous.front import explain
from vitreous.methods.spec import resolve
from vitreous.wrapping import as_model

if TYPE_CHECKING:
    from datasets import Dataset


def add_maps(
    dataset: Dataset, model: ModelInput, method: str = DEFAULT_METHOD, *, image: str = "image", batch_size: int = 32
) -> Dataset:
    """A dataset with the columns `map` (scores [rows][columns]), `target` and `score`.

    Parameters
    ----------
    dataset
        A `datasets.Dataset` with images.
    model
        A model, module or name, as for `vitreous.explain`.
    method
        Method spec; the predicted class is explained.
    image
        Name of the column that holds the images.
    batch_size
        Number of images explained at once.

    Returns
    -------
    datasets.Dataset
        The dataset with three more columns, computed and cached by `datasets` itself.

    Raises
    ------
    DataError
        If there is no such column.

    Examples
    --------
    >>> import datasets
    >>> import vitreous
    >>> from PIL import Image
    >>> from vitreous.bridges.datasets import add_maps
    >>> images = [Image.fromarray(vitreous.scenes.draw("single", seed=0, index=0).image)]
    >>> add_maps(datasets.Dataset.from_dict({"image": images}), vitreous.load("scenes"), "gradcam").column_names
    ['image', 'map', 'target', 'score']
    """
    if image not in dataset.column_names:
        raise DataError(
            f"the dataset has no column {image!r} among {', '.join(dataset.column_names)}; image=… names it"
        )
    seen = as_model(model)

    def explained(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        attribution = explain(seen, batch[image], method=method, batch_size=batch_size)
        assert attribution.score is not None
        return {
            "map": attribution.maps().float().cpu().tolist(),
            "target": attribution.targets.tolist(),
            "score": attribution.score.float().cpu().tolist(),
        }

    # `datasets` would name its cache by pickling the function, with the model and every module that it reaches: slow, and
    # different in every process
    weights = hash_weights(seen.module)
    decides = (dataset._fingerprint, weights, seen.name, resolve(method).spec, image, __version__)
    fingerprint = digest(*(piece.encode() for piece in decides))
    return dataset.map(explained, batched=True, batch_size=batch_size, new_fingerprint=fingerprint)
