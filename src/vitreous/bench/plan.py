"""The plan of a benchmark: models × datasets × methods × metrics, as plain values that can be pickled."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

from vitreous.core.errors import SpecError

PRECISIONS = ("float32", "bf16", "float64")
TARGETS = ("predicted", "label", "predicted+label", "pair")  # also "top 2", "top 3", …, or a tuple of classes
SLICE = 16
EIGHT = (
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
PAPERS = ("chefer", "tokentm", "tis", "skipplus")
ASIDE = ("batch_size", "device", "out", "text", "source")  # fields that do not affect the rows


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
    """

    name: str
    label: str
    checkpoint: str | None = None
    pretrained: bool = True
    arguments: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class DataSpec:
    """A dataset of a plan.

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
    """

    spec: str
    label: str
    models: tuple[str, ...] = ()
    part: str = ""


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
        Canonical specs of the metrics; if empty, only maps are computed.
    pictures
        Number of images per dataset; None for all.
    seed
        Seed that selects the images; None takes the first ones.
    targets
        Classes to explain: one of `TARGETS`, "top n", or a tuple of class indices or names.
    question
        Name of the score function; None for the default of each method, as in its paper.
    precision
        One of `PRECISIONS`.
    protocol
        Protocol that the metrics come from.
    roles
        For every metric, the roles of the targets whose maps it measures; all targets if empty.
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
    text, source
        Text and path of the plan file; not compared.
    """

    models: tuple[ModelSpec, ...]
    datasets: tuple[DataSpec, ...]
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    pictures: int | None = None
    seed: int | None = 0
    targets: str | tuple[int | str, ...] = "predicted"
    question: str | None = None
    precision: str = "float32"
    protocol: str | None = None
    roles: tuple[tuple[str, ...], ...] = ()
    preprocess: str | None = None
    maps: bool = True
    slice: int = SLICE
    batch_size: int | None = None
    device: str | None = None
    out: str | None = None
    text: str = field(default="", compare=False)
    source: str = field(default="", compare=False)

    @property
    def run(self) -> str:
        """Name of the run: hash of the fields that affect the rows and of the library's version."""
        import vitreous

        own = {k: v for k, v in asdict(self).items() if k not in ASIDE}
        said = json.dumps({**own, "vitreous": vitreous.__version__}, sort_keys=True, default=str)
        return blake2b(said.encode(), digest_size=8).hexdigest()

    @property
    def toml(self) -> str:
        """The plan as TOML that `read_plan` can read; includes entries that were given as flags."""
        return as_toml(self)


def one_of(said: str) -> tuple[int, int]:
    """Parse "i/n", such as "2/8" for the second of eight.

    Raises
    ------
    SpecError
        If the text does not have this form with 1 ≤ i ≤ n.
    """
    number, slash, count = said.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise SpecError("is not understood; write i/n with i from 1 to n, for example 2/8")
    return int(number), int(count)


def as_toml(plan: Plan) -> str:
    """Write all entries that differ from their defaults; JSON numbers, strings and lists are valid TOML."""
    lines = []
    brought = ("metrics", "roles", "preprocess") if plan.protocol else ("roles",)
    for name, entry in Plan.__dataclass_fields__.items():
        value = getattr(plan, name)
        if name in ("models", "datasets", "text", "source", *brought) or (value == entry.default and name != "targets"):
            continue
        lines.append(f"{name} = {json.dumps('first' if value is None else value, ensure_ascii=False)}")
    for model in plan.models:
        given = {
            "name": model.name,
            "label": model.label,
            "checkpoint": model.checkpoint,
            "pretrained": model.pretrained,
        }
        lines += table("models", {**given, **dict(model.arguments)})
    for data in plan.datasets:
        given = {"spec": data.spec, "label": data.label, "models": list(data.models) or None, "part": data.part or None}
        lines += table("datasets", given)
    return "\n".join(lines) + "\n"


def table(name: str, entries: dict[str, Any]) -> list[str]:
    """Lines of one TOML table in an array of tables; entries that are None are left out."""
    inside = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items() if value is not None)
    return ["", f"[[{name}]]", *inside]
