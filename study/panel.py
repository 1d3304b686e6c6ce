"""Measure candidates on a panel of real models that did not choose them: `python study/panel.py PART [MODEL …] [--device cuda]`.

The panel is ViT-Tiny and DeiT-Tiny, and DINOv2 ViT-S/14 and CLIP ViT-B/16 with a linear classifier that is fitted to the images at
even places of val (11 groups of animals) and of pets (24 breeds). Maps are measured on the other images: PART is

- `choose`: every fourth image from the second on, for what is chosen;
- `confirm`: every fourth image from the fourth on, for what is stated.

Faithfulness is deletion AOPC plus insertion, by token removal. Every model writes OUT/panel-PART-MODEL.csv with a row per dataset, image,
method and metric.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vitreous
from vitreous.data import open_dataset
from vitreous.data.batch import Batch
from vitreous.methods.attribution import Attribution

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts beside this one are `study`
from study import probed_towers
from study.error_fits import draw_subsets, fit_maps
from study.error_maps import PETS, VAL, WEIGHTS, Table, evaluate_map, explain_images, load_model, read_places

MODELS = (*WEIGHTS, *probed_towers.WEIGHTS)
LABELS = {VAL: "val", PETS: "pets"}
PARTS = {"choose": 1, "confirm": 3}  # remainder of the places of a part, of 4
METRICS = ["deletion_aopc", "insertion_aopc"]
SAMPLES = (64, 128, 256)

ONE_PASS = (  # one forward and one backward pass, explaining the probability
    "genatt", "decompx+plus", "fullgrad@libra+plus", "attnlrp+plus", "temper", "presence",
    *(f"ixg@linear(qk={qk}, v={v}, norm='frozen', activation='ratio', gate='halved')+plus" for qk in (0, 0.125, 0.25, 0.5) for v in (0.25, 0.5, 0.75, 1)),
)  # fmt: skip
OTHERS = ("random", "tokentm", "fuse", "anneal", "tis")
SHARES = (0.25, 0.5, 1.0, 2.0)  # of presence beside a map of length 1


def explain_probability(vit: Any, images: Tensor, targets: Tensor, spec: str) -> Attribution:
    method = vitreous.resolve(spec)
    return explain_images(vit, images, targets, method.with_options(question="probability").spec)


def scaled_sum(first: Attribution, second: Attribution, share: float) -> Attribution:
    """Sum of two maps of which each is divided by the sum of its absolute values; the second times `share`."""
    a, b = (maps / maps.abs().sum(1, keepdim=True) for maps in (first.patches, second.patches))
    return replace(first, patches=a + share * b)


def make_panel_maps(vit: Any, images: Tensor, targets: Tensor, fits: bool) -> Iterator[tuple[str, Attribution]]:
    """Maps of every candidate, and of what they are compared with."""
    for spec in OTHERS:
        yield spec, explain_images(vit, images, targets, spec)
    maps = {spec: explain_probability(vit, images, targets, spec) for spec in ONE_PASS}
    yield from maps.items()
    for spec in (
        "attnlrp+plus",
        "temper",
        *(name for name in ONE_PASS if "qk=0.25, v=0.75" in name or "qk=0.25, v=0.25" in name),
    ):
        for share in SHARES:
            yield f"{spec} | + {share:g} presence", scaled_sum(maps[spec], maps["presence"], share)
    if not fits:
        return
    subsets = draw_subsets(vit, images, targets, SAMPLES[-1])
    for prior in ("fuse", "attnlrp+plus and presence"):
        yield from fit_maps(vit, images, targets, "probability", prior, SAMPLES[-1], subsets, sizes=SAMPLES).items()


def read_panel(model: str, folder: str, part: str, device: str, limit: int | None) -> Iterator[tuple[Any, Batch]]:
    """The model, and images of a part whose labels it has."""
    dataset = open_dataset(f"assets:{folder}")
    places = range(PARTS[part], len(dataset), 4)
    if model in WEIGHTS:
        vit = load_model(model, device)
        numbers = None
    else:
        vit, numbers = probed_towers.load_classifier(model, folder, device)
        places = [place for place in places if dataset[place].label in numbers]
    chosen = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))[:limit].sort().values
    for batch in read_places(folder, vit, [places[index] for index in chosen], 32):
        if numbers is not None:
            batch = replace(batch, labels=torch.tensor([numbers[int(label)] for label in batch.labels]))
        yield vit, batch


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all if there are none")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, help="number of images of each dataset")
    parser.add_argument(
        "--fits", type=int, default=64, help="number of images of each dataset that `bayes` is fitted to"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time, between two batches")
    parser.add_argument("--out", type=Path, default=Path("runs/panel"))
    options = parser.parse_args(arguments)
    for model in options.models or MODELS:
        table = Table(options.out / f"panel-{options.part}-{model.replace('/', '-')}.csv", options.minutes)
        for folder, label in LABELS.items():
            count, start = 0, time.monotonic()
            for vit, batch in read_panel(model, folder, options.part, options.device, options.images):
                if table.is_over:
                    break
                with torch.no_grad():
                    right = vit.module(batch.images.to(options.device)).argmax(1).cpu() == batch.labels
                table.add(model, label, batch.keys, "classifier", {"accuracy": right.double()})
                for spec, attribution in make_panel_maps(vit, batch.images, batch.labels, count < options.fits):
                    scores = evaluate_map(vit, attribution, replace(batch, objects=None), METRICS)
                    table.add(model, label, batch.keys, spec, scores)
                count += len(batch)
            print(f"{model} {label}: {count} images in {time.monotonic() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
