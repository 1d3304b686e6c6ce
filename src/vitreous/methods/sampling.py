"""Perturbation methods, which hide or show parts of the image and compare scores: occlusion, RISE, PAMI, HSIC.

With `space="tokens"` patches are removed from the encoder; with `space="pixels"` they are painted over, which works
for any classifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.pixels import ImageVariants, Index
from vitreous.core.errors import SpecError
from vitreous.methods.map_arrays import patch_sums
from vitreous.methods.masks import Masks, SmoothMasks, Windows, blur_images, sum_masks, vary_by_masks
from vitreous.methods.method import Method
from vitreous.methods.options import Cells, Count, Number, PartialShare, Pixels, Range, Seed
from vitreous.methods.pass_counts import ModelSizes
from vitreous.methods.regions import count_regions, many_regions, square_of
from vitreous.methods.register_method import method
from vitreous.methods.run import score_and_logits
from vitreous.models.tensor_types import PatchScores, PixelScores

IN_PIXELS: dict[str, Any] = {"space": "pixels"}
PERTURBATION: dict[str, Any] = {
    "family": "Perturbation",
    "class_specific": True,
    "backwards": 0,
    "shares_forward": True,
}
MEAN_SCORE: dict[str, Any] = {"signed": False, "native": "pixel", "question": "probability", "averages": True}
Pair = tuple[int, int]
Space = Literal["tokens", "pixels"]
Regions = Literal["slic", "felzenszwalb", "watershed", "circles"]
Fill = Literal["blur", "black"]
Shift = Annotated[int, Range(-65_536, 65_536)]
KernelSize = Annotated[int, Range(1, 10_000)]  # number of masks m whose m x m kernel matrix fits into memory


def full_score(probe: BlackBoxProbe) -> Float[Tensor, "r 1"]:
    """Score of the whole image."""
    return score_and_logits(probe)["score"][:, None]


# ── occlusion ────────────────────────────────────────────────────────────────────────────────────


def slide_windows(size: Pair, patch: Pair, window: int | None, stride: int | None, device: torch.device) -> Windows:
    """Windows of `occlusion`, by default as large as a patch and side by side."""
    wide = patch if window is None else (window, window)
    return Windows.sliding(size, wide, wide if stride is None else (stride, stride), device)


def count_windows(method: Method, sizes: ModelSizes) -> dict[str, int]:
    """Windows that are painted over count as patches."""
    settings = method.settings
    if settings["space"] == "tokens":
        return {}
    sides = sizes["size"], sizes["patch"], settings["window"], settings["stride"]
    return {"patches": len(slide_windows(*sides, torch.device("cpu")))}


def enlarge_windows(method: Method, sizes: ModelSizes) -> Iterator[dict[str, Any]]:
    """Windows side by side, of growing size."""
    for side in growing_sides(sizes):
        yield {"space": "pixels", "window": side, "stride": side}


def growing_sides(sizes: ModelSizes) -> range:
    """Multiples of 8 pixels, up to half of the image."""
    return range(8, max(sizes["size"]) // 2 + 1, 8)


@method(
    "occlusion",
    formula="sⱼ = t(x) − t(x without patch j)",
    signed=True,
    black_box=IN_PIXELS,
    forwards="1 + patches",
    counts=count_windows,
    coarser=enlarge_windows,
    paper="zeiler2014visualizing",
    presets={"captum": {"space": "pixels", "baseline": 0.0}},
    precision="float32",
    **PERTURBATION,
)
def occlusion(
    probe: BlackBoxProbe,
    space: Space = "tokens",
    window: Pixels | None = None,
    stride: Pixels | None = None,
    baseline: Number = 0.0,
) -> PatchScores | PixelScores:
    """Decrease of the score when one patch is removed, or when a window is painted over.

    Parameters
    ----------
    space
        "tokens" removes patches; "pixels" paints over windows, and averages where they overlap.
    window
        Side of the window in pixels; None for the size of a patch.
    stride
        Stride of the window in pixels; None for its size.
    baseline
        Value that is painted, in normalised units.
    """
    if space == "tokens":
        patches = probe.layout.patches
        keep = ~torch.eye(patches, dtype=torch.bool, device=probe.images.device)
        return full_score(probe) - probe.score(keep.expand(len(probe.images), -1, -1))
    size = probe.layout.size
    patch = square_of(size) if probe.black_box else probe.layout.patch
    windows = slide_windows(size, patch, window, stride, probe.images.device)

    def hidden(row: Index, place: Index) -> Float[Tensor, "k colours H W"]:
        return probe.images[row].masked_fill(windows(place)[:, None], baseline)

    fallen = full_score(probe) - probe.pixel_score(ImageVariants(len(probe.images), len(windows), hidden))
    return windows.mean(fallen)


# ── RISE ─────────────────────────────────────────────────────────────────────────────────────────


@method(
    "rise",
    formula="s(u) = Σₘ t(x ⊙ Mₘ) Mₘ(u) / (M p)",
    trial={"masks": 16},
    black_box={},
    forwards="1 + masks",
    paper="petsiuk2018rise",
    presets={
        "paper": {"masks": 4000, "cells": 7, "p": 0.5},
        "rise-repo": {"masks": 6000, "cells": 8, "p": 0.1},
        "tis": {"masks": 4000, "cells": 8, "p": 0.1, "question": "logit"},
    },
    precision="bf16",
    **PERTURBATION,
    **MEAN_SCORE,
)
def rise(
    probe: BlackBoxProbe, masks: Count = 4000, cells: Cells = 7, p: PartialShare = 0.5, seed: Seed = 0
) -> tuple[PixelScores, dict[str, Tensor]]:
    """Mean score over smooth random masks, weighted by the visibility of the pixel.

    All images get the same masks; masked pixels are 0 in normalised units. Scores can be negative if the score
    function can (a logit).

    Parameters
    ----------
    masks
        Number of masks.
    cells
        Cells per side of the random grid.
    p
        Probability of a cell being shown.
    seed
        Seed of the masks.
    """
    drawn = SmoothMasks.draw(masks, cells, p, probe.images, seed)
    return rise_of_masks(probe, drawn, masks, p)


def rise_of_masks(
    probe: BlackBoxProbe, masks: Masks, count: int, p: PartialShare
) -> tuple[PixelScores, dict[str, Tensor]]:
    """Σ score · mask / (count · p) for given masks, with its standard error."""
    scores = probe.pixel_score(vary_by_masks(probe.images, masks, count))
    return sum_masks(scores, masks) / (count * p), {"stderr": rise_errors(probe, scores, masks) / p}


def rise_errors(probe: BlackBoxProbe, scores: Float[Tensor, "r m"], masks: Masks) -> Tensor:
    """Standard error of the mean of score · mask over masks: of each patch's sum [r p], or of each pixel of a black box."""
    count, first, second = scores.shape[1], torch.zeros(()), torch.zeros(())
    for index in torch.arange(count, device=scores.device).split(64):
        drawn = masks(index)
        shares = (drawn.flatten(1) if probe.black_box else patch_sums(drawn, probe.layout)).to(scores)
        first = first + scores[:, index] @ shares
        second = second + scores[:, index].square() @ shares.square()
    variance = (second / count - (first / count).square()).clamp(min=0) / max(count - 1, 1)
    stderr = variance.sqrt() if count > 1 else torch.full_like(first, torch.nan)
    return stderr.unflatten(1, probe.layout.size) if probe.black_box else stderr


