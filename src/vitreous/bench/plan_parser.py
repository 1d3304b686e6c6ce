"""Read a plan from a TOML file or from flags; errors name the line or flag and suggest a valid value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vitreous.bench.plan import ENTRIES, NO_ENTRIES, DataSpec, Evaluation, ModelSpec, Plan
from vitreous.bench.plan_source import FLAGS, Origin, suggest
from vitreous.core.errors import DataError, SpecError, VitreousError
from vitreous.metrics.protocols import Protocol, protocol

DEFAULT_METHODS = (
    "random",
    "rollout",
    "gradcam",
    "genatt",
    "tokentm",
    "decompx+skipplus",
    "fullgrad@libra+plus",
    "tis(masks=256)",
)
ALL, USUAL, PAPER = "all", "usual", "protocol"  # values of metrics (all, usual) and methods (protocol)
# metrics of a plan that names none, as far as they fit the data: about 20 forward passes per map. For models of which no
# tokens can be removed, pixels are removed instead.
USUAL_METRICS = ("deletion_aopc", "insertion_aopc", "pointing_game", "energy_pointing", "ap", "sparseness")
PIXEL_METRICS = {"deletion_aopc": "deletion(steps=10)", "insertion_aopc": "insertion(steps=10)"}
SELECTION = ("targets", "images", "seed", "preprocess")  # entries of a plan that a dataset can have as well


def read_plan(path: str | Path, **over: Any) -> Plan:
    """Read a plan from a TOML file.

    Parameters
    ----------
    path
        The file.
    **over
        Entries that replace those of the file, unless None.

    Raises
    ------
    DataError
        If the file cannot be read.
    SpecError
        If it is not valid TOML, or an entry is invalid.
    """
    import tomllib

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        entries = tomllib.loads(text)
    except FileNotFoundError:
        raise DataError(f"there is no plan at '{path}'; `vitreous bench --model … --data …` needs none") from None
    except IsADirectoryError:
        raise DataError(f"'{path}' is a folder; a plan is a TOML file") from None
    except UnicodeDecodeError:
        raise DataError(f"'{path}' is not text in UTF-8; a plan is a TOML file") from None
    except OSError as problem:
        raise DataError(f"'{path}' cannot be read: {problem.strerror}") from None
    except tomllib.TOMLDecodeError as problem:
        message = re.sub(r"\s*\(at line (\d+), column (\d+)\)", "", str(problem))
        place = re.search(r"line (\d+), column (\d+)", str(problem))
        where = f", line {place[1]}, column {place[2]}" if place else ""
        raise SpecError(f"'{path}'{where}: {message}; a plan is written in TOML, name = value") from None
    except RecursionError:
        raise SpecError(
            f"'{path}' nests lists or tables too deep for a plan, which has tables of names and lists"
        ) from None
    except ValueError:  # of a number that Python does not convert
        raise SpecError(f"'{path}' has a whole number of thousands of digits; no entry of a plan is as large") from None
    changes = {key: value for key, value in over.items() if value is not None}
    return make_plan({**override_entries(entries, changes), **changes}, Origin(str(path), text), text)


def override_entries(entries: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a file without those that `changes` replace: entries of its datasets have priority over the plan's."""
    replaced = {*changes}
    # metrics and a protocol exclude each other
    if "metrics" in changes:
        replaced |= {"protocol", "columns"}
    if "protocol" in changes:
        replaced |= {"metrics", "columns"}
    kept = {key: value for key, value in entries.items() if key not in replaced}
    if isinstance(datasets := kept.get("datasets"), list):
        kept["datasets"] = [
            {key: value for key, value in data.items() if key not in replaced} if isinstance(data, Mapping) else data
            for data in datasets
        ]
    return kept


def plan_from_flags(**flags: Any) -> Plan:
    """Make a plan from command-line flags; those that are None count as not given."""
    entries = {key: value for key, value in flags.items() if value is not None}
    return make_plan(entries, Origin(flags=FLAGS), "")


