"""Measure `bayes`, other methods and upper bounds on one model: `python study/error_bars.py PART [--model ViT-Tiny] [--device cuda]`.

PART is one of

- `photographs`: faithfulness on the confirmation half of val; faithfulness, AP, pointing game and the sum on the object on pets.
- `clip`: the same for CLIP ViT-B/16 with a classifier trained on the selection half, and the bases of PLUS and SkipPLUS.
- `masks`: TIS with up to one mask for every activation channel (2,304 in the small models, 8,192 of 9,216 in CLIP).
- `scenes`: the same as `photographs` on single, part and pair of Scenes, class discrimination on pair, and the stamp on shortcut.
- `ceilings`: greedy orders for deletion and insertion, converged Shapley values, and the rank correlation of every method with them.
- `coverage`: how often 95 % intervals contain the value with many more samples.
- `sensitivity`: max-sensitivity of sampled maps.
- `choose`: variants of `bayes` on the selection half.

Every part writes OUT/error-bars-PART[-MODEL].csv with a row per model, dataset, image, method and metric, and stops when its minutes are
over; complete batches are written. With --shard i/n it measures every n-th batch of photographs and writes a separate table;
make.py reads all tables of a part together.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitreous
from vitreous.capture.probe import Probe
from vitreous.core.errors import VitreousError
from vitreous.data import open_dataset
from vitreous.data.batch import Batch
from vitreous.methods.attribution import Attribution

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts beside this one are `study`
from study import probed_towers
from study.error_ceilings import measure_ceilings, measure_coverage, measure_sensitivity
from study.error_fits import SIZES, draw_subsets, fit_maps
from study.error_maps import (
    BASES,
    PETS,
    VAL,
    WEIGHTS,
    Job,
    Table,
    choose_photographs,
    evaluate_map,
    explain_images,
    load_model,
    make_maps,
    read_batches,
    read_photographs,
    read_places,
)

COUNTS, BATCH = {VAL: 250, PETS: 160}, 50
METRICS = {VAL: ["deletion_aopc", "insertion_aopc"], PETS: ["deletion_aopc", "insertion_aopc", "ap", "pointing_game"]}
LABELS = {VAL: "val", PETS: "pets"}

VARIANTS = (  # question, prior, shrinkage, covariance: further variants of `choose`
    ("probability", "fuse", ("flat", "cauchy0.1", "fixed1000"), "features"),
    ("probability", "fuse as two maps", ("flat", "log", "cauchy0.3", "cauchy0.1", "cauchy0.03", "fixed300", "fixed1000"), "features"),
    ("logit", "decompx+plus", ("flat", "cauchy0.1", "cauchy0.01", "fixed1000", "fixed10000", "fixed100000"), "features"),
    ("logit", "decompx+plus", ("cauchy0.1", "cauchy0.03", "fixed1000"), "space"),
)  # fmt: skip


def list_folders(datasets: Sequence[str]) -> list[str]:
    """Folders of the datasets with these labels; both if there are none."""
    return [name for name, label in LABELS.items() if not datasets or label in datasets]


def measure_photographs(
    job: Job, part: str = "2/2", maps: Callable[..., Iterator[tuple[str, Attribution]]] | None = None
) -> None:
    vit, maps = load_model(job.model, job.device), maps or make_maps
    queues = {
        name: read_photographs(name, vit, job.limit or COUNTS[name], BATCH, part, job.shard)
        for name in list_folders(job.datasets)
    }
    while queues:  # alternate, so that both have images if time is short
        for name in list(queues):
            batch = next(queues[name], None)
            if batch is None or job.table.is_over:
                del queues[name]
                continue
            start = time.monotonic()
            for spec, attribution in maps(vit, batch.images, batch.labels):
                scores = evaluate_map(vit, attribution, batch, METRICS[name])
                job.table.add(job.model, LABELS[name], batch.keys, spec, scores)
            print(f"{job.model} {LABELS[name]}: {len(batch)} images in {time.monotonic() - start:.0f} s", flush=True)


def measure_variants(job: Job) -> None:
    """Variants of `bayes` and the methods that they are compared with, on the selection half of val and pets."""
    measure_photographs(replace(job, limit=job.limit or 64), "1/2", maps=make_variant_maps)


def make_variant_maps(vit: Any, images: Tensor, targets: Tensor) -> Iterator[tuple[str, Attribution]]:
    for spec in ("random", "temper", "fuse", "decompx+plus", "tis"):
        yield spec, explain_images(vit, images, targets, spec)
    subsets = draw_subsets(vit, images, targets, SIZES[-1])
    for question, prior in (("probability", "fuse"), ("logit", "decompx+plus"), ("logit", "fuse")):
        yield from fit_maps(vit, images, targets, question, prior, SIZES[-1], subsets).items()
    other_variants = (
        ("probability", "fuse as two maps", ("fixed100000",), "features"),
        ("probability", "fuse as two maps", ("flat", "cauchy0.1"), "plain"), ("probability", "fuse as two maps", ("flat", "cauchy0.1"), "space"), ("logit", "fuse", ("fixed1000",), "features"),
    )  # fmt: skip
    for question, prior, shrinkage, cover in (*VARIANTS, *other_variants):
        yield from fit_maps(vit, images, targets, question, prior, SIZES[-1], subsets, shrinkage, cover).items()


CLIP_BASES = (
    "decompx", "globenc+rollout(form='half')", "alti(preset='skipplus', eps=1e-12)+rollout(form='half')", "attin", "genatt", "transatt",
    "attngrad", "ixg", "attixg(preset='skipplus')", "fullgrad", "gradcam", "xgradcamplus", "elementwise", "attcam(preset='skipplus')",
)  # fmt: skip
CLIP_OTHERS = (
    "tokentm", "tokentm(question='logit')", "gim", "gim(question='probability')", "reslrp", "reslrp(question='probability')", "attnlrp",
)  # fmt: skip


def make_clip_maps(vit: Any, images: Tensor, targets: Tensor) -> Iterator[tuple[str, Attribution]]:
    """Maps of the methods of all parts, then bases alone, under PLUS and under SkipPLUS, and other published methods."""
    yield from make_maps(vit, images, targets)
    folded = [f"{base.partition('+rollout')[0]}+{fold}" for base in CLIP_BASES for fold in ("plus", "skipplus")]
    for spec in (*CLIP_BASES, *folded, *CLIP_OTHERS):
        if spec in BASES:
            continue
        try:
            yield spec, explain_images(vit, images, targets, spec)
        except VitreousError as problem:
            print(f"{spec}: {problem}", flush=True)


def measure_clip(job: Job) -> None:
    """CLIP ViT-B/16: breeds of pets, and groups of animals of val, each with a classifier trained on the other half."""
    for name in list_folders(job.datasets):
        for vit, batch in read_clip_batches(name, job, job.limit or 250):
            if job.table.is_over:
                return
            start, label = time.monotonic(), LABELS[name]
            with torch.no_grad():
                right = vit.module(batch.images.to(job.device)).argmax(1).cpu() == batch.labels
            job.table.add(probed_towers.CLIP, label, batch.keys, "classifier", {"accuracy": right.double()})
            for spec, attribution in make_clip_maps(vit, batch.images, batch.labels):
                scores = evaluate_map(vit, attribution, batch, METRICS[name])
                job.table.add(probed_towers.CLIP, label, batch.keys, spec, scores)
            print(f"{probed_towers.CLIP} {label}: {len(batch)} images in {time.monotonic() - start:.0f} s", flush=True)


def read_clip_batches(name: str, job: Job, count: int, size: int = 32) -> Iterator[tuple[Any, Batch]]:
    """The model, and images of the confirmation half whose labels its classifier has, with the classifier's labels."""
    vit, numbers = probed_towers.load_classifier(probed_towers.CLIP, name, job.device)
    dataset = open_dataset(f"assets:{name}")
    labelled = [place for place in choose_photographs(name) if dataset[place].label in numbers]
    for batch in read_places(name, vit, labelled[:count], size, job.shard):
        yield vit, replace(batch, labels=torch.tensor([numbers[int(label)] for label in batch.labels]))


