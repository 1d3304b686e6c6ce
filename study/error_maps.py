"""Functions shared by the parts of error_bars.py: models, images, maps, metrics, and the table of rows."""

from __future__ import annotations

import csv
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitreous
from study.error_fits import QUESTIONS, SIZES, draw_subsets, fit_maps
from vitreous.bench.plan import DataSpec, Evaluation
from vitreous.bench.plan_source import parse_fraction
from vitreous.bench.work_cells import choose_places
from vitreous.core.errors import Caveat
from vitreous.data import open_dataset
from vitreous.data.batch import Batch, batches
from vitreous.data.reader import expand_path
from vitreous.methods.attribution import Attribution
from vitreous.methods.map_arrays import patch_sums

WEIGHTS = {
    "ViT-Tiny": ("timm:vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"),
    "DeiT-Tiny": ("timm:deit_tiny_patch16_224", "deit_tiny_patch16_224.wvfunc-lnq8.safetensors"),
}
VAL, PETS = "imagenet-val-1k-256", "oxford-pets-480"
COLUMNS = ("model", "dataset", "picture", "method", "metric", "value")

# candidates for the default, with one or two backward passes; both score functions are explained
BASES = ("genatt", "decompx+plus", "decompx+skipplus", "attnlrp+plus", "fullgrad@libra+plus", "gim+plus", "reslrp+plus", "temper", "fuse")  # fmt: skip
SAMPLED = ("anneal", "tis(masks=256)", "tis", "tis(question='logit')")
FITS = (("probability", "fuse"), ("probability", "temper"), ("probability", "none"), ("logit", "fuse"), ("logit", "decompx+plus"))  # fmt: skip


def set_question(spec: str, question: str) -> str:
    return vitreous.resolve(spec).with_options(question=question).spec


def load_model(model: str, device: str) -> Any:
    if model not in WEIGHTS:
        return vitreous.load(model, device=device)
    name, file = WEIGHTS[model]
    return vitreous.load(name, checkpoint=str(expand_path(f"assets:weights/{file}")), device=device)


def read_batches(spec: str, vit: Any, size: int = 16) -> Iterator[Batch]:
    """Batches of a dataset on the model's device."""
    yield from batches(open_dataset(spec), vit.preprocess, batch_size=size)


def choose_photographs(name: str, count: int | None = None, part: str = "2/2", seed: int = 0) -> tuple[int, ...]:
    """Indices of images of val or pets; a smaller number gives the first of a larger one."""
    return choose_places(
        DataSpec(spec=f"assets:{name}", label=name, part=part), Evaluation((), images=count, seed=seed)
    )


def read_places(name: str, vit: Any, places: Sequence[int], size: int, shard: str = "1/1") -> Iterator[Batch]:
    """Batches of these images; with shard "i/n" every n-th batch from the i-th on."""
    number, count = parse_fraction(shard, "--shard")
    starts = range(0, len(places), size)[number - 1 :: count]
    own = [place for start in starts for place in places[start : start + size]]
    yield from batches(open_dataset(f"assets:{name}"), vit.preprocess, own, size)


def read_photographs(
    name: str, vit: Any, count: int | None = None, size: int = 16, part: str = "2/2", shard: str = "1/1"
) -> Iterator[Batch]:
    """Batches of images of val or pets; a smaller number gives the first of a larger one."""
    yield from read_places(name, vit, choose_photographs(name, count, part), size, shard)


PRECISION = "tf32"  # of matrix products on GPUs that have it; methods whose ranks need float32 still use float32


def explain_images(vit: Any, images: Tensor, targets: Tensor, spec: str) -> Attribution:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        return vitreous.explain(vit, images, targets, spec, batch_size=len(images), precision=PRECISION)


def limit_batches(stream: Iterator[Batch], limit: int | None) -> Iterator[Batch]:
    """Batches until `limit` images have been yielded."""
    count = 0
    for batch in stream:
        if limit is not None and count >= limit:
            return
        count += len(batch)
        yield batch


def make_maps(vit: Any, images: Tensor, targets: Tensor) -> Iterator[tuple[str, Attribution]]:
    """Maps of every method that is compared."""
    yield "random", explain_images(vit, images, targets, "random")
    for base in BASES:
        for question in QUESTIONS:
            spec = set_question(base, question)
            yield spec, explain_images(vit, images, targets, spec)
    for spec in SAMPLED:
        yield spec, explain_images(vit, images, targets, spec)
    subsets = draw_subsets(vit, images, targets, SIZES[-1])
    for question, prior in FITS:
        most = SIZES[-1] if prior != "none" else SIZES[-2]
        yield from fit_maps(vit, images, targets, question, prior, most, subsets).items()


def evaluate_map(
    vit: Any, attribution: Attribution, batch: Batch, metrics: list[str], rivals: Tensor | None = None
) -> dict[str, Tensor]:
    """Metrics of one map per row; `faithfulness` and `object_negative` are derived here."""
    annotations: dict[str, Any] = {}
    if batch.objects is not None:
        annotations["objects"] = batch.objects
    if rivals is not None:
        annotations["rivals"] = rivals
    results = vitreous.evaluate(
        vit,
        attribution.images,
        attribution,
        metrics,
        labels=batch.labels,
        batch_size=len(batch),
        precision=PRECISION,
        **annotations,
    )
    scores = {result.metric.split("(")[0]: result.scores.double().cpu() for result in results}
    if {"deletion_aopc", "insertion_aopc"} <= scores.keys():
        assert attribution.logits is not None
        probability = attribution.logits.softmax(-1).gather(1, attribution.targets[:, None])[:, 0].double().cpu()
        scores["faithfulness"] = scores["deletion_aopc"] + probability - scores["insertion_aopc"]
    if batch.objects is not None and attribution.patches is not None:
        share = patch_sums((batch.objects == 1).double(), attribution.layout).to(attribution.patches) / np.prod(
            attribution.layout.patch
        )
        inside = (attribution.patches * share).sum(1).cpu()
        scores["object_negative"] = (inside < 0).double().where((share.sum(1) > 0).cpu(), torch.nan)
    return scores


@dataclass(frozen=True, slots=True)
class Job:
    """Arguments of a part of error_bars.py.

    Attributes
    ----------
    model
        Label of the model.
    device
        Device of the model.
    table
        Table that rows are written to.
    limit
        Number of images of each dataset; None for the default of the part.
    datasets
        Labels of the datasets to use; all if there are none.
    shard
        "i/n" for every n-th batch of photographs from the i-th on.
    """

    model: str
    device: str
    table: Table
    limit: int | None = None
    datasets: Sequence[str] = ()
    shard: str = "1/1"


class Table:
    """CSV table to which rows are appended, with a time limit."""

    def __init__(self, path: Path, minutes: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w", newline="", encoding="utf-8")
        self.writer = csv.writer(self.file, lineterminator="\n")
        self.writer.writerow(COLUMNS)
        self.end = time.monotonic() + 60 * minutes

    def add(self, model: str, dataset: str, keys: tuple[str, ...], method: str, scores: dict[str, Tensor]) -> None:
        for metric, values in scores.items():
            for key, value in zip(keys, values.tolist(), strict=True):
                self.writer.writerow((model, dataset, key, method, metric, f"{value:.6g}"))
        self.file.flush()

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end
