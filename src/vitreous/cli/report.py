"""`vitreous report`: a run as one page, and its tables as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that `vitreous bench` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The page.", show_default="RUN/report.html"),
    ] = None,
    gallery: Annotated[
        int, typer.Option(metavar="N", min=0, help="Pictures shown per model and data set; 0 for none.")
    ] = 6,
    name: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Which run of the folder.", show_default="the last one")
    ] = None,
) -> None:
    """Write one self-contained HTML page about a run, and its tables as Markdown, LaTeX and CSV beside it."""
    from vitreous.cli.say import busy, notes

    with notes(), busy(f"reporting {run}"):
        from vitreous.report import write_report

        made = write_report(run, out or run / "report.html", gallery=gallery, run=name)
    for sentence in made.unreached:
        typer.echo(f"note: no pictures: {sentence}", err=True)
    typer.echo(f"{made.page} and {len(made.tables)} tables in {made.tables[0].parent}")