def measure_mask_counts(job: Job) -> None:
    """TIS by number of masks, at most one for every activation channel."""
    metrics = METRICS[PETS]
    if job.model == probed_towers.CLIP:
        stream: Iterator[tuple[Any, Batch]] = read_clip_batches(PETS, job, job.limit or 48, 16)
    else:
        vit = load_model(job.model, job.device)
        stream = ((vit, batch) for batch in read_photographs(PETS, vit, job.limit or 96, 48, shard=job.shard))
    for vit, batch in stream:
        channels = vit.depth * vit.module.embed_dim
        for count in (64, 128, 256, 512, 1024, 2048, *([channels] if channels < 4096 else [4096, 8192])):
            if job.table.is_over:
                return
            spec = f"tis(masks={count})"
            attribution = explain_images(vit, batch.images, batch.labels, spec)
            job.table.add(job.model, "pets", batch.keys, spec, evaluate_map(vit, attribution, batch, metrics))
        print(f"{job.model} masks: {len(batch)} images", flush=True)


def measure_scenes(job: Job) -> None:
    """Single, part and pair with the plain model; shortcut with both."""
    count, datasets = job.limit or 96, list(job.datasets)
    metrics = ["deletion_aopc", "insertion_aopc", "ap", "pointing_game"]
    if datasets != ["shortcut"]:
        vit = load_model("scenes", job.device)
    for name, seed in (("single", 201), ("part", 202), ("pair", 203)):
        if datasets and name not in datasets:
            continue
        for batch in read_batches(f"scenes:{name}?count={count}&seed={seed}&mask=evidence", vit, 24):
            if job.table.is_over:
                return
            used = [*metrics, "class_discrimination"] if name == "pair" else metrics
            rivals = batch.rivals if name == "pair" else None
            for spec, attribution in make_maps(vit, batch.images, batch.labels):
                job.table.add("Scenes", name, batch.keys, spec, evaluate_map(vit, attribution, batch, used, rivals))
            print(f"{name}: {len(batch)} images", flush=True)
    if not datasets or "shortcut" in datasets:
        measure_shortcut(job.device, job.table, count)


