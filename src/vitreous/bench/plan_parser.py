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
    one_of,
)
from vitreous.bench.plan_source import FLAGS, Origin, near
from vitreous.bench.protocol_plan import published, published_methods, settle_protocol
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
        given = tomllib.loads(text)
    except FileNotFoundError:
        raise DataError(f"there is no plan at '{path}'; `vitreous bench --model … --data …` needs none") from None
    except IsADirectoryError:
        raise DataError(f"'{path}' is a folder; a plan is a TOML file") from None
    except UnicodeDecodeError:
        raise DataError(f"'{path}' is not text in UTF-8; a plan is a TOML file") from None
    except OSError as problem:
        raise DataError(f"'{path}' cannot be read: {problem.strerror}") from None
    except tomllib.TOMLDecodeError as problem:
        said = re.sub(r"\s*\(at line (\d+), column (\d+)\)", "", str(problem))
        place = re.search(r"line (\d+), column (\d+)", str(problem))
        where = f", line {place[1]}, column {place[2]}" if place else ""
        raise SpecError(f"'{path}'{where}: {said}; a plan is written in TOML, name = value") from None
    origin = Origin(str(path), text)
    return make_plan({**given, **{k: v for k, v in over.items() if v is not None}}, origin, text)


def plan_from_flags(**given: Any) -> Plan:
    """Make a plan from command-line flags; those that are None count as not given."""
    said = {key: value for key, value in given.items() if value is not None}
    return make_plan(said, Origin(flags=FLAGS), "")


