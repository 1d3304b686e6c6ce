"""The plan of a benchmark: models × datasets × methods × metrics, as plain values that can be pickled.

The types of the fields also declare the entries of a plan file: pydantic checks them when `plan_parser` reads one, with
its `Origin` as the context. Objects that are created directly are not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, get_args

from vitreous.bench.keys import hash_entries
from vitreous.bench.plan_source import Origin, parse_fraction
from vitreous.core.errors import DataError, SpecError

try:
    from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, ValidationInfo
    from pydantic.functional_validators import AfterValidator, BeforeValidator, PlainValidator, WrapValidator
except ImportError as problem:
    raise DataError("plans are validated with pydantic: pip install 'vitreous[bench]'") from problem

Precision = Literal["float32", "tf32", "bf16", "auto", "float64"]
PRECISIONS = get_args(Precision)
Targets: TypeAlias = str | tuple[int | str, ...]
TARGETS = ("predicted", "label", "predicted+label", "pair")  # also "top 2", "top 3", …, or a tuple of classes
SLICE = 16
PaperName = Literal["chefer", "tokentm", "tis", "skipplus"]
PAPERS = get_args(PaperName)
NO_ENTRIES = ("evaluations", "text", "source")  # fields that are not written in a plan
NOT_HASHED = ("batch_size", "device", "out", "text", "source", "reproduces", "reduced")  # do not affect the rows


# ── values of entries ────────────────────────────────────────────────────────────────────────────


def described(sentence: str) -> WrapValidator:
    """Validator that replaces pydantic's error message by a sentence, which may contain `{key}` and `{value!r}`."""

    def validate(value: Any, check: Callable[[Any], Any], info: ValidationInfo[Origin]) -> Any:
        try:
            return check(value)
        except ValidationError:
            owner = f" of {info.data['name']!r}" if "name" in info.data else ""
            negated = "" if "{value" in sentence else f", not {value!r}"
            key = str(info.field_name)
            raise info.context.wrong(sentence.format(key=key + owner, value=value) + negated, key) from None

    return WrapValidator(validate)


def to_list(value: Any, info: ValidationInfo[Origin]) -> list[Any]:
    """Convert an entry to a list; raise `SpecError` if it is empty or of another type."""
    entries = [value] if isinstance(value, str | dict) else value
    if not isinstance(entries, list | tuple) or not entries:
        key = str(info.field_name)
        raise info.context.wrong(f"{key} is a list with at least one entry, not {value!r}", key)
    return list(entries)


def parse_specs(value: Any, info: ValidationInfo[Origin]) -> tuple[str, ...] | None:
    """Canonical specs of methods or metrics; raise `SpecError` if one is invalid or occurs twice."""
    from vitreous.methods.spec import resolve
    from vitreous.metrics.metric import resolve_metric

    if value is None:
        return None
    key, origin = str(info.field_name), info.context
    text_by_spec: dict[str, str] = {}
    for text in to_list(value, info):
        if not isinstance(text, str):
            raise origin.wrong(f"an entry of {key} is a spec in quotes, not {text!r}", key)
        with origin.blame(key, text):
            spec = (resolve if key == "methods" else resolve_metric)(text).spec
        if spec in text_by_spec:
            relation = "is there twice" if text_by_spec[spec] == text else f"and {text_by_spec[spec]!r} are the same"
            raise origin.wrong(f"{text!r} {relation}; once is enough", key, text)
        text_by_spec[spec] = text
    return tuple(text_by_spec)


def parse_targets(value: Any) -> Targets:
    if isinstance(value, str) and (value in TARGETS or re.fullmatch(r"top [1-9]\d*", value)):
        return value
    classes = [value] if isinstance(value, int) else value
    if isinstance(classes, list | tuple) and classes and all(type(target) in (int, str) for target in classes):
        return tuple(classes)
    raise ValueError


def parse_score_function(value: str | None, info: ValidationInfo[Origin]) -> str | None:
    """Canonical name of a score function."""
    from vitreous.capture.score_function import resolve_score_function

    with info.context.blame("question", value):
        return None if value is None else resolve_score_function(value).name


def resolve_checkpoint(value: Any, info: ValidationInfo[Origin]) -> str | None:
    """Path of an existing checkpoint; `~` and the prefix `assets:` (VITREOUS_ASSETS) are expanded as for datasets."""
    from vitreous.data.reader import expand_path

    if value is None:
        return None
    with info.context.blame("checkpoint", str(value)):
        path = expand_path(str(value))
        if not path.is_file():
            raise SpecError(f"the checkpoint '{value}' of {info.data.get('name')!r} does not exist; give a local file")
    return str(path)


def check_part(part: str, info: ValidationInfo[Origin]) -> str:
    with info.context.blame("part"):
        parse_fraction(part or "1/1", "part =")
    return part


