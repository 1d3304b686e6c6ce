"""`vitreous report`: write a run, or a folder of maps, as one page, and its tables as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder that `vitreous bench` or `vitreous map` wrote.")
    ],
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
    metric: Annotated[
        list[str] | None, typer.Option("--metric", metavar="SPEC", help="Metric of stored maps; repeatable.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Images of stored maps that metrics are measured on.", show_default="256"
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Images of stored maps.", show_default="those that were explained"),
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="Device for metrics of stored maps.")] = None,
) -> None:
    """Write one self-contained HTML page about a run or about stored maps, and its tables as Markdown, LaTeX and CSV beside it."""
    from vitreous.cli.console import caveats_as_notes, spinner
    from vitreous.core.errors import SpecError

    page = out or run / "report.html"
    with caveats_as_notes(), spinner(f"reporting {run}"):
        from vitreous.mapping.shard_files import list_complete_files
        from vitreous.report import write_map_report, write_report

        if list_complete_files(run):
            if name is not None:
                raise SpecError(f"'{run}' holds maps, and no runs to choose from by --run")
            limit = {} if images is None else {"images": images}
            options = {"metrics": metric or (), "dataset": dataset, "device": device, **limit}
            written = write_map_report(run, page, gallery=gallery, **options)
        else:
            values_by_flag = {"--metric": metric, "--images": images, "--dataset": dataset, "--device": device}
            if flags := [flag for flag, value in values_by_flag.items() if value]:
                raise SpecError(f"{' and '.join(flags)} are for stored maps, and '{run}' holds none")
            written = write_report(run, page, gallery=gallery, run=name)
    for sentence in written.unreached:
        typer.echo(f"note: no images: {sentence}", err=True)
    typer.echo(f"{written.page} and {len(written.tables)} tables in {written.tables[0].parent}")
