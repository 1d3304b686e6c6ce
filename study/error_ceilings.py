"""Parts of error_bars.py: upper bounds of faithfulness, coverage of intervals, and max-sensitivity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from study.error_fits import QUESTIONS, draw_subsets, fit_maps
from study.error_maps import (
    VAL,
    WEIGHTS,
    Job,
    evaluate_map,
    explain_images,
    limit_batches,
    load_model,
    read_batches,
    read_photographs,
)
from vitreous.capture.probe import Probe
from vitreous.data.batch import Batch
from vitreous.methods.attribution import Attribution
from vitreous.metrics.ranks import spearman


@torch.no_grad()
def rank_greedily(probe: Probe, removing: bool) -> Tensor:
    """Ranks [b p] of a greedy order: the patch that lowers the score most is removed first, or that raises it most is added first."""
    images, patches = len(probe.images), probe.layout.patches
    ranks = torch.full((images, patches), -1, device=probe.images.device)
    for place in range(patches):
        unranked = (ranks < 0).nonzero()[:, 1].view(images, patches - place)  # the same number in every image
        keep = (ranks < 0) if removing else (ranks >= 0)
        options = keep[:, None].expand(-1, unranked.shape[1], -1).scatter(2, unranked[..., None], not removing)
        scores = probe.score(options)
        best = scores.argmin(1) if removing else scores.argmax(1)
        ranks.scatter_(1, unranked.gather(1, best[:, None]), place)
    return ranks


def measure_ceilings(job: Job) -> None:
    """Greedy orders and converged Shapley values, and the rank correlation of every map with the latter."""
    vit, metrics = load_model(job.model, job.device), ["deletion_aopc", "insertion_aopc"]
    for batch in read_photographs(VAL, vit, job.limit or 48, 12, shard=job.shard):
        if job.table.is_over:
            return
        images, labels = batch.images, batch.labels
        probe = Probe(vit, images, labels, "probability")
        reference = explain_images(vit, images, labels, "kernelshap(samples=16384)")
        assert reference.patches is not None
        assert reference.stderr is not None
        noise = reference.stderr.mean(1) / reference.patches.std(1)
        maps: dict[str, Attribution] = {"converged Shapley": reference}
        for name, removing in (("greedy deletion", True), ("greedy insertion", False)):
            ranks = rank_greedily(probe, removing)
            maps[name] = Attribution(-ranks.to(reference.patches), reference.layout, reference.targets, "given", logits=reference.logits, images=images)  # fmt: skip
        for spec in ("random", "genatt", "decompx+plus", "temper", "fuse", "anneal", "tis"):
            maps[spec] = explain_images(vit, images, labels, spec)
        maps |= fit_maps(vit, images, labels, "probability", "fuse", 8192)
        for spec, attribution in maps.items():
            scores = evaluate_map(vit, attribution, batch, metrics)
            assert attribution.patches is not None
            scores["rank_correlation"] = spearman(attribution.patches.double(), reference.patches.double()).cpu()
            if spec == "converged Shapley":
                scores["relative_error"] = noise.cpu()
            job.table.add(job.model, "val", batch.keys, spec, scores)
        print(f"{job.model} ceilings: {len(batch)} images", flush=True)


def measure_coverage(job: Job) -> None:
    """Share of the patches whose 95 % interval contains the value with many samples; the error of that value is included."""
    sources: dict[str, Callable[[Any], Iterator[Batch]]] = {
        "Scenes": lambda vit: read_batches("scenes:single?count=32&seed=206", vit, 8)
    }
    if job.model in WEIGHTS:
        sources = {job.model: lambda vit: read_photographs(VAL, vit, job.limit or 32, 8, shard=job.shard)}
    for name, stream in sources.items():
        vit = load_model("scenes" if name == "Scenes" else name, job.device)
        for batch in limit_batches(stream(vit), job.limit or 32):
            if job.table.is_over:
                return
            images, labels = batch.images, batch.labels
            subsets = draw_subsets(vit, images, labels, 16384)
            for question in QUESTIONS:
                maps = fit_maps(vit, images, labels, question, "fuse", 16384, subsets)
                many = {spec: maps.pop(spec) for spec in list(maps) if "samples=16384" in spec}
                reference = next(iter(many.values()))
                maps |= fit_maps(vit, images, labels, question, "none", 512, subsets)
                for spec, attribution in maps.items():
                    job.table.add(
                        name, "coverage", batch.keys, spec, {"coverage": compute_coverage(attribution, reference)}
                    )
            shapley = explain_images(vit, images, labels, "kernelshap(samples=16384)")
            for samples in (1024, 2048):
                spec = f"kernelshap(samples={samples})"
                attribution = explain_images(vit, images, labels, f"kernelshap(samples={samples}, seed=1)")
                job.table.add(name, "coverage", batch.keys, spec, {"coverage": compute_coverage(attribution, shapley)})
        print(f"{name}: coverage", flush=True)


def compute_coverage(attribution: Attribution, reference: Attribution) -> Tensor:
    assert attribution.patches is not None
    assert reference.patches is not None
    assert attribution.stderr is not None
    assert reference.stderr is not None
    limit = 1.96 * (attribution.stderr.square() + reference.stderr.square()).sqrt()
    return ((attribution.patches - reference.patches).abs() <= limit).double().mean(1).cpu()


def measure_sensitivity(job: Job) -> None:
    """Max-sensitivity of `bayes` and of the methods that it is compared with."""
    vit = load_model(job.model, job.device)
    for batch in read_photographs(VAL, vit, job.limit or 64, 32, shard=job.shard):
        for spec in (
            "temper",
            "temper(question='logit')",
            "fuse",
            "bayes(samples=128)",
            "bayes",
            "tis(masks=256)",
            "rise(masks=256)",
        ):
            if job.table.is_over:
                return
            attribution = explain_images(vit, batch.images, batch.labels, spec)
            scores = evaluate_map(vit, attribution, batch, ["max_sensitivity"])
            job.table.add(job.model, "val", batch.keys, spec, scores)
        print(f"{job.model} sensitivity: {len(batch)} images", flush=True)
