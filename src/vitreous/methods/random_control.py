"""Random scores, the control that every comparison needs; and reproducible random draws per image."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.threads import map_in_threads
from vitreous.methods.options import Seed
from vitreous.methods.regions import SQUARES
from vitreous.methods.register_method import method
from vitreous.models.random_draws import uniform_numbers
from vitreous.models.tensor_types import Images, PatchScores, PixelScores

Source = TypeVar("Source")
BYTES_AT_ONCE = 2**26  # of noise that is copied to a GPU


def content_seeds(images: Images, seed: int) -> list[int]:
    """One seed per image, a hash of `seed` and the image's content; it does not depend on the position in a batch."""

    def content_seed(image: np.ndarray) -> int:
        digest = hashlib.blake2b(image.data, digest_size=8, salt=str(seed).encode()[:16]).digest()
        return int.from_bytes(digest, "little") >> 1

    return map_in_threads(content_seed, images.cpu().float().flatten(1).contiguous().numpy())


def generators(images: Images, seed: int) -> list[torch.Generator]:
    """One random generator per image, always on the CPU, so that draws are the same on every device."""
    return [torch.Generator().manual_seed(s) for s in content_seeds(images, seed)]


def fill_from_sources(
    draw: Callable[[Tensor, Source], object],
    sources: Sequence[Source],
    shape: Sequence[int],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "sources *shape"]:
    """Stacked results of `draw`, which fills a CPU tensor of `shape` from one source.

    Parameters
    ----------
    draw
        Called with a tensor to fill in place and a source.
    sources
        Seeds or generators, one per result.
    shape
        Shape of one result.
    device
        Device of the result. Copies to a GPU are non-blocking, of `BYTES_AT_ONCE` or one result at a time.
    dtype
        Data type of the result.
    """
    result, pinned = torch.empty(len(sources), *shape, dtype=dtype, device=device), device.type == "cuda"
    together = max(1, BYTES_AT_ONCE // max(1, math.prod(shape) * result.element_size()))
    for first in range(0, len(sources), together):
        place = result[first : first + together]
        buffer = (
            place if device.type == "cpu" else torch.empty(place.shape, dtype=dtype, pin_memory=pinned, device="cpu")
        )
        map_in_threads(draw, buffer.unbind(), sources[first : first + together])
        if buffer is not place:
            place.copy_(buffer, non_blocking=pinned)  # torch reuses pinned memory only after the copy
    return result


def draw_uniform(seeds: Int[Tensor, " k"], shape: Sequence[int]) -> Float[Tensor, "k *shape"]:
    """Uniform in [0, 1), in steps of 2⁻¹⁶: splitmix64 of each seed, four numbers per word, on the device of the seeds.

    Integer overflow wraps around on every device, so the numbers are the same everywhere without a copy from the CPU.
    """
    size = math.prod(shape)
    z = seeds[:, None] + torch.arange(1, -(-size // 4) + 1, device=seeds.device) * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        z.bitwise_xor_(z.bitwise_right_shift(shift).bitwise_and_((1 << 64 - shift) - 1)).mul_(factor)
    quarters = z.view(torch.int16)[:, :size]  # signed
    return quarters.float().mul_(2.0**-16).add_(0.5).unflatten(1, tuple(shape))


@method(
    "random",
    family="Control",
    formula="sⱼ ~ U[0, 1)",
    signed=False,
    class_specific=False,
    backwards=0,
    shares_forward=True,
    black_box={},
)
def random(probe: BlackBoxProbe, seed: Seed = 0) -> PatchScores | PixelScores:
    """Uniform noise, one draw per image; of a black box, on a grid of 14 x 14 cells."""
    cells = SQUARES**2 if probe.black_box else probe.layout.patches
    draws: list[Tensor] = [uniform_numbers(g, (cells,)) for g in generators(probe.originals, seed)]
    scores = torch.stack(draws).to(probe.images)
    if not probe.black_box:
        return scores
    return F.interpolate(scores.view(-1, 1, SQUARES, SQUARES), probe.layout.size)[:, 0]
