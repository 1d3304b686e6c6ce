"""ROAD: removed pixels are imputed from their neighbours, with added noise."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.threads import map_in_threads
from vitreous.core.errors import ModelError, SpecError
from vitreous.methods.masks import seeded_noise as noise_of
from vitreous.methods.options import Positive, Seed
from vitreous.metrics.baselines import normalisation
from vitreous.metrics.metric_result import Measured
from vitreous.metrics.model_outputs import Class, Index, Paint, PerturbedModel, perturbation_metric
from vitreous.metrics.order import TENTHS, Area, Levels, Order, Show, check_levels, summarise_curve
from vitreous.models.tensor_types import Images

# weights of the eight neighbours of a pixel: the four adjacent ones count twice as much as the four diagonal ones
NEIGHBOURS = {(y, x): 1 / 6 if 0 in (y, x) else 1 / 12 for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)}
ROOM = 2**17  # pixels per sparse linear system


@perturbation_metric(
    higher_is_better=False,
    formula="area under r ↦ [arg max f(x, the top r of pixels filled in from their neighbours) = label]",
    bounds=(0, 1),
    forwards="1 + levels",
    paper="rong2022consistent",
    trial={"levels": (0.25, 0.5, 0.75)},
    presets={"released": {"levels": (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9), "noise": 0.01, "judge": "label"}},
)
def road(
    model: PerturbedModel,
    levels: Levels = TENTHS,
    judge: Class = "label",
    order: Order = "descending",
    noise: Positive = 0.01,
    area: Area = "normalised",
    show: Show = "fraction",
    seed: Seed = 0,
) -> Measured:
    """Accuracy as the highest pixels are filled in from their neighbours.

    Every missing pixel is the weighted mean of its eight neighbours, all of them at once, and noise of deviation `noise` (of
    values in [0, 1]) hides which pixels they are. `judge`: "label", "predicted" or "explained"; `order="ascending"`:
    the lowest pixels first. The part `probability` is the mean probability of the predicted class.
    """
    levels = check_levels("levels", levels)
    if levels[-1] == 1:
        raise SpecError("levels end below 1: of an image without a pixel nothing can be filled in")
    outputs = model.outputs_without_pixels(levels, order, paint_imputed(model.probe, noise, seed))
    parts = {"probability": outputs.probability("predicted")[0]}
    return summarise_curve(model.attribution, outputs.hits(judge), levels, area, show, order == "ascending", parts)


def paint_imputed(probe: BlackBoxProbe, noise: float, seed: int) -> Paint:
    """Impute missing pixels, and add noise seeded by `seed` and the content of the image."""
    _, std = normalisation(probe)
    draw = noise_of(probe.originals, seed, probe.images.device)

    def fill(visible: Bool[Tensor, "k H W"], image: Index, count: Index) -> Images:
        filled = impute_pixels(probe.images[image], visible)
        return torch.where(visible[:, None], filled, filled + noise / std * draw(image, count).to(filled))

    return Paint(fill, ("filled", noise, seed))


def impute_pixels(images: Images, visible: Bool[Tensor, "k H W"]) -> Images:
    """Replace every pixel that is not visible by the weighted mean of its neighbours inside the image."""
    together = max(1, ROOM // visible[0].numel())
    # SuperLU releases the GIL, so the threads run in parallel
    return torch.cat(map_in_threads(solve_pixels, images.split(together), visible.split(together)))


def solve_pixels(images: Images, visible: Bool[Tensor, "k H W"]) -> Images:
    """Solve one sparse float64 system for a group of images directly, with one unknown per missing pixel."""
    try:
        from scipy.sparse import csc_matrix
        from scipy.sparse.linalg import splu
    except ImportError:
        raise ModelError("metric 'road' solves sparse systems with scipy; pip install 'vitreous[regions]'") from None
    missing = ~visible.cpu().numpy()
    if not missing.any():
        return images
    unknown = np.full(missing.shape, -1)
    count = int(missing.sum())
    unknown[missing] = np.arange(count)
    values = images.movedim(1, -1).double().cpu().numpy()
    around = np.pad(unknown, ((0, 0), (1, 1), (1, 1)), constant_values=-2)  # −1: visible pixel, −2: outside the image
    colours = np.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)))
    own, known_colours = np.zeros(count), np.zeros((count, values.shape[-1]))
    rows, columns, weights = [], [], []
    height, width = missing.shape[1:]
    for (down, right), weight in NEIGHBOURS.items():
        window = np.s_[:, 1 + down : 1 + down + height, 1 + right : 1 + right + width]
        near = around[window][missing]
        own += weight * (near > -2)
        known_colours += weight * (near == -1)[:, None] * colours[window][missing]
        rows.append(np.flatnonzero(near >= 0))
        columns.append(near[near >= 0])
        weights.append(np.full(len(rows[-1]), -weight))
    every = np.arange(count)
    matrix = csc_matrix(
        (np.concatenate([own, *weights]), (np.concatenate([every, *rows]), np.concatenate([every, *columns]))),
        shape=(count, count),
    )
    # the matrix is symmetric positive definite: no pivoting needed, and a symmetric ordering gives the least fill-in
    factors = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    values[missing] = factors.solve(known_colours)
    return torch.from_numpy(values).movedim(-1, 1).to(images)
