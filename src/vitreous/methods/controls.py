"""What every table must contain: scores that know nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.probe import Probe
from vitreous.methods.method import method
from vitreous.models.shapes import Images, PatchScores

Source = TypeVar("Source")


def content_seeds(images: Images, seed: int) -> list[int]:
    """One seed per picture, made of the given seed and the picture's content, so that its place in a batch does not matter."""
    pictures = images.cpu().float().numpy()
    digests = (hashlib.blake2b(picture.tobytes(), digest_size=8, salt=str(seed).encode()[:16]) for picture in pictures)
    return [int.from_bytes(digest.digest(), "little") >> 1 for digest in digests]


def generators(images: Images, seed: int) -> list[torch.Generator]:
    """A random source per picture, on the CPU, the same on every device."""
    return [torch.Generator().manual_seed(s) for s in content_seeds(images, seed)]


def drawn(draw: Callable[[Source], Tensor], sources: Iterable[Source]) -> Tensor:
    """One draw of every source, side by side; where there is a GPU, which waits for noise, by several threads."""
    workers = None if torch.cuda.is_available() else 1
    with ThreadPoolExecutor(workers) as pool:
        return torch.stack(list(pool.map(draw, sources)))


@method("random", formula="sⱼ ~ U[0, 1)", signed=False, class_specific=False, backwards=0, black_box={})
def random(probe: Probe, seed: int = 0) -> PatchScores | Float[Tensor, "r H W"]:
    """Uniform noise, one draw per picture; of a black box, on a grid of 14 x 14 cells."""
    cells = 14**2 if probe.black_box else probe.layout.patches
    draws: list[Tensor] = [torch.rand(cells, generator=g) for g in generators(probe.originals, seed)]
    scores = torch.stack(draws).to(probe.images)
    if not probe.black_box:
        return scores
    return F.interpolate(scores.view(-1, 1, 14, 14), probe.layout.size)[:, 0]
