"""Do maps expose a shortcut? `scenes-biased` classifies by the stamp in a corner, `scenes` by the object; predicted classes are explained.

Three numbers per image, model and method: the probability that a pixel of the stamp scores above one of the object's evidence,
the average precision of the stamp, and whether the peak lies on it. All three should be high for the biased model and low for the
other.
"""

from __future__ import annotations

import csv
import warnings
from pathlib import Path

MODELS = ("scenes-biased", "scenes")
SEED, COUNT = 105, 48
COLUMNS = ("model", "picture", "method", "metric", "value")
METRICS = {"class_discrimination": "stamp_above_thing", "ap": "stamp_ap", "pointing_game": "stamp_peak"}


def write_table(path: Path, device: str | None = None, images: int | None = None) -> int:
    """Write the table of both models and all methods of the plan `scenes`; returns its number of rows."""
    import vitreous
    from vitreous.bench.plan_parser import read_plan
    from vitreous.bench.pool import list_devices
    from vitreous.scenes import Scenes

    plan = read_plan(Path(__file__).parent / "plans" / "scenes.toml", device=device)
    album = Scenes("shortcut", min(images or COUNT, COUNT), SEED, mark="moved")
    rows = []
    for name in MODELS:
        vit = vitreous.load(name, device=list_devices(plan)[0])
        for method in plan.methods:
            rows += [(name, *row) for row in measure_method(vit, list(album), method)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return len(rows)


def measure_method(vit, scenes, method: str) -> list[tuple[str, str, str, float]]:
    """Rows of one method: image, method, metric, value."""
    import numpy as np
    import torch
    from PIL import Image

    import vitreous
    from vitreous.core.errors import Caveat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        attribution = vitreous.explain(vit, [Image.fromarray(scene.image) for scene in scenes], None, method)
    stamps = torch.from_numpy(np.stack([scene.spurious for scene in scenes])).to(torch.int8)
    things = torch.from_numpy(np.stack([scene.objects[0].evidence for scene in scenes])).to(torch.int8)
    results = vitreous.evaluate(vit, None, attribution, list(METRICS), objects=stamps, rivals=things)
    return [
        (f"shortcut/{place:03d}", method, METRICS[result.metric.split("(")[0]], float(value))
        for result in results
        for place, value in enumerate(result.scores.tolist())
    ]
