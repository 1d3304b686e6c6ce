"""What both sides of a row are made of: our maps, the targets they share, and how far two sets of maps agree."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vitreous
from suite.bed import Bed
from vitreous.capture.probe import Probe
from vitreous.metrics.ranks import spearman
from vitreous.models.vit import ViT


def targets_of(bed: Bed, images: Tensor | None = None) -> Tensor:
    """The class that each image gets."""
    with torch.no_grad():
        return bed.vit.forward(bed.images if images is None else images).argmax(-1)


def explained(bed: Bed, spec: str, pictures: int | None = None, **options: Any) -> Any:
    return vitreous.explain(bed.vit, bed.images[:pictures], method=spec, batch_size=bed.batch, **options)


def probed(bed: Bed, question: str = "logit", images: Tensor | None = None) -> Probe:
    """A probe that has seen nothing yet."""
    return Probe(bed.vit, bed.images if images is None else images, None, question)


def worst_spearman(ours: Tensor, theirs: Tensor) -> float:
    """Rank correlation of two sets of maps, of the image where it is least."""
    return float(spearman(ours.flatten(1).double().cpu(), theirs.flatten(1).double().cpu()).min())


def real_pictures(vit: ViT, count: int) -> Tensor | None:
    """Photographs as the model takes them, from VITREOUS_PICTURES (a folder) or VITREOUS_ASSETS; None without them."""
    assets = os.environ.get("VITREOUS_ASSETS")
    place = os.environ.get("VITREOUS_PICTURES") or (assets and str(Path(assets) / "imagenet-val-1k-256"))
    files = sorted(p for p in Path(place).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png")) if place else []
    if not files or vit.preprocess is None:
        return None
    from vitreous.models.image_input import open_image

    return vit.preprocess.batch([open_image(file) for file in files[:count]]).to(vit.device)
