"""`vitreous compare`: what changed between two runs, paired."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def compare(
    before: Annotated[Path, typer.Argument(metavar="RUN_A", help="A folder that `vitreous bench` wrote.")],
    after: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another one, or the same with --runs.")],
    runs: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="NAME NAME", help="Which run of each folder.", show_default="the last ones"),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page as well.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Say what changed from RUN_A to RUN_B: differences over the pictures and classes that both have, with intervals."""
    from vitreous.cli.say import busy, document, notes

    with notes(), busy("comparing"):
        from vitreous.report.compare import compare_runs, comparison_page
        from vitreous.report.page import write_text

        found = compare_runs(before, after, *(runs or (None, None)))
        if html is not None:
            write_text(html, comparison_page(found))
    if json:
        document(found.plain())
        return
    say(found)
    if html is not None:
        typer.echo(f"{html}")


def say(found: Any) -> None:
    from vitreous.cli.say import console, show, table
    from vitreous.report.compare import change_tables

    out = console()
    for one in change_tables(found):
        out.print(f"\n{one.title}", style="bold")
        shown = table("method", *(head.name for head in one.heads), right=("before", "after", "change", "questions"))
        for name, cells in one.rows:
            shown.add_row(name, *(" ".join(part for part in (cell.text, cell.span) if part) for cell in cells))
        show(shown)
    if not found.changes:
        out.print("the two runs have no model, data set, method and metric in common")
    for sentence in found.caveats:
        typer.echo(f"note: {sentence}")
    for side, kind, name in found.only:
        typer.echo(f"only {side}: {kind} {name}")
