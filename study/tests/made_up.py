"""Sheets of made-up scores for any plan: every method has its own level, so that orders and effects are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from study.sheets import Sheet, average, derive_sheets
from vitreous.metrics.metric import resolve_metric

STUDY = Path(__file__).parents[1]


def sheet(scores, higher=True, metric="faithfulness", images=None, methods=None, **given) -> Sheet:
    """One sheet from a table of scores [m q]."""
    scores = np.asarray(scores, float)
    count, asked = scores.shape
    methods = tuple(methods or (f"m{k}" for k in range(count)))
    images = tuple(images or (f"p{k}" for k in range(asked)))
    shared = {
        "model": "ViT-Tiny",
        "dataset": "val",
        "explained": "",
        "reduce": average,
        "probability": np.full(asked, 0.5),
    }
    return Sheet(
        metric=metric, higher=higher, methods=methods, images=images, parts={"score": scores}, **{**shared, **given}
    )


def upward(metric) -> bool | None:
    """Whether more is better; 100 − x inverts that."""
    better = metric.higher_is_better
    return not better if better is not None and metric.settings.get("show") == "complement" else better


def sheets_of(plan, images: int = 12, seed: int = 0, wrong: float = 0.4) -> list[Sheet]:
    """Every sheet that a run of the plan would make; a share of the images is classified wrongly."""
    draw, found = np.random.default_rng(seed), []
    roles = {"predicted+label": ("predicted", "label")}.get(str(plan.targets), ("",))
    asked = 2 * images if plan.targets == "pair" else images
    names = tuple(f"p{k // (2 if plan.targets == 'pair' else 1)}" for k in range(asked))
    level = draw.normal(0.5, 0.15, size=len(plan.methods))
    for model in plan.models:
        for data in plan.datasets:
            own_level = level + draw.normal(0, 0.03, size=len(level))
            sure = draw.uniform(0.3, 1.0, size=asked)
            other = np.where(draw.uniform(size=asked) < wrong, draw.uniform(0, 0.3, size=asked), sure)
            for role in roles:
                own = []
                for place, spec in enumerate(plan.metrics):
                    measured = plan.evaluations[0].roles
                    if measured and role and role not in measured[place]:
                        continue
                    metric = resolve_metric(spec)
                    sign = -1 if upward(metric) is False else 1
                    size = 60 if "percent" in str(metric.settings) or "complement" in str(metric.settings) else 1
                    scores = size * (
                        0.5 + sign * (own_level[:, None] - 0.5 + draw.normal(0, 0.1, size=(len(level), asked)))
                    )
                    own.append(
                        sheet(
                            scores, upward(metric), spec, names, plan.methods, model=model.label, dataset=data.label,
                            explained=role, probability=other if role == "label" else sure,
                        )
                    )  # fmt: skip
                found += [*own, *derive_sheets(own)]
    return found


ERROR_BARS = {  # part: models, and metrics by dataset
    "photographs": (("ViT-Tiny", "DeiT-Tiny"), {"val": ("faithfulness", "deletion_aopc"), "pets": ("faithfulness", "ap", "object_negative")}),
    "scenes": (("Scenes",), {"single": ("faithfulness", "ap"), "part": ("ap",), "pair": ("ap", "class_discrimination")}),
    "shortcut": (("scenes-biased", "scenes"), {"shortcut": ("stamp_above_thing",)}),
    "ceilings": (("ViT-Tiny",), {"val": ("faithfulness", "rank_correlation")}),
    "coverage": (("Scenes", "ViT-Tiny"), {"coverage": ("coverage",)}),
    "masks": (("ViT-Tiny", "DeiT-Tiny"), {"pets": ("faithfulness", "ap")}),
    "sensitivity": (("ViT-Tiny",), {"val": ("max_sensitivity",)}),
    "clip": (("CLIP-B/16",), {"pets": ("faithfulness", "ap", "accuracy")}),
    "choose": (("ViT-Tiny", "DeiT-Tiny"), {"val": ("faithfulness",), "pets": ("faithfulness", "ap")}),
}  # fmt: skip
ERROR_BAR_METHODS = (
    "random", "genatt", "tokentm", "temper", "temper(question='logit')", "fuse", "tis", "tis(masks=512)", "bayes(samples=256)", "bayes(samples=1024)",
    "bayes(samples=1024) | log",
)  # fmt: skip
MASKS = ("tis(masks=64)", "tis(masks=1024)", "tis(masks=2304)")


def write_error_bars(folder: Path, images: int = 12) -> None:
    """Tables that `error_bars.py` would write."""
    draw = np.random.default_rng(0)
    for part, (models, metrics) in ERROR_BARS.items():
        file = folder / f"error-bars-{'scenes-shortcut' if part == 'shortcut' else part}.csv"
        lines = ["model,dataset,picture,method,metric,value"]
        lines += [
            f'{model},{dataset},p{picture},"{method}",{metric},{place / 8 + draw.uniform(0, 0.2):.6g}'
            for model in models
            for dataset, wanted in metrics.items()
            for metric in wanted
            for place, method in enumerate(MASKS if part == "masks" else ERROR_BAR_METHODS)
            for picture in range(images)
        ]
        file.write_text("\n".join(lines) + "\n")
