"""What removed pixels are replaced by: baseline images, or (ROAD) an imputation from their neighbours, with added noise."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.threads import map_in_threads
from vitreous.core.errors import ModelError, SpecError
from vitreous.methods.masks import blur_images, seeded_noise
from vitreous.methods.random_control import fill_from_sources, generators
from vitreous.metrics.model_outputs import Index, Paint, PerturbedModel
from vitreous.models.tensor_types import Images
from vitreous.models.transforms import OpaquePreprocess

Baseline = Literal["blur", "blur-rise", "black", "mean", "random"]
Space = Literal["normalised", "pixels"]
# weights of the eight neighbours of a pixel: the four adjacent ones count twice as much as the four diagonal ones
NEIGHBOURS = {(y, x): 1 / 6 if 0 in (y, x) else 1 / 12 for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)}
PIXELS_AT_ONCE = 2**17  # in one sparse linear system


# ── baseline images ──────────────────────────────────────────────────────────────────────────────


def normalisation(probe: BlackBoxProbe) -> tuple[Float[Tensor, "c 1 1"], Float[Tensor, "c 1 1"]]:
    """Mean and standard deviation of the model's preprocessing, for pixel values in [0, 1]; ModelError if unknown."""
    preprocess = probe.vit.preprocess
    if preprocess is None or isinstance(preprocess, OpaquePreprocess):
        raise ModelError(
            f"what black is to {probe.vit.name!r} is not known: its preprocessing has no mean and std; wrap it with preprocess=…, or take a metric in space='normalised' ('insertion', 'deletion', 'idsds')"
        )
    mean, std = (torch.tensor(values).to(probe.images)[:, None, None] for values in (preprocess.mean, preprocess.std))
    return mean, std


def baseline_of(probe: BlackBoxProbe, baseline: str, space: str = "normalised", seed: int = 0) -> Images:
    """Baseline image of every image of the probe.

    Parameters
    ----------
    probe
        Model and images.
    baseline
        "blur" (Gaussian, kernel 11, sigma 5), "blur-rise" (the blur of RISE's code), "black", "mean" or "random".
    space
        Where the values are defined. "normalised", as published, means the model's input: black is 0 there, which is
        the dataset's mean colour; mean is one number for all channels; noise is uniform in [0, 1). "pixels" means
        before normalisation: black is black, mean is the mean colour of the image, and noise is uniform over all
        colours.
    seed
        Seed of the noise, which also depends on the content of the image.

    Returns
    -------
    Tensor
        Images [b 3 H W] in the model's input space.

    Raises
    ------
    ModelError
        If `space="pixels"` and the normalisation of the model is unknown.
    """
    images, pixels = probe.images, space == "pixels"
    mean, std = normalisation(probe) if pixels else (torch.zeros_like(images[0, :, :1, :1]), 1.0)
    if baseline == "blur":
        return blur_images(images, 11, 5.0)
    if baseline == "blur-rise":
        return (rise_blurred(images * std + mean) - mean) / std
    if baseline == "mean":
        return images.mean((2, 3) if pixels else (1, 2, 3), keepdim=True).expand_as(images)
    if baseline == "black":
        return (torch.zeros_like(images) - mean) / std
    if baseline != "random":
        raise SpecError(f"baseline={baseline!r}; known: 'blur', 'blur-rise', 'black', 'mean', 'random'")
    sources, shape = generators(probe.originals, seed), images.shape[1:]
    uniform = fill_from_sources(
        lambda place, source: place.uniform_(generator=source), sources, shape, images.device, torch.float64
    )
    return (uniform.to(images) - mean) / std


def rise_kernel(length: int = 11, sigma: float = 5.0) -> Float[Tensor, " length"]:
    """Blur kernel of RISE's code: a Gaussian truncated at 4 sigma, its tails reflected into a window of `length`."""
    reach = int(4 * sigma + 0.5)
    offset = torch.arange(-reach, reach + 1)
    weight = torch.exp(-(offset.double() ** 2) / (2 * sigma**2))
    place = (length // 2 + offset).remainder(2 * length)
    place = torch.minimum(place, 2 * length - 1 - place)
    return torch.zeros(length, dtype=torch.float64).scatter_add_(0, place, weight / weight.sum())


def rise_blurred(images: Images) -> Images:
    """Separable blur with `rise_kernel` and zero padding, as in RISE's code."""
    kernel = rise_kernel()
    half = len(kernel) // 2
    sides = []
    for length in images.shape[-2:]:
        gap = torch.arange(length)[:, None] - torch.arange(length) + half
        inside = (gap >= 0) & (gap < len(kernel))
        sides.append((kernel[gap.clamp(0, len(kernel) - 1)] * inside).to(images))
    return sides[0] @ images @ sides[1].mT


def paint_images(probe: BlackBoxProbe, rest: Images, key: tuple[Any, ...]) -> Paint:
    """Replace pixels that are not visible by those of the images `rest`; `key` as in `Paint`."""

    def fill(visible: Tensor, image: Index, _: Index) -> Images:
        return torch.where(visible[:, None], probe.images[image], rest[image])

    return Paint(fill, key)


def paint_baseline(model: PerturbedModel, baseline: str, space: str = "pixels", seed: int = 0) -> Paint:
    """Replace pixels that are not visible by those of a baseline (see `baseline_of`), which is computed once per batch."""
    key, probe = (baseline, space, *((seed,) if baseline == "random" else ())), model.probe
    return model.get_or_compute(
        f"baseline {key}", lambda: paint_images(probe, baseline_of(probe, baseline, space, seed), key)
    )


# ── imputation ───────────────────────────────────────────────────────────────────────────────────


def paint_imputed(probe: BlackBoxProbe, noise: float, seed: int) -> Paint:
    """Impute missing pixels, and add noise seeded by `seed` and the content of the image."""
    _, std = normalisation(probe)
    draw = seeded_noise(probe.originals, seed, probe.images.device)

    def fill(visible: Bool[Tensor, "k H W"], image: Index, count: Index) -> Images:
        filled = impute_pixels(probe.images[image], visible)
        return torch.where(visible[:, None], filled, filled + noise / std * draw(image, count).to(filled))

    return Paint(fill, ("filled", noise, seed))


def impute_pixels(images: Images, visible: Bool[Tensor, "k H W"]) -> Images:
    """Replace every pixel that is not visible by the weighted mean of its neighbours inside the image."""
    together = max(1, PIXELS_AT_ONCE // visible[0].numel())
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
