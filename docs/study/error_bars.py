"""Measure `bayes`, its rivals and their ceilings on one model: `python docs/study/error_bars.py PART [--model ViT-Tiny] [--device cuda]`.

PART is one of

- `photographs`: faithfulness on images of val to confirm on; faithfulness, AP, pointing game and the sum on the object on pets.
- `clip`: the same of CLIP ViT-B/16 with a classifier of images outside the confirming half, and the bases of PLUS and SkipPLUS.
- `masks`: how many masks TIS needs, up to one for every activation channel (2,304 in the small models, 8,192 of 9,216 in CLIP).
- `scenes`: the same as `photographs` on single, part and pair of Scenes, class discrimination on pair, and the stamp of shortcut.
- `ceilings`: greedy orders for deletion and insertion, converged Shapley values, and how far every method is from them.
- `coverage`: how often 95 % intervals of 256 or 1024 samples contain what many more samples say.
- `sensitivity`: max-sensitivity of sampled maps.
- `choose`: variants of `bayes` on the images to choose by.

Every part writes OUT/error-bars-PART[-MODEL].csv with a row per model, dataset, image, method and metric, and ends when its minutes are
over; batches that are complete stay.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitreous
from vitreous.bench.plan import DataSpec, Evaluation
from vitreous.bench.work_cells import choose_places
from vitreous.capture.probe import Probe
from vitreous.capture.score_function import ask
from vitreous.core.errors import Caveat, VitreousError
from vitreous.data import open_dataset
from vitreous.data.batch import Batch, batches
from vitreous.data.reader import expand_path
from vitreous.methods.additive_model import RATIOS, additive_fit, weight_covariance, weight_posterior
from vitreous.methods.attribution import Attribution
from vitreous.methods.bayes import draw_pairs, prior_maps, prior_scores
from vitreous.methods.map_arrays import patch_sums
from vitreous.methods.random_control import generators
from vitreous.methods.run import score_and_logits
from vitreous.methods.spec import resolve
from vitreous.metrics.ranks import spearman

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts beside this one are `study`
from study import clip_probe

WEIGHTS = {
    "ViT-Tiny": ("timm:vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"),
    "DeiT-Tiny": ("timm:deit_tiny_patch16_224", "deit_tiny_patch16_224.wvfunc-lnq8.safetensors"),
}
VAL, PETS = "imagenet-val-1k-256", "oxford-pets-480"
COUNTS = {VAL: 250, PETS: 160}
BATCH, THREADS = 50, 4
HALF = {VAL: "2/2", PETS: "2/2"}  # of val, the other half was chosen by; of pets, CLIP's classifier has seen it
COLUMNS = ("model", "dataset", "picture", "method", "metric", "value")
SIZES = (128, 256, 512, 1024)  # samples of `bayes`: more samples extend fewer ones

# candidates for the default, at one or two backward passes, asked about the probability and about the logit
BASES = ("genatt", "decompx+plus", "decompx+skipplus", "attnlrp+plus", "fullgrad@libra+plus", "gim+plus", "reslrp+plus", "temper", "fuse")  # fmt: skip
QUESTIONS = ("probability", "logit")
SAMPLED = ("anneal", "tis(masks=256)", "tis", "tis(question='logit')")
FITS = (("probability", "fuse"), ("probability", "temper"), ("probability", "none"), ("logit", "fuse"), ("logit", "decompx+plus"))  # fmt: skip

VARIANTS = (  # question, prior, shrinkage, covariance: what `choose` compares besides
    ("probability", "fuse", ("flat", "cauchy0.1", "fixed1000"), "features"),
    ("probability", "fuse as two maps", ("flat", "log", "cauchy0.3", "cauchy0.1", "cauchy0.03", "fixed300", "fixed1000"), "features"),
    ("logit", "decompx+plus", ("flat", "cauchy0.1", "cauchy0.01", "fixed1000", "fixed10000", "fixed100000"), "features"),
    ("logit", "decompx+plus", ("cauchy0.1", "cauchy0.03", "fixed1000"), "space"),
)  # fmt: skip


def asked(spec: str, question: str) -> str:
    return vitreous.resolve(spec).with_options(question=question).spec


# ── images and maps ──────────────────────────────────────────────────────────────────────────────


def read(spec: str, vit: Any, size: int = 16) -> Iterator[Batch]:
    """Batches of a dataset on the model's device."""
    yield from batches(open_dataset(spec), vit.preprocess, batch_size=size)


