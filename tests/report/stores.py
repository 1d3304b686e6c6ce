"""Small stores with invented rows, so that the correct results are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vitreous.bench.store import Store

Scores = Mapping[str, Mapping[str, Sequence[float]]]  # metric → method → one number per image
HIGHER = {
    "deletion_accuracy": False,
    "insertion_aopc": False,
    "positive_auc": False,
    "lodds": False,
    "max_sensitivity": False,
}
HIGHER |= {"deletion": False, "sparseness": None}


def row(**given: Any) -> dict[str, Any]:
    """A row with default values for the other columns."""
    metric = given.get("metric", "ap")
    made = {
        "model": "m",
        "dataset": "d",
        "image": "p0",
        "index": 0,
        "target": 3,
        "target_name": "cat",
        "role": "predicted",
        "label": 3,
        "predicted": 3,
        "probability": 0.75,
        "method": "genatt",
        "question": "logit",
        "metric": metric,
        "value": nan,
        "higher_is_better": HIGHER.get(metric.split("(")[0], True),
        "parts": [],
        "curve": None,
        "levels": None,
        "seconds": 0.01,
        "map_seconds": 0.02,
        "peak_mib": 100.0,
        "error": None,
        "weights": "w" * 32,
        "pixels": "",
        "evidence": "",
        "precision": "float32",
        "device": "cpu",
        "vitreous": "0",
        "torch": "2",
        "protocol": "{}",
        "about": "{}",
        **given,
    }
    said = repr([made[name] for name in ("model", "dataset", "image", "target", "role", "method", "metric")])
    return {"key": blake2b(said.encode(), digest_size=16).hexdigest(), **made}


def rows_of(scores: Scores, **same: Any) -> list[dict[str, Any]]:
    return [
        row(metric=metric, method=method, image=f"p{place}", index=place, value=value, **same)
        for metric, methods in scores.items()
        for method, values in methods.items()
        for place, value in enumerate(values)
    ]


def put(folder: Path, rows: Sequence[dict[str, Any]], plan: str = "", run: str = "run") -> Path:
    """A store that holds these rows as its last run."""
    cells: dict[tuple[str, str], dict[tuple[str, int, str, int], list[str]]] = {}
    for one in rows:
        own = cells.setdefault((one["model"], one["dataset"]), {})
        own.setdefault((one["image"], one["index"], one["role"], one["label"]), []).append(one["key"])
    with Store(folder) as store:
        store.begin(run, plan, {"cells": len(cells)})
        outcomes = [
            SimpleNamespace(
                is_complete=True,
                cell=number,
                rows={
                    "scores": [one for one in rows if (one["model"], one["dataset"]) == (model, dataset)],
                    "maps": [],
                },
                listing={
                    "model": model,
                    "dataset": dataset,
                    "failed": False,
                    "rows": [[*about, keys] for about, keys in own.items()],
                },
            )
            for number, ((model, dataset), own) in enumerate(cells.items())
        ]
        store.record(run, outcomes)
    return folder
