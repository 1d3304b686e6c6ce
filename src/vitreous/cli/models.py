"""`vitreous models`: the families that can be seen through. Reads the catalogue, not torch."""

from __future__ import annotations

from typing import Annotated

import typer


def models(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the model families, with a name to load each by."""
    from vitreous.catalogue import FAMILIES
    from vitreous.cli.say import document, show, table

    if json:
        document(list(FAMILIES))
        return
    shown = table("family", "for example", "notes")
    for one in FAMILIES:
        shown.add_row(one["family"], one["example"], one["notes"])
    show(shown)
