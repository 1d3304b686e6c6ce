"""Maps as heat maps of FiftyOne."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from vitreous.methods.attribution import Attribution


def heatmaps(attribution: Attribution) -> list[Any]:
    """One `fiftyone.Heatmap` per row, at the resolution of the patches; FiftyOne stretches it over the image.

    Parameters
    ----------
    attribution
        Maps; those that `vitreous.maps.read` gives back work too.

    Returns
    -------
    list of fiftyone.Heatmap
        With the range −m to m for signed maps and 0 to m otherwise, m being the largest absolute score. Assign them to a
        field of the samples: `sample["temper"] = heatmap`.

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution
    >>> from vitreous.bridges import fiftyone
    >>> from vitreous.models.vit import Layout
    >>> maps = Attribution(torch.tensor([[0.0, 1.0, -2.0, 0.5]]), Layout((2, 2), (16, 16), 0), torch.tensor([3]), "ixg")
    >>> fiftyone.heatmaps(maps)  # doctest: +SKIP
    """
    heatmap = import_module("fiftyone").Heatmap
    return [heatmap(map=scores, range=heat_range(scores)) for scores in heat_arrays(attribution)]


def heat_arrays(attribution: Attribution) -> list[np.ndarray]:
    """Maps as float32 arrays [rows, columns].

    Parameters
    ----------
    attribution
        The maps.

    Returns
    -------
    list of numpy.ndarray

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution
    >>> from vitreous.bridges import fiftyone
    >>> from vitreous.models.vit import Layout
    >>> maps = Attribution(torch.tensor([[0.0, 1.0, -2.0, 0.5]]), Layout((2, 2), (16, 16), 0), torch.tensor([3]), "ixg")
    >>> fiftyone.heat_arrays(maps)[0].shape
    (2, 2)
    """
    return [scores.float().cpu().numpy() for scores in attribution.maps()]


def heat_range(scores: np.ndarray) -> list[float]:
    """Range of a heat map: symmetric where scores are negative; never empty.

    Parameters
    ----------
    scores
        One map.

    Returns
    -------
    list of float
        Lower and upper end.

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution
    >>> from vitreous.bridges import fiftyone
    >>> from vitreous.models.vit import Layout
    >>> maps = Attribution(torch.tensor([[0.0, 1.0, -2.0, 0.5]]), Layout((2, 2), (16, 16), 0), torch.tensor([3]), "ixg")
    >>> fiftyone.heat_range(fiftyone.heat_arrays(maps)[0])
    [-2.0, 2.0]
    """
    largest = float(np.nanmax(np.abs(scores), initial=0.0)) or 1.0
    return [-largest if bool((scores < 0).any()) else 0.0, largest]