def photos(name: str, vit: Any, count: int | None = None, size: int = 16, part: str = "2/2", seed: int = 0) -> Iterator[Batch]:  # fmt: skip
    """Batches of images of val or pets in an order that does not depend on their number."""
    data = DataSpec(spec=f"assets:{name}", label=name, part=part)
    places = choose_places(data, Evaluation((), pictures=count, seed=seed))
    yield from batches(open_dataset(data.spec), vit.preprocess, places, size)


PRECISION = "tf32"  # of all products on GPUs that have it; methods whose ranks need float32 are computed in it


def explained(vit: Any, images: Tensor, targets: Tensor, spec: str) -> Attribution:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        return vitreous.explain(vit, images, targets, spec, batch_size=len(images), precision=PRECISION)


# ── fits ─────────────────────────────────────────────────────────────────────────────────────────


def half_cauchy(scale: float) -> Tensor:
    """Log prior of `RATIOS` where deviation / noise, a standard deviation each, is half Cauchy."""
    deviation = RATIOS.rsqrt()
    return deviation.log() - torch.log1p((deviation / scale).square())


def fixed(ratio: float) -> Tensor:
    nearest = (RATIOS.log() - np.log(ratio)).abs().argmin()
    return torch.full_like(RATIOS, -torch.inf).index_fill(0, nearest, 0.0)


SHRINKAGE: dict[str, Tensor] = {  # priors of the size of deviations from the maps
    "flat": -RATIOS.log() / 2,
    "log": torch.zeros_like(RATIOS),
    **{f"cauchy{scale:g}": half_cauchy(scale) for scale in (0.3, 0.1, 0.03, 0.01)},
    **{f"fixed{ratio:g}": fixed(ratio) for ratio in (300, 1000, 10_000, 100_000)},
}


@dataclass(frozen=True)
class Drawn:
    """Subsets of a batch and what the model says on them, for both questions."""

    vit: Any
    images: Tensor
    probes: Mapping[str, Probe]
    keep: Tensor
    differences: Mapping[str, Tensor]
    totals: Mapping[str, Tensor]

    @property
    def several(self) -> int:
        return self.probes["logit"].targets_per_image


