"""DAVE: pixel input x gradient of a frozen network, averaged over small affine transforms and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.linearise import LIBRA
from vitreous.capture.path_gradients import at_points
from vitreous.capture.probe import Probe
from vitreous.capture.progress import Tally
from vitreous.methods.options import Count, Range, Seed
from vitreous.methods.random_control import generators
from vitreous.methods.register_method import method
from vitreous.models.random_draws import normal_numbers
from vitreous.models.tensor_types import PixelScores

ANGLE, SHIFT, SCALE = 20.0, 0.1, 0.1  # degrees, share of the side, share of the size
OUTLIER = 2.5  # robust standard deviations from the median


@method(
    "dave",
    family="Gradients",
    formula="s = Agg_s x ⊙ ∂t/∂x (noise_s(τ_s(x))) with @libra, τ_s near the identity; Agg a mean without outliers, then smoothed",
    native="pixel",
    signed=False,
    class_specific=True,
    trial={"samples": 4},
    forwards="samples + 1",
    backwards="samples",
    shares_forward=True,
    paper="wrobel2026dave",
    presets={"readme": {"samples": 100}, "evaluation": {"samples": 50}},
)
def dave(
    probe: Probe,
    samples: Count = 50,
    alpha: Annotated[float | int, Range(0, 1)] = 0.3,
    transforms: bool = True,
    smooth: bool = True,
    seed: Seed = 0,
) -> tuple[PixelScores, dict[str, Any]]:
    """Input x gradient with attention, norms and activation ratios held fixed, averaged over transformed noisy copies.

    The gradient is taken through the transform, so that it comes back in the image's own frame, and multiplies the original
    image. Affine transforms interpolate bilinearly with 0 outside, which the description leaves open. Draws depend on the
    seed and the image's content; the published code draws anew at every call.

    Parameters
    ----------
    samples
        Number of copies.
    alpha
        Largest noise level; copy s has level linspace(0, alpha). To be tuned per model: the authors take 0.3 for ViT-B, 0.1
        for ViT-S, 0.7 for DeiT-B, 0.5 for DeiT-S.
    transforms
        Whether copies are flipped, rotated (20°), shifted (10 %) and scaled (10 %) at random.
    smooth
        Whether positive scores are blurred, filtered bilaterally and divided by their maximum, as published.
    seed
        Seed of transforms and noise.
    """
    sources = generators(probe.originals, seed)
    tally = Tally(len(sources) * samples)
    maps = [
        mean_without_outliers(copies_of(probe.for_image(image), source, samples, alpha, transforms, tally)).sum(1)
        for image, source in enumerate(sources)
    ]
    total = torch.cat(maps)  # [r H W]
    return (smooth_maps(total) if smooth else total), {"signed": not smooth}


def copies_of(
    probe: Probe, source: torch.Generator, samples: int, alpha: float | int, transforms: bool, tally: Tally
) -> Float[Tensor, "s k 3 H W"]:
    """x ⊙ ∂t/∂x of transformed and noisy copies of one image; the first copy is free of noise."""
    image, (height, width) = probe.images[0], probe.layout.size
    keep = (1 - torch.linspace(0, alpha, samples, dtype=torch.float64)).tolist()
    warps, copies = [], []
    for share in keep:
        warp = Warp.draw(height, width, source, transforms).to(image.device)
        noise = normal_numbers(source, image.shape).to(image)
        warps.append(warp)
        copies.append(share * warp(image) + math.sqrt(1 - share**2) * noise)
    gradients = at_points(probe, torch.stack(copies)[None], frozen_gradient, tally)  # [k s 3 H W]
    parts = zip(warps, keep, gradients.unbind(1), strict=True)
    in_own_frame = [warp.adjoint(share * own) for warp, share, own in parts]
    return image * torch.stack(in_own_frame)


def frozen_gradient(probe: BlackBoxProbe) -> Float[Tensor, "r 3 H W"]:
    """∂t/∂x with attention, norms and activation ratios held fixed."""
    assert isinstance(probe, Probe)  # other models are refused by `Method.for_model`
    return probe.pixel_gradient(LIBRA)


@dataclass(frozen=True, slots=True, eq=False)
class Warp:
    """Bilinear resampling of an image: every output pixel is a weighted sum of four input pixels, 0 outside."""

    index: Int[Tensor, "4 n"]
    weight: Float[Tensor, "4 n"]
    size: tuple[int, int]

    @classmethod
    def draw(cls, height: int, width: int, source: torch.Generator, transforms: bool) -> Warp:
        """A random flip, rotation, shift and scale around the centre; the identity if not `transforms`."""
        flip, angle, right, down, scale = torch.rand(
            5, generator=source, dtype=torch.float64, device=source.device
        ).tolist()
        if not transforms:
            return cls.affine(height, width, 0.0, (0.0, 0.0), 1.0, False)
        shift = ((2 * right - 1) * SHIFT * width, (2 * down - 1) * SHIFT * height)
        return cls.affine(
            height, width, math.radians((2 * angle - 1) * ANGLE), shift, 1 + (2 * scale - 1) * SCALE, flip < 0.5
        )

    @classmethod
    def affine(
        cls, height: int, width: int, angle: float, shift: tuple[float, float], scale: float, flip: bool
    ) -> Warp:
        """Flip, then rotate by `angle`, scale and shift (right, down) in pixels."""
        y, x = torch.meshgrid(
            torch.arange(height, dtype=torch.float64) - (height - 1) / 2,
            torch.arange(width, dtype=torch.float64) - (width - 1) / 2,
            indexing="ij",
        )
        x, y = x - shift[0], y - shift[1]
        across = (math.cos(angle) * x + math.sin(angle) * y) / scale
        down = (-math.sin(angle) * x + math.cos(angle) * y) / scale
        across = (-across if flip else across) + (width - 1) / 2
        down = down + (height - 1) / 2
        left, top = across.round(decimals=9).floor(), down.round(decimals=9).floor()
        index, weight = [], []
        for step_down in (0, 1):
            for step_across in (0, 1):
                column, row = left + step_across, top + step_down
                share = (1 - (across - column).abs()).clamp(min=0) * (1 - (down - row).abs()).clamp(min=0)
                inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
                index.append((row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long().flatten())
                weight.append(share.where(inside, 0.0).flatten())
        return cls(torch.stack(index), torch.stack(weight), (height, width))

    def to(self, device: torch.device) -> Warp:
        """Copy on a device."""
        dtype = torch.float32 if device.type == "mps" else torch.float64
        return Warp(self.index.to(device), self.weight.to(device, dtype), self.size)

    def __call__(self, image: Float[Tensor, "3 H W"]) -> Float[Tensor, "3 H W"]:
        flat = image.flatten(1)
        return sum(
            (flat[:, place] * weight.to(flat) for place, weight in zip(self.index, self.weight, strict=True)),
            torch.zeros_like(flat),
        ).unflatten(1, self.size)

    def adjoint(self, gradient: Float[Tensor, "*k 3 H W"]) -> Float[Tensor, "*k 3 H W"]:
        """Gradient in the input of the resampling, given that in its output."""
        flat = gradient.flatten(-2)
        total = torch.zeros_like(flat)
        for place, weight in zip(self.index, self.weight, strict=True):
            total.index_add_(-1, place, flat * weight.to(flat))
        return total.unflatten(-1, self.size)


def mean_without_outliers(maps: Float[Tensor, "s r 3 H W"]) -> Float[Tensor, "r 3 H W"]:
    """Mean over s of the values within 2.5 robust standard deviations (1.4826 · MAD + 10⁻⁸) of their median."""
    median = maps.median(0).values
    distance = (maps - median).abs()
    near = distance <= OUTLIER * (1.4826 * distance.median(0).values + 1e-8)
    return maps.where(near, 0).sum(0) / near.sum(0).clamp(min=1)


def smooth_maps(maps: PixelScores) -> PixelScores:
    """Positive part, averaged with its blur (11 x 11, σ 7), filtered bilaterally (5 x 5), divided by its maximum if above 0."""
    positive = maps.clamp(min=0)
    offsets = torch.arange(-5, 6).to(positive)
    kernel = torch.exp(-(offsets**2) / (2 * 7.0**2))
    kernel = (kernel / kernel.sum())[:, None] * (kernel / kernel.sum())
    blurred = F.conv2d(positive[:, None], kernel[None, None], padding=5)[:, 0]
    filtered = filter_bilaterally((positive + blurred) / 2)
    largest = filtered.amax((1, 2), keepdim=True)
    return filtered / torch.where(largest > 0, largest, torch.ones_like(largest))


def filter_bilaterally(maps: PixelScores, space: float = 0.5, values: float = 0.05) -> PixelScores:
    """Bilateral filter of 5 x 5 pixels, 0 outside the map."""
    height, width = maps.shape[-2:]
    padded = F.pad(maps, (2, 2, 2, 2))
    total, weights = torch.zeros_like(maps), torch.zeros_like(maps)
    for down in range(-2, 3):
        for right in range(-2, 3):
            other = padded[:, 2 + down : 2 + down + height, 2 + right : 2 + right + width]
            near = math.exp(-(down**2 + right**2) / (2 * space**2))
            weight = near * torch.exp(-((other - maps) ** 2) / (2 * values**2))
            total, weights = total + weight * other, weights + weight
    return total / weights
