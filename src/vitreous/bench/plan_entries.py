"""Entries of a plan as pydantic models: types, ranges and known values.

The description of a field is the error message for an invalid value. Validators that have a message of their own raise
the `SpecError` of the plan's `Origin`, which pydantic passes on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from vitreous.bench.plan import (
    PAPERS,
    PRECISIONS,
    SLICE,
    TARGETS,
    DataSpec,
    ModelSpec,
    PaperName,
    Precision,
    parse_fraction,
)
from vitreous.bench.plan_source import Origin, suggest
from vitreous.core.errors import DataError, SpecError, VitreousError

try:
    from pydantic import BaseModel, ConfigDict, Field, ValidationError
    from pydantic.functional_validators import AfterValidator, BeforeValidator, PlainValidator
except ImportError:
    raise DataError("plans are validated with pydantic: pip install 'vitreous[bench]'") from None


def to_list(value: Any, key: str, origin: Origin) -> list[Any]:
    """Convert an entry to a list; raise `SpecError` if it is empty or of another type."""
    entries = [value] if isinstance(value, str | dict) else value
    if not isinstance(entries, list | tuple) or not entries:
        raise origin.wrong(f"{key} is a list with at least one entry, not {value!r}", key)
    return list(entries)


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
            relation = "is there twice" if text_by_spec[spec] == text else f"and {text_by_spec[spec]!r} are the same"
            raise origin.wrong(f"{text!r} {relation}; once is enough", key, text)
        text_by_spec[spec] = text
    return tuple(text_by_spec)


def parse_targets(value: Any) -> str | tuple[int | str, ...]:
    if isinstance(value, str) and (value in TARGETS or re.fullmatch(r"top [1-9]\d*", value)):
        return value
    classes = [value] if isinstance(value, int) else value
    if isinstance(classes, list | tuple) and classes and all(type(target) in (int, str) for target in classes):
        return tuple(classes)
    raise ValueError


def parse_score_function(value: str, info: Any) -> str:
    """Canonical name of a score function."""
    from vitreous.capture.score_function import resolve_score_function

    try:
        return resolve_score_function(value).name
    except VitreousError as problem:
        raise info.context.wrong(str(problem), "question", value) from None


def resolve_checkpoint(checkpoint: str, info: Any) -> str:
    """Path of an existing checkpoint; `~` and the prefix `assets:` (VITREOUS_ASSETS) are expanded as for datasets."""
    from vitreous.data.reader import expand_path

    try:
        path = expand_path(checkpoint)
    except DataError as problem:
        raise info.context.wrong(str(problem), "checkpoint", checkpoint) from None
    if not path.is_file():
        raise info.context.wrong(
            f"the checkpoint '{checkpoint}' of {info.data.get('name')!r} does not exist; give a local file",
            "checkpoint",
            checkpoint,
        )
    return str(path)


def check_part(part: str, info: Any) -> str:
    try:
        parse_fraction(part or "1/1")
    except SpecError as problem:
        raise info.context.wrong(f"part = {part!r} {problem}", "part") from None
    return part


def named_by(key: str) -> BeforeValidator:
    """Validator that accepts a string in place of a table, as its entry `key`."""
    return BeforeValidator(lambda entry: {key: entry} if isinstance(entry, str) else entry)


def list_entry(value: Any, info: Any) -> list[Any]:
    return to_list(value, info.field_name, info.context)


def spec_entry(value: Any, info: Any) -> tuple[str, ...]:
    return parse_specs(value, info.field_name, info.context)


Listed = BeforeValidator(list_entry)
Text = Annotated[str, BeforeValidator(str)]
Names = Annotated[list[Text], Listed, AfterValidator(tuple)]
Count = Annotated[int, Field(ge=1)]
Specs = Annotated[tuple[str, ...], PlainValidator(spec_entry)]
FORMS = {
    "models": "a model is a name or {name = …, checkpoint = …}",
    "datasets": f"a dataset is a spec or {{{', '.join(f'{name} = …' for name in DataSpec.__dataclass_fields__)}}}",
}
COUNT, NAME, FLAG = "{key} is a whole number from 1 on", "{key} is a name in quotes", "{key} is true or false"


class PlanTable(BaseModel):
    """A table of a plan. Values are not converted to other types, and unknown entries are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SelectionEntries(PlanTable):
    """Entries that a plan and each of its datasets can have."""

    images: Count | Literal["all"] | None = Field(None, description="images is a whole number from 1 on")
    seed: Annotated[int, Field(ge=0)] | Literal["first"] | None = Field(
        None, description="seed is a whole number from 0 on, or 'first' for the first images"
    )
    targets: Annotated[str | tuple[int | str, ...] | None, PlainValidator(parse_targets)] = Field(
        None,
        description="targets {value!r} is not understood; known: "
        f"{', '.join(map(repr, (*TARGETS, 'top 2')))}, or a list of classes",
    )
    preprocess: PaperName | None = Field(
        None, description=f"preprocess {{value!r}} is not known; known: {', '.join(PAPERS)}"
    )


