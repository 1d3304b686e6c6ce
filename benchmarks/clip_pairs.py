"""Explain the similarity of two images of one breed by CLIP's vision tower, and measure which patches are matched.

    python benchmarks/clip_pairs.py WEIGHTS PETS --out out/pairs             # ten pairs; four minutes on an idle core
    python benchmarks/clip_pairs.py WEIGHTS PETS --out out/others --first 2  # ten other pairs

WEIGHTS is a folder with `clip-vit-base-patch16.vision.safetensors` (Hugging Face names); PETS is Oxford-IIIT Pet with
trimaps. One pair of images for each of ten breeds: the first two, or those from `--first` on. The similarity is the cosine
along the principal directions of a gallery (every fourth image), without their mean: `explain_pair(…, reference=gallery,
components=31)`. One pass per direction gives the contribution vectors at all layers from `--start` on; they are stored, so
that a stopped run can continue and several can share the work. A row per pair and variant (a layer, or the mean of the
layers from one on):

inside      share of the positive interaction mass that falls on pairs of patches inside both animals
area        the share expected by area: the product of the two animals' shares of their images
top         share of the 20 strongest pairs that join the two animals; top_area is its expectation
partner     share of the patches of the first animal whose strongest partner lies inside the second; partner_area likewise
long        share of the positive mass between patches whose vectors are longer than four times the median
outside     share of these patches that lie outside of the animal

Figures show photographs and do not belong in the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))

from real_networks import CLIP_MEAN, CLIP_STD, list_pairs, load_clip

import vitreous
from vitreous.data import open_dataset
from vitreous.models.image_input import Preprocess
from vitreous.pairs.contributions import Contributions
from vitreous.pairs.explain_pair import reference_directions
from vitreous.pairs.pair_attribution import TowerSide

SIDE, COMPONENTS, STRONGEST, LONG = 224, 31, 20, 4
PREPROCESS = Preprocess.plain((SIDE, SIDE), CLIP_MEAN, CLIP_STD)
MEASURES = ("inside", "area", "top", "top_area", "partner", "partner_area", "long", "outside")


def embed_gallery(module: nn.Module, dataset: Any, path: Path) -> Tensor:
    """Embeddings of every fourth image, stored for the next run."""
    if not path.exists():
        batches = torch.arange(1, len(dataset), 4).split(16)
        with torch.no_grad():
            embeddings = [
                module(PREPROCESS.batch([dataset[int(index)].image for index in batch])).image_embeds
                for batch in batches
            ]
        torch.save(torch.cat(embeddings), path)
    return torch.load(path)


def compute_layer_vectors(tower: vitreous.ViT, sample: Any, start: int, path: Path) -> Tensor:
    """Contribution vectors [layers, patches, directions] of the patches at the input of every layer from `start` on."""
    if not path.exists():
        images, parts = PREPROCESS.batch([sample.image]).to(tower.device), []
        for directions in torch.arange(tower.outputs).split(16):
            method = f"decompx+skipplus(start={start})"
            layers = vitreous.inside(tower, images, [directions.tolist()], method, "logit")
            parts.append(layers.maps("signal").flatten(2).permute(1, 2, 0).cpu())
        torch.save(torch.cat(parts, -1), path)
    return torch.load(path)


def compute_coverage(mask: Any, grid: tuple[int, int]) -> Tensor:
    """Share of every patch that the animal covers, in the part of the image that the model sees."""
    values = torch.as_tensor(np.asarray(mask), dtype=torch.float32)[None, None]
    enlarged = functional.interpolate(values, size=(SIDE, SIDE), mode="nearest")
    return functional.adaptive_avg_pool2d((enlarged > 0).float(), grid).flatten()


def measure(first: Tensor, second: Tensor, a: Tensor, b: Tensor) -> dict[str, float]:
    """Which patches the products of two sets of vectors join, and what is expected by area."""
    matrix = first @ second.mT
    positive = matrix.clamp(min=0)
    places = matrix.flatten().topk(STRONGEST).indices
    rows, columns = places // matrix.shape[1], places % matrix.shape[1]
    lengths = [vectors.norm(dim=-1) for vectors in (first, second)]
    is_long = [length > LONG * length.median() for length in lengths]
    outside = torch.cat([cover[chosen] <= 0.5 for cover, chosen in zip((a, b), is_long, strict=True)])
    in_a, in_b = a > 0.5, b > 0.5
    return {
        "inside": float((positive * a[:, None] * b).sum() / positive.sum()),
        "area": float(a.mean() * b.mean()),
        "top": float((in_a[rows] & in_b[columns]).float().mean()),
        "top_area": float(in_a.float().mean() * in_b.float().mean()),
        "partner": float(in_b[matrix[in_a].argmax(1)].float().mean()),
        "partner_area": float(in_b.float().mean()),
        "long": float(positive[is_long[0]][:, is_long[1]].sum() / positive.sum()),
        "outside": float(outside.float().mean()),
    }


def list_variants(vectors: Tensor, start: int) -> dict[str, Tensor]:
    """Vectors of single layers, and means of all layers from one on."""
    depth = start + len(vectors)
    single = {f"layer {start + index}": layer for index, layer in enumerate(vectors)}
    return single | {f"layers {start + i} to {depth - 1}": vectors[i:].mean(0) for i in range(len(vectors) - 1)}


def draw(tower: vitreous.ViT, samples: tuple[Any, Any], vectors: list[Tensor], path: Path) -> None:
    """Both maps with lines between the strongest pairs."""
    sides, embeddings = [], []
    for sample, tokens in zip(samples, vectors, strict=True):
        entry = PREPROCESS.batch([sample.image])
        with torch.no_grad():
            embeddings.append(tower.forward(entry.to(tower.device))[0].cpu())
        contributions = Contributions(tokens, embeddings[-1] - tokens.sum(0), 0)
        layout = tower.layout((SIDE, SIDE))
        sides.append(TowerSide(layout, contributions, entry=entry, preprocess=PREPROCESS, name=sample.key))
    scale = 1 / float(embeddings[0].norm() * embeddings[1].norm())
    similarity = scale * float(embeddings[0] @ embeddings[1])
    about = {"similarity": "cosine beyond the gallery's mean"}
    pair = vitreous.PairAttribution(sides[0], sides[1], similarity, scale, path.stem, about)
    pair.plot(lines=12).savefig(path, dpi=70)


def compute_interval(values: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean over pairs."""
    picks = np.random.default_rng(0).integers(0, len(values), (2000, len(values)))
    low, high = np.percentile(np.asarray(values)[picks].mean(1), [2.5, 97.5])
    return float(low), float(high)