def none_for(word: str) -> BeforeValidator:
    """Validator that replaces a word by None."""
    return BeforeValidator(lambda value: None if value == word else value)


Count = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, strict=True)]
Text = Annotated[str, BeforeValidator(str)]
Listed = BeforeValidator(to_list)
Names = Annotated[tuple[Text, ...], Listed]
Specs = Annotated[tuple[str, ...], PlainValidator(parse_specs)]
COUNT, NAME = described("{key} is a whole number from 1 on"), described("{key} is a name in quotes")
Flag = Annotated[bool, Field(strict=True), described("{key} is true or false")]
SEED = described("seed is a whole number from 0 on, or 'first' for the first images")
ChosenTargets = Annotated[
    Targets | None,
    PlainValidator(parse_targets),
    described(
        "targets {value!r} is not understood; known: "
        f"{', '.join(map(repr, (*TARGETS, 'top 2')))}, or a list of classes"
    ),
]
ChosenPaper = Annotated[PaperName | None, described(f"preprocess {{value!r}} is not known; known: {', '.join(PAPERS)}")]


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model of a plan.

    Parameters
    ----------
    name
        Name for `vitreous.load`.
    label
        Name in results, unique in the plan; `name` if empty.
    checkpoint
        Path of a local checkpoint.
    pretrained
        Whether to load pretrained weights.
    arguments
        Model options and builder arguments, as pairs.
    family
        Name that models fine-tuned on different datasets share; a published table joins their columns. Empty for a
        model of its own.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    name: str
    label: Text = ""
    checkpoint: Annotated[str | None, PlainValidator(resolve_checkpoint)] = None
    pretrained: Flag = True
    arguments: tuple[tuple[str, Any], ...] = ()
    family: Annotated[str, NAME] = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)


def gather_arguments(entry: Any, info: ValidationInfo[Origin]) -> Any:
    """Entry of a model as a table, whose `arguments` are all entries that `ModelSpec` does not have."""
    if not isinstance(entry, Mapping):
        return {"name": entry}
    own = ModelSpec.__dataclass_fields__.keys() - {"arguments"}
    arguments = {key: value for key, value in sorted(entry.items()) if key not in own}
    for key, value in arguments.items():
        owner = f"{key} of model {entry.get('name')!r}"
        if key == "device":
            raise info.context.wrong("device is an entry of the plan, not of a model", key)
        if key == "classes" and not (isinstance(value, str) and value):
            raise info.context.wrong(f"{owner} is a file of class names, not {value!r}", key)
        if not all(isinstance(part, str | int | float) for part in (value if isinstance(value, list) else [value])):
            raise info.context.wrong(
                f"{owner} is a number, a word, true or false, or a list of these, not {value!r}", key
            )
    pairs = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in arguments.items())
    return {**{key: value for key, value in entry.items() if key in own}, "arguments": pairs}


