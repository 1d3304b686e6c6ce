"""The plan of a benchmark: models × datasets × methods × metrics, as plain values that can be pickled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Literal, get_args

from vitreous.core.deprecation import renamed_attributes
from vitreous.core.errors import SpecError

Precision = Literal["float32", "tf32", "bf16", "auto", "float64"]
PRECISIONS = get_args(Precision)
TARGETS = ("predicted", "label", "predicted+label", "pair")  # also "top 2", "top 3", …, or a tuple of classes
SLICE = 16
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
SLOW = ("road",)  # not in usual: solves sparse systems on the CPU, about a second per map
PaperName = Literal["chefer", "tokentm", "tis", "skipplus"]
PAPERS = get_args(PaperName)
# fields that do not affect the rows
NOT_HASHED = ("batch_size", "device", "out", "text", "source", "reproduces", "reduced")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model of a plan.

    Parameters
    ----------
    name
        Name for `vitreous.load`.
    label
        Name in results; unique in the plan.
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

    name: str
    label: str
    checkpoint: str | None = None
    pretrained: bool = True
    arguments: tuple[tuple[str, Any], ...] = ()
    family: str = ""


@renamed_attributes(pictures="images")
@dataclass(frozen=True, slots=True)
class DataSpec:
    """A dataset of a plan; entries that are None are those of the plan.

    Parameters
    ----------
    spec
        Spec for `open_dataset`.
    label
        Name in results; unique in the plan.
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

    spec: str
    label: str
    models: tuple[str, ...] = ()
    part: str = ""
    metrics: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    targets: str | tuple[int | str, ...] | None = None
    images: int | str | None = None
    seed: int | str | None = None
    subset: str | None = None
    preprocess: str | None = None


@renamed_attributes(pictures="images")
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
    targets: str | tuple[int | str, ...] = "predicted"
    images: int | None = None
    seed: int | None = 0
    preprocess: str | None = None


@renamed_attributes(pictures="images")
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
        Name of the score function; None for the default of each method, as in its paper.
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

    models: tuple[ModelSpec, ...]
    datasets: tuple[DataSpec, ...]
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    images: int | None = None
    seed: int | None = 0
    targets: str | tuple[int | str, ...] | None = "predicted"
    question: str | None = None
    precision: str = "float32"
    protocol: str | None = None
    preprocess: str | None = None
    maps: bool = True
    slice: int = SLICE
    batch_size: int | None = None
    device: str | None = None
    out: str | None = None
    reproduces: str = ""
    reduced: str = ""
    evaluations: tuple[Evaluation, ...] = ()
    text: str = field(default="", compare=False)
    source: str = field(default="", compare=False)

    @property
    def run(self) -> str:
        """Name of the run: hash of the fields that affect the rows and of the library's version."""
        import vitreous

        entries = asdict(self, dict_factory=use_hashed_names)
        own = {name: value for name, value in entries.items() if name not in NOT_HASHED}
        text = json.dumps({**own, "vitreous": vitreous.__version__}, sort_keys=True, default=str)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def toml(self) -> str:
        """The plan as TOML that `read_plan` can read; includes entries that were given as flags."""
        return to_toml(self)


def use_hashed_names(entries: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Entries with the names that hashes are made of: `images` is still `pictures`, so that runs of 0.1 are continued."""
    return {"pictures" if name == "images" else name: value for name, value in entries}


def parse_fraction(text: str) -> tuple[int, int]:
    """Parse "i/n", such as "2/8" for the second of eight.

    Raises
    ------
    SpecError
        If the text does not have this form with 1 ≤ i ≤ n.
    """
    number, slash, count = text.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise SpecError("is not understood; write i/n with i from 1 to n, for example 2/8")
    return int(number), int(count)


def to_toml(plan: Plan) -> str:
    """Write all entries that differ from their defaults; JSON numbers, strings and lists are valid TOML."""
    lines = []
    # entries that reading the plan derives again from its protocol and datasets
    derived = ("models", "datasets", "text", "source", "evaluations")
    if plan.protocol:
        derived += ("metrics", "preprocess")
    elif plan.datasets[0].metrics is not None:
        derived += ("metrics",)
    for name, entry in Plan.__dataclass_fields__.items():
        value = getattr(plan, name)
        if name in derived or (value == entry.default and name != "targets") or (name, value) == ("targets", None):
            continue
        lines.append(f"{name} = {json.dumps('first' if value is None else value, ensure_ascii=False)}")
    for model in plan.models:
        entries = {
            "name": model.name,
            "label": model.label,
            "checkpoint": model.checkpoint,
            "pretrained": model.pretrained,
            "family": model.family or None,
        }
        lines += format_toml_table("models", {**entries, **dict(model.arguments)})
    for data in plan.datasets:
        entries = {name: getattr(data, name) for name in DataSpec.__dataclass_fields__}
        lines += format_toml_table("datasets", {**entries, "models": data.models or None, "part": data.part or None})
    return "\n".join(lines) + "\n"


def format_toml_table(name: str, entries: dict[str, Any]) -> list[str]:
    """Lines of one TOML table in an array of tables; entries that are None are left out."""
    inside = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items() if value is not None)
    return ["", f"[[{name}]]", *inside]
