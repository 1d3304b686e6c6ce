"""Writes docs/datasets.md from the docstrings of the dataset readers; `--check` tests whether it is up to date.

python docs/datasets_page.py [--check]
"""

from __future__ import annotations

import inspect
from pathlib import Path

from generated_page import write_or_check

from vitreous.data.reader import READERS, Reader
from vitreous.methods.option_meanings import parameters

PAGE = Path(__file__).with_name("datasets.md")

HEAD = """# Datasets and their layouts

*Written from the docstrings of the readers by `python docs/datasets_page.py`.*

A dataset is named by `kind:where?option=value&…`, in `--data`, in a plan, and in `vitreous.data.open_dataset`. A bare path works where
the kind can be recognised from its content. `~` and `assets:` (the folder in the variable `VITREOUS_ASSETS`) are expanded. The specs
below are opened in the tests on toy copies that have the files listed beside them.

Labels are class indices from 0; where a dataset has masks or boxes, metrics that need them can be computed
([which metric needs what](metrics.md)). `reproduce` takes paths instead of specs ([Reproduce the papers](reproduce.md)). The kind `scenes`
generates images with known evidence ([Scenes](scenes.md)).
"""


def describe_kind(kind: str, reader: Reader) -> list[str]:
    """The section of one kind: the docstring of its reader up to the parameters, and the options with their defaults."""
    text = (inspect.getdoc(reader.read) or "").partition("\nParameters\n")[0].strip()
    first, *options = inspect.signature(reader.read).parameters.values()
    meanings = parameters(reader.read)
    place = [f"- After the colon: {meanings[first.name]}"] if first.name in meanings else []
    lines = [f"- `{option.name}={option.default!r}`: {meanings.get(option.name, '')}" for option in options]
    return ["", f"## {kind}", "", text, *([""] if place or lines else []), *place, *lines]


def page() -> str:
    kinds = {kind: READERS[kind] for kind in sorted(READERS) if READERS.owner(kind).startswith("vitreous.")}
    parts = [HEAD.rstrip()]
    for kind, reader in kinds.items():
        parts += describe_kind(kind, reader)
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    write_or_check(PAGE, page())