class PlanModel(PlanTable, extra="allow"):
    """An entry of `models`; entries that are not listed here are model options and builder arguments."""

    __pydantic_extra__: dict[str, str | int | float | bool | list[Any]]  # pyright: ignore[reportIncompatibleVariableOverride]
    name: str
    label: Text = ""
    checkpoint: Annotated[Text, AfterValidator(resolve_checkpoint)] | None = None
    pretrained: bool = Field(True, description=FLAG)
    family: str = Field("", description=NAME)

    def spec(self) -> ModelSpec:
        extra = sorted((self.__pydantic_extra__ or {}).items())
        arguments = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in extra)
        return ModelSpec(self.name, self.label or self.name, self.checkpoint, self.pretrained, arguments, self.family)


class PlanDataset(SelectionEntries):
    """An entry of `datasets`."""

    spec: str
    label: Text = ""
    models: Names = []
    part: Annotated[Text, AfterValidator(check_part)] = ""
    metrics: Specs | None = None
    columns: Names | None = None
    subset: str | None = Field(None, description=NAME)

    def data_spec(self) -> DataSpec:
        entries = {key: getattr(self, key) for key in DataSpec.__dataclass_fields__}
        return DataSpec(
            **{**entries, "models": tuple(self.models), "label": self.label or f"{self.spec} {self.part}".strip()}
        )


class PlanEntries(SelectionEntries):
    """Entries of a plan."""

    models: Annotated[list[Annotated[PlanModel, named_by("name")]], Listed]
    datasets: Annotated[list[Annotated[PlanDataset, named_by("spec")]], Listed]
    methods: Any = None
    metrics: Any = None
    batch_size: Count | None = Field(None, description=COUNT)
    slice: Count = Field(SLICE, description=COUNT)
    precision: Precision = Field(
        "float32", description=f"precision {{value!r}} is not known; known: {', '.join(PRECISIONS)}"
    )
    maps: bool = Field(True, description=FLAG)
    question: Annotated[str, AfterValidator(parse_score_function)] | None = Field(None, description=NAME)
    protocol: str | None = Field(None, description=NAME)
    device: str | None = Field(None, description=NAME)
    out: str | None = Field(None, description=NAME)
    reproduces: str = Field("", description=NAME)
    reduced: str = Field("", description=NAME)


def validate_entries(entries: Mapping[str, Any], origin: Origin) -> PlanEntries:
    """Check types, ranges and known values of all entries.

    Raises
    ------
    SpecError
        For the first invalid entry; unknown entries come first.
    """
    try:
        return PlanEntries.model_validate(dict(entries), context=origin)
    except ValidationError as problem:
        errors = problem.errors(include_url=False)
    for error in errors:
        if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
            key = str(error["loc"][0])
            known = suggest(key, sorted(PlanEntries.model_fields))
            raise origin.wrong(f"a plan has no entry {key!r}; {known}", key)
    raise describe_error(errors[0]["loc"], entries, origin)


def describe_error(place: tuple[int | str, ...], entries: Mapping[str, Any], origin: Origin) -> SpecError:
    """The error of an invalid value; `place` is its path in the entries, as pydantic gives it."""
    key, *inner = map(str, place)
    table, value, owner = PlanEntries, entries[key], ""
    if key in FORMS:
        table = PlanModel if key == "models" else PlanDataset
        entry, name = to_list(value, key, origin)[int(inner[0])], "".join(inner[1:2])
        field = table.model_fields.get(name)
        if not name or (field is None and key == "datasets") or (field is not None and field.is_required()):
            return origin.wrong(f"{FORMS[key]}, not {entry!r}", key)
        owner = f" of {'' if field else 'model '}{entry['name']!r}" if key == "models" else ""
        key, value = name, entry[name]
    field = table.model_fields.get(key)
    sentence = field.description or "" if field else "{key} is a number, a word, true or false"
    negated = "" if "{value" in sentence else f", not {value!r}"
    return origin.wrong(sentence.format(key=key + owner, value=value) + negated, key)
