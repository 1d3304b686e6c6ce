"""`vitreous report`: write a run as one page, and its tables as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that `vitreous bench` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Path of the page.", show_default="RUN/report.html"),
    ] = None,
    gallery: Annotated[
        int, typer.Option(metavar="N", min=0, help="Images shown per model and dataset; 0 for none.")
    ] = 6,
    name: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Which run of the folder.", show_default="the last one")
    ] = None,
) -> None:
    """Write one self-contained HTML page about a run, and its tables as Markdown, LaTeX and CSV beside it."""
    from vitreous.cli.console import caveats_as_notes, spinner

    with caveats_as_notes(), spinner(f"reporting {run}"):
        from vitreous.report import write_report

        written = write_report(run, out or run / "report.html", gallery=gallery, run=name)
    for sentence in written.unreached:
        typer.echo(f"note: no images: {sentence}", err=True)
    typer.echo(f"{written.page} and {len(written.tables)} tables in {written.tables[0].parent}")
