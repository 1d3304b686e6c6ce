"""Methods, metrics, folds and models as plain data, stored in `catalogue.json` so that help and listings need no torch.

`python -m vitreous.catalogue` regenerates the file; a test compares it with the registry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.methods.method import Method
    from vitreous.metrics.metric import Metric

FILE = Path(__file__).with_name("catalogue.json")

FAMILIES = (
    {"family": "Scenes", "example": "scenes", "notes": "ships with the package; also 'scenes-biased'"},
    {
        "family": "ViT",
        "example": "timm:vit_base_patch16_224",
        "notes": "class token, mean or attention pooling, registers, LayerScale, qk-norm",
    },
    {"family": "DeiT", "example": "timm:deit_small_patch16_224", "notes": "also DeiT-III"},
    {"family": "DeiT, distilled", "example": "timm:deit_base_distilled_patch16_224", "notes": "two heads, both read"},
    {"family": "BEiT", "example": "timm:beit_base_patch16_224", "notes": "relative position bias"},
    {"family": "EVA", "example": "timm:eva_large_patch14_336", "notes": "mean pooling"},
    {"family": "EVA02", "example": "timm:eva02_base_patch14_448", "notes": "rotary positions, SwiGLU"},
    {"family": "DINOv2", "example": "timm:vit_base_patch14_reg4_dinov2", "notes": "with and without registers"},
    {"family": "DINOv3", "example": "timm:vit_small_patch16_dinov3", "notes": "rotary positions, registers"},
    {"family": "CLIP", "example": "timm:vit_base_patch16_clip_224", "notes": "vision tower with a classifier"},
    {"family": "SigLIP", "example": "timm:vit_base_patch16_siglip_224", "notes": "attention pooling"},
    {
        "family": "Hugging Face",
        "example": "hf:google/vit-base-patch16-224",
        "notes": "ViT, DeiT, BEiT, DINOv2, SigLIP, CLIP classifiers",
    },
    {"family": "torchvision", "example": "torchvision:vit_b_16", "notes": "VisionTransformer"},
)


def facts(method: Method) -> dict[str, Any]:
    """Return the properties of a method as plain values.

    Parameters
    ----------
    method
        A registered method.

    Returns
    -------
    dict
        JSON-serialisable. `options` holds only those with a plain default, `composes` says whether the method accepts a
        fold, `origin` is the package that registered it.
    """
    from vitreous.methods.method import METHODS, SPELLINGS
    from vitreous.methods.recipe import ProbeFunction

    layers = method.recipe.per_layer if isinstance(method.recipe, ProbeFunction) else method.recipe
    options = {k: v for k, v in method.known_options.items() if v is None or isinstance(v, str | int | float | bool)}
    return {
        "name": method.name,
        "title": method.facts.title,
        "formula": method.facts.formula,
        "class_specific": method.class_specific,
        "signed": method.facts.signed,
        "complete": method.facts.complete and method.linearisation.complete,
        "attention": method.recipe.attention,
        "fold": None if method.fold is None else method.fold.name,
        "composes": layers is not None and not layers.fixed_fold,
        "native": method.facts.native,
        "black_box": method.black_box is not None,
        "question": method.facts.question,
        "forwards": method.facts.forwards,
        "backwards": method.facts.backwards,
        "paper": method.facts.paper,
        "options": options,
        "presets": sorted(method.presets),
        "aliases": sorted(alias for alias, spec in SPELLINGS.items() if spec == method.name),
        "origin": METHODS.owner(method.name).split(".")[0],
    }


def metric_facts(metric: Metric) -> dict[str, Any]:
    """Return the properties of a metric as plain values.

    Parameters
    ----------
    metric
        A registered metric.

    Returns
    -------
    dict
        JSON-serialisable. Infinite `bounds` are given as None, `pooled` says whether scores are reduced by something
        other than their mean, `origin` is the package that registered the metric.
    """
    from vitreous.metrics.metric import METRICS, plain

    return {
        "name": metric.name,
        "title": metric.title,
        "formula": metric.formula,
        "family": metric.family,
        "higher_is_better": metric.higher_is_better,
        "bounds": None if metric.bounds is None else [b if abs(b) != float("inf") else None for b in metric.bounds],
        "affine_invariant": metric.affine_invariant,
        "pooled": metric.reduce.__name__ != "mean",
        "needs": [name for name in metric.needs if name not in ("probe", "memo")],
        "takes": [name for name in metric.takes if name not in ("probe", "memo")],
        "forwards": metric.forwards,
        "paper": metric.paper,
        "options": plain(
            {
                k: v
                for k, v in metric.known_options.items()
                if v is None or isinstance(v, str | int | float | bool | tuple)
            }
        ),
        "presets": sorted(metric.presets),
        "aliases": sorted(METRICS.aliases(metric.name)),
        "origin": METRICS.owner(metric.name).split(".")[0],
    }


def read() -> dict[str, Any]:
    """Read `catalogue.json`, without importing torch."""
    return json.loads(FILE.read_text())


def current() -> dict[str, Any]:
    """Build the catalogue from the current registries; only entries registered by this package are included."""
    from vitreous import __version__, list_methods, list_metrics
    from vitreous.capture.linearise import LINEARISATIONS
    from vitreous.methods.fold import FOLDS

    folds = [{"name": name, "title": (FOLDS[name].function.__doc__ or "").split("\n")[0]} for name in FOLDS]
    methods = [m for m in list_methods() if m["origin"] == "vitreous"]
    return {
        "version": __version__,
        "methods": methods,
        "metrics": [m for m in list_metrics() if m["origin"] == "vitreous"],
        "folds": folds,
        "linearisations": list(LINEARISATIONS),
        "models": list(FAMILIES),
    }


def write() -> None:
    FILE.write_text(json.dumps(current(), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
