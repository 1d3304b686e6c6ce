"""Synthetic data for the contract tests of metrics: an additive model whose patch contributions are known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitreous.capture.probe import Probe
from vitreous.measure import measure
from vitreous.methods.attribution import Attribution
from vitreous.methods.map_arrays import enlarge_patches, patch_sums
from vitreous.methods.method import Method
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import Metric
from vitreous.metrics.metric_result import MetricResult
from vitreous.models.image_input import Preprocess
from vitreous.models.model import Layout, Outputs
from vitreous.models.tensor_types import Images, Logits, Pooled, Tokens
from vitreous.models.vit import LinearPool, ViT
from vitreous.testing.contract import tiny_vits

GRID, PATCH = 4, 8
SIDE = GRID * PATCH
LAYOUT = Layout((GRID, GRID), (PATCH, PATCH), 0)
# contributions of patches to the logit of the image's class minus the other: object, rival object, background
OWN, RIVAL = (3.0, 2.6, 2.2, 1.8), (-1.2, -1.0)
GROUND = tuple(-0.1 - 0.04 * step for step in range(10))
# patches of object and rival; the first two reveal metrics that break ties by the order of the patches
PLACES = (
    ((0, 1, 2, 3), (14, 15)),
    ((12, 13, 14, 15), (0, 1)),
    ((5, 6, 9, 10), (12, 13)),
    ((2, 3, 6, 7), (8, 9)),
)


class Adder(nn.Module):
    """Additive model with logits [−z, z], z the sum over patches of mean red minus mean blue."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0]]))

    def forward(self, images: Images) -> Logits:
        return F.avg_pool2d(images, PATCH).sum((2, 3)) @ self.weight.T


