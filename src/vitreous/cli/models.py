"""`vitreous models`: list the model families. Reads the catalogue and does not import torch."""

from __future__ import annotations

from typing import Annotated

import typer


def models(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the model families, with a name to load each by."""
    from vitreous.catalogue import catalogue_entries
    from vitreous.cli.console import print_json, print_table

    if json:
        print_json(catalogue_entries("models"))
        return
    rows = ((family["family"], family["example"], family["notes"]) for family in catalogue_entries("models"))
    print_table(("family", "for example", "notes"), rows)
