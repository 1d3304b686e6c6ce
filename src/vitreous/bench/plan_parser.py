"""Read a plan from a TOML file or from flags; errors name the line or flag and suggest a valid value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.bench.plan import (
    ALL,
    EIGHT,
    PAPERS,
    PRECISIONS,
    SLOW,
    TARGETS,
    USUAL,
    DataSpec,
    Evaluation,
    ModelSpec,
    Plan,
    parse_fraction,
)
from vitreous.bench.plan_source import FLAGS, Origin, suggest
from vitreous.bench.protocol_plan import find_protocol, published_methods, settle_protocol
from vitreous.core.errors import DataError, SpecError, VitreousError


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
    origin = Origin(str(path), text)
    return make_plan({**entries, **{k: v for k, v in over.items() if v is not None}}, origin, text)


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
    field_names = {f.name for f in Plan.__dataclass_fields__.values()} - {"text", "source", "evaluations"}
    for key in entries:
        if key not in field_names:
            raise origin.wrong(f"a plan has no entry {key!r}; {suggest(key, sorted(field_names))}", key)
    for key, example in (("models", 'models = ["scenes"]'), ("datasets", 'datasets = ["scenes:single"]')):
        if not entries.get(key):
            raise origin.wrong(
                f"the plan names no {key}; add {origin.flags.get(key) or example}", key if origin.name else ""
            )
    models = tuple(parse_model_entry(entry, origin) for entry in to_list(entries["models"], "models", origin))
    labels = [model.label for model in models]
    datasets = tuple(
        parse_data_entry(entry, labels, origin) for entry in to_list(entries["datasets"], "datasets", origin)
    )
    for key, specs_of_key in (("models", models), ("datasets", datasets)):
        names = [spec.label for spec in specs_of_key]
        if twice := next((label for label in names if names.count(label) > 1), None):
            raise origin.wrong(f"two {key} are called {twice!r}; give one of them another label", key, twice)
    checked_entries = {
        key: check_entry(key, entries[key], origin)
        for key in field_names - {"models", "datasets", "methods", "metrics"}
        if key in entries
    }
    if origin.name and not entries.get("methods"):
        raise origin.wrong('the plan names no methods; add methods = ["genatt", "decompx+skipplus"]', "methods")
    datasets, evaluations = settle_datasets(entries, checked_entries, datasets, origin)
    methods = parse_specs(published_methods(entries, origin) or entries.get("methods") or EIGHT, "methods", origin)
    if "protocol" in checked_entries:
        checked_entries.setdefault("preprocess", find_protocol(checked_entries["protocol"], origin).preprocess)
        checked_entries.setdefault("targets", common_value([evaluation.targets for evaluation in evaluations]))
    metrics = tuple(dict.fromkeys(spec for evaluation in evaluations for spec in evaluation.metrics))
    return Plan(
        models, datasets, methods, metrics, **checked_entries, evaluations=evaluations, text=text, source=origin.name
    )


def common_value(values: Sequence[Any]) -> Any:
    """The value that all entries have, or None."""
    return values[0] if all(value == values[0] for value in values) else None


def to_list(value: Any, key: str, origin: Origin) -> list[Any]:
    """Convert an entry to a list; raise `SpecError` if it is empty or of another type."""
    entries = [value] if isinstance(value, str | dict) else value
    if not isinstance(entries, list | tuple) or not entries:
        raise origin.wrong(f"{key} is a list with at least one entry, not {value!r}", key)
    return list(entries)


def parse_model_entry(entry: Any, origin: Origin) -> ModelSpec:
    """Parse an entry of `models`: a name, or a table with a name and options."""
    entry = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise origin.wrong(f"a model is a name or {{name = …, checkpoint = …}}, not {entry!r}", "models")
    arguments_by_name = dict(entry)
    name, label = arguments_by_name.pop("name"), arguments_by_name.pop("label", None)
    checkpoint, pretrained = arguments_by_name.pop("checkpoint", None), arguments_by_name.pop("pretrained", True)
    family = arguments_by_name.pop("family", "")
    if not isinstance(family, str):
        raise origin.wrong(f"family of {name!r} is a name in quotes, not {family!r}", "family")
    path = None if checkpoint is None else resolve_checkpoint(str(checkpoint), origin)
    if path is not None and not path.is_file():
        raise origin.wrong(
            f"the checkpoint '{checkpoint}' of {name!r} does not exist; give a local file", "checkpoint", checkpoint
        )
    if not isinstance(pretrained, bool):
        raise origin.wrong(f"pretrained of {name!r} is true or false, not {pretrained!r}", "pretrained")
    for key, value in arguments_by_name.items():
        if not isinstance(value, str | int | float | bool | list):
            raise origin.wrong(f"{key} of model {name!r} is a number, a word, true or false, not {value!r}", key)
    arguments = tuple(
        (key, tuple(value) if isinstance(value, list) else value) for key, value in sorted(arguments_by_name.items())
    )
    return ModelSpec(name, str(label or name), None if path is None else str(path), pretrained, arguments, family)


def resolve_checkpoint(checkpoint: str, origin: Origin) -> Path:
    """Resolve the path of a checkpoint as for datasets: `~` and the prefix `assets:` (VITREOUS_ASSETS) are expanded."""
    from vitreous.data.reader import expand_path

    try:
        return expand_path(checkpoint)
    except DataError as problem:
        raise origin.wrong(str(problem), "checkpoint", checkpoint) from None


def parse_data_entry(entry: Any, labels: Sequence[str], origin: Origin) -> DataSpec:
    """Parse an entry of `datasets`: a spec, or a table with a spec and options."""
    entry = {"spec": entry} if isinstance(entry, str) else entry
    field_names = DataSpec.__dataclass_fields__
    if not isinstance(entry, dict) or not isinstance(entry.get("spec"), str) or entry.keys() - field_names:
        fields = ", ".join(f"{name} = …" for name in field_names)
        raise origin.wrong(f"a dataset is a spec or {{{fields}}}, not {entry!r}", "datasets")
    models = tuple(to_list(entry["models"], "models", origin)) if "models" in entry else ()
    for label_of_model in models:
        if label_of_model not in labels:
            raise origin.wrong(
                f"dataset {entry['spec']!r} is for model {label_of_model!r}, which the plan does not have; {suggest(str(label_of_model), labels)}",
                "models",
                label_of_model,
            )
    part = entry.get("part", "")
    if part:
        try:
            parse_fraction(str(part))
        except SpecError as problem:
            raise origin.wrong(f"part = {part!r} {problem}", "part") from None
    label = entry.get("label") or entry["spec"] + (f" {part}" if part else "")
    own = {key: check_entry(key, entry[key], origin) for key in ("targets", "preprocess", "subset") if key in entry}
    for key in ("pictures", "seed"):
        if key in entry:
            check_entry(key, entry[key], origin)
            own[key] = entry[key]
    if entry.get("metrics") is not None:
        own["metrics"] = parse_specs(entry["metrics"], "metrics", origin)
    if entry.get("columns") is not None:
        own["columns"] = tuple(str(title) for title in to_list(entry["columns"], "columns", origin))
    return DataSpec(entry["spec"], str(label), models, str(part), **own)


def parse_specs(value: Any, key: str, origin: Origin) -> tuple[str, ...]:
    """Canonical specs of methods or metrics; raise `SpecError` if one is invalid or occurs twice."""
    from vitreous.methods.spec import resolve
    from vitreous.metrics.metric import resolve_metric

    text_by_spec: dict[str, str] = {}
    for text in to_list(value, key, origin):
        if not isinstance(text, str):
            raise origin.wrong(f"an entry of {key} is a spec in quotes, not {text!r}", key)
        try:
            spec = (resolve if key == "methods" else resolve_metric)(text).spec
        except VitreousError as problem:
            raise origin.wrong(str(problem), key, text) from None
        if spec in text_by_spec:
            same = "is there twice" if text_by_spec[spec] == text else f"and {text_by_spec[spec]!r} are the same"
            raise origin.wrong(f"{text!r} {same}; once is enough", key, text)
        text_by_spec[spec] = text
    return tuple(text_by_spec)


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
    if any(data.metrics is not None for data in datasets) or common_value(own) is None:
        datasets = tuple(replace(data, metrics=specs) for data, specs in zip(datasets, own, strict=True))
    evaluations = (
        settle_entries(data, checked_entries, Evaluation(specs)) for data, specs in zip(datasets, own, strict=True)
    )
    return datasets, tuple(evaluations)


def settle_entries(data: DataSpec, checked_entries: Mapping[str, Any], evaluation: Evaluation) -> Evaluation:
    """Replace entries of an evaluation by those of the plan and of the dataset; other targets than its own drop roles."""
    changes = {
        key: checked_entries[key] for key in ("targets", "pictures", "seed", "preprocess") if key in checked_entries
    }
    own = {key: getattr(data, key) for key in ("targets", "pictures", "seed", "preprocess")}
    changes |= {key: value for key, value in own.items() if value is not None}
    if changes.get("pictures") == ALL:
        changes["pictures"] = None
    if changes.get("seed") == "first":
        changes["seed"] = None
    if changes.get("targets", evaluation.targets) != evaluation.targets:
        changes["roles"] = ()
    return replace(evaluation, **changes)


def check_entry(key: str, value: Any, origin: Origin) -> Any:
    """Check type and range of an entry and return its value for `Plan`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    match key:
        case "pictures" | "batch_size" | "slice":
            if value == ALL and key == "pictures":
                return None
            if not whole or int(value) < 1:
                counted = "images" if key == "pictures" else key
                raise origin.wrong(f"{counted} is a whole number from 1 on, not {value!r}", key)
        case "seed":
            if value == "first":
                return None
            if not whole or value < 0:
                raise origin.wrong(
                    f"seed is a whole number from 0 on, or 'first' for the first images, not {value!r}", key
                )
        case "precision":
            if value not in PRECISIONS:
                raise origin.wrong(f"precision {value!r} is not known; known: {', '.join(PRECISIONS)}", key)
        case "maps":
            if not isinstance(value, bool):
                raise origin.wrong(f"maps is true or false, not {value!r}", key)
        case "targets":
            return check_targets(value, origin)
        case "preprocess":
            if value not in PAPERS:
                raise origin.wrong(f"preprocess {value!r} is not known; known: {', '.join(PAPERS)}", key)
        case "question" | "device" | "out" | "protocol" | "subset" | "reproduces" | "reduced":
            if not isinstance(value, str):
                raise origin.wrong(f"{key} is a name in quotes, not {value!r}", key)
            if key == "question":
                return check_question(value, origin)
    return value


def check_question(value: str, origin: Origin) -> str:
    """Canonical name of a score function."""
    from vitreous.capture.score_function import ask

    try:
        return ask(value).name
    except VitreousError as problem:
        raise origin.wrong(str(problem), "question", value) from None


def check_targets(value: Any, origin: Origin) -> str | tuple[int | str, ...]:
    """Check the entry `targets` and return its value for `Plan`."""
    if isinstance(value, str) and (value in TARGETS or re.fullmatch(r"top [1-9]\d*", value)):
        return value
    several = [value] if isinstance(value, int) else value
    if (
        isinstance(several, list | tuple)
        and several
        and all(isinstance(target, int | str) and not isinstance(target, bool) for target in several)
    ):
        return tuple(several)
    allowed = ", ".join(map(repr, (*TARGETS, "top 2")))
    raise origin.wrong(f"targets {value!r} is not understood; known: {allowed}, or a list of classes", "targets")