def additive_vit(dtype: torch.dtype = torch.float64) -> ViT:
    """`Adder` wrapped as a `ViT`: patches are tokens, there are no blocks, and the head reads the sum of tokens."""
    module = Adder().to(dtype).eval()

    def embed(images: Images) -> Tokens:
        return F.avg_pool2d(images, PATCH).flatten(2).transpose(1, 2)

    def classify(pooled: Pooled) -> Logits:
        return pooled[:, 0] @ module.weight.T

    return ViT(
        name="adder",
        module=module,
        embed=embed,
        blocks=(),
        norm=nn.Identity(),
        pool=LinearPool(lambda n: torch.ones(1, n)),
        pooled_norm=nn.Identity(),
        classify=classify,
        layout=lambda size: Layout((size[0] // PATCH, size[1] // PATCH), (PATCH, PATCH), 0),
        forward=module,
        size=(SIDE, SIDE),
        preprocess=Preprocess.plain((SIDE, SIDE), 0.5, 0.5),
        output_type=Outputs("classes", 2),
    )


@dataclass(frozen=True, eq=False)
class SyntheticBatch:
    """A model, images, all inputs that a metric may need, and maps of the images."""

    vit: ViT
    images: Images
    targets: Int[Tensor, " b"]
    annotations: dict[str, Any]  # objects, rivals and boxes, one entry per image
    maps: Attribution
    method: Method | None = None

    def __len__(self) -> int:
        return len(self.images)

    def measured(self, metric: Metric) -> MetricResult:
        """Evaluate the metric on the maps."""
        probe = Probe(self.vit, self.images, self.targets)
        inputs = {**self.annotations, "labels": self.targets, "method": self.method}
        return measure([metric], self.maps, probe, **inputs)[0]

    def select(self, rows: list[int]) -> SyntheticBatch:
        """Copy with these images only; an image may occur several times."""
        annotations = {
            name: [value[row] for row in rows] if isinstance(value, list) else value[rows]
            for name, value in self.annotations.items()
        }
        images, targets = self.images[rows], self.targets[rows]
        return replace(self, images=images, targets=targets, annotations=annotations, maps=self.maps[rows])

    def with_map(self, shares: Float[Tensor, "r p"]) -> SyntheticBatch:
        """Copy whose maps have these patch contributions."""
        assert self.maps.score is not None
        return replace(self, maps=make_attribution(self.vit, shares, self.targets, self.maps.score))

    def without(self, name: str, row: int) -> SyntheticBatch:
        """Copy in which the mask or boxes `name` of one image are empty."""
        value = self.annotations[name]
        if isinstance(value, list):
            changed = [boxes[:0] if i == row else boxes for i, boxes in enumerate(value)]
        else:
            changed = value.clone()
            changed[row] = 0
        return replace(self, annotations={**self.annotations, name: changed})

    def varied(self, row: int, copies: int = 8) -> SyntheticBatch:
        """Copies of one image that differ in the green channel, which the model ignores."""
        batch = self.select([row] * copies)
        green = batch.images[:, 1]
        green += torch.rand(green.shape, generator=torch.Generator().manual_seed(row)).to(green) / 2
        return batch


# ── images with known contributions ──────────────────────────────────────────────────────────────


def make_additive_batch(dtype: torch.dtype = torch.float64) -> SyntheticBatch:
    """Four images, the last one of class 0 and the others of class 1, with their correct maps."""
    vit = additive_vit(dtype)
    shares = torch.zeros(len(PLACES), GRID**2, dtype=dtype)
    objects, rivals = (torch.zeros(len(PLACES), GRID**2, dtype=torch.int8) for _ in range(2))
    for row, (own, rival) in enumerate(PLACES):
        ground = [place for place in range(GRID**2) if place not in own + rival]
        shares[row, list(own + rival)] = torch.tensor(OWN + RIVAL, dtype=dtype)
        shares[row, ground] = torch.tensor(GROUND, dtype=dtype)
        objects[row, list(own)], rivals[row, list(rival)] = 1, 1
    targets = torch.tensor([1, 1, 1, 0])
    tint = torch.where(targets[:, None] == 1, shares, -shares)
    colours = torch.stack([tint / 4, torch.zeros_like(tint), -tint / 4], 1)
    images = enlarge_patches(colours.flatten(0, 1), LAYOUT).unflatten(0, (len(PLACES), 3))
    masks = {name: enlarge_patches(flat, LAYOUT) for name, flat in (("objects", objects), ("rivals", rivals))}
    boxes = [bounding_box(own) for own, _ in PLACES]
    return SyntheticBatch(
        vit, images, targets, {**masks, "boxes": boxes}, make_attribution(vit, shares, targets, shares.sum(-1) / 2)
    )


def bounding_box(places: tuple[int, ...]) -> Tensor:
    """Bounding box x0 y0 x1 y1 of these patches [1 4]."""
    xs, ys = [place % GRID for place in places], [place // GRID for place in places]
    return torch.tensor([[min(xs), min(ys), max(xs) + 1, max(ys) + 1]]) * PATCH


def make_attribution(
    vit: ViT, shares: Float[Tensor, "r p"], targets: Tensor, score: Float[Tensor, " r"]
) -> Attribution:
    """Pixel attribution of these patch contributions; its residual is the score minus the sum of the map."""
    layout = vit.layout(vit.size)
    pixels = enlarge_patches(shares, layout) / (2 * PATCH**2)
    sums = patch_sums(pixels, layout).to(shares)
    return Attribution(
        sums, layout, targets, "given", "pixel", pixels, score=score, residual=score - pixels.sum((1, 2))
    )


# ── images for metrics that explain again ────────────────────────────────────────────────────────


def make_reexplained_batch(dtype: torch.dtype = torch.float64, spec: str = "ixg") -> SyntheticBatch:
    """A tiny ViT with random weights, random images and the maps of a method, for metrics that explain again."""
    vit, method = tiny_vits(dtype)["class token"], resolve(spec)
    images = torch.randn(3, 3, *vit.size, generator=torch.Generator().manual_seed(1)).to(vit.dtype)
    targets = torch.tensor([1, 4, 2])
    places = make_additive_batch().annotations
    annotations = {name: value[:3] for name, value in places.items()}
    return SyntheticBatch(vit, images, targets, annotations, method(Probe(vit, images, targets)), method)
