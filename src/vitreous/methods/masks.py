"""Masks and fills for perturbed images, computed in chunks: smooth random masks, windows, noise, blur."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.pixels import ImageVariants, Index
from vitreous.methods.random_control import content_seeds, fill_from_sources
from vitreous.models.random_draws import uniform_numbers
from vitreous.models.tensor_types import Images, PixelScores

Masks = Callable[[Index], Float[Tensor, "k H W"]]  # masks at the given indices


def vary_by_masks(images: Images, masks: Masks, count: int, rest: Images | float = 0.0) -> ImageVariants:
    """Every image under each of `count` masks that all images share.

    Parameters
    ----------
    images
        The images.
    masks
        Returns the masks at given indices.
    count
        Number of masks.
    rest
        Images, or a value, shown where a mask is 0.
    """

    def make(row: Index, subset: Index) -> Images:
        mask = masks(subset)[:, None].to(images)
        behind = rest[row] if isinstance(rest, Tensor) else rest
        return images[row] * mask + behind * (1 - mask)

    return ImageVariants(len(images), count, make)


def sum_masks(weights: Float[Tensor, "r m"], masks: Masks, chunk: int = 64) -> PixelScores:
    """Weighted sum of the masks, computed `chunk` masks at a time."""
    total = torch.zeros(())
    for index in torch.arange(weights.shape[1], device=weights.device).split(chunk):
        total = total + torch.einsum("rk,khw->rhw", weights[:, index], masks(index).to(weights))
    return total


def reflect_indices(index: Int[Tensor, "*any"], length: int) -> Int[Tensor, "*any"]:
    """Indices reflected into [0, length) without repeating the ends."""
    period = max(2 * (length - 1), 1)
    index = index.remainder(period)
    return torch.minimum(index, period - index) if length > 1 else torch.zeros_like(index)


@lru_cache(16)
def upsampling_matrix(cells: int, length: int) -> Float[Tensor, "length cells"]:
    """Matrix of bilinear upsampling with half-pixel centres and reflected ends, as in skimage with mode 'reflect'.

    torch's `interpolate` repeats the ends and therefore differs in the outer half cell.
    """
    centre = (torch.arange(length, dtype=torch.float64) + 0.5) * cells / length - 0.5
    low = centre.floor()
    matrix = torch.zeros(length, cells, dtype=torch.float64)
    for place, weight in ((low, 1 - (centre - low)), (low + 1, centre - low)):
        matrix.scatter_add_(1, reflect_indices(place.long(), cells)[:, None], weight[:, None])
    return matrix


@dataclass(frozen=True, slots=True, eq=False)
class SmoothMasks:
    """Masks of RISE: random binary grids, upsampled smoothly and cropped at a random offset."""

    cells: Float[Tensor, "m s s"]
    shift: Int[Tensor, "m 2"]  # offset of the crop in pixels: down, right
    size: tuple[int, int]

    @classmethod
    def draw(cls, count: int, cells: int, p: float | int, images: Images, seed: int) -> SmoothMasks:
        """Draw masks, the same on every device and for all images.

        Parameters
        ----------
        count
            Number of masks.
        cells
            Cells per side of the grid.
        p
            Probability of a cell being shown.
        images
            Define size, device and data type of the masks.
        seed
            Seed of the draws.
        """
        draw = torch.Generator().manual_seed(seed)
        size = (images.shape[-2], images.shape[-1])
        on = uniform_numbers(draw, (count, cells, cells)) < p
        shift = [
            torch.randint(math.ceil(length / cells), (count,), generator=draw, device=draw.device) for length in size
        ]
        return cls(on.to(images), torch.stack(shift, 1).to(images.device), size)

    def __call__(self, index: Index) -> Float[Tensor, "k H W"]:
        down, right = (self._side(axis, index) for axis in (0, 1))
        return down @ self.cells[index] @ right.mT

    def _side(self, axis: int, index: Index) -> Float[Tensor, "k length s"]:
        cells, length = self.cells.shape[1], self.size[axis]
        matrix = upsampling_matrix(cells, (cells + 1) * math.ceil(length / cells)).to(self.cells)
        place = torch.arange(length, device=index.device)
        return matrix[self.shift[index, axis][:, None] + place]


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Sliding rectangular windows, row by row; the last windows may extend over the edge."""

    down: Bool[Tensor, "rows H"]
    right: Bool[Tensor, "columns W"]

    @classmethod
    def sliding(
        cls, size: tuple[int, int], window: tuple[int, int], stride: tuple[int, int], device: torch.device
    ) -> Windows:
        sides = []
        for length, wide, step in zip(size, window, stride, strict=True):
            start = torch.arange(math.ceil(max(length - wide, 0) / step) + 1, device=device)[:, None] * step
            place = torch.arange(length, device=device)
            sides.append((place >= start) & (place < start + wide))
        return cls(*sides)

    def __len__(self) -> int:
        return len(self.down) * len(self.right)

    def __call__(self, index: Index) -> Bool[Tensor, "k H W"]:
        return self.down[index // len(self.right)][:, :, None] & self.right[index % len(self.right)][:, None]

    def mean(self, values: Float[Tensor, "r m"]) -> PixelScores:
        """Mean at every pixel over the windows that contain it; 0 if there are none."""
        down, right = self.down.to(values), self.right.to(values)
        total = down.T @ values.unflatten(1, (len(down), len(right))) @ right
        return total / (down.sum(0)[:, None] * right.sum(0)).clamp(min=1)


def seeded_noise(images: Images, seed: int, device: torch.device) -> Callable[[Index, Index], Images]:
    """Function that returns Gaussian noise for (image, subset) index pairs, seeded by the image's content.

    The noise does not depend on batch or chunk.
    """
    seeds = content_seeds(images, seed)

    def fill(place: Float[Tensor, "colours H W"], source: int) -> None:
        place.normal_(generator=torch.Generator().manual_seed(source))

    def make(row: Index, subset: Index) -> Images:
        sources = [seeds[r] + s for r, s in zip(row.tolist(), subset.tolist(), strict=True)]
        return fill_from_sources(fill, sources, images.shape[1:], device).to(images.dtype)

    return make


def blur_images(images: Images, kernel: int = 49, sigma: float = 100.0) -> Images:
    """Gaussian blur with reflected edges."""
    down, right = (blur_matrix(length, kernel, sigma).to(images) for length in images.shape[-2:])
    return down @ images @ right.mT


@lru_cache(16)
def blur_matrix(length: int, kernel: int, sigma: float) -> Float[Tensor, "length length"]:
    """Matrix that blurs a row of pixels; cached, because computing it on the CPU would stall the GPU."""
    offset = torch.arange(kernel) - kernel // 2
    weight = torch.exp(-(offset.double() ** 2) / (2 * sigma**2))
    place = reflect_indices(torch.arange(length)[:, None] + offset, length)
    return torch.zeros(length, length, dtype=torch.float64).scatter_add_(
        1, place, (weight / weight.sum()).expand(length, -1)
    )
