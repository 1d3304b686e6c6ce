"""Read a plan from a TOML file or from flags; errors name the line or flag and suggest a valid value."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.bench.plan import ALL, DEFAULT_METHODS, SLOW, USUAL, DataSpec, Evaluation, ModelSpec, Plan
from vitreous.bench.plan_entries import parse_specs, validate_entries
from vitreous.bench.plan_source import FLAGS, OLD_ENTRIES, Origin, suggest
from vitreous.bench.protocol_plan import find_protocol, list_published_methods, settle_protocol
from vitreous.core.errors import DataError, SpecError


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
    changes = {key: value for key, value in over.items() if value is not None}
    return make_plan(
        {**rename_entries(entries, warn=True), **rename_entries(changes, warn=True)}, Origin(str(path), text), text
    )


def plan_from_flags(**flags: Any) -> Plan:
    """Make a plan from command-line flags; those that are None count as not given."""
    entries = {key: value for key, value in flags.items() if value is not None}
    return make_plan(rename_entries(entries, warn=True), Origin(flags=FLAGS), "")


def rename_entries(entries: Mapping[str, Any], *, warn: bool = False) -> dict[str, Any]:
    """Entries of a plan, and those of its datasets, with old names replaced; an entry of the new name comes first."""
    renamed = {
        OLD_ENTRIES.get(key, key): value for key, value in entries.items() if OLD_ENTRIES.get(key) not in entries
    }
    for key in entries.keys() & OLD_ENTRIES.keys() if warn else ():
        warnings.warn(f"the entry {key!r} of a plan is now {OLD_ENTRIES[key]!r}", DeprecationWarning, stacklevel=4)
    if isinstance(datasets := renamed.get("datasets"), list | tuple):
        tables = [rename_entries(data, warn=warn) if isinstance(data, Mapping) else data for data in datasets]
        renamed["datasets"] = tables
    return renamed


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
    entries = rename_entries(entries)
    for key, example in (("models", 'models = ["scenes"]'), ("datasets", 'datasets = ["scenes:single"]')):
        if not entries.get(key):
            raise origin.wrong(
                f"the plan names no {key}; add {origin.flags.get(key) or example}", key if origin.name else ""
            )
    parsed = validate_entries(entries, origin)
    models = tuple(entry.spec() for entry in parsed.models)
    datasets = tuple(entry.data_spec() for entry in parsed.datasets)
    check_labels(models, datasets, origin)
    checked_entries: dict[str, Any] = {
        key: None if (key, getattr(parsed, key)) in (("images", ALL), ("seed", "first")) else getattr(parsed, key)
        for key in parsed.model_fields_set - {"models", "datasets", "methods", "metrics"}
    }
    if origin.name and not entries.get("methods"):
        raise origin.wrong('the plan names no methods; add methods = ["genatt", "decompx+skipplus"]', "methods")
    datasets, evaluations = settle_datasets(entries, checked_entries, datasets, origin)
    methods = parse_specs(
        list_published_methods(entries, origin) or entries.get("methods") or DEFAULT_METHODS, "methods", origin
    )
    if "protocol" in checked_entries:
        checked_entries.setdefault("preprocess", find_protocol(checked_entries["protocol"], origin).preprocess)
        checked_entries.setdefault("targets", find_common_value([evaluation.targets for evaluation in evaluations]))
    metrics = tuple(dict.fromkeys(spec for evaluation in evaluations for spec in evaluation.metrics))
    return Plan(
        models, datasets, methods, metrics, **checked_entries, evaluations=evaluations, text=text, source=origin.name
    )


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


def settle_datasets(
    entries: Mapping[str, Any], checked_entries: Mapping[str, Any], datasets: tuple[DataSpec, ...], origin: Origin
) -> tuple[tuple[DataSpec, ...], tuple[Evaluation, ...]]:
    """Decide what is measured on every dataset.

    The metrics of a dataset are its own entry, those of the plan, all ("all") or most ("usual", without `SLOW`) that it
    has annotations for, or those of the protocol. Other entries are the dataset's own, else the plan's, else the
    protocol's.

    Returns
    -------
    tuple
        The datasets, with explicit metrics if they differ between datasets of a plan without a protocol, and one
        evaluation each.
    """
    from vitreous.bench.plan_check import list_metrics_for

    name, metrics = entries.get("protocol"), entries.get("metrics")
    if name is not None and (metrics or any(data.metrics for data in datasets)):
        raise origin.wrong("a plan has metrics or a protocol, not both; a protocol brings its own", "protocol")
    if name is not None:
        return datasets, tuple(
            settle_entries(data, checked_entries, settle_protocol(name, checked_entries, data, origin))
            for data in datasets
        )
    if titled := next((data for data in datasets if data.columns is not None), None):
        raise origin.wrong(
            f"columns of dataset {titled.label!r} are titles of a protocol's columns; add one", "columns"
        )
    if metrics is None and any(data.metrics is None for data in datasets):
        raise origin.wrong(
            'the plan names no metrics; add metrics = ["deletion_aopc"], metrics = "usual" or a protocol', "metrics"
        )
    if metrics in (ALL, [ALL], (ALL,), USUAL, [USUAL], (USUAL,)):
        left_out = SLOW if USUAL in metrics else ()
        served = [[spec for spec in list_metrics_for(data, origin) if spec not in left_out] for data in datasets]
    else:
        served = [parse_specs(metrics, "metrics", origin) if metrics else ()] * len(datasets)
    own = [tuple(specs) if data.metrics is None else data.metrics for data, specs in zip(datasets, served, strict=True)]
    if any(data.metrics is not None for data in datasets) or find_common_value(own) is None:
        datasets = tuple(replace(data, metrics=specs) for data, specs in zip(datasets, own, strict=True))
    evaluations = (
        settle_entries(data, checked_entries, Evaluation(specs)) for data, specs in zip(datasets, own, strict=True)
    )
    return datasets, tuple(evaluations)


def settle_entries(data: DataSpec, checked_entries: Mapping[str, Any], evaluation: Evaluation) -> Evaluation:
    """Replace entries of an evaluation by those of the plan and of the dataset; other targets than its own drop roles."""
    changes = {
        key: checked_entries[key] for key in ("targets", "images", "seed", "preprocess") if key in checked_entries
    }
    own = {key: getattr(data, key) for key in ("targets", "images", "seed", "preprocess")}
    changes |= {key: value for key, value in own.items() if value is not None}
    if changes.get("images") == ALL:
        changes["images"] = None
    if changes.get("seed") == "first":
        changes["seed"] = None
    if changes.get("targets", evaluation.targets) != evaluation.targets:
        changes["roles"] = ()
    return replace(evaluation, **changes)
