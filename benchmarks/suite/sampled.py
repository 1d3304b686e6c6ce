"""Methods and metrics that run the model on subsets of tokens, relative to the plain forward passes of these subsets.

On a CUDA device also in bfloat16 relative to float32, on the same subsets; their agreement is measured on photographs and trained
weights if VITREOUS_ASSETS has them: those of this size, or else of ViT-Ti/16.
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
from suite.case import Case
from suite.sides import load_photographs, worst_spearman
from suite.workload import SIZES, WORDS, Workload
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
MAPS, POINTWISE = 8, 64  # photographs for the agreement of maps, and of curves, in two precisions
GROUPS = ("sampling", "metrics")


@dataclass(frozen=True)
class Work:
    """A function of some images, and its plain forward passes."""

    group: str
    what: str
    images: Tensor
    make: Callable[[ViT, Tensor, Tensor], Run]  # draws the subsets that both precisions share, from the float32 model
    floor: Callable[[], None]
    note: str = ""


def cases(workload: Workload) -> Iterator[Case]:
    masks = 8 if workload.size == "test" else 16 if workload.quick else 128 if workload.cuda else 64
    few = workload.few if workload.cuda else workload.images[: 2 - workload.quick]
    works = []
    for work in (*list_methods(workload, few, masks), *list_metrics(workload)):
        classes = predict_classes(workload.vit, work.images)
        run = work.make(workload.vit, work.images, classes)
        works.append((work, partial(run, images=work.images, classes=classes)))
        yield Case(
            work.group,
            work.what,
            "its bare forwards",
            partial(works[-1][1], workload.vit),
            work.floor,
            at_most=1.15,
            pictures=(len(work.images), len(work.images)),
            note=work.note,
        )
    yield make_clustering_case(workload, few, masks)
    if workload.cuda and workload.dtype == torch.float32:
        yield from list_half_precision_cases(workload, works)


# ── methods ──────────────────────────────────────────────────────────────────────────────────────


def predict_classes(vit: ViT, images: Tensor) -> Tensor:
    with torch.no_grad():
        return vit.forward(images).argmax(-1)


def list_methods(workload: Workload, few: Tensor, masks: int) -> Iterator[Work]:
    layout = workload.vit.layout(workload.vit.size)
    prefix, patches = layout.prefix, layout.patches
    lengths = [prefix + max(1, patches // 2)] * masks * len(few)
    note = "without k-means, which has its own row"
    yield Work(
        "sampling",
        f"tis(masks={masks})",
        few,
        make_tis_run(masks),
        bare.make_sequence_forwards(workload, lengths, len(few)),
        note,
    )
    pixels = bare.make_image_forwards(workload, masks * len(few), len(few))
    yield Work("sampling", f"tis(masks={masks}, ablate='pixels')", few, make_tis_run(masks, "pixels"), pixels, note)
    lengths = [prefix + patches - 1] * patches * len(few)
    yield make_method_work("occlusion", few, bare.make_sequence_forwards(workload, lengths, len(few)))
    yield make_method_work(
        "occlusion(space='pixels')", few, bare.make_image_forwards(workload, patches * len(few), len(few))
    )
    yield make_method_work(f"rise(masks={masks})", few, pixels)
    samples, lengths = 8 * masks if workload.cuda else masks, []  # enough to outweigh the fit on the CPU
    for draw in generators(few, 0):
        on = with_ends(coalitions(patches, samples, True, draw)[0])
        lengths += (prefix + on.sum(-1)).tolist()
    note = "lengths of all images together"
    yield make_method_work(
        f"kernelshap(samples={samples})", few, bare.make_sequence_forwards(workload, lengths, len(few)), note
    )
    fewer = (
        few[: max(1, len(few) // 4)] if workload.cuda else few
    )  # images are fitted one by one, so more would not change the ratio
    floor = bare.make_image_forwards(workload, (samples + 2) * len(fewer), len(fewer))
    yield make_method_work(f"kernelshap(samples={samples}, space='pixels')", fewer, floor)


def make_method_work(spec: str, images: Tensor, floor: Callable[[], None], note: str = "") -> Work:
    method = resolve(spec)

    def run(vit: ViT, images: Tensor, classes: Tensor) -> Tensor:
        result = method(Probe(vit, images, classes, method.question))
        assert result.patches is not None
        return result.patches

    return Work("sampling", spec, images, lambda *_: run, floor, note)


def make_tis_run(masks: int, ablate: str = "tokens") -> Callable[[ViT, Tensor, Tensor], Run]:
    """TIS without k-means: the clusters are given."""

    def make(vit: ViT, images: Tensor, classes: Tensor) -> Run:
        centroids = cluster_activations(stack_activations(Probe(vit, images, classes)), masks, images, 0)

        def run(vit: ViT, images: Tensor, classes: Tensor) -> Tensor:
            probe = Probe(vit, images, classes, "probability")
            _ = probe.states  # the states that k-means would read
            return tis_of_subsets(probe, keep_largest(centroids, 0.5), ablate)[0]

        return run

    return make


def stack_activations(probe: Probe) -> Tensor:
    return torch.cat(probe.states[1:], -1)[:, probe.layout.prefix :].mT


def make_clustering_case(workload: Workload, few: Tensor, masks: int) -> Case:
    masks = PAPER if workload.cuda and workload.size != "test" and not workload.quick else masks
    samples = stack_activations(Probe(workload.vit, few))
    spec = f"tis(masks={masks})"
    return Case(
        "sampling",
        f"k-means of {spec}",
        spec,
        lambda: cluster_activations(samples, masks, few, 0),
        lambda: vitreous.explain(workload.vit, few, method=spec),
        at_most=0.1 if workload.size in LARGE and workload.dtype == torch.float32 else None,
        pictures=(len(few), len(few)),
    )


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


def list_metrics(workload: Workload) -> Iterator[Work]:
    layout, images = workload.vit.layout(workload.vit.size), workload.images
    for verb in ("deletion", "insertion"):
        counts = [int(ratio * layout.patches) for ratio in bare.TENTHS]
        lengths = [layout.prefix + (layout.patches - k if verb == "deletion" else k) for k in counts] * len(images)
        floor = bare.make_sequence_forwards(workload, lengths, len(images))
        for kind in ("accuracy", "aopc"):
            spec = f"{verb}_{kind}"
            yield Work("metrics", spec, images, make_metric_run(spec), floor)


def make_metric_run(spec: str) -> Callable[[ViT, Tensor, Tensor], Run]:
    """A metric of random maps; returns its curves."""
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


def list_half_precision_cases(workload: Workload, works: list[tuple[Work, Run]]) -> Iterator[Case]:
    half, (size, real) = convert_to_bfloat16(workload.vit), load_trained(workload)
    photographs = None if real is None else load_photographs(real, POINTWISE)
    judged = real is not None and photographs is not None
    note = f"agreement on photographs, {WORDS[size]} as trained" if judged else "no trained weights or photographs"
    for work, run in works:
        yield Case(
            work.group,
            f"{work.what} in bfloat16",
            "itself in float32",
            partial(run, half),
            partial(run, workload.vit),
            at_least=5 if workload.size in LARGE else None,
            pictures=(len(work.images), len(work.images)),
            agree=partial(measure_agreement, work, real, photographs) if judged else None,
            agreement=0.99 if judged else None,
            note=note,
        )


def convert_to_bfloat16(vit: ViT) -> ViT:
    return vitreous.wrap(copy.deepcopy(vit.module).to(torch.bfloat16))


def load_trained(workload: Workload) -> tuple[str, ViT | None]:
    """A size and its trained model if the assets have one: this workload's, or else the smallest."""
    assets = os.environ.get("VITREOUS_ASSETS")
    for size in (workload.size, "ti") if assets else ():
        name, settings = SIZES[size]
        files = [] if settings else sorted(Path(str(assets), "weights").glob(f"{name}.*safetensors"))
        if files:
            return size, vitreous.load(f"timm:{name}", checkpoint=files[0], device=workload.device)
    return workload.size, None


def measure_agreement(work: Work, vit: ViT, images: Tensor) -> float:
    """Smallest rank correlation of the scores in both precisions over images, with the same subsets."""
    images = images if work.group == "metrics" else images[:MAPS]
    classes = predict_classes(vit, images)
    run = work.make(vit, images, classes)
    exact, rounded = (run(model, images=images, classes=classes) for model in (vit, convert_to_bfloat16(vit)))
    if work.group == "metrics":  # a curve has few points, so those of all images are compared together
        exact, rounded = exact.reshape(1, -1), rounded.reshape(1, -1)
    return worst_spearman(rounded, exact)