def make_plan(entries: Mapping[str, Any], origin: Origin, text: str) -> Plan:
    """Make a plan from its entries.

    Only the entries themselves are checked here; `vitreous.bench.plan_check.check` tests whether models and datasets can be
    loaded and fit together.

    Parameters
    ----------
    entries
        Entries by name.
    origin
        File or flags that they come from, for error messages.
    text
        Text of the file.

    Raises
    ------
    SpecError
        If an entry is missing, unknown or invalid.
    """
    for key, example in (("models", 'models = ["scenes"]'), ("datasets", 'datasets = ["scenes:single"]')):
        if not entries.get(key):
            raise origin.wrong(
                f"the plan names no {key}; add {origin.flags.get(key) or example}", key if origin.name else ""
            )
    names = sorted(Plan.__dataclass_fields__.keys() - NO_ENTRIES)
    if unknown := next((key for key in entries if key not in names), None):
        raise origin.wrong(f"a plan has no entry {unknown!r}; {suggest(unknown, names)}", unknown)
    if origin.name and not entries.get("methods"):
        raise origin.wrong('the plan names no methods; add methods = ["genatt", "decompx+skipplus"]', "methods")
    checked = {key: value for key, value in entries.items() if key != "metrics"}
    checked["methods"] = list_published_methods(entries, origin) or entries.get("methods") or DEFAULT_METHODS
    if (metrics := entries.get("metrics")) and not is_word(metrics, ALL, USUAL):
        checked["metrics"] = metrics
    plan = ENTRIES.validate_python(checked, context=origin)
    check_labels(plan.models, plan.datasets, origin)
    settle = settle_metrics if plan.protocol is None else settle_protocol
    plan = settle(plan, entries, origin)
    measured = tuple(dict.fromkeys(spec for evaluation in plan.evaluations for spec in evaluation.metrics))
    return replace(plan, metrics=measured, text=text, source=origin.name)


def is_word(entry: Any, *words: str) -> bool:
    """Whether an entry that lists specs is one of some words instead, alone or in a list."""
    return entry in words or (isinstance(entry, list | tuple) and len(entry) == 1 and entry[0] in words)


def check_labels(models: Sequence[ModelSpec], datasets: Sequence[DataSpec], origin: Origin) -> None:
    """Raise `SpecError` if two models or datasets have the same label, or a dataset names an unknown model."""
    labels = [model.label for model in models]
    for data in datasets:
        for label in data.models:
            if label not in labels:
                sentence = f"dataset {data.spec!r} is for model {label!r}, which the plan does not have"
                raise origin.wrong(f"{sentence}; {suggest(label, labels)}", "models", label)
    for key, names in (("models", labels), ("datasets", [data.label for data in datasets])):
        if twice := next((label for label in names if names.count(label) > 1), None):
            raise origin.wrong(f"two {key} are called {twice!r}; give one of them another label", key, twice)


def find_common_value(values: Sequence[Any]) -> Any:
    """The value that all entries have, or None."""
    return values[0] if all(value == values[0] for value in values) else None


def settle_metrics(plan: Plan, entries: Mapping[str, Any], origin: Origin) -> Plan:
    """Decide what is measured on every dataset of a plan without a protocol.

    The metrics of a dataset are its own entry, those of the plan, or all ("all") or a few cheap ones ("usual",
    `USUAL_METRICS`) that it has annotations for. If they differ between datasets, all datasets get an entry.
    """
    from vitreous.bench.plan_check import keep_measurable, list_metrics_for

    datasets, metrics = plan.datasets, entries.get("metrics")
    if titled := next((data for data in datasets if data.columns is not None), None):
        raise origin.wrong(
            f"columns of dataset {titled.label!r} are titles of a protocol's columns; add one", "columns"
        )
    if metrics is None and any(data.metrics is None for data in datasets):
        raise origin.wrong(
            'the plan names no metrics; add metrics = ["deletion_aopc"], metrics = "usual" or a protocol', "metrics"
        )
    if is_word(metrics, ALL, USUAL):
        serve = list_metrics_for if is_word(metrics, ALL) else partial(keep_measurable, list_usual_metrics(plan))
        served = [serve(data, origin) for data in datasets]
    else:
        served = [plan.metrics] * len(datasets)
    own = [specs if data.metrics is None else data.metrics for data, specs in zip(datasets, served, strict=True)]
    if any(data.metrics is not None for data in datasets) or find_common_value(own) is None:
        datasets = tuple(replace(data, metrics=specs) for data, specs in zip(datasets, own, strict=True))
    evaluations = tuple(
        settle_entries(plan, data, entries, Evaluation(specs)) for data, specs in zip(datasets, own, strict=True)
    )
    return replace(plan, datasets=datasets, evaluations=evaluations)


