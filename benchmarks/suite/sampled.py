"""Methods and metrics that watch answers to subsets of tokens, beside the bare forwards of these subsets.

On a CUDA device also in bfloat16 beside float32, on the same subsets; how far the two agree is measured on photographs and trained
weights where VITREOUS_ASSETS has them: those of this size, or else of ViT-Ti/16.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import vitreous
from suite import bare
from suite.bed import SIZES, WORDS, Bed
from suite.case import Case
from suite.sides import real_pictures, worst_spearman
from vitreous.capture.probe import Probe
from vitreous.methods.activation_masks import cluster_activations, keep_largest, tis_of_subsets
from vitreous.methods.attribution import Attribution
from vitreous.methods.random_control import generators
from vitreous.methods.spec import resolve
from vitreous.methods.surrogate import coalitions, with_ends
from vitreous.metrics.metric import resolve_metric
from vitreous.models.vit import ViT

Run = Callable[..., Tensor]  # (model, images=, classes=) → scores, a row per image
LARGE = ("b", "l", "eva")
PAPER = 1024  # masks of TIS
MAPS, POINTWISE = 8, 64  # photographs whose maps, and whose curves, two precisions are compared by
GROUPS = ("sampling", "metrics")


@dataclass(frozen=True)
class Work:
    """A piece of work on some images, and its bare forwards."""

    group: str
    what: str
    images: Tensor
    make: Callable[[ViT, Tensor, Tensor], Run]  # draws what both precisions share, from the float32 model
    floor: Callable[[], None]
    note: str = ""


def cases(bed: Bed) -> Iterator[Case]:
    masks = 8 if bed.size == "test" else 16 if bed.quick else 128 if bed.cuda else 64
    few = bed.few if bed.cuda else bed.images[: 2 - bed.quick]
    works = []
    for work in (*methods(bed, few, masks), *metrics(bed)):
        classes = predicted(bed.vit, work.images)
        run = work.make(bed.vit, work.images, classes)
        works.append((work, partial(run, images=work.images, classes=classes)))
        yield Case(
            work.group,
            work.what,
            "its bare forwards",
            partial(works[-1][1], bed.vit),
            work.floor,
            at_most=1.15,
            pictures=(len(work.images), len(work.images)),
            note=work.note,
        )
    yield clustering(bed, few, masks)
    if bed.cuda and bed.dtype == torch.float32:
        yield from in_half_precision(bed, works)


# ── methods ──────────────────────────────────────────────────────────────────────────────────────


def predicted(vit: ViT, images: Tensor) -> Tensor:
    with torch.no_grad():
        return vit.forward(images).argmax(-1)


def methods(bed: Bed, few: Tensor, masks: int) -> Iterator[Work]:
    layout = bed.vit.layout(bed.vit.size)
    prefix, patches = layout.prefix, layout.patches
    lengths = [prefix + max(1, patches // 2)] * masks * len(few)
    apart = "k-means apart, in a row of its own"
    yield Work(
        "sampling", f"tis(masks={masks})", few, given_clusters(masks), bare.sequences(bed, lengths, len(few)), apart
    )
    pixels = bare.pictures(bed, masks * len(few), len(few))
    yield Work("sampling", f"tis(masks={masks}, ablate='pixels')", few, given_clusters(masks, "pixels"), pixels, apart)
    lengths = [prefix + patches - 1] * patches * len(few)
    yield named("occlusion", few, bare.sequences(bed, lengths, len(few)))
    yield named("occlusion(space='pixels')", few, bare.pictures(bed, patches * len(few), len(few)))
    yield named(f"rise(masks={masks})", few, pixels)
    samples, lengths = 8 * masks if bed.cuda else masks, []  # enough to outweigh the fit, which the CPU makes
    for draw in generators(few, 0):
        on = with_ends(coalitions(patches, samples, True, draw)[0])
        lengths += (prefix + on.sum(-1)).tolist()
    note = "lengths of all images together"
    yield named(f"kernelshap(samples={samples})", few, bare.sequences(bed, lengths, len(few)), note)
    fewer = (
        few[: max(1, len(few) // 4)] if bed.cuda else few
    )  # one image after the other: more would cost, and say no more
    floor = bare.pictures(bed, (samples + 2) * len(fewer), len(fewer))
    yield named(f"kernelshap(samples={samples}, space='pixels')", fewer, floor)


def named(spec: str, images: Tensor, floor: Callable[[], None], note: str = "") -> Work:
    method = resolve(spec)

    def run(vit: ViT, images: Tensor, classes: Tensor) -> Tensor:
        result = method(Probe(vit, images, classes, method.question))
        assert result.patches is not None
        return result.patches

    return Work("sampling", spec, images, lambda *_: run, floor, note)


def given_clusters(masks: int, ablate: str = "tokens") -> Callable[[ViT, Tensor, Tensor], Run]:
    """TIS but for its k-means: the clusters are there."""

    def make(vit: ViT, images: Tensor, classes: Tensor) -> Run:
        centroids = cluster_activations(activations(Probe(vit, images, classes)), masks, images, 0)

        def run(vit: ViT, images: Tensor, classes: Tensor) -> Tensor:
            probe = Probe(vit, images, classes, "probability")
            _ = probe.states  # what k-means would read
            return tis_of_subsets(probe, keep_largest(centroids, 0.5), ablate)[0]

        return run

    return make


def activations(probe: Probe) -> Tensor:
    return torch.cat(probe.states[1:], -1)[:, probe.layout.prefix :].mT


def clustering(bed: Bed, few: Tensor, masks: int) -> Case:
    masks = PAPER if bed.cuda and bed.size != "test" and not bed.quick else masks
    samples = activations(Probe(bed.vit, few))
    spec = f"tis(masks={masks})"
    return Case(
        "sampling",
        f"k-means of {spec}",
        spec,
        lambda: cluster_activations(samples, masks, few, 0),
        lambda: vitreous.explain(bed.vit, few, method=spec),
        at_most=0.1 if bed.size in LARGE and bed.dtype == torch.float32 else None,
        pictures=(len(few), len(few)),
    )


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


def metrics(bed: Bed) -> Iterator[Work]:
    layout, images = bed.vit.layout(bed.vit.size), bed.images
    for verb in ("deletion", "insertion"):
        counts = [int(ratio * layout.patches) for ratio in bare.TENTHS]
        lengths = [layout.prefix + (layout.patches - k if verb == "deletion" else k) for k in counts] * len(images)
        floor = bare.sequences(bed, lengths, len(images))
        for kind in ("accuracy", "aopc"):
            spec = f"{verb}_{kind}"
            yield Work("metrics", spec, images, measuring(spec), floor)


def measuring(spec: str) -> Callable[[ViT, Tensor, Tensor], Run]:
    """A metric of a map of noise; its curves are what two precisions are compared by."""
    metric = resolve_metric(spec)

    def make(vit: ViT, images: Tensor, classes: Tensor) -> Run:
        layout = vit.layout(vit.size)
        scores = torch.randn(len(images), layout.patches, generator=torch.Generator().manual_seed(3)).to(images)
        maps = Attribution(scores, layout, classes, "given")

        def run(vit: ViT, images: Tensor, classes: Tensor) -> Tensor:
            result = metric(maps, probe=Probe(vit, images, classes), labels=classes)
            assert result.curve is not None
            return result.curve

        return run

    return make


# ── half precision ───────────────────────────────────────────────────────────────────────────────


def in_half_precision(bed: Bed, works: list[tuple[Work, Run]]) -> Iterator[Case]:
    half, (size, real) = halved(bed.vit), weighted(bed)
    photographs = None if real is None else real_pictures(real, POINTWISE)
    judged = real is not None and photographs is not None
    note = f"agreement on photographs, {WORDS[size]} as trained" if judged else "no trained weights or photographs"
    for work, run in works:
        yield Case(
            work.group,
            f"{work.what} in bfloat16",
            "itself in float32",
            partial(run, half),
            partial(run, bed.vit),
            at_least=5 if bed.size in LARGE else None,
            pictures=(len(work.images), len(work.images)),
            agree=partial(agreeing, work, real, photographs) if judged else None,
            agreement=0.99 if judged else None,
            note=note,
        )


def halved(vit: ViT) -> ViT:
    return vitreous.wrap(copy.deepcopy(vit.module).to(torch.bfloat16))


def weighted(bed: Bed) -> tuple[str, ViT | None]:
    """A size and its model as trained, where the assets have one: this bed's, or else the smallest."""
    assets = os.environ.get("VITREOUS_ASSETS")
    for size in (bed.size, "ti") if assets else ():
        name, settings = SIZES[size]
        files = [] if settings else sorted(Path(str(assets), "weights").glob(f"{name}.*safetensors"))
        if files:
            return size, vitreous.load(f"timm:{name}", checkpoint=files[0], device=bed.device)
    return bed.size, None


def agreeing(work: Work, vit: ViT, images: Tensor) -> float:
    """Rank correlation of the scores in both precisions, of the image where it is least; the subsets are the same."""
    images = images if work.group == "metrics" else images[:MAPS]
    classes = predicted(vit, images)
    run = work.make(vit, images, classes)
    whole, less = (run(model, images=images, classes=classes) for model in (vit, halved(vit)))
    if work.group == "metrics":  # a curve has few points: all pictures' together
        whole, less = whole.reshape(1, -1), less.reshape(1, -1)
    return worst_spearman(less, whole)
