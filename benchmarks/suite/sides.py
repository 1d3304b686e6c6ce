"""Functions for both sides of a row: our maps, common targets, and the agreement of two sets of maps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vitreous
from suite.workload import Workload
from vitreous.capture.probe import Probe
from vitreous.metrics.ranks import spearman
from vitreous.models.vit import ViT


def predict_targets(workload: Workload, images: Tensor | None = None) -> Tensor:
    """Predicted class of each image."""
    with torch.no_grad():
        return workload.vit.forward(workload.images if images is None else images).argmax(-1)


def explain_batch(workload: Workload, spec: str, pictures: int | None = None, **options: Any) -> Any:
    return vitreous.explain(workload.vit, workload.images[:pictures], method=spec, batch_size=workload.batch, **options)


def make_probe(workload: Workload, question: str = "logit", images: Tensor | None = None) -> Probe:
    """A new probe."""
    return Probe(workload.vit, workload.images if images is None else images, None, question)


def worst_spearman(ours: Tensor, theirs: Tensor) -> float:
    """Smallest rank correlation of two sets of maps over images."""
    return float(spearman(ours.flatten(1).double().cpu(), theirs.flatten(1).double().cpu()).min())


def load_photographs(vit: ViT, count: int) -> Tensor | None:
    """Preprocessed photographs from VITREOUS_PICTURES (a folder) or VITREOUS_ASSETS; None without them."""
    assets = os.environ.get("VITREOUS_ASSETS")
    place = os.environ.get("VITREOUS_PICTURES") or (assets and str(Path(assets) / "imagenet-val-1k-256"))
    files = sorted(p for p in Path(place).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png")) if place else []
    if not files or vit.preprocess is None:
        return None
    from vitreous.models.image_input import open_image

    return vit.preprocess.batch([open_image(file) for file in files[:count]]).to(vit.device)
