"""Methods, metrics, folds and models as plain data, stored in `catalogue.json` so that help and listings need no torch.

`python -m vitreous.catalogue` regenerates the file; a test compares it with the registry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from vitreous.core.plugins import LOADED

if TYPE_CHECKING:
    from vitreous.capture.argument_types import QuestionInput
    from vitreous.methods.method import Method
    from vitreous.metrics.metric import Metric

FILE = Path(__file__).with_name("catalogue.json")


CAPABILITIES = {"BlackBox": "black box", "Network": "network", "ViT": "ViT"}


class MethodEntry(TypedDict):
    """A method as JSON-serialisable values; those without a comment are as in `Facts`."""

    name: str
    title: str
    family: str
    formula: str
    class_specific: bool
    signed: bool
    complete: bool
    attention: bool  # whether attention matrices are read
    fold: str | None
    composes: bool  # whether the method accepts a fold
    native: str
    black_box: bool
    capability: str  # least that a model must be: "black box", "network" (states and gradients) or "ViT" (an adapter)
    question: QuestionInput  # of methods of this package a name
    forwards: int | str
    backwards: int | str
    precision: str
    paper: str
    options: dict[str, str | int | float | bool | None]  # defaults, of the options whose default is plain
    meanings: dict[str, str]  # description of every option
    presets: list[str]
    aliases: list[str]
    origin: str  # package that registered it


class MetricEntry(TypedDict):
    """A metric as JSON-serialisable values; those without a comment are as in `Metric`."""

    name: str
    title: str
    formula: str
    family: str
    higher_is_better: bool | None
    bounds: list[int | float | None] | None  # None for an infinite bound
    affine_invariant: bool
    pooled: bool  # whether scores are reduced by something other than their mean
    needs: list[str]
    takes: list[str]
    forwards: int | str
    paper: str
    options: dict[str, Any]  # defaults, of the options whose default is plain
    presets: list[str]
    aliases: list[str]
    origin: str  # package that registered it


class FamilyEntry(TypedDict):
    """A kind of model, a name to load one by, what is special about it, and the package that registered its source."""

    family: str
    example: str
    notes: str
    origin: str


def method_facts(method: Method) -> MethodEntry:
    """Return the properties of a method as plain values.

    Parameters
    ----------
    method
        A registered method.

    Returns
    -------
    MethodEntry
    """
    from vitreous.methods.method import METHODS, SPEC_ALIASES
    from vitreous.methods.option_meanings import option_meanings
    from vitreous.methods.recipe import ProbeFunction

    layers = method.recipe.per_layer if isinstance(method.recipe, ProbeFunction) else method.recipe
    options = {k: v for k, v in method.known_options.items() if v is None or isinstance(v, str | int | float | bool)}
    return {
        "name": method.name,
        "title": method.facts.title,
        "family": method.facts.family,
        "formula": method.facts.formula,
        "class_specific": method.class_specific,
        "signed": method.facts.signed,
        "complete": method.facts.complete and method.linearisation.complete,
        "attention": method.recipe.attention,
        "fold": None if method.fold is None else method.fold.name,
        "composes": layers is not None and not layers.fixed_fold,
        "native": method.facts.native,
        "black_box": method.black_box is not None,
        "capability": CAPABILITIES[method.capability.__name__],
        "question": method.facts.question,
        "forwards": method.facts.forwards,
        "backwards": method.facts.backwards,
        "precision": method.facts.precision,
        "paper": method.facts.paper,
        "options": options,
        "meanings": option_meanings(method),
        "presets": sorted(method.presets),
        "aliases": sorted(alias for alias, spec in SPEC_ALIASES.items() if spec == method.name),
        "origin": METHODS.owner(method.name).split(".")[0],
    }


def metric_facts(metric: Metric) -> MetricEntry:
    """Return the properties of a metric as plain values.

    Parameters
    ----------
    metric
        A registered metric.

    Returns
    -------
    MetricEntry
    """
    from vitreous.metrics.metric import METRICS, as_json_values

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
        "options": as_json_values(
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


def list_methods() -> list[MethodEntry]:
    """List all registered methods.

    Returns
    -------
    list of dict
        One entry per method, sorted by name: its title, family, formula, paper, options and declared properties, such as
        "signed", "class_specific" and "capability" (the least that a model must be).

    Examples
    --------
    >>> import vitreous
    >>> [method["name"] for method in vitreous.list_methods() if method["family"] == "Vector norms"]
    ['alti', 'attin', 'globenc']
    """
    from vitreous.methods.method import METHODS

    return [method_facts(METHODS[name]) for name in sorted(METHODS)]


def list_metrics() -> list[MetricEntry]:
    """List every registered metric.

    Returns
    -------
    list of dict
        Name, title, family, options and other declared properties of each metric, sorted by name.

    Examples
    --------
    >>> import vitreous
    >>> "pointing_game" in [metric["name"] for metric in vitreous.list_metrics()]
    True
    """
    from vitreous.metrics.metric import METRICS

    return [metric_facts(METRICS[name]) for name in sorted(METRICS)]


def list_models() -> list[FamilyEntry]:
    """List the supported model families.

    Returns
    -------
    list of dict
        Entries with `family`, `example` (a name for `load`), `notes` and `origin` (the package that registered it).

    Examples
    --------
    >>> import vitreous
    >>> [model["example"] for model in vitreous.list_models() if model["family"] == "BEiT"]
    ['timm:beit_base_patch16_224']
    """
    from vitreous.models.model_registry import SOURCES

    return [
        FamilyEntry(
            family=family.family,
            example=family.example,
            notes=family.notes,
            origin=SOURCES.owner(name).split(".")[0],
        )
        for name in sorted(SOURCES)
        for family in SOURCES[name].families
    ]


def read_catalogue() -> dict[str, Any]:
    """Read `catalogue.json`, without importing torch."""
    return json.loads(FILE.read_text())


def catalogue_entries(kind: Literal["methods", "metrics", "models"]) -> Sequence[Mapping[str, Any]]:
    """All methods, metrics or model families: from the file, or from the registry if there are plugins, installed or imported."""
    if FILE.exists() and not entry_points(group=f"vitreous.{kind}") and not LOADED:
        return read_catalogue()[kind]
    return LISTINGS[kind]()


LISTINGS: dict[str, Callable[[], Sequence[Mapping[str, Any]]]] = {
    "methods": list_methods,
    "metrics": list_metrics,
    "models": list_models,
}


def build_catalogue() -> dict[str, Any]:
    """Build the catalogue from the current registries; only entries registered by this package are included."""
    from vitreous import __version__
    from vitreous.capture.linearise import LINEARISATIONS
    from vitreous.methods.fold import FOLDS

    own = {kind: [entry for entry in listing() if entry["origin"] == "vitreous"] for kind, listing in LISTINGS.items()}
    return {
        "version": __version__,
        "methods": own["methods"],
        "metrics": own["metrics"],
        "folds": [{"name": name, "title": (FOLDS[name].function.__doc__ or "").split("\n")[0]} for name in FOLDS],
        "linearisations": list(LINEARISATIONS),
        "models": own["models"],
    }


def write_catalogue() -> None:
    FILE.write_text(json.dumps(build_catalogue(), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write_catalogue()
