"""Numbers that the papers print, as shipped in `vitreous/published/*.toml`.

    >>> from vitreous.metrics.published import published_table
    >>> published_table("tokentm:table2").rows["genatt"]["Localization Ability: mIoU"]
    61.56

This module does not import torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

FOLDER = files("vitreous") / "published"


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


@lru_cache(maxsize=1)
def published_tables() -> dict[str, PublishedTable]:
    """All tables with published numbers, by name."""
    tables = {}
    for file in sorted(FOLDER.iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".toml"):
            continue
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
        paper = entries.pop("paper")
        for table, entry in entries.items():
            name, columns = f"{file.name.removesuffix('.toml')}:{table}", tuple(entry["columns"])
            rows = {spec: dict(zip(columns, values, strict=True)) for spec, values in entry["rows"].items()}
            tables[name] = PublishedTable(name, paper, entry["title"], columns, rows)
    return tables


def published_table(name: str) -> PublishedTable | None:
    """Table by name, such as "tis:table1"; None if the paper prints no numbers for it."""
    return published_tables().get(name)
