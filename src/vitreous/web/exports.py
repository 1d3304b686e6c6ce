"""Downloads: scores as JSON or as safetensors that `Attribution.load` reads, and the program that reproduces the page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic_core import from_json, to_json

from vitreous.web.image_store import SceneName
from vitreous.web.model_pool import ModelEntry
from vitreous.web.responses import list_finite_numbers
from vitreous.web.schemas import SamplingPlan, ScreenRequest

if TYPE_CHECKING:
    from vitreous.methods.attribution import Attribution

# ── scores ───────────────────────────────────────────────────────────────────────────────────────


def join_classes(rows: Sequence[Attribution]) -> Attribution:
    """Return the classes of one method as one attribution; a checkpoint is named without its folder."""
    from vitreous.methods.attribution import join_attributions

    attribution = join_attributions(rows)
    provenance = dict(attribution.provenance)
    if "checkpoint" in provenance:
        provenance["checkpoint"] = Path(str(provenance["checkpoint"])).name
    return replace(attribution, provenance=provenance)


def export_json(attributions: Sequence[Attribution]) -> bytes:
    """Return all attributions as one JSON document, with null for undefined numbers."""
    maps = [describe_attribution(attribution) for attribution in attributions]
    return json.dumps({"maps": maps}, indent=1, ensure_ascii=False).encode()


def describe_attribution(attribution: Attribution) -> dict[str, Any]:
    scores = attribution.patches if attribution.native_pixels is None else attribution.native_pixels
    assert scores is not None
    assert attribution.logits is not None
    probabilities = attribution.logits.double().softmax(-1)
    return {
        "method": attribution.method,
        "grid": list(attribution.layout.grid),
        "signed": attribution.signed,
        "provenance": from_json(to_json(dict(attribution.provenance), inf_nan_mode="null")),
        "classes": [
            {
                "index": int(target),
                "name": attribution.names[row] if attribution.names else None,
                "probability": list_finite_numbers(probabilities[row, target])[0],
                "scores": list_finite_numbers(scores[row]),
                "shape": list(scores[row].shape),
            }
            for row, target in enumerate(attribution.targets.tolist())
        ],
    }


def export_archive(attributions: Sequence[Attribution]) -> bytes:
    """Return a zip with one safetensors file per method."""
    stream = BytesIO()
    with TemporaryDirectory() as folder, ZipFile(stream, "w") as archive:
        for number, attribution in enumerate(attributions):
            name = re.sub(r"[^\w+@=.-]+", "-", attribution.method).strip("-")[:80]
            file = attribution.save(Path(folder) / f"{number}.safetensors")
            archive.write(file, f"{number + 1}-{name}.safetensors")
    return stream.getvalue()


# ── program ──────────────────────────────────────────────────────────────────────────────────────


def write_program(
    entry: ModelEntry, screen: ScreenRequest, plans: Sequence[SamplingPlan], classes: Sequence[str]
) -> str:
    """Return a complete program; every value in it is written by `repr`."""
    templates = Environment(
        loader=PackageLoader("vitreous.web"), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    templates.filters["repr"] = repr
    return templates.get_template("program.py.jinja").render(
        entry=entry,
        scene=SceneName.parse(screen.image),
        targets=screen.targets,
        names=", ".join(" ".join(classes[target].split()) for target in screen.targets),
        question=screen.question,
        reduced=[plan for plan in plans if plan.used < plan.asked],
        methods=[plan.spec for plan in plans],
        removed=sorted(set(screen.removed)),
    )
