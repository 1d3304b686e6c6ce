"""Published evaluations: metrics, explained classes, and the method spec of every row in a paper's tables.

    >>> from vitreous.metrics.protocols import protocol
    >>> protocol("tis").rows["Att. Rollout"]
    "rollout(preset='vit-explain')"

Protocols are the files `vitreous/published/protocols/*.toml`. This module does not import torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from vitreous.core.registry import Registry

FOLDER = files("vitreous") / "published" / "protocols"
NAMES = ("skipplus", "released", "tokentm", "tis", "chefer")  # as the documentation lists them
CHOICES = ("predicted", "label", "mask")  # "mask": the class that covers most of the image


@dataclass(frozen=True, slots=True)
class ProtocolColumn:
    """A column of a published table.

    Parameters
    ----------
    metric
        Spec of the metric.
    explained
        The class that is explained: "predicted", "label", or "mask", the class whose mask covers most of the image.
    data
        Name of the datasets.
    """

    metric: str
    explained: str
    data: str


@dataclass(frozen=True, slots=True)
class Protocol:
    """The evaluation of one paper.

    Parameters
    ----------
    name
        Name in the registry.
    paper
        Key in `docs/references.bib`.
    columns
        Columns of the tables by published title.
    rows
        Method specs by the paper's name of the method.
    models
        Names of the evaluated models.
    notes
        Differences from what a reader would expect.
    preprocess
        Name of the preprocessing for `Preprocess.published`.
    fine_tuned
        Models that the paper trained itself, by dataset; `training/finetune.py` makes such models.
    """

    name: str
    paper: str
    columns: Mapping[str, ProtocolColumn]
    rows: Mapping[str, str]
    models: tuple[str, ...]
    notes: tuple[str, ...]
    preprocess: str
    fine_tuned: Mapping[str, str] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Distinct metric specs."""
        return tuple(dict.fromkeys(column.metric for column in self.columns.values()))

    @property
    def methods(self) -> tuple[str, ...]:
        """Distinct method specs."""
        return tuple(dict.fromkeys(self.rows.values()))

    @property
    def data(self) -> tuple[str, ...]:
        """Distinct datasets."""
        return tuple(dict.fromkeys(column.data for column in self.columns.values()))


def read_protocol(name: str) -> Protocol:
    """Protocol of a file; `rows_of` names another protocol, whose rows are the rows that the file does not name."""
    entry = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    base = entry.pop("rows_of", None)
    rows = entry.pop("rows") if base is None else {**PROTOCOLS[base].rows, **entry.pop("rows")}
    columns = {title: ProtocolColumn(**column) for title, column in entry.pop("columns").items()}
    models, notes = tuple(entry.pop("models")), tuple(entry.pop("notes"))
    return Protocol(name, columns=columns, rows=rows, models=models, notes=notes, **entry)


PROTOCOLS: Registry[Protocol] = Registry("protocol")
for name in NAMES:
    PROTOCOLS.add(name, read_protocol(name), __name__)


def protocol(name: str) -> Protocol:
    """Protocol by name: "skipplus", "released" (SkipPLUS's code), "tokentm", "tis" or "chefer"."""
    return PROTOCOLS[name.strip()]