@torch.no_grad()
def drawn(vit: Any, images: Tensor, targets: Tensor, most: int) -> Drawn:
    """Evaluate `most` subsets once; the probability and the logit are read from the same logits."""
    probes = {question: Probe(vit, images, targets, question) for question in QUESTIONS}
    probe = probes["logit"]
    patches, several = probe.layout.patches, probe.targets_per_image
    keep = torch.stack([draw_pairs(patches, most // 2, draw) for draw in generators(probe.originals, 0)])
    keep = keep.to(probe.images.device)
    scores: dict[str, list[Tensor]] = {question: [] for question in QUESTIONS}
    nothing = torch.zeros_like(keep[:, :1])
    for some in torch.cat([keep, ~keep, nothing], 1).split(2048, 1):
        logits = probe.logits(some).repeat_interleave(several, 0)  # [r s c]
        rows = probe.targets[:, None].expand(-1, logits.shape[1]).flatten()
        for question in QUESTIONS:
            scores[question].append(ask(question)(logits.flatten(0, 1), rows).unflatten(0, logits.shape[:2]))
    differences, totals = {}, {}
    for question, parts in scores.items():
        first, second, empty = torch.cat(parts, 1).double().split([most // 2, most // 2, 1], 1)
        differences[question] = (first - second) / 2
        totals[question] = score_and_logits(probes[question])["score"] - empty[:, 0].to(
            score_and_logits(probe)["score"]
        )
    return Drawn(vit, images, probes, keep, differences, totals)


def spatial(covariance: Tensor, grid: Sequence[int], length: float = 3.0) -> Tensor:
    """A covariance times exp(−distance² / 2 length²) of the patches."""
    places = torch.cartesian_prod(*(torch.arange(side) for side in grid)).to(covariance)
    return covariance * torch.exp(-torch.cdist(places, places).square() / (2 * length**2))


def fits(
    vit: Any, images: Tensor, targets: Tensor, question: str, prior: str, most: int, given: Drawn | None = None,
    shrinkage: Sequence[str] = ("",), cover: str = "features",
) -> dict[str, Attribution]:  # fmt: skip
    """Maps of `bayes` with each of SIZES up to `most`, from the subsets of the largest.

    `shrinkage` names priors of SHRINKAGE, "" for that of the method; `prior` may be "fuse as two maps"; `cover` is the
    prior covariance: "features" as in the method, "plain" without the maps' size, or "space" with distances on the grid.
    """
    given = given or drawn(vit, images, targets, most)
    probe, several, total = given.probes[question], given.several, given.totals[question]
    patches, layout = probe.layout.patches, probe.layout
    methods = (resolve("temper"), resolve("presence")) if prior == "fuse as two maps" else prior_maps(prior)
    maps = [prior_scores(method, probe).double().cpu() for method in methods]
    means = torch.stack(maps, 1) if maps else torch.zeros(probe.rows, 0, patches, dtype=torch.float64)
    keep, differences = given.keep.cpu(), given.differences[question].cpu()
    features = probe.states[-1][:, layout.prefix :].double().cpu()
    found: dict[str, Attribution] = {}
    for samples in dict.fromkeys(size for size in (*SIZES, most) if size <= most):

        def fitted(image: int, pairs: int = samples // 2) -> list[Any]:
            own = slice(image * several, (image + 1) * several)
            covariance = weight_covariance(features[image], means[own][:, :0] if cover == "plain" else means[own])
            covariance = spatial(covariance, layout.grid) if cover == "space" else covariance
            data = (keep[image, :pairs], differences[own, :pairs], means[own], covariance)
            if tuple(shrinkage) == ("",):
                return [weight_posterior(*data)]
            fit = additive_fit(*data)
            return [fit.posterior(SHRINKAGE[name]) for name in shrinkage]

        with ThreadPoolExecutor(THREADS) as pool:
            by_image = list(pool.map(fitted, range(len(images))))
        for name, posteriors in zip(shrinkage, zip(*by_image, strict=True), strict=True):
            mean = torch.cat([posterior.mean for posterior in posteriors]).to(total) + total[:, None] / patches
            stderr = torch.cat([posterior.stderr for posterior in posteriors]).to(total)
            spec = resolve("bayes", samples=samples, prior=prior.removesuffix(" as two maps"), question=question).spec
            words = [
                word for word in (name, prior if " " in prior else "", cover if cover != "features" else "") if word
            ]
            found[" | ".join([spec, *words])] = Attribution(
                mean, layout, probe.targets, spec, score=score_and_logits(probe)["score"],
                logits=score_and_logits(probe)["logits"], images=images.repeat_interleave(several, 0), stderr=stderr,
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
    given = drawn(vit, images, targets, SIZES[-1])
    for question, prior in FITS:
        most = SIZES[-1] if prior != "none" else SIZES[-2]
        yield from fits(vit, images, targets, question, prior, most, given).items()


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
    results = vitreous.evaluate(
        vit, found.images, found, metrics, labels=batch.labels, batch_size=len(batch), precision=PRECISION, **given
    )
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


METRICS = {VAL: ["deletion_aopc", "insertion_aopc"], PETS: ["deletion_aopc", "insertion_aopc", "ap", "pointing_game"]}
LABELS = {VAL: "val", PETS: "pets"}


def wanted(datasets: Sequence[str]) -> list[str]:
    """Folders of the datasets that are asked for by label; both if none is."""
    return [name for name, label in LABELS.items() if not datasets or label in datasets]


def photographs(
    model: str, device: str, table: Table, limit: int | None, datasets: Sequence[str] = (), part: str = "2/2",
    maps: Callable[..., Iterator[tuple[str, Attribution]]] | None = None,
) -> None:  # fmt: skip
    vit, maps = loaded(model, device), maps or every_map
    queues = {name: photos(name, vit, limit or COUNTS[name], BATCH, part) for name in wanted(datasets)}
    while queues:  # in turn, so that both have images if time is short
        for name in list(queues):
            batch = next(queues[name], None)
            if batch is None or table.is_over:
                del queues[name]
                continue
            begun = time.monotonic()
            for spec, found in maps(vit, batch.images, batch.labels):
                table.add(model, LABELS[name], batch.keys, spec, measured(vit, found, batch, METRICS[name]))
            print(f"{model} {LABELS[name]}: {len(batch)} images in {time.monotonic() - begun:.0f} s", flush=True)


def choose(model: str, device: str, table: Table, limit: int | None, datasets: Sequence[str] = ()) -> None:
    """Variants of `bayes`, and what they are compared with, on the other half of val and pets."""
    photographs(model, device, table, limit or 64, datasets, "1/2", maps=chosen_maps)


def chosen_maps(vit: Any, images: Tensor, targets: Tensor) -> Iterator[tuple[str, Attribution]]:
    for spec in ("random", "temper", "fuse", "decompx+plus", "tis"):
        yield spec, explained(vit, images, targets, spec)
    given = drawn(vit, images, targets, SIZES[-1])
    for question, prior in (("probability", "fuse"), ("logit", "decompx+plus"), ("logit", "fuse")):
        yield from fits(vit, images, targets, question, prior, SIZES[-1], given).items()
    more = (
        ("probability", "fuse as two maps", ("fixed100000",), "features"),
        ("probability", "fuse as two maps", ("flat", "cauchy0.1"), "plain"), ("probability", "fuse as two maps", ("flat", "cauchy0.1"), "space"), ("logit", "fuse", ("fixed1000",), "features"),
    )  # fmt: skip
    for question, prior, shrinkage, cover in (*VARIANTS, *more):
        yield from fits(vit, images, targets, question, prior, SIZES[-1], given, shrinkage, cover).items()


CLIP_BASES = (
    "decompx", "globenc+rollout(form='half')", "alti(preset='skipplus', eps=1e-12)+rollout(form='half')", "attin", "genatt", "transatt",
    "attngrad", "ixg", "attixg(preset='skipplus')", "fullgrad", "gradcam", "xgradcamplus", "elementwise", "attcam(preset='skipplus')",
)  # fmt: skip
CLIP_OTHERS = (
    "tokentm", "tokentm(question='logit')", "gim", "gim(question='probability')", "reslrp", "reslrp(question='probability')", "attnlrp",
)  # fmt: skip


def clip_maps(vit: Any, images: Tensor, targets: Tensor) -> Iterator[tuple[str, Attribution]]:
    """What is compared everywhere, then bases alone, under PLUS and under SkipPLUS, and other published methods."""
    yield from every_map(vit, images, targets)
    folded = [f"{base.partition('+rollout')[0]}+{fold}" for base in CLIP_BASES for fold in ("plus", "skipplus")]
    for spec in (*CLIP_BASES, *folded, *CLIP_OTHERS):
        if spec in BASES:
            continue
        try:
            yield spec, explained(vit, images, targets, spec)
        except VitreousError as problem:
            print(f"{spec}: {problem}", flush=True)


def clip(model: str, device: str, table: Table, limit: int | None, datasets: Sequence[str] = ()) -> None:
    """CLIP ViT-B/16: breeds of pets, and groups of animals of val, with a classifier of the other half each."""
    for name in wanted(datasets):
        for vit, batch in clip_batches(name, device, limit or 250):
            if table.is_over:
                return
            begun, label = time.monotonic(), LABELS[name]
            with torch.no_grad():
                right = vit.module(batch.images.to(device)).argmax(1).cpu() == batch.labels
            table.add(clip_probe.NAME, label, batch.keys, "classifier", {"accuracy": right.double()})
            for spec, found in clip_maps(vit, batch.images, batch.labels):
                table.add(clip_probe.NAME, label, batch.keys, spec, measured(vit, found, batch, METRICS[name]))
            print(f"{clip_probe.NAME} {label}: {len(batch)} images in {time.monotonic() - begun:.0f} s", flush=True)


def clip_batches(name: str, device: str, count: int, size: int = 32) -> Iterator[tuple[Any, Batch]]:
    """The model and images of the confirming half with the labels that its classifier knows."""
    vit, numbers = clip_probe.classifier(name, device)
    given = 0
    for batch in photos(name, vit, None, size):
        chosen = [row for row, label in enumerate(batch.labels.tolist()) if label in numbers]
        chosen = chosen[: max(0, count - given)]
        if not chosen:
            continue
        given += len(chosen)
        labels = torch.tensor([numbers[int(batch.labels[row])] for row in chosen])
        objects = None if batch.objects is None else batch.objects[chosen]
        yield vit, replace(batch, images=batch.images[chosen], labels=labels, objects=objects, keys=tuple(batch.keys[row] for row in chosen))  # fmt: skip
        if given >= count:
            return


def masks(model: str, device: str, table: Table, limit: int | None, datasets: Sequence[str] = ()) -> None:
    """TIS with ever more masks: every activation channel is at most one cluster."""
    metrics = METRICS[PETS]
    if model == clip_probe.NAME:
        stream: Iterator[tuple[Any, Batch]] = clip_batches(PETS, device, limit or 48, 16)
    else:
        vit = loaded(model, device)
        stream = ((vit, batch) for batch in photos(PETS, vit, limit or 96, 48))
    for vit, batch in stream:
        channels = vit.depth * vit.module.embed_dim
        for count in (64, 128, 256, 512, 1024, 2048, *([channels] if channels < 4096 else [4096, 8192])):
            if table.is_over:
                return
            spec = f"tis(masks={count})"
            found = explained(vit, batch.images, batch.labels, spec)
            table.add(model, "pets", batch.keys, spec, measured(vit, found, batch, metrics))
        print(f"{model} masks: {len(batch)} images", flush=True)


def first(stream: Iterator[Batch], limit: int | None) -> Iterator[Batch]:
    """Batches until `limit` images have been given."""
    given = 0
    for batch in stream:
        if limit is not None and given >= limit:
            return
        given += len(batch)
        yield batch


def scenes(model: str, device: str, table: Table, limit: int | None, datasets: Sequence[str] = ()) -> None:
    """Single, part and pair with the plain model; shortcut with both."""
    count = limit or 96
    metrics = ["deletion_aopc", "insertion_aopc", "ap", "pointing_game"]
    if datasets != ["shortcut"]:
        vit = loaded("scenes", device)
    for name, seed in (("single", 201), ("part", 202), ("pair", 203)):
        if datasets and name not in datasets:
            continue
        for batch in read(f"scenes:{name}?count={count}&seed={seed}&mask=evidence", vit, 24):
            if table.is_over:
                return
            used = [*metrics, "class_discrimination"] if name == "pair" else metrics
            rivals = batch.rivals if name == "pair" else None
            for spec, found in every_map(vit, batch.images, batch.labels):
                table.add("Scenes", name, batch.keys, spec, measured(vit, found, batch, used, rivals))
            print(f"{name}: {len(batch)} images", flush=True)
    if not datasets or "shortcut" in datasets:
        shortcut(device, table, count)


def shortcut(device: str, table: Table, count: int) -> None:
    """Whether the stamp is above the thing, in the model that uses it and in the one that does not."""
    from vitreous.scenes import Scenes, tensor

    album = list(Scenes("shortcut", count, 205, mark="moved"))
    vits = {name: loaded(name, device) for name in ("scenes-biased", "scenes")}
    for start in range(0, len(album), 24):
        some = album[start : start + 24]
        images = torch.stack([tensor(scene) for scene in some])
        stamps, things = (
            torch.from_numpy(np.stack([np.asarray(mask) for mask in masks])).to(torch.int8)
            for masks in ([scene.spurious for scene in some], [scene.objects[0].evidence for scene in some])
        )
        keys = tuple(f"shortcut/{place:03d}" for place in range(start, start + len(some)))
        for name, vit in vits.items():
            predicted = Probe(vit, images, None).targets.cpu()
            for spec, found in every_map(vit, images, predicted):
                results = vitreous.evaluate(vit, found.images, found, ["class_discrimination"], objects=stamps, rivals=things)  # fmt: skip
                table.add(name, "shortcut", keys, spec, {"stamp_above_thing": results[0].scores.double().cpu()})
        print(f"shortcut: {start + len(some)} images", flush=True)
        if table.is_over:
            return


@torch.no_grad()
def greedy(probe: Probe, removing: bool) -> Tensor:
    """Ranks [b p]: in every image the patch that lowers the score most leaves first, or that raises it most enters first."""
    images, patches = len(probe.images), probe.layout.patches
    ranks = torch.full((images, patches), -1, device=probe.images.device)
    for place in range(patches):
        left = (ranks < 0).nonzero()[:, 1].view(images, patches - place)  # as many in every image
        keep = (ranks < 0) if removing else (ranks >= 0)
        options = keep[:, None].expand(-1, left.shape[1], -1).scatter(2, left[..., None], not removing)
        scores = probe.score(options)
        best = scores.argmin(1) if removing else scores.argmax(1)
        ranks.scatter_(1, left.gather(1, best[:, None]), place)
    return ranks


def ceilings(model: str, device: str, table: Table, limit: int | None, datasets: Sequence[str] = ()) -> None:
    """Greedy orders, converged Shapley values, and the distance of every map from both."""
    vit, metrics = loaded(model, device), ["deletion_aopc", "insertion_aopc"]
    for batch in photos(VAL, vit, limit or 48, 12):
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
            ranks = greedy(probe, removing)
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


def coverage(model: str, device: str, table: Table, limit: int | None, datasets: Sequence[str] = ()) -> None:
    """Share of the patches whose 95 % interval contains the value of many samples, whose own error is taken into account."""
    sources: dict[str, Callable[[Any], Iterator[Batch]]] = {
        "Scenes": lambda vit: read("scenes:single?count=32&seed=206", vit, 8)
    }
    if model in WEIGHTS:
        sources = {model: lambda vit: photos(VAL, vit, limit or 32, 8)}
    for name, stream in sources.items():
        vit = loaded("scenes" if name == "Scenes" else name, device)
        for batch in first(stream(vit), limit or 32):
            if table.is_over:
                return
            images, labels = batch.images, batch.labels
            given = drawn(vit, images, labels, 16384)
            for question in QUESTIONS:
                maps = fits(vit, images, labels, question, "fuse", 16384, given)
                many = {spec: maps.pop(spec) for spec in list(maps) if "samples=16384" in spec}
                reference = next(iter(many.values()))
                maps |= fits(vit, images, labels, question, "none", 512, given)
                for spec, found in maps.items():
                    table.add(name, "coverage", batch.keys, spec, {"coverage": covered(found, reference)})
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


def sensitivity(model: str, device: str, table: Table, limit: int | None, datasets: Sequence[str] = ()) -> None:
    vit = loaded(model, device)
    for batch in photos(VAL, vit, limit or 64, 32):
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


PARTS = {
    "photographs": photographs, "clip": clip, "masks": masks, "scenes": scenes, "ceilings": ceilings, "coverage": coverage,
    "sensitivity": sensitivity, "choose": choose,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS])
    parser.add_argument("--model", default="ViT-Tiny", choices=[*WEIGHTS, clip_probe.NAME, "scenes"])
    parser.add_argument(
        "--datasets", nargs="*", default=[], help="of val, pets, single, part, pair, shortcut; all if there are none"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--pictures", type=int, help="number of images of each dataset")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    given = parser.parse_args(arguments)
    model = {"scenes": "scenes", "clip": clip_probe.NAME}.get(given.part, given.model).replace("/", "-")
    name = "-".join(["error-bars", given.part, model, *given.datasets])
    torch.set_float32_matmul_precision("high")  # where the model is asked without `explain`
    table = Table(given.out / f"{name}.csv", given.minutes)
    PARTS[given.part](given.model, given.device, table, given.pictures, given.datasets)
    return 0


if __name__ == "__main__":
    sys.exit(main())
