"""Measure `bayes`, its rivals and their ceilings on one model: `python docs/study/error_bars.py PART [--model ViT-Tiny] [--device cuda]`.

PART is one of

- `prepare FOLDER`: copy the images and weights that the parts below need from VITREOUS_ASSETS (about 8 MB and 23 MB a model).
- `photographs`: faithfulness on images of val to confirm on; faithfulness, AP, pointing game and the sum on the object on pets.
- `scenes`: the same on single, part and pair of Scenes, class discrimination on pair, and the stamp of shortcut.
- `ceilings`: greedy orders for deletion and insertion, converged Shapley values, and how far every method is from them.
- `coverage`: how often 95 % intervals of 256 or 1024 samples contain what many more samples say.
- `sensitivity`: max-sensitivity of sampled maps.

Every part writes OUT/error-bars-PART[-MODEL].csv with a row per model, dataset, image, method and metric, and ends when its minutes are
over; batches that are complete stay.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitreous
from vitreous.bench.plan import DataSpec, Evaluation
from vitreous.bench.work_cells import choose_places
from vitreous.capture.probe import Probe
from vitreous.core.errors import Caveat
from vitreous.data import open_dataset
from vitreous.data.batch import Batch, batches
from vitreous.data.reader import expand_path
from vitreous.methods.attribution import Attribution, patch_sums
from vitreous.methods.bayes import drawn_pairs, fitted, half_differences, prior_maps, prior_scores
from vitreous.methods.random_control import generators
from vitreous.methods.run import described
from vitreous.methods.spec import resolve
from vitreous.metrics.ranks import spearman

WEIGHTS = {
    "ViT-Tiny": ("timm:vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"),
    "DeiT-Tiny": ("timm:deit_tiny_patch16_224", "deit_tiny_patch16_224.wvfunc-lnq8.safetensors"),
}
VAL, PETS = "imagenet-val-1k-256", "oxford-pets-480"
COUNTS = {VAL: 160, PETS: 80}
COLUMNS = ("model", "dataset", "picture", "method", "metric", "value")
SIZES = (128, 256, 512, 1024)  # samples of `bayes`: more samples extend fewer ones

# candidates for the default, at one or two backward passes, asked about the probability and about the logit
BASES = ("genatt", "decompx+plus", "decompx+skipplus", "attnlrp+plus", "fullgrad@libra+plus", "gim+plus", "reslrp+plus", "temper", "fuse")  # fmt: skip
QUESTIONS = ("probability", "logit")
SAMPLED = ("anneal", "tis(masks=256)", "tis", "tis(question='logit')")
FITS = (("probability", "fuse"), ("probability", "temper"), ("probability", "none"), ("logit", "fuse"), ("logit", "decompx+plus"))  # fmt: skip


def asked(spec: str, question: str) -> str:
    return vitreous.resolve(spec).with_options(question=question).spec


# ── images and maps ──────────────────────────────────────────────────────────────────────────────


def prepare(folder: Path, model: str) -> None:
    """Copy weights, and the images of val and pets that are measured, in the layout of the assets."""
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    shutil.copy(expand_path(f"assets:weights/{WEIGHTS[model][1]}"), folder / "weights")
    for name, index in ((VAL, "boxes.csv"), (PETS, "labels.csv")):
        source, target = expand_path(f"assets:{name}"), folder / name
        data = DataSpec(spec=f"assets:{name}", label=name, part="2/2" if name == VAL else "")
        dataset = open_dataset(data.spec)
        places = choose_places(data, Evaluation((), pictures=COUNTS[name], seed=0))
        wanted = {Path(dataset[place].key).stem for place in places}
        with (source / index).open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            head = list(reader.fieldnames or ())
            rows = [row for row in reader if Path(row["file"]).stem in wanted]
        target.mkdir(parents=True, exist_ok=True)
        with (target / index).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, head, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        for image in wanted:
            for path in source.rglob(f"{image}.*"):
                place = target / path.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)
        print(f"{name}: {len(wanted)} images, {len(rows)} rows")


def read(spec: str, vit: Any, size: int = 16) -> Iterator[Batch]:
    """Batches of a dataset on the model's device."""
    yield from batches(open_dataset(spec), vit.preprocess, batch_size=size)


