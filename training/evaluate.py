"""Print the accuracies of the model card, on images that no training run has used.

python training/evaluate.py
python training/evaluate.py --count 200    # quicker and coarser
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from timm.models.vision_transformer import VisionTransformer
from tokens import compute_logits, draw_patches, hide_patches
from torch import Tensor, nn

from vitreous.scenes import CLASSES, MODELS, PATCH, SIZE, Scene, draw, load_model

UNSEEN = 1_000_003  # a seed that the configuration never uses
GRID = SIZE // PATCH


class Album:
    """Images as a tensor, with labels, stamps and evidence."""

    def __init__(self, kind: str, count: int, pool: ProcessPoolExecutor, **options: str) -> None:
        scenes: list[Scene] = list(pool.map(partial(_draw_unseen, kind, options), range(count), chunksize=16))
        self.images = torch.from_numpy(np.stack([scene.image for scene in scenes])).permute(0, 3, 1, 2)
        self.labels = torch.tensor([[item.label for item in scene.objects] for scene in scenes])
        self.targets = self.labels[:, 0]
        self.marks = torch.tensor([-1 if scene.mark is None else scene.mark for scene in scenes])
        evidence = torch.from_numpy(np.stack([scene.objects[0].evidence for scene in scenes]))
        self.evidence = evidence.view(-1, GRID, PATCH, GRID, PATCH).any(4).any(2).flatten(1)  # patches that overlap it


def _draw_unseen(kind: str, options: dict[str, str], index: int) -> Scene:
    return draw(kind, UNSEEN, index, **options)


@torch.inference_mode()
def predict_album(
    model: nn.Module, album: Album, share: float = 1.0, keep: Bool[Tensor, "b p"] | None = None
) -> Float[Tensor, "b classes"]:
    """Logits of every image with a random share of the patches, or only with the patches of `keep`.

    For models whose tokens cannot be removed, the other patches are grey.
    """
    device = next(model.parameters()).device
    random = torch.Generator(device).manual_seed(UNSEEN)
    all_logits = torch.empty(len(album.images), len(CLASSES))
    for rows, patches in _split_rows(len(album.images), keep):
        images = album.images[rows].to(device).float().div(127.5).sub(1)
        if share < 1:
            patches = draw_patches(len(rows), GRID, share, random)
        if patches is None:
            outputs = model(images)
        elif isinstance(model, VisionTransformer):
            outputs = compute_logits(model, images, patches.to(device))
        else:
            outputs = model(hide_patches(images, GRID, patches.to(device)))
        all_logits[rows] = outputs.float().cpu()
    return all_logits


def _split_rows(
    count: int, keep: Bool[Tensor, "b p"] | None
) -> Iterator[tuple[Int[Tensor, "r"], Int[Tensor, "r k"] | None]]:
    """Batches of rows with equally many patches, and the indices of these patches."""
    sizes = torch.zeros(count, dtype=torch.long) if keep is None else keep.sum(1)
    for size in sizes.unique():
        for rows in (sizes == size).nonzero()[:, 0].split(128):
            yield rows, None if keep is None else keep[rows].nonzero()[:, 1].view(len(rows), -1)


def compute_share(hits: Tensor) -> float:
    return hits.double().mean().item()


def measure_accuracy(answer: Tensor, truth: Tensor) -> float:
    return compute_share(answer.argmax(1) == truth)


def measure_top_two(answer: Tensor, labels: Tensor) -> float:
    """Share of images whose two classes are the model's top two, in any order."""
    return compute_share((answer.topk(2).indices.sort(1).values == labels.sort(1).values).all(1))


def evaluate_plain(model: nn.Module, albums: dict[str, Album]) -> Iterator[tuple[str, float]]:
    """Accuracies of a model trained without a shortcut."""
    for kind in ("single", "part"):
        album = albums[kind]
        yield kind, measure_accuracy(predict_album(model, album), album.targets)
        yield f"{kind}, half of the patches", measure_accuracy(predict_album(model, album, 0.5), album.targets)
        yield f"{kind}, a quarter of the patches", measure_accuracy(predict_album(model, album, 0.25), album.targets)
        yield (
            f"{kind}, only the evidence",
            measure_accuracy(predict_album(model, album, keep=album.evidence), album.targets),
        )
        yield (
            f"{kind}, all but the evidence",
            measure_accuracy(predict_album(model, album, keep=~album.evidence), album.targets),
        )
    yield "pair, both in the top two", measure_top_two(predict_album(model, albums["pair"]), albums["pair"].labels)
    yield "shortcut, stamp moved", measure_accuracy(predict_album(model, albums["moved"]), albums["moved"].targets)


def evaluate_biased(model: nn.Module, albums: dict[str, Album]) -> Iterator[tuple[str, float]]:
    """Accuracies of the model that learnt the shortcut."""
    for mark in ("aligned", "moved", "absent"):
        yield f"shortcut, stamp {mark}", measure_accuracy(predict_album(model, albums[mark]), albums[mark].targets)
    yield (
        "shortcut, follows the moved stamp",
        measure_accuracy(predict_album(model, albums["moved"]), albums["moved"].marks),
    )


def evaluate_models(
    names: list[str], count: int, device: torch.device, folder: Path | None
) -> dict[str, dict[str, float]]:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        albums = {kind: Album(kind, count, pool) for kind in ("single", "part", "pair")}
        albums |= {mark: Album("shortcut", count, pool, mark=mark) for mark in ("aligned", "moved", "absent")}
    measure = {"scenes": evaluate_plain, "scenes-biased": evaluate_biased, "scenes-swin": evaluate_plain}
    return {name: dict(measure[name](load_model(name, folder).to(device), albums)) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="images of each kind")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, help="folder of the weights, if not in the package")
    parser.add_argument("--json", type=Path, help="also write the accuracies to this file")
    chosen = parser.parse_args()
    figures_by_model = evaluate_models(chosen.models, chosen.count, torch.device(chosen.device), chosen.folder)
    for model, table in figures_by_model.items():
        for name, value in table.items():
            print(f"{model:<15}{name:<36}{value:8.2%}")
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"count": chosen.count, "seed": UNSEEN, "figures": figures_by_model}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
