"""Explain the similarity of two images of one breed by CLIP's vision tower, and measure which patches are matched.

    python benchmarks/clip_pairs.py WEIGHTS PETS --out out/pairs --device cuda

WEIGHTS is a folder with `clip-vit-base-patch16.vision.safetensors` (Hugging Face names); PETS is Oxford-IIIT Pet with
trimaps. One pair of images for each of ten breeds. A row per pair and method:

inside      share of the positive interaction mass that falls on pairs of patches inside both animals
area        the share expected by area: the product of the two animals' shares of their images
partner     share of the patches of the first animal whose strongest partner lies inside the second animal
area_b      its expectation by area

Figures and rows are written to the folder of `--out`; none of the figures belongs in the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))

from real_networks import CLIP_MEAN, CLIP_STD, load_clip, samples

import vitreous
from vitreous.models.image_input import Preprocess

METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("decompx", {}),
    ("decompx", {"start": 6}),
    ("decompx", {"start": 11}),
    ("attnlrp", {}),
    ("attnlrp", {"start": 6}),
    ("ixg", {"start": 11}),
    ("exclip", {}),
    ("occlusion", {}),
    ("fixlip", {"samples": 2048}),
)


def coverage(mask: Any, grid: tuple[int, int], side: int) -> Tensor:
    """Share of every patch that the animal covers, in the part of the image that the model sees."""
    values = torch.as_tensor(np.asarray(mask), dtype=torch.float32)[None, None]
    seen = functional.interpolate(values, size=(side, side), mode="nearest")
    return functional.adaptive_avg_pool2d((seen > 0).float(), grid).flatten()


def measure(matrix: Tensor, a: Tensor, b: Tensor) -> dict[str, float]:
    """Shares of the interaction that lie inside the animals, and their expectations by area."""
    positive = matrix.clamp(min=0)
    inside = float((positive * a[:, None] * b).sum() / positive.sum())
    partners = matrix[a > 0.5].argmax(1)
    return {
        "inside": inside,
        "area": float(a.mean() * b.mean()),
        "partner": float((b[partners] > 0.5).float().mean()),
        "area_b": float((b > 0.5).float().mean()),
    }


def explain(weights: Path, pets: str, out: Path, count: int, device: str, methods: list[int]) -> list[dict[str, Any]]:
    module = load_clip(weights / "clip-vit-base-patch16.vision.safetensors").to(device)
    size = (224, 224)
    tower = vitreous.wrap(module, preprocess=Preprocess.plain(size, CLIP_MEAN, CLIP_STD))
    grid = tower.layout(size).grid
    first, second = samples(pets, count), samples(pets, count, second=True)
    rows: list[dict[str, Any]] = []
    for left, right in zip(first, second, strict=True):
        animals = [coverage(sample.mask, grid, size[0]) for sample in (left, right)]
        for method, options in (METHODS[index] for index in methods):
            begun = time.perf_counter()
            pair = vitreous.explain_pair(tower, left.image, tower, right.image, method, batch_size=64, **options)
            missing = abs(float(pair.full.double().sum()) - pair.similarity)
            name = method + "".join(f" {key}={value}" for key, value in options.items())
            row = {"a": left.key, "b": right.key, "method": name, "similarity": pair.similarity, "missing": missing}
            rows.append(row | measure(pair.matrix.cpu(), *animals) | {"seconds": time.perf_counter() - begun})
            print(json.dumps(rows[-1]), flush=True)
            (out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
            draw(pair, out / f"{Path(left.key).stem}-{name.replace(' ', '-')}")
    return rows


def draw(pair: vitreous.PairAttribution, path: Path) -> None:
    """Both maps with lines between the strongest pairs; arrays where matplotlib is not installed."""
    try:
        pair.plot(lines=6).savefig(path.with_suffix(".png"), dpi=70)
    except ImportError:
        pair.save(path.with_suffix(".npz"))


def summarise(rows: list[dict[str, Any]]) -> str:
    """Means over pairs as a Markdown table."""
    keys = ("inside", "area", "partner", "area_b")
    lines = ["| method | inside both | by area | partner inside | by area |", "|---|---|---|---|---|"]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        lines.append(
            f"| `{method}` | " + " | ".join(f"{np.mean([row[key] for row in own]):.2f}" for key in keys) + " |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("pets")
    parser.add_argument("--count", type=int, default=10, help="pairs, one of each breed")
    parser.add_argument("--methods", type=int, nargs="+", default=list(range(len(METHODS))), help="by their index")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows = explain(chosen.weights, chosen.pets, chosen.out, chosen.count, chosen.device, chosen.methods)
    print(summarise(rows))


if __name__ == "__main__":
    main()
