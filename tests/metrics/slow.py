"""Slow faithfulness metrics: one image, one step, timm's own module, loops and plain arithmetic in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from tests.capture.masked import logits_with_masked_keys
from tests.models.families import pictures, seen, tiny
from vitreous.capture.probe import Probe
from vitreous.methods.attribution import Attribution
from vitreous.metrics.metric import resolve_metric
from vitreous.metrics.metric_result import MetricResult
from vitreous.models.image_input import Preprocess
from vitreous.models.vit import ViT

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
COUNT = 3
LABELS = torch.tensor([1, 0, 1])


@cache
def model(family: str) -> ViT:
    return replace(seen(family), preprocess=Preprocess(size=(24, 32), mean=MEAN, std=STD))


def images() -> Tensor:
    return pictures(COUNT)


def probe(family: str = "vit", share: int = 1, some: slice = slice(None)) -> Probe:
    """`share` targets of every image."""
    targets = torch.tensor([[1, 0], [0, 1], [1, 0]])[some, :share]
    return Probe(model(family), images()[some], targets)


def maps(probe: Probe, seed: int = 5, pixels: bool = False) -> Attribution:
    """Patch scores, or pixel scores, without ties."""
    draw = torch.Generator().manual_seed(seed)
    shape = (6, *probe.layout.size) if pixels else (6, probe.layout.patches)
    scores = torch.randn(shape, generator=draw, dtype=torch.float64)[: probe.rows]
    if not pixels:
        return Attribution(scores, probe.layout, probe.targets, "given")
    zeros = torch.zeros(probe.rows, probe.layout.patches, dtype=torch.float64)
    return Attribution(zeros, probe.layout, probe.targets, "given", native="pixel", native_pixels=scores)


def measured(spec: str, attribution: Attribution, probe: Probe, memo: dict | None = None) -> MetricResult:
    labels = LABELS[: len(probe.images)].repeat_interleave(probe.targets_per_image)
    return resolve_metric(spec)(attribution, probe=probe, labels=labels, memo=memo)


def two_sides(logits: Tensor) -> list[float]:
    found = logits.tolist()
    return [0.0, *found] if len(found) == 1 else found


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(one - top) for one in logits]
    return [one / sum(powers) for one in powers]


def say_tokens(family: str, image: Tensor, kept: list[int], patches: int) -> list[float]:
    keep = torch.zeros(patches, dtype=torch.bool)
    keep[kept] = True
    return two_sides(logits_with_masked_keys(tiny(family), image, keep))


@torch.no_grad()
def say_pixels(family: str, image: Tensor) -> list[float]:
    return two_sides(tiny(family)(image[None])[0])


def highest_first(scores: Tensor) -> list[int]:
    """Places from the highest score to the lowest, of scores without ties."""
    found = scores.flatten().tolist()
    assert len(set(found)) == len(found)
    return sorted(range(len(found)), key=lambda place: -found[place])


def trapezoids(levels: list[float], values: list[float]) -> float:
    pairs = zip(levels, levels[1:], values, values[1:], strict=False)
    return sum((b - a) * (x + y) / 2 for a, b, x, y in pairs)


def area(levels: list[float], values: list[float], kind: str) -> float:
    if kind == "mean":
        return sum(values) / len(values)
    found = trapezoids(levels, values)
    return found / (levels[-1] - levels[0]) if kind == "normalised" else found


def wanted(which: str, whole: list[float], label: int, explained: int) -> int:
    return {"predicted": whole.index(max(whole)), "label": label, "explained": explained}[which]


def revealed(image: Tensor, rest: Tensor, order: list[int], shown: int) -> Tensor:
    """The baseline, with the first `shown` pixels of the order put in one by one."""
    found, width = rest.clone(), image.shape[-1]
    for place in order[:shown]:
        found[:, place // width, place % width] = image[:, place // width, place % width]
    return found