def explained(vit: Any, images: Tensor, targets: Tensor, spec: str) -> Attribution:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        return vitreous.explain(vit, images, targets, spec, batch_size=len(images))


def fits(vit: Any, images: Tensor, targets: Tensor, question: str, prior: str, most: int) -> dict[str, Attribution]:
    """Maps of `bayes` with each of SIZES up to `most`, from the subsets of the largest."""
    probe = Probe(vit, images, targets, question)
    maps = [prior_scores(method, probe) for method in prior_maps(prior)]
    patches, several = probe.layout.patches, probe.targets_per_image
    means = torch.stack(maps, 1) if maps else probe.images.new_zeros(probe.rows, 0, patches)
    nothing = torch.zeros(len(probe.images), 1, patches, dtype=torch.bool, device=probe.images.device)
    total = described(probe)["score"] - probe.score(nothing)[:, 0]
    keep = torch.stack([drawn_pairs(patches, most // 2, draw) for draw in generators(probe.originals, 0)])
    keep = keep.to(probe.images.device)
    differences = half_differences(probe, keep)
    rows = list(zip(differences.split(several), means.split(several), strict=True))
    found = {}
    for samples in (size for size in (*SIZES, most) if size <= most):
        posteriors = [
            fitted(probe, image, keep[image, : samples // 2], own[:, : samples // 2], prior_means)
            for image, (own, prior_means) in enumerate(rows)
        ]
        mean = torch.cat([one.mean for one in posteriors]).to(total) + total[:, None] / patches
        stderr = torch.cat([one.stderr for one in posteriors]).to(total)
        spec = resolve("bayes", samples=samples, prior=prior, question=question).spec
        found[spec] = Attribution(
            mean, probe.layout, probe.targets, spec, score=described(probe)["score"],
            logits=described(probe)["logits"], images=images.repeat_interleave(several, 0), stderr=stderr,
        )  # fmt: skip
    return found


def every_map(vit: Any, images: Tensor, targets: Tensor) -> Iterator[tuple[str, Attribution]]:
    """Maps of every method that is compared."""
    yield "random", explained(vit, images, targets, "random")
    for base in BASES:
        for question in QUESTIONS:
            spec = asked(base, question)
            yield spec, explained(vit, images, targets, spec)
    for spec in SAMPLED:
        yield spec, explained(vit, images, targets, spec)
    for question, prior in FITS:
        yield from fits(vit, images, targets, question, prior, 1024 if prior != "none" else 512).items()


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


def measured(
    vit: Any, found: Attribution, batch: Batch, metrics: list[str], rivals: Tensor | None = None
) -> dict[str, Tensor]:
    """Metrics of one map per row; `faithfulness` and `object_negative` are derived here."""
    given: dict[str, Any] = {}
    if batch.objects is not None:
        given["objects"] = batch.objects
    if rivals is not None:
        given["rivals"] = rivals
    results = vitreous.evaluate(vit, found.images, found, metrics, labels=batch.labels, batch_size=len(batch), **given)
    scores = {result.metric.split("(")[0]: result.scores.double().cpu() for result in results}
    if {"deletion_aopc", "insertion_aopc"} <= scores.keys():
        assert found.logits is not None
        probability = found.logits.softmax(-1).gather(1, found.targets[:, None])[:, 0].double().cpu()
        scores["faithfulness"] = scores["deletion_aopc"] + probability - scores["insertion_aopc"]
    if batch.objects is not None and found.patches is not None:
        share = patch_sums((batch.objects == 1).double(), found.layout).to(found.patches) / np.prod(found.layout.patch)
        inside = (found.patches * share).sum(1).cpu()
        scores["object_negative"] = (inside < 0).double().where((share.sum(1) > 0).cpu(), torch.nan)
    return scores


class Table:
    """Rows of a part, written as they come."""

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


def loaded(model: str, device: str) -> Any:
    if model not in WEIGHTS:
        return vitreous.load(model, device=device)
    name, file = WEIGHTS[model]
    return vitreous.load(name, checkpoint=str(expand_path(f"assets:weights/{file}")), device=device)


# ── parts ────────────────────────────────────────────────────────────────────────────────────────


def photographs(model: str, device: str, table: Table, limit: int | None) -> None:
    vit = loaded(model, device)
    sources = {PETS: ("pets", ["deletion_aopc", "insertion_aopc", "ap", "pointing_game"]), VAL: ("val", ["deletion_aopc", "insertion_aopc"])}  # fmt: skip
    queues = {name: first(read(f"assets:{name}", vit), limit) for name in sources}
    while queues:  # in turn, so that both have images if time is short
        for name in list(queues):
            batch = next(queues[name], None)
            if batch is None or table.is_over:
                del queues[name]
                continue
            label, metrics = sources[name]
            begun = time.monotonic()
            for spec, found in every_map(vit, batch.images, batch.labels):
                table.add(model, label, batch.keys, spec, measured(vit, found, batch, metrics))
            print(f"{model} {label}: {len(batch)} images in {time.monotonic() - begun:.0f} s", flush=True)


def first(stream: Iterator[Batch], limit: int | None) -> Iterator[Batch]:
    """Batches until `limit` images have been given."""
    given = 0
    for batch in stream:
        if limit is not None and given >= limit:
            return
        given += len(batch)
        yield batch


def scenes(model: str, device: str, table: Table, limit: int | None) -> None:
    """Single, part and pair with the plain model; shortcut with both."""
    vit, count = loaded("scenes", device), limit or 48
    metrics = ["deletion_aopc", "insertion_aopc", "ap", "pointing_game"]
    for name, seed in (("single", 201), ("part", 202), ("pair", 203)):
        for batch in read(f"scenes:{name}?count={count}&seed={seed}&mask=evidence", vit, 24):
            wanted = [*metrics, "class_discrimination"] if name == "pair" else metrics
            rivals = batch.rivals if name == "pair" else None
            for spec, found in every_map(vit, batch.images, batch.labels):
                table.add("Scenes", name, batch.keys, spec, measured(vit, found, batch, wanted, rivals))
            print(f"{name}: {len(batch)} images", flush=True)
            if table.is_over:
                return
    from vitreous.scenes import Scenes, tensor

    album = list(Scenes("shortcut", count, 205, mark="moved"))
    images = torch.stack([tensor(scene) for scene in album])
    stamps, things = (
        torch.from_numpy(np.stack([np.asarray(mask) for mask in masks])).to(torch.int8)
        for masks in ([scene.spurious for scene in album], [scene.objects[0].evidence for scene in album])
    )
    keys = tuple(f"shortcut/{place:03d}" for place in range(len(album)))
    for name in ("scenes-biased", "scenes"):
        biased = loaded(name, device)
        predicted = Probe(biased, images).targets.cpu()
        for spec, found in every_map(biased, images, predicted):
            results = vitreous.evaluate(
                biased, found.images, found, ["class_discrimination"], objects=stamps, rivals=things
            )
            table.add(name, "shortcut", keys, spec, {"stamp_above_thing": results[0].scores.double().cpu()})
        print(f"shortcut: {name}", flush=True)


@torch.no_grad()
def greedy(probe: Probe, removing: bool) -> Tensor:
    """Ranks [p] of one image: the patch that lowers the score most leaves first, or that raises it most enters first."""
    patches = probe.layout.patches
    rank = torch.full((patches,), -1, device=probe.images.device)
    for place in range(patches):
        left = (rank < 0).nonzero()[:, 0]
        keep = (rank < 0) if removing else (rank >= 0)
        options = keep.repeat(len(left), 1)
        options[torch.arange(len(left)), left] = not removing
        scores = probe.score(options[None])[0]
        rank[left[scores.argmin() if removing else scores.argmax()]] = place
    return rank


def ceilings(model: str, device: str, table: Table, limit: int | None) -> None:
    """Greedy orders, converged Shapley values, and the distance of every map from both."""
    vit, metrics = loaded(model, device), ["deletion_aopc", "insertion_aopc"]
    for batch in first(read(f"assets:{VAL}", vit, 4), limit or 24):
        if table.is_over:
            return
        images, labels = batch.images, batch.labels
        probe = Probe(vit, images, labels, "probability")
        reference = explained(vit, images, labels, "kernelshap(samples=16384)")
        assert reference.patches is not None
        assert reference.stderr is not None
        noise = reference.stderr.mean(1) / reference.patches.std(1)
        found: dict[str, Attribution] = {"converged Shapley": reference}
        for name, removing in (("greedy deletion", True), ("greedy insertion", False)):
            ranks = torch.stack([greedy(probe.alone(image), removing) for image in range(len(images))])
            found[name] = Attribution(-ranks.to(reference.patches), reference.layout, reference.targets, "given", logits=reference.logits, images=images)  # fmt: skip
        for spec in ("random", "genatt", "decompx+plus", "temper", "fuse", "anneal", "tis"):
            found[spec] = explained(vit, images, labels, spec)
        found |= fits(vit, images, labels, "probability", "fuse", 8192)
        for spec, attribution in found.items():
            scores = measured(vit, attribution, batch, metrics)
            assert attribution.patches is not None
            scores["rank_correlation"] = spearman(attribution.patches.double(), reference.patches.double()).cpu()
            if spec == "converged Shapley":
                scores["relative_error"] = noise.cpu()
            table.add(model, "val", batch.keys, spec, scores)
        print(f"{model} ceilings: {len(batch)} images", flush=True)


def coverage(model: str, device: str, table: Table, limit: int | None) -> None:
    """Share of the patches whose 95 % interval contains the value of many samples, whose own error is taken into account."""
    sources: dict[str, Callable[[Any], Iterator[Batch]]] = {
        "Scenes": lambda vit: read("scenes:single?count=24&seed=206", vit, 4)
    }
    if model in WEIGHTS:
        sources[model] = lambda vit: read(f"assets:{VAL}", vit, 4)
    for name, stream in sources.items():
        vit = loaded("scenes" if name == "Scenes" else name, device)
        for batch in first(stream(vit), limit or 16):
            if table.is_over:
                return
            images, labels = batch.images, batch.labels
            for question in QUESTIONS:
                maps = fits(vit, images, labels, question, "fuse", 16384)
                *short, last = maps.items()
                plain = fits(vit, images, labels, question, "none", 512)
                for spec, found in [*short, *plain.items()]:
                    table.add(name, "coverage", batch.keys, spec, {"coverage": covered(found, last[1])})
            shapley = explained(vit, images, labels, "kernelshap(samples=16384)")
            for samples in (1024, 2048):
                spec = f"kernelshap(samples={samples})"
                found = explained(vit, images, labels, f"kernelshap(samples={samples}, seed=1)")
                table.add(name, "coverage", batch.keys, spec, {"coverage": covered(found, shapley)})
        print(f"{name}: coverage", flush=True)


def covered(found: Attribution, reference: Attribution) -> Tensor:
    assert found.patches is not None
    assert reference.patches is not None
    assert found.stderr is not None
    assert reference.stderr is not None
    limit = 1.96 * (found.stderr.square() + reference.stderr.square()).sqrt()
    return ((found.patches - reference.patches).abs() <= limit).double().mean(1).cpu()


def sensitivity(model: str, device: str, table: Table, limit: int | None) -> None:
    vit = loaded(model, device)
    for batch in first(read(f"assets:{VAL}", vit, 16), limit or 64):
        for spec in (
            "temper",
            "temper(question='logit')",
            "fuse",
            "bayes(samples=128)",
            "bayes",
            "tis(masks=256)",
            "rise(masks=256)",
        ):
            if table.is_over:
                return
            found = explained(vit, batch.images, batch.labels, spec)
            table.add(model, "val", batch.keys, spec, measured(vit, found, batch, ["max_sensitivity"]))
        print(f"{model} sensitivity: {len(batch)} images", flush=True)


PARTS = {"photographs": photographs, "scenes": scenes, "ceilings": ceilings, "coverage": coverage, "sensitivity": sensitivity}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["prepare", *PARTS])
    parser.add_argument("folder", nargs="?", type=Path, help="for `prepare`")
    parser.add_argument("--model", default="ViT-Tiny", choices=[*WEIGHTS, "scenes"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--pictures", type=int, help="number of images of each dataset")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    given = parser.parse_args(arguments)
    if given.part == "prepare":
        if given.folder is None:
            parser.error("prepare needs a folder to copy into")
        prepare(given.folder, given.model)
        return 0
    name = f"error-bars-{given.part}" + ("" if given.part == "scenes" else f"-{given.model}")
    PARTS[given.part](given.model, given.device, Table(given.out / f"{name}.csv", given.minutes), given.pictures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
