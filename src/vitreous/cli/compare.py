"""`vitreous compare`: print what changed between two runs, paired by image and class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitreous.cli import options


def compare(
    before: Annotated[Path, typer.Argument(metavar="RUN_A", help="A folder that `vitreous bench` wrote.")],
    after: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another folder, or the same one with --runs.")],
    runs: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="NAME NAME", help="Which run of each folder.", show_default="the last ones"),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page in addition.")] = None,
    json: options.Json = False,
) -> None:
    """Print what changed from RUN_A to RUN_B: differences over the images and classes that both have, with intervals."""
    from vitreous.cli.console import caveats_as_notes, print_json, spinner

    with caveats_as_notes(), spinner("comparing"):
        from vitreous.report.compare import compare_runs, render_comparison
        from vitreous.report.page import write_text

        comparison = compare_runs(before, after, *(runs or (None, None)))
        if html is not None:
            write_text(html, render_comparison(comparison))
    if json:
        print_json(comparison.plain())
        return
    print_comparison(comparison)
    if html is not None:
        typer.echo(f"{html}")


def print_comparison(comparison: Any) -> None:
    from vitreous.cli.console import open_console, print_table
    from vitreous.report.compare import make_change_tables

    console = open_console()
    for changes in make_change_tables(comparison):
        console.print(f"\n{changes.title}", style="bold")
        right = ("before", "after", "change", "questions")
        rows = [(name, *(f"{cell.text} {cell.span}".strip() for cell in cells)) for name, cells in changes.rows]
        print_table(("method", *(head.name for head in changes.heads)), rows, right=right)
    if not comparison.changes:
        console.print("the two runs have no model, dataset, method and metric in common")
    for sentence in comparison.caveats:
        typer.echo(f"note: {sentence}")
    for side, kind, name in comparison.only:
        typer.echo(f"only {side}: {kind} {name}")