# ── PAMI ─────────────────────────────────────────────────────────────────────────────────────────


def count_shown_regions(method: Method, sizes: ModelSizes) -> dict[str, int]:
    """Regions of the image and of its shifted copies, at most."""
    settings = method.settings
    count = count_regions(kinds_of(settings["regions"]), sizes["size"], settings["stride"])
    return {"regions": count * (1 + 4 * len(settings["shifts"]))}


def spread_circles(method: Method, sizes: ModelSizes) -> Iterator[dict[str, Any]]:
    """Circles at growing distances, without shifts."""
    single = {"shifts": ()} if method.settings["shifts"] else {}
    for side in growing_sides(sizes):
        yield {"regions": "circles", "stride": side, **single}


def kinds_of(regions: str | Sequence[str]) -> tuple[str, ...]:
    return (regions,) if isinstance(regions, str) else tuple(regions)


@method(
    "pami",
    formula="s(u) = Σ_{R∋u} t(R alone) / #{R ∋ u}",
    trial={"regions": "circles", "radius": 8, "stride": 8},
    black_box={},
    forwards="1 + regions",
    counts=count_shown_regions,
    coarser=spread_circles,
    paper="shi2023pami",
    presets={
        "circles": {"regions": "circles", "fill": "blur"},
        "published": {"regions": ("felzenszwalb", "slic", "watershed"), "fill": "blur", "shifts": (36, 30, 24)},
    },
    **PERTURBATION,
    **MEAN_SCORE,
)
def pami(
    probe: BlackBoxProbe,
    regions: Regions | tuple[Regions, ...] = "slic",
    fill: Fill = "blur",
    shifts: tuple[Shift, ...] = (),
    radius: Annotated[int, Range(0, 65_536)] = 40,
    stride: Pixels = 6,
) -> PixelScores:
    """Mean score over the regions that contain a pixel, each shown alone on a blurred image.

    The preset "published" omits SEEDS superpixels, which scikit-image does not provide.

    Parameters
    ----------
    regions
        One or several of "slic", "felzenszwalb", "watershed" (superpixels at several scales) and "circles".
    fill
        Rest of the image: "blur", or "black" (0 in normalised units).
    shifts
        Also use images shifted by these numbers of pixels in each of the four directions, with wrap-around.
    radius, stride
        Radius and spacing of circles in pixels.
    """
    moves = [(0, 0), *((d * y, d * x) for d in shifts for y, x in ((1, 0), (0, 1), (-1, 0), (0, -1)))]
    maps = []
    for image in range(len(probe.images)):
        heat, count = torch.zeros((), dtype=torch.float32), torch.zeros((), dtype=torch.float32)
        for move in moves:
            moved = probe.for_image(image, torch.roll(probe.images[image], move, (-2, -1)))
            masks = many_regions(moved.images[0], kinds_of(regions), radius, stride)
            rest = blur_images(moved.images) if fill == "blur" else 0.0
            scores = moved.pixel_score(vary_by_masks(moved.images, masks.__getitem__, len(masks), rest))
            back = (-move[0], -move[1])
            heat = heat + torch.roll(sum_masks(scores, masks.__getitem__), back, (-2, -1))
            count = count + torch.roll(masks.sum(0), back, (-2, -1))
        maps.append(heat / count.clamp(min=1))
    return torch.cat(maps)


