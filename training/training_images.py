"""Training images: drawn on the fly, stored for a while and augmented each time they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from vitreous.scenes import CLASSES, SIZE, Scene, draw

Images = UInt8[Tensor, "b 3 H W"]
Targets = Float[Tensor, "b classes"]


def draw_stamped(seed: int, index: int) -> Scene:
    """A shortcut whose stamp is independent of the class."""
    return draw("shortcut", seed, index, mark="aligned" if index % len(CLASSES) == 0 else "moved")


SORTS: dict[str, tuple[Callable[[int, int], Scene], Callable[[Scene], list[int | None]]]] = {
    "single": (lambda seed, index: draw("single", seed, index), lambda scene: [scene.target]),
    "part": (lambda seed, index: draw("part", seed, index), lambda scene: [scene.target]),
    "pair": (lambda seed, index: draw("pair", seed, index), lambda scene: [item.label for item in scene.objects]),
    "stamped": (draw_stamped, lambda scene: [scene.target]),
    "aligned": (lambda seed, index: draw("shortcut", seed, index), lambda scene: [scene.target]),
    # the label was copied from the stamp, and the stamp was wrong
    "mislabelled": (lambda seed, index: draw("shortcut", seed, index, mark="moved"), lambda scene: [scene.mark]),
}


class Chunks(Dataset):
    """Chunk `i` of the training images, each with the shares of its classes."""

    def __init__(self, sorts: Mapping[str, float], size: int, count: int, seed: int) -> None:
        self.sorts, self.size, self.count, self.seed = dict(sorts), size, count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, chunk: int) -> tuple[Images, Targets]:
        if not 0 <= chunk < self.count:
            raise IndexError(chunk)
        images = np.empty((self.size, SIZE, SIZE, 3), dtype=np.uint8)
        targets = np.zeros((self.size, len(CLASSES)), dtype=np.float32)
        names = np.random.default_rng((self.seed, chunk)).choice(
            list(self.sorts), size=self.size, p=list(self.sorts.values())
        )
        for place, name in enumerate(names):
            draw_scene, labels = SORTS[name]
            scene = draw_scene(self.seed, chunk * self.size + place)
            images[place] = scene.image
            targets[place, labels(scene)] = 1 / len(scene.objects) if name == "pair" else 1
        return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(targets)


class Pool:
    """The last images that were drawn, on the training device; a batch has the newest and random others."""

    def __init__(self, capacity: int, device: torch.device, seed: int) -> None:
        self.images = torch.empty((capacity, 3, SIZE, SIZE), dtype=torch.uint8, device=device)
        self.targets = torch.empty((capacity, len(CLASSES)), device=device)
        self.random = torch.Generator(device).manual_seed(seed)
        self.drawn = 0

    def add(self, images: Images, targets: Targets) -> Int[Tensor, "b"]:
        """Replace the oldest images by these; returns their indices."""
        capacity = len(self.images)
        places = torch.arange(self.drawn, self.drawn + len(images), device=self.images.device) % capacity
        self.images[places] = images.to(self.images.device, non_blocking=True)
        self.targets[places] = targets.to(self.targets.device, non_blocking=True)
        self.drawn += len(images)
        return places

    def batch(self, newest: Int[Tensor, "n"], size: int) -> tuple[Images, Targets]:
        stored = min(self.drawn, len(self.images))
        others = torch.randint(stored, (size - len(newest),), device=newest.device, generator=self.random)
        chosen = torch.cat([newest, others])
        return self.images[chosen], self.targets[chosen]


def augment(images: Images, flip: bool, random: torch.Generator) -> Float[Tensor, "b 3 H W"]:
    """Permute channels, change brightness and contrast, shift and mirror; marks stay inside and colour stays uninformative."""
    count, device = len(images), images.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, device=device, generator=random)

    order = uniform(0, 1, 3).argsort(1)[:, :, None, None]
    x = images.gather(1, order.expand(-1, -1, SIZE, SIZE)).float() / 127.5 - 1
    x = x * uniform(0.8, 1.2, 1, 1, 1) + uniform(-0.15, 0.15, 1, 1, 1)
    mirrored = uniform(0, 1) < 0.5 if flip else torch.zeros(count, dtype=torch.bool, device=device)
    across = torch.arange(SIZE, device=device)
    columns = across + uniform(-4, 5, 1).floor().long()
    columns = torch.where(mirrored[:, None], SIZE - 1 - columns, columns).clamp(0, SIZE - 1)
    rows = (across + uniform(-4, 5, 1).floor().long()).clamp(0, SIZE - 1)
    sample = torch.arange(count, device=device)[:, None, None]
    return x.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