@dataclass(frozen=True, slots=True)
class DataSpec:
    """A dataset of a plan; entries that are None are those of the plan.

    Parameters
    ----------
    spec
        Spec for `open_dataset`.
    label
        Name in results, unique in the plan; spec and part if empty.
    models
        Labels of the models that are run on it; all if empty.
    part
        "1/2" uses every second image, starting with the first, "2/2" the others, so that methods can be selected on one
        half and confirmed on the other. Empty for all images.
    metrics
        Canonical specs of the metrics; None for those of the plan or its protocol. All datasets of a plan have an entry
        or none has.
    columns
        Titles of the protocol's columns to fill with this dataset; None for all that it has annotations for.
    targets
        Classes to explain.
    images
        Number of images, or "all".
    seed
        Seed that selects the images, or "first" for the first ones.
    subset
        File that lists the images to use, see `vitreous.data.read_subset`; in this order, at most `images`.
    preprocess
        Paper whose preprocessing is used.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    spec: str
    label: Text = ""
    models: Names = ()
    part: Annotated[Text, AfterValidator(check_part)] = ""
    metrics: Specs | None = None
    columns: Names | None = None
    targets: ChosenTargets = None
    images: Annotated[Count | Literal["all"] | None, COUNT] = None
    seed: Annotated[Seed | Literal["first"] | None, SEED] = None
    subset: Annotated[str | None, NAME] = None
    preprocess: ChosenPaper = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or f"{self.spec} {self.part}".strip())


MODEL_FORM = described("a model is a name or {{name = …, checkpoint = …}}")
DATASET_FORM = described(
    "a dataset is a spec or {{" + ", ".join(f"{name} = …" for name in DataSpec.__dataclass_fields__) + "}}"
)
SPEC_ALONE = BeforeValidator(lambda entry: entry if isinstance(entry, Mapping) else {"spec": entry})


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is measured on one dataset, with the entries of dataset, protocol and plan merged.

    Parameters
    ----------
    metrics
        Canonical specs of the metrics.
    roles
        For every metric, the roles of the targets whose maps it measures; all targets if empty.
    targets, images, seed, preprocess
        As for `Plan`.
    """

    metrics: tuple[str, ...]
    roles: tuple[tuple[str, ...], ...] = ()
    targets: Targets = "predicted"
    images: int | None = None
    seed: int | None = 0
    preprocess: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that determines the rows of a run, and how they are computed.

    Parameters
    ----------
    models, datasets
        Models and datasets to evaluate.
    methods
        Canonical specs of the methods.
    metrics
        Canonical specs of the metrics of all datasets; if empty, only maps are computed.
    images
        Number of images per dataset; None for all.
    seed
        Seed that selects the images; None takes the first ones.
    targets
        Classes to explain: one of `TARGETS`, "top n", or a tuple of class indices or names; None if datasets differ.
    question
        Name of the score function; None, or "own" in a file, for that of each method's paper.
    precision
        One of `PRECISIONS`.
    protocol
        Protocol that the metrics come from.
    preprocess
        Paper whose preprocessing is used; None for the model's own.
    maps
        Whether to keep the maps.
    slice
        Number of images in a cell, the unit of work of every executor.
    batch_size
        Number of images in a batch; None for the whole slice.
    device
        Device to run on; None for all GPUs if there are any, otherwise the CPU.
    out
        Folder of the store.
    reproduces
        Published table or figure that the plan reproduces, such as "tis:table1"; empty if none.
    reduced
        How the plan differs from the published evaluation, such as the number of images; empty if it does not.
    evaluations
        What is measured on every dataset.
    text, source
        Text and path of the plan file; not compared.
    """

    models: Annotated[tuple[Annotated[ModelSpec, BeforeValidator(gather_arguments), MODEL_FORM], ...], Listed]
    datasets: Annotated[tuple[Annotated[DataSpec, SPEC_ALONE, DATASET_FORM], ...], Listed]
    methods: Specs
    metrics: Specs = ()
    images: Annotated[Count | None, none_for("all"), COUNT] = None
    seed: Annotated[Seed | None, none_for("first"), SEED] = 0
    targets: ChosenTargets = "predicted"
    question: Annotated[str | None, AfterValidator(parse_score_function), NAME, none_for("own")] = None
    precision: Annotated[
        Precision, described(f"precision {{value!r}} is not known; known: {', '.join(PRECISIONS)}")
    ] = "float32"
    protocol: Annotated[str | None, NAME] = None
    preprocess: ChosenPaper = None
    maps: Flag = True
    slice: Annotated[Count, COUNT] = SLICE
    batch_size: Annotated[Count | None, COUNT] = None
    device: Annotated[str | None, NAME] = None
    out: Annotated[str | None, NAME] = None
    reproduces: Annotated[str, NAME] = ""
    reduced: Annotated[str, NAME] = ""
    evaluations: tuple[Evaluation, ...] = ()
    text: str = field(default="", compare=False)
    source: str = field(default="", compare=False)

    @property
    def run(self) -> str:
        """Name of the run: hash of the fields that affect the rows and of the library's version."""
        entries = asdict(self)
        return hash_entries({name: value for name, value in entries.items() if name not in NOT_HASHED})

    @property
    def toml(self) -> str:
        """The plan as TOML that `read_plan` can read; includes entries that were given as flags."""
        return to_toml(self)


ENTRIES = TypeAdapter(Plan)  # checks the entries of a plan


def to_toml(plan: Plan) -> str:
    """Write all entries that differ from their defaults; JSON numbers, strings and lists are valid TOML."""
    lines = []
    # entries that reading the plan derives again from its protocol and datasets
    derived = ("models", "datasets", *NO_ENTRIES)
    if plan.protocol:
        derived += ("metrics", "preprocess")
    elif plan.datasets[0].metrics is not None:
        derived += ("metrics",)
    for name, entry in Plan.__dataclass_fields__.items():
        value = getattr(plan, name)
        is_default = value == entry.default and name not in ("metrics", "targets")
        if name in derived or is_default or (name, value) == ("targets", None):
            continue
        lines.append(f"{name} = {json.dumps('first' if value is None else value, ensure_ascii=False)}")
    for model in plan.models:
        entries = {name: getattr(model, name) for name in ModelSpec.__dataclass_fields__ if name != "arguments"}
        entries["family"] = model.family or None
        lines += format_toml_table("models", {**entries, **dict(model.arguments)})
    for data in plan.datasets:
        entries = {name: getattr(data, name) for name in DataSpec.__dataclass_fields__}
        lines += format_toml_table("datasets", {**entries, "models": data.models or None, "part": data.part or None})
    return "\n".join(lines) + "\n"


def format_toml_table(name: str, entries: dict[str, Any]) -> list[str]:
    """Lines of one TOML table in an array of tables; entries that are None are left out."""
    inside = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items() if value is not None)
    return ["", f"[[{name}]]", *inside]