def list_usual_metrics(plan: Plan) -> tuple[str, ...]:
    """Metrics of a plan that names none; they depend on whether tokens can be removed from all models."""
    from vitreous.bench.model_options import load_cached
    from vitreous.bench.pool import list_devices
    from vitreous.metrics.metric import resolve_metric
    from vitreous.models.vit import ViT

    try:
        models = [load_cached(model, plan.precision, list_devices(plan)[0]).vit for model in plan.models]
    except VitreousError:  # `check` raises it with the line or flag
        models = []
    names = USUAL_METRICS
    if not all(isinstance(model, ViT) for model in models):
        names = tuple(PIXEL_METRICS.get(name, name) for name in names)
    return tuple(resolve_metric(name).spec for name in names)


def settle_protocol(plan: Plan, entries: Mapping[str, Any], origin: Origin) -> Plan:
    """Decide what is measured on every dataset of a plan with a protocol, which has defaults of other entries as well."""
    if entries.get("metrics") or any(data.metrics for data in plan.datasets):
        raise origin.wrong("a plan has metrics or a protocol, not both; a protocol brings its own", "protocol")
    paper = find_protocol(plan.protocol, origin)
    evaluations = tuple(
        settle_entries(plan, data, entries, select_columns(paper, data, origin)) for data in plan.datasets
    )
    targets = find_common_value([evaluation.targets for evaluation in evaluations])
    defaults = {"preprocess": paper.preprocess, "targets": targets}
    defaults = {key: value for key, value in defaults.items() if key not in entries}
    return replace(plan, evaluations=evaluations, **defaults)


def select_columns(paper: Protocol, data: DataSpec, origin: Origin) -> Evaluation:
    """What a protocol measures on a dataset.

    These are the columns that the dataset's entry `columns` names, or all columns that it has annotations for; each
    metric measures the maps of the classes that its columns explain.

    Raises
    ------
    SpecError
        If a column is unknown, or the dataset has the annotations of none of the columns.
    """
    from vitreous.bench.plan_check import keep_measurable
    from vitreous.metrics.metric import resolve_metric

    for title in data.columns or ():
        if title not in paper.columns:
            suggestion = suggest(title, list(paper.columns))
            raise origin.wrong(f"protocol {paper.name!r} has no column {title!r}; {suggestion}", "columns", title)
    roles: dict[str, dict[str, None]] = {}  # by metric, in the order of the columns
    for title in data.columns or paper.columns:
        column = paper.columns[title]
        # the dataset's label is the class of the mask
        role = "label" if column.explained == "mask" else column.explained
        roles.setdefault(resolve_metric(column.metric).spec, {})[role] = None
    metrics = tuple(roles) if data.columns is not None else keep_measurable(tuple(roles), data, origin)
    if not metrics:
        raise origin.wrong(
            f"dataset {data.label!r} has nothing of what protocol {paper.name!r} needs: {', '.join(paper.data)}",
            "protocol",
            paper.name,
        )
    explained = {role for metric in metrics for role in roles[metric]}
    targets = explained.pop() if len(explained) == 1 else "predicted+label"
    return Evaluation(metrics, tuple(tuple(roles[metric]) for metric in metrics), targets, preprocess=paper.preprocess)


def settle_entries(plan: Plan, data: DataSpec, entries: Mapping[str, Any], evaluation: Evaluation) -> Evaluation:
    """Replace entries of an evaluation by those of the plan and of the dataset; other targets than its own drop roles."""
    changes = {key: getattr(plan, key) for key in SELECTION if key in entries}
    changes |= {key: getattr(data, key) for key in SELECTION if getattr(data, key) is not None}
    changes |= {key: None for key in ("images", "seed") if isinstance(changes.get(key), str)}  # "all" or "first"
    if changes.get("targets", evaluation.targets) != evaluation.targets:
        changes["roles"] = ()
    return replace(evaluation, **changes)


def find_protocol(name: Any, origin: Origin) -> Protocol:
    """Look up a protocol by name; raise `SpecError` if it is unknown."""
    with origin.blame("protocol", name):
        return protocol(str(name))


def list_published_methods(entries: Mapping[str, Any], origin: Origin) -> tuple[str, ...] | None:
    """All methods of the paper's tables if the plan has methods = "protocol", otherwise None."""
    from vitreous.methods.spec import resolve

    if not is_word(entries.get("methods"), PAPER):
        return None
    if entries.get("protocol") is None:
        raise origin.wrong('methods = "protocol" needs a protocol; add protocol = "skipplus"', "methods")
    return tuple(dict.fromkeys(resolve(spec).spec for spec in find_protocol(entries["protocol"], origin).methods))
