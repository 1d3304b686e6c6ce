"""What is to be measured: models × data sets × methods × metrics, as plain values that travel."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

from vitreous.core.errors import SpecError

PRECISIONS = ("float32", "bf16", "float64")
TARGETS = ("predicted", "label", "predicted+label", "pair")  # or "top 2", "top 3", …, or classes by number or name
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
ALL, USUAL, PAPER = "all", "usual", "protocol"  # in place of metrics, and of methods
SLOW = ("road",)  # not usual: it solves sparse systems on the CPU, about a second per map
PAPERS = ("chefer", "tokentm", "tis", "skipplus")
ASIDE = ("batch_size", "device", "out", "text", "source")  # what decides no row


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model by name, and how it is built."""

    name: str
    label: str
    checkpoint: str | None = None
    pretrained: bool = True
    arguments: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class DataSpec:
    """A data set by its spec; `models` are the labels of those that look at it, all if there are none.

    `part`: "1/2" is every second picture from the first on, "2/2" the others: pictures to choose by and to confirm on.
    """

    spec: str
    label: str
    models: tuple[str, ...] = ()
    part: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the rows, and how they are computed."""

    models: tuple[ModelSpec, ...]
    datasets: tuple[DataSpec, ...]
    methods: tuple[str, ...]  # canonical specs
    metrics: tuple[str, ...]  # canonical specs; none: maps alone
    pictures: int | None = None  # None: all
    seed: int | None = 0  # which pictures; None: the first ones
    targets: str | tuple[int | str, ...] = "predicted"
    question: str | None = None  # None: what each method's paper asks
    precision: str = "float32"
    protocol: str | None = None  # whose metrics these are
    roles: tuple[tuple[str, ...], ...] = ()  # of every metric, the targets whose maps it measures; none: all of them
    preprocess: str | None = None  # as this paper's evaluation sees pictures; None: as the model does
    maps: bool = True  # keep the maps as well
    slice: int = SLICE  # pictures in a cell: the unit of work, whoever does it
    batch_size: int | None = None  # pictures run at once; None: the whole slice
    device: str | None = None
    out: str | None = None
    text: str = field(default="", compare=False)  # as it was written, and where
    source: str = field(default="", compare=False)

    @property
    def run(self) -> str:
        """The name of the run: what decides its rows."""
        import vitreous

        own = {k: v for k, v in asdict(self).items() if k not in ASIDE}
        said = json.dumps({**own, "vitreous": vitreous.__version__}, sort_keys=True, default=str)
        return blake2b(said.encode(), digest_size=8).hexdigest()

    @property
    def toml(self) -> str:
        """The plan as a file that `read_plan` reads back; flags that took the place of an entry included."""
        return as_toml(self)


def one_of(said: str) -> tuple[int, int]:
    """`"2/8"`: the second of eight."""
    number, slash, count = said.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise SpecError("is not understood; write i/n with i from 1 to n, for example 2/8")
    return int(number), int(count)


def as_toml(plan: Plan) -> str:
    """Every entry that is not its default; JSON's numbers, words and lists are TOML's as well."""
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
    inside = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items() if value is not None)
    return ["", f"[[{name}]]", *inside]
