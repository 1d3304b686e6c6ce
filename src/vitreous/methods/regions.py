"""Segmentation of an image into patches, squares, superpixels or circles; and complete-linkage clustering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.core.errors import SpecError

ImageTensor = Float[Tensor, "colours H W"]
Labels = Int[Tensor, "H W"]  # index of each pixel's region, from 0

SQUARES = 14  # per side, for black boxes, which have no patches; images of fewer pixels have a square for each
SMALLEST = 28 * 28  # pixels of a region of "felzenszwalb"


def square_of(size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the largest square that stands for a patch of a black box."""
    return -(-size[0] // SQUARES), -(-size[1] // SQUARES)


def regions_of(probe: BlackBoxProbe, kind: str) -> Labels:
    """Segmentation of the only image of a probe.

    Parameters
    ----------
    probe
        The probe.
    kind
        "patches" for the model's patches (14 x 14 rectangles for a black box), else a kind of superpixels.
    """
    image = probe.images[0]
    if kind == "patches":
        grid = (SQUARES, SQUARES) if probe.black_box else probe.layout.grid
        return number_rectangles((image.shape[-2], image.shape[-1]), grid).to(image.device)
    return segment(kind, image)


def number_rectangles(size: tuple[int, int], grid: tuple[int, int]) -> Labels:
    """Grid of equal rectangles, numbered row by row."""
    rows, columns = (min(cells, length) for cells, length in zip(grid, size, strict=True))
    down = torch.arange(size[0]) * rows // size[0]
    right = torch.arange(size[1]) * columns // size[1]
    return down[:, None] * columns + right


def slic(image: ImageTensor, count: int, compactness: float = 20.0, rounds: int = 10) -> Labels:
    """SLIC superpixels: k-means of colour and position, initialised on a regular grid.

    Colours are scaled so that black and white are 100 apart, as in lightness. A pixel joins a centre at most two grid
    steps away if there is one.

    Parameters
    ----------
    image
        The image.
    count
        Approximate number of superpixels.
    compactness
        Weight of position relative to colour.
    rounds
        Number of k-means iterations.
    """
    image = image.double()
    height, width = image.shape[-2:]
    colour = 100 / 3**0.5 * (image - image.min()) / (image.max() - image.min()).clamp(min=1e-12)
    step, rows, columns = slic_grid((height, width), count)
    place = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")).to(image)
    pixels = torch.cat([colour, place * compactness / step]).flatten(1).T  # [HW 5]
    labels = number_rectangles((height, width), (rows, columns)).to(image.device).flatten()
    reach = 2 * compactness  # two steps, in the units of `pixels`
    for _ in range(rounds):
        size = torch.bincount(labels, minlength=rows * columns)
        centres = torch.zeros(rows * columns, 5).to(pixels).index_add_(0, labels, pixels) / size.clamp(min=1)[:, None]
        distance = torch.cdist(pixels, centres) + 1e6 * (
            torch.cdist(pixels[:, 3:], centres[:, 3:], p=torch.inf) > reach
        )
        labels = distance.masked_fill(size == 0, torch.inf).argmin(1)
    return labels.unique(return_inverse=True)[1].view(height, width)


def slic_grid(size: tuple[int, int], count: int) -> tuple[float, int, int]:
    """Spacing of the centres in pixels, and rows and columns of centres, which may lose all of their pixels later."""
    step = (size[0] * size[1] / count) ** 0.5
    rows = max(1, min(size[0], round(size[0] / step)))
    return step, rows, max(1, min(size[1], round(count / rows)))


def segment(kind: str, image: ImageTensor, size: int | None = None) -> Labels:
    """Superpixels of one kind; `size` is the number of segments (slic) or markers (watershed), or the scale."""
    if kind == "slic":
        return slic(image, size or 50)
    seg, filters = scikit_image(kind)
    low, high = image.min(), image.max()
    pixels = ((image - low) / (high - low).clamp(min=1e-12)).permute(1, 2, 0).double().cpu().numpy()
    match kind:
        case "quickshift":
            labels = seg.quickshift(pixels, kernel_size=4, max_dist=200, ratio=0.2, rng=42)
        case "felzenszwalb":
            labels = seg.felzenszwalb(pixels, scale=size or 100, sigma=0.8, min_size=SMALLEST)
        case _:
            labels = seg.watershed(filters.sobel(pixels.mean(-1)), markers=size or 20, compactness=1e-4)
    return torch.from_numpy(labels.astype("int64")).unique(return_inverse=True)[1].to(image.device)


def scikit_image(kind: str) -> tuple[Any, Any]:
    """Import scikit-image's `segmentation` and `filters`; a SpecError if it is not installed."""
    try:
        from skimage import filters, segmentation  # pyright: ignore[reportMissingImports] - an extra
    except ImportError:
        raise SpecError(
            f"regions={kind!r} needs scikit-image; install vitreous[regions], or use regions='slic'"
        ) from None
    return segmentation, filters


SCALES: dict[str, tuple[int, ...]] = {
    "slic": tuple(range(10, 90, 10)),
    "felzenszwalb": (250, 200, 150, 100, 70, 50),
    "watershed": (10, 20, 30),
}


def many_regions(image: ImageTensor, kinds: Sequence[str], radius: int, stride: int) -> Bool[Tensor, "m H W"]:
    """Masks of all regions of several segmentations at several scales (`SCALES`), and of overlapping circles."""
    masks = []
    for kind in kinds:
        if kind == "circles":
            masks.append(circles((image.shape[-2], image.shape[-1]), radius, stride).to(image.device))
            continue
        for scale in SCALES[kind]:
            labels = segment(kind, image, scale)
            masks.append(labels == torch.arange(int(labels.max()) + 1, device=labels.device)[:, None, None])
    return torch.cat(masks)


def count_regions(kinds: Sequence[str], size: tuple[int, int], stride: int) -> int:
    """Number of masks that `many_regions` makes of an image of this size, at most."""
    counts = {
        "slic": sum(math.prod(slic_grid(size, count)[1:]) for count in SCALES["slic"]),
        "felzenszwalb": len(SCALES["felzenszwalb"]) * max(1, math.prod(size) // SMALLEST),
        "watershed": sum(count_markers(size, count) for count in SCALES["watershed"]),
        "circles": math.prod(math.ceil(side / stride) for side in size),
    }
    return sum(counts[kind] for kind in kinds)


def count_markers(size: tuple[int, int], count: int) -> int:
    """Number of markers that scikit-image spreads evenly over an image if it is asked for `count`."""
    step = (math.prod(size) / count) ** 0.5
    return math.prod(max(1, len(range(int(step // 2), side, max(1, round(step))))) for side in size)


def circles(size: tuple[int, int], radius: int, stride: int) -> Bool[Tensor, "m H W"]:
    """Discs around every `stride`-th pixel."""
    (height, width), (y, x) = size, torch.meshgrid(*(torch.arange(length) for length in size), indexing="ij")
    centres = torch.cartesian_prod(torch.arange(0, height, stride), torch.arange(0, width, stride))
    return (y - centres[:, 0, None, None]) ** 2 + (x - centres[:, 1, None, None]) ** 2 <= radius**2


def cluster_completely(distance: Float[Tensor, "d d"], threshold: float | int) -> Int[Tensor, " d"]:
    """Complete-linkage clustering: merge the nearest clusters while all their members are closer than `threshold`."""
    apart = distance.double().clone().fill_diagonal_(torch.inf)
    label = torch.arange(len(apart), device=apart.device)
    while apart.numel():
        nearest = int(apart.argmin())
        row, other = divmod(nearest, len(apart))
        if apart[row, other] >= threshold:
            break
        farthest = torch.maximum(apart[row], apart[other])
        farthest[row] = torch.inf
        apart[row], apart[:, row] = farthest, farthest
        apart[other], apart[:, other] = torch.inf, torch.inf
        label[label == other] = row
    return label.unique(return_inverse=True)[1]