def make_plan(given: Mapping[str, Any], origin: Origin, text: str) -> Plan:
    """Make a plan from its entries.

    Only the entries themselves are checked here; `vitreous.bench.plan_check.check` tests whether models and datasets can be
    loaded and fit together.

    Parameters
    ----------
    given
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
    known = {f.name for f in Plan.__dataclass_fields__.values()} - {"text", "source", "evaluations"}
    for key in given:
        if key not in known:
            raise origin.wrong(f"a plan has no entry {key!r}; {near(key, sorted(known))}", key)
    for key, what in (("models", 'models = ["scenes"]'), ("datasets", 'datasets = ["scenes:single"]')):
        if not given.get(key):
            raise origin.wrong(
                f"the plan names no {key}; add {origin.flags.get(key) or what}", key if origin.name else ""
            )
    models = tuple(model_of(one, origin) for one in listed(given["models"], "models", origin))
    labels = [model.label for model in models]
    datasets = tuple(data_of(one, labels, origin) for one in listed(given["datasets"], "datasets", origin))
    for key, entries in (("models", models), ("datasets", datasets)):
        names = [one.label for one in entries]
        if twice := next((label for label in names if names.count(label) > 1), None):
            raise origin.wrong(f"two {key} are called {twice!r}; give one of them another label", key, twice)
    rest = {
        key: checked(key, given[key], origin)
        for key in known - {"models", "datasets", "methods", "metrics"}
        if key in given
    }
    if origin.name and not given.get("methods"):
        raise origin.wrong('the plan names no methods; add methods = ["genatt", "decompx+skipplus"]', "methods")
    datasets, evaluations = settle_datasets(given, rest, datasets, origin)
    methods = specs(published_methods(given, origin) or given.get("methods") or EIGHT, "methods", origin)
    if "protocol" in rest:
        rest.setdefault("preprocess", published(rest["protocol"], origin).preprocess)
        rest.setdefault("targets", common_value([evaluation.targets for evaluation in evaluations]))
    metrics = tuple(dict.fromkeys(spec for evaluation in evaluations for spec in evaluation.metrics))
    return Plan(models, datasets, methods, metrics, **rest, evaluations=evaluations, text=text, source=origin.name)


def common_value(values: Sequence[Any]) -> Any:
    """The value that all entries have, or None."""
    return values[0] if all(value == values[0] for value in values) else None


def listed(value: Any, key: str, origin: Origin) -> list[Any]:
    """Convert an entry to a list; raise `SpecError` if it is empty or of another type."""
    found = [value] if isinstance(value, str | dict) else value
    if not isinstance(found, list | tuple) or not found:
        raise origin.wrong(f"{key} is a list with at least one entry, not {value!r}", key)
    return list(found)


def model_of(given: Any, origin: Origin) -> ModelSpec:
    """Parse an entry of `models`: a name, or a table with a name and options."""
    given = {"name": given} if isinstance(given, str) else given
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise origin.wrong(f"a model is a name or {{name = …, checkpoint = …}}, not {given!r}", "models")
    rest = dict(given)
    name, label = rest.pop("name"), rest.pop("label", None)
    checkpoint, pretrained = rest.pop("checkpoint", None), rest.pop("pretrained", True)
    family = rest.pop("family", "")
    if not isinstance(family, str):
        raise origin.wrong(f"family of {name!r} is a name in quotes, not {family!r}", "family")
    path = None if checkpoint is None else weights_at(str(checkpoint), origin)
    if path is not None and not path.is_file():
        raise origin.wrong(
            f"the checkpoint '{checkpoint}' of {name!r} does not exist; give a local file", "checkpoint", checkpoint
        )
    if not isinstance(pretrained, bool):
        raise origin.wrong(f"pretrained of {name!r} is true or false, not {pretrained!r}", "pretrained")
    for key, value in rest.items():
        if not isinstance(value, str | int | float | bool | list):
            raise origin.wrong(f"{key} of model {name!r} is a number, a word, true or false, not {value!r}", key)
    arguments = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in sorted(rest.items()))
    return ModelSpec(name, str(label or name), None if path is None else str(path), pretrained, arguments, family)


def weights_at(checkpoint: str, origin: Origin) -> Path:
    """Resolve the path of a checkpoint as for datasets: `~` and the prefix `assets:` (VITREOUS_ASSETS) are expanded."""
    from vitreous.data.reader import expand_path

    try:
        return expand_path(checkpoint)
    except DataError as problem:
        raise origin.wrong(str(problem), "checkpoint", checkpoint) from None


def data_of(given: Any, labels: Sequence[str], origin: Origin) -> DataSpec:
    """Parse an entry of `datasets`: a spec, or a table with a spec and options."""
    given = {"spec": given} if isinstance(given, str) else given
    known = DataSpec.__dataclass_fields__
    if not isinstance(given, dict) or not isinstance(given.get("spec"), str) or given.keys() - known:
        entries = ", ".join(f"{name} = …" for name in known)
        raise origin.wrong(f"a dataset is a spec or {{{entries}}}, not {given!r}", "datasets")
    models = tuple(listed(given["models"], "models", origin)) if "models" in given else ()
    for one in models:
        if one not in labels:
            raise origin.wrong(
                f"dataset {given['spec']!r} is for model {one!r}, which the plan does not have; {near(str(one), labels)}",
                "models",
                one,
            )
    part = given.get("part", "")
    if part:
        try:
            one_of(str(part))
        except SpecError as problem:
            raise origin.wrong(f"part = {part!r} {problem}", "part") from None
    label = given.get("label") or given["spec"] + (f" {part}" if part else "")
    own = {key: checked(key, given[key], origin) for key in ("targets", "preprocess", "subset") if key in given}
    for key in ("pictures", "seed"):
        if key in given:
            checked(key, given[key], origin)
            own[key] = given[key]
    if given.get("metrics") is not None:
        own["metrics"] = specs(given["metrics"], "metrics", origin)
    if given.get("columns") is not None:
        own["columns"] = tuple(str(title) for title in listed(given["columns"], "columns", origin))
    return DataSpec(given["spec"], str(label), models, str(part), **own)


def specs(given: Any, key: str, origin: Origin) -> tuple[str, ...]:
    """Canonical specs of methods or metrics; raise `SpecError` if one is invalid or occurs twice."""
    from vitreous.methods.spec import resolve
    from vitreous.metrics.metric import resolve_metric

    found: dict[str, str] = {}
    for one in listed(given, key, origin):
        if not isinstance(one, str):
            raise origin.wrong(f"an entry of {key} is a spec in quotes, not {one!r}", key)
        try:
            spec = (resolve if key == "methods" else resolve_metric)(one).spec
        except VitreousError as problem:
            raise origin.wrong(str(problem), key, one) from None
        if spec in found:
            same = "is there twice" if found[spec] == one else f"and {found[spec]!r} are the same"
            raise origin.wrong(f"{one!r} {same}; once is enough", key, one)
        found[spec] = one
    return tuple(found)


def settle_datasets(
    given: Mapping[str, Any], rest: Mapping[str, Any], datasets: tuple[DataSpec, ...], origin: Origin
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

    name, metrics = given.get("protocol"), given.get("metrics")
    if name is not None and (metrics or any(data.metrics for data in datasets)):
        raise origin.wrong("a plan has metrics or a protocol, not both; a protocol brings its own", "protocol")
    if name is not None:
        return datasets, tuple(
            settle_entries(data, rest, settle_protocol(name, rest, data, origin)) for data in datasets
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
        served = [specs(metrics, "metrics", origin) if metrics else ()] * len(datasets)
    own = [
        tuple(listed) if data.metrics is None else data.metrics for data, listed in zip(datasets, served, strict=True)
    ]
    if any(data.metrics is not None for data in datasets) or common_value(own) is None:
        datasets = tuple(replace(data, metrics=listed) for data, listed in zip(datasets, own, strict=True))
    evaluations = (settle_entries(data, rest, Evaluation(listed)) for data, listed in zip(datasets, own, strict=True))
    return datasets, tuple(evaluations)


def settle_entries(data: DataSpec, rest: Mapping[str, Any], evaluation: Evaluation) -> Evaluation:
    """Replace entries of an evaluation by those of the plan and of the dataset; other targets than its own drop roles."""
    changes = {key: rest[key] for key in ("targets", "pictures", "seed", "preprocess") if key in rest}
    own = {key: getattr(data, key) for key in ("targets", "pictures", "seed", "preprocess")}
    changes |= {key: value for key, value in own.items() if value is not None}
    if changes.get("pictures") == ALL:
        changes["pictures"] = None
    if changes.get("seed") == "first":
        changes["seed"] = None
    if changes.get("targets", evaluation.targets) != evaluation.targets:
        changes["roles"] = ()
    return replace(evaluation, **changes)


def checked(key: str, value: Any, origin: Origin) -> Any:
    """Check type and range of an entry and return its value for `Plan`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    match key:
        case "pictures" | "batch_size" | "slice":
            if value == ALL and key == "pictures":
                return None
            if not whole or int(value) < 1:
                raise origin.wrong(f"{key} is a whole number from 1 on, not {value!r}", key)
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
            return targets_of(value, origin)
        case "preprocess":
            if value not in PAPERS:
                raise origin.wrong(f"preprocess {value!r} is not known; known: {', '.join(PAPERS)}", key)
        case "question" | "device" | "out" | "protocol" | "subset" | "reproduces" | "reduced":
            if not isinstance(value, str):
                raise origin.wrong(f"{key} is a name in quotes, not {value!r}", key)
            if key == "question":
                return question_of(value, origin)
    return value


def question_of(value: str, origin: Origin) -> str:
    """Canonical name of a score function."""
    from vitreous.capture.score_function import ask

    try:
        return ask(value).name
    except VitreousError as problem:
        raise origin.wrong(str(problem), "question", value) from None


def targets_of(value: Any, origin: Origin) -> str | tuple[int | str, ...]:
    """Check the entry `targets` and return its value for `Plan`."""
    if isinstance(value, str) and (value in TARGETS or re.fullmatch(r"top [1-9]\d*", value)):
        return value
    several = [value] if isinstance(value, int) else value
    if (
        isinstance(several, list | tuple)
        and several
        and all(isinstance(one, int | str) and not isinstance(one, bool) for one in several)
    ):
        return tuple(several)
    known = ", ".join(map(repr, (*TARGETS, "top 2")))
    raise origin.wrong(f"targets {value!r} is not understood; known: {known}, or a list of classes", "targets")
