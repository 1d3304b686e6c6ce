"""Numbers that the papers print, and orders of methods that they state, as shipped in `vitreous/published/*.toml`.

    >>> from vitreous.metrics.published import published_table
    >>> published_table("tokentm:table2").rows["genatt"]["Localization Ability: mIoU"]
    61.56

This module does not import torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

FOLDER = files("vitreous") / "published"
STAND_IN = " in place of "  # between what is used and what the paper has, in the label of a model or dataset


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a paper.

    Parameters
    ----------
    name
        Paper and table, such as "tokentm:table2".
    paper
        Key in `docs/references.bib`.
    title
        What the table is about.
    columns
        Columns by group and title, such as "Insertion: Mean".
    rows
        Values by method spec and column.
    """

    name: str
    paper: str
    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, float]]

    def column(self, title: str) -> dict[str, float]:
        """Values of one column by method spec."""
        return {spec: values[title] for spec, values in self.rows.items()}


@dataclass(frozen=True, slots=True)
class PublishedOrder:
    """An order of methods that a paper states, with or without numbers.

    Parameters
    ----------
    says
        The statement.
    source
        Where the paper makes it, such as "section 5.1".
    first, second
        Method specs: each of `first` is compared with each of `second`; with all other methods if `second` is empty.
    expected
        "better", "not worse" or "equal": how a method of `first` compares with one of `second`; "one not worse" if that
        has to hold for at least one method of `first`.
    models, columns
        Labels of the models and titles of the columns that the statement is about; all if empty.
    """

    says: str
    source: str
    first: tuple[str, ...]
    second: tuple[str, ...] = ()
    expected: str = "better"
    models: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def published_tables() -> dict[str, PublishedTable]:
    """All tables with published numbers, by name."""
    tables = {}
    for name, paper, entry in read_entries():
        if "rows" in entry:
            columns = tuple(entry["columns"])
            rows = {spec: dict(zip(columns, values, strict=True)) for spec, values in entry["rows"].items()}
            tables[name] = PublishedTable(name, paper, entry["title"], columns, rows)
    return tables


@lru_cache(maxsize=1)
def published_orders() -> dict[str, tuple[PublishedOrder, ...]]:
    """All stated orders by the name of the table or figure that they are about, such as "skipplus:figure4"."""
    from vitreous.metrics.protocols import protocol

    orders = {}
    for name, _, entry in read_entries():
        rows = protocol(name.partition(":")[0]).rows
        stated = []
        for order in entry.get("orders", ()):
            lists = {key: tuple(order.get(key, ())) for key in ("models", "columns")}
            methods = {key: tuple(rows.get(row, row) for row in order.get(key, ())) for key in ("first", "second")}
            stated.append(PublishedOrder(**{**order, **lists, **methods}))
        if stated:
            orders[name] = tuple(stated)
    return orders


def read_entries() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, key of the paper, and entry of every table or figure in the files."""
    for file in sorted(FOLDER.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            entries = tomllib.loads(file.read_text(encoding="utf-8"))
            paper = entries.pop("paper")
            yield from ((f"{file.name.removesuffix('.toml')}:{key}", paper, entry) for key, entry in entries.items())


def published_table(name: str) -> PublishedTable | None:
    """Table by name, such as "tis:table1"; None if the paper prints no numbers for it."""
    return published_tables().get(name)


def published_label(label: str) -> str:
    """Label that a model or dataset has in the paper, also of one that stands in for it."""
    return label.rpartition(STAND_IN)[2]
