"""Zebra and elephant in one image (SkipPLUS, figure 6): how much do the maps of the two classes differ?

Two numbers per image and method: the rank correlation of its two maps (1: the same map for both classes), and how much further
the probability of a class falls than that of the other when the highest patches of its map are removed.
"""

from __future__ import annotations

import csv
import warnings
from pathlib import Path

ZEBRA, ELEPHANT = 340, 386
FRAMES = tuple(f"el{number}.png" for number in range(1, 6))
METHODS = (
    "rollout", "genatt", "genatt+skipplus", "tokentm", "transatt", "attngrad", "attixg(preset='skipplus')+plus", "gradcam",
    "ixg", "ixg+skipplus", "fullgrad+skipplus", "legrad", "decompx", "decompx+plus", "decompx+skipplus",
    "decompx(question='probability')+skipplus", "attnlrp+plus", "attnlrp(question='probability')+plus",
    "fullgrad@libra+plus", "temper", "fuse", "anneal", "tis(masks=256)",
)  # fmt: skip
COLUMNS = ("model", "picture", "method", "metric", "value")


def write_table(path: Path, device: str | None = None, images: int | None = None) -> int:
    """Write the table of every model, frame and method; returns its number of rows."""
    from vitreous.bench.model_options import load_cached
    from vitreous.bench.plan_parser import read_plan
    from vitreous.bench.pool import list_devices
    from vitreous.data.reader import expand_path

    plan = read_plan(Path(__file__).parent / "plans" / "skipplus.toml", device=device)
    frames = [expand_path(f"assets:multiclass-samples/{name}") for name in FRAMES[:images]]
    rows = []
    for model in plan.models:
        vit = load_cached(model, plan.precision, list_devices(plan)[0]).vit
        for method in METHODS:
            rows += [(model.label, *row) for row in measure_method(vit, frames, method)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return len(rows)


def measure_method(vit: object, frames: list[Path], method: str) -> list[tuple[str, str, str, float]]:
    """Rows of one method: image, method, metric, value."""
    import torch

    import vitreous
    from vitreous.core.errors import Caveat
    from vitreous.metrics.ranks import spearman

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        attribution = vitreous.explain(vit, list(map(str, frames)), [[ZEBRA, ELEPHANT]] * len(frames), method)
    scores = attribution.maps().flatten(1).double()
    correlation = spearman(scores[::2], scores[1::2])
    others = torch.tensor([ELEPHANT, ZEBRA] * len(frames))
    drops = vitreous.evaluate(vit, None, attribution, ["deletion_aopc", "deletion_aopc(track='label')"], labels=others)
    own, other = (row.scores.double().view(-1, 2).mean(1) for row in drops)
    columns = {"rank_correlation": correlation, "own_drop": own, "other_drop": other, "own_less_other": own - other}
    return [
        (frame.stem, method, metric, float(values[place]))
        for metric, values in columns.items()
        for place, frame in enumerate(frames)
    ]