def summarise(rows: list[dict[str, Any]]) -> str:
    """Means over pairs with intervals, and what is expected by area, as a Markdown table."""
    lines = [
        "| read at | 20 strongest join the animals | share inside both | strongest partner inside | share of long vectors | … outside |",
        "|---|---|---|---|---|---|",
    ]
    for reading in dict.fromkeys(row["reading"] for row in rows):
        own = [row for row in rows if row["reading"] == reading]
        means = {key: float(np.mean([row[key] for row in own])) for key in MEASURES}
        cells = []
        for key in ("top", "inside", "partner"):
            low, high = compute_interval([row[key] for row in own])
            cells.append(f"{means[key]:.2f} [{low:.2f}, {high:.2f}]")
        lines.append(f"| {reading} | {' | '.join(cells)} | {means['long']:.2f} | {means['outside']:.2f} |")
    expected = [np.mean([row[key] for row in rows]) for key in ("top_area", "area", "partner_area")]
    return "\n".join([*lines, f"| by area | {' | '.join(f'{value:.2f}' for value in expected)} | | |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("pets")
    parser.add_argument("--count", type=int, default=10, help="pairs, one of each breed")
    parser.add_argument("--first", type=int, default=0, help="number of the first image of each breed")
    parser.add_argument("--start", type=int, default=4, help="first layer that is read")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--reverse", action="store_true", help="begin with the last pair, beside a run that does not")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    module = load_clip(chosen.weights / "clip-vit-base-patch16.vision.safetensors")
    dataset = open_dataset(f"pets:{chosen.pets}")
    gallery = embed_gallery(module, dataset, chosen.out / "gallery.pt")
    projection = module.visual_projection.weight
    directions = reference_directions(gallery, projection.shape[0], COMPONENTS).to(projection)
    module.visual_projection = nn.Linear(projection.shape[1], COMPONENTS, bias=False)
    module.visual_projection.weight.data = directions @ projection.data  # the embedding's coordinates along them
    wrapped = vitreous.wrap(module.to(chosen.device).requires_grad_(False), preprocess=PREPROCESS)
    tower = replace(wrapped, embedding="")  # every coordinate is a score to explain
    grid = tower.layout((SIDE, SIDE)).grid
    pairs = list_pairs(dataset, chosen.count, chosen.first)
    for samples in reversed(pairs) if chosen.reverse else pairs:
        for sample in samples:
            compute_layer_vectors(tower, sample, chosen.start, chosen.out / f"{sample.key}-{chosen.start}.pt")
            print(sample.key, flush=True)
    rows: list[dict[str, Any]] = []
    for samples in pairs:
        paths = [chosen.out / f"{sample.key}-{chosen.start}.pt" for sample in samples]
        stored = [compute_layer_vectors(tower, s, chosen.start, path) for s, path in zip(samples, paths, strict=True)]
        first, second = (list_variants(vectors, chosen.start) for vectors in stored)
        covers = [compute_coverage(sample.mask, grid) for sample in samples]
        for name in first:
            about = {"a": samples[0].key, "b": samples[1].key, "reading": name}
            rows.append(about | measure(first[name], second[name], *covers))
        for name in (next(name for name in first if " to " in name), list(first)[len(stored[0]) - 1]):
            path = chosen.out / f"{samples[0].key} {name}.png"
            draw(tower, samples, [first[name], second[name]], path)
    (chosen.out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(summarise(rows))


if __name__ == "__main__":
    main()
