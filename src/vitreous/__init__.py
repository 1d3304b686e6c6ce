"""Vitreous: attribution methods for Vision Transformers, and metrics to evaluate them.

    import vitreous

    vit = vitreous.load("timm:vit_tiny_patch16_224")
    attribution = vitreous.explain(vit, "zebra.jpg", target=340, method="decompx+skipplus")
    attribution.plot()

Public names are imported lazily on first access (PEP 562), so `import vitreous` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

HOMES = {
    "vitreous.front": ("explain", "inside", "list_methods", "list_models"),
    "vitreous.wrapping": ("load", "wrap"),
    "vitreous.measure": ("evaluate", "list_metrics"),
    "vitreous.methods.spec": ("resolve",),
    "vitreous.metrics.metric": ("Metric", "metric", "resolve_metric"),
    "vitreous.metrics.metric_result": ("Measured", "MetricResult"),
    "vitreous.methods.method": ("Method",),
    "vitreous.methods.register_method": ("method",),
    "vitreous.methods.fold": ("Fold", "fold"),
    "vitreous.methods.folds": ("first", "last", "at", "plus", "skipplus", "rollout"),
    "vitreous.methods.attribution": ("Attribution",),
    "vitreous.methods.inside": ("Inside",),
    "vitreous.capture.linearise": ("Linearisation",),
    "vitreous.capture.operation_registry": ("operation_rule",),
    "vitreous.capture.probe": ("Probe",),
    "vitreous.capture.see_through": ("see_through",),
    "vitreous.capture.text_target": ("TextTarget", "text_target"),
    "vitreous.models.model_registry": ("NamedModule", "adapter", "source"),
    "vitreous.models.model": ("BlackBox", "Network", "ModelOrigin"),
    "vitreous.models.image_input": ("Preprocess",),
    "vitreous.models.vit": ("ViT",),
    "vitreous.pairs.explain_pair": ("explain_pair",),
    "vitreous.pairs.pair_attribution": ("PairAttribution",),
    "vitreous.pairs.prompts": ("prompt_target",),
    "vitreous.pairs.text_tower": ("TextTower",),
    "vitreous.core.errors": ("VitreousError", "ModelError", "SpecError", "ShapeError", "DataError", "Caveat"),
}
HOME_OF = {name: home for home, names in HOMES.items() for name in names}
MODULES = ("data", "draw", "export", "losses", "maps", "scenes", "scores", "testing")

__all__ = ["__version__", *HOME_OF, *MODULES]  # noqa: PLE0604 - the names are listed above

if TYPE_CHECKING:
    from vitreous import data as data
    from vitreous import draw as draw
    from vitreous import export as export
    from vitreous import losses as losses
    from vitreous import maps as maps
    from vitreous import scenes as scenes
    from vitreous import scores as scores
    from vitreous import testing as testing
    from vitreous.capture.linearise import Linearisation as Linearisation
    from vitreous.capture.operation_registry import operation_rule as operation_rule
    from vitreous.capture.probe import Probe as Probe
    from vitreous.capture.see_through import see_through as see_through
    from vitreous.capture.text_target import TextTarget as TextTarget
    from vitreous.capture.text_target import text_target as text_target
    from vitreous.core.errors import Caveat as Caveat
    from vitreous.core.errors import DataError as DataError
    from vitreous.core.errors import ModelError as ModelError
    from vitreous.core.errors import ShapeError as ShapeError
    from vitreous.core.errors import SpecError as SpecError
    from vitreous.core.errors import VitreousError as VitreousError
    from vitreous.front import explain as explain
    from vitreous.front import inside as inside
    from vitreous.front import list_methods as list_methods
    from vitreous.front import list_models as list_models
    from vitreous.measure import evaluate as evaluate
    from vitreous.measure import list_metrics as list_metrics
    from vitreous.methods.attribution import Attribution as Attribution
    from vitreous.methods.fold import Fold as Fold
    from vitreous.methods.fold import fold as fold
    from vitreous.methods.folds import at as at
    from vitreous.methods.folds import first as first
    from vitreous.methods.folds import last as last
    from vitreous.methods.folds import plus as plus
    from vitreous.methods.folds import rollout as rollout
    from vitreous.methods.folds import skipplus as skipplus
    from vitreous.methods.inside import Inside as Inside
    from vitreous.methods.method import Method as Method
    from vitreous.methods.register_method import method as method
    from vitreous.methods.spec import resolve as resolve
    from vitreous.metrics.metric import Metric as Metric
    from vitreous.metrics.metric import metric as metric
    from vitreous.metrics.metric import resolve_metric as resolve_metric
    from vitreous.metrics.metric_result import Measured as Measured
    from vitreous.metrics.metric_result import MetricResult as MetricResult
    from vitreous.models.image_input import Preprocess as Preprocess
    from vitreous.models.model import BlackBox as BlackBox
    from vitreous.models.model import ModelOrigin as ModelOrigin
    from vitreous.models.model import Network as Network
    from vitreous.models.model_registry import NamedModule as NamedModule
    from vitreous.models.model_registry import adapter as adapter
    from vitreous.models.model_registry import source as source
    from vitreous.models.vit import ViT as ViT
    from vitreous.pairs.explain_pair import explain_pair as explain_pair
    from vitreous.pairs.pair_attribution import PairAttribution as PairAttribution
    from vitreous.pairs.prompts import prompt_target as prompt_target
    from vitreous.pairs.text_tower import TextTower as TextTower
    from vitreous.wrapping import load as load
    from vitreous.wrapping import wrap as wrap


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return import_module(f"vitreous.{name}")
    if name in HOME_OF:
        value = getattr(import_module(HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'vitreous' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