def measure_shortcut(device: str, table: Table, count: int) -> None:
    """P(stamp above object), in the model that uses the stamp and in the one that does not."""
    from vitreous.scenes import Scenes, tensor

    album = list(Scenes("shortcut", count, 205, mark="moved"))
    vits = {name: load_model(name, device) for name in ("scenes-biased", "scenes")}
    for start in range(0, len(album), 24):
        drawn_scenes = album[start : start + 24]
        images = torch.stack([tensor(scene) for scene in drawn_scenes])
        stamps, things = (
            torch.from_numpy(np.stack([np.asarray(mask) for mask in masks])).to(torch.int8)
            for masks in (
                [scene.spurious for scene in drawn_scenes],
                [scene.objects[0].evidence for scene in drawn_scenes],
            )
        )
        keys = tuple(f"shortcut/{place:03d}" for place in range(start, start + len(drawn_scenes)))
        for name, vit in vits.items():
            predicted = Probe(vit, images, None).targets.cpu()
            for spec, attribution in make_maps(vit, images, predicted):
                results = vitreous.evaluate(vit, attribution.images, attribution, ["class_discrimination"], objects=stamps, rivals=things)  # fmt: skip
                table.add(name, "shortcut", keys, spec, {"stamp_above_thing": results[0].scores.double().cpu()})
        print(f"shortcut: {start + len(drawn_scenes)} images", flush=True)
        if table.is_over:
            return


PARTS = {
    "photographs": measure_photographs, "clip": measure_clip, "masks": measure_mask_counts, "scenes": measure_scenes, "ceilings": measure_ceilings, "coverage": measure_coverage,
    "sensitivity": measure_sensitivity, "choose": measure_variants,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS])
    parser.add_argument("--model", default="ViT-Tiny", choices=[*WEIGHTS, probed_towers.CLIP, "scenes"])
    parser.add_argument(
        "--datasets", nargs="*", default=[], help="of val, pets, single, part, pair, shortcut; default: all"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--images", "--pictures", dest="images", type=int, help="number of images of each dataset")
    parser.add_argument("--shard", metavar="i/n", help="every n-th batch of photographs from the i-th on")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args(arguments)
    model = {"scenes": "scenes", "clip": probed_towers.CLIP}.get(options.part, options.model).replace("/", "-")
    shard = [] if options.shard is None else [options.shard.replace("/", "-of-")]
    name = "-".join(["error-bars", options.part, model, *options.datasets, *shard])
    torch.set_float32_matmul_precision("high")  # for evaluations of the model outside of `explain`
    table = Table(options.out / f"{name}.csv", options.minutes)
    job = Job(options.model, options.device, table, options.images, options.datasets, options.shard or "1/1")
    PARTS[options.part](job)
    return 0


if __name__ == "__main__":
    sys.exit(main())