# ── HSIC ─────────────────────────────────────────────────────────────────────────────────────────


@method(
    "hsic",
    formula="sⱼ = (2/M) m̃ⱼᵀ L m̃ⱼ, m̃ⱼ the centred visibility of cell j, L a Gaussian kernel of the scores",
    signed=False,
    trial={"masks": 16},
    black_box=IN_PIXELS,
    forwards="1 + masks",
    paper="novello2022making",
    presets={"xplique": {"space": "pixels", "masks": 500, "cells": 8}},
    precision="bf16",
    **PERTURBATION,
)
def hsic(
    probe: BlackBoxProbe, space: Space = "pixels", masks: KernelSize = 500, cells: Cells = 8, seed: Seed = 0
) -> PatchScores | PixelScores:
    """Dependence of the score on whether a cell is visible: Hilbert–Schmidt independence criterion.

    Parameters
    ----------
    space
        "pixels" masks `cells` x `cells` cells, upsampled smoothly; "tokens" removes patches.
    masks
        Number of masks.
    cells
        Cells per side for `space="pixels"`.
    seed
        Seed of the masks.
    """
    grid = probe.layout.grid if space == "tokens" else (cells, cells)
    on = draw_balanced_masks(masks, grid[0] * grid[1], seed).to(probe.images.device)
    if space == "tokens":
        scores = probe.score(on.expand(len(probe.images), -1, -1))
        return measure_dependence(on.to(scores), scores)
    coarse = on.to(probe.images).unflatten(1, grid)

    def smooth(index: Index) -> Float[Tensor, "k H W"]:
        return F.interpolate(coarse[index][:, None], probe.layout.size, mode="bicubic", align_corners=False)[:, 0]

    scores = probe.pixel_score(vary_by_masks(probe.images, smooth, masks))
    cell_scores = measure_dependence(on.to(scores), scores).unflatten(1, grid)
    return F.interpolate(cell_scores[:, None], probe.layout.size, mode="bilinear", align_corners=False)[:, 0]


def draw_balanced_masks(count: int, cells: int, seed: int) -> Tensor:
    """Masks [m cells] from a scrambled Sobol sequence thresholded at ½; each cell is on about half of the time."""
    if cells > torch.quasirandom.SobolEngine.MAXDIM:
        raise SpecError(f"{cells} cells are too many for a Sobol sequence; give fewer")
    return torch.quasirandom.SobolEngine(cells, scramble=True, seed=seed).draw(count) < 0.5


def measure_dependence(on: Float[Tensor, "m j"], scores: Float[Tensor, "r m"]) -> Float[Tensor, "r j"]:
    """HSIC of every cell with the score: (2/m) ũᵀ L ũ, ũ the centred cell, L a Gaussian kernel of width |median|."""
    width = scores.median(-1).values.abs()
    width = torch.where(width > 0, width, torch.ones_like(width))
    kernel = torch.exp(-((scores[:, :, None] - scores[:, None]) ** 2) / (2 * width[:, None, None] ** 2))
    centred = on - on.mean(0)
    return (2 / len(on) * torch.einsum("mj,rml,lj->rj", centred, kernel, centred)).clamp(min=0)
