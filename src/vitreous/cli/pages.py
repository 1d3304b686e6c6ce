"""`vitreous report`, `compare` and `demo`: write a run, a folder of maps, two runs or the bundled scenes as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from vitreous.cli import options
from vitreous.cli.console import caveats_as_notes, open_console, print_json, print_notes, print_table, spinner
from vitreous.core.errors import SpecError

if TYPE_CHECKING:
    from vitreous.report.compare import Comparison


def report(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder that `vitreous bench` or `vitreous map` wrote.")],
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="Path of the page.", show_default="RUN/report.html")
    ] = None,
    gallery: Annotated[int, Option(metavar="N", min=0, help="Images shown per model and dataset; 0 for none.")] = 6,
    name: Annotated[
        str | None, Option("--run", metavar="NAME", help="Which run of the folder.", show_default="the last one")
    ] = None,
    metric: Annotated[list[str] | None, Option(metavar="SPEC", help="Metric of stored maps; repeatable.")] = None,
    images: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Images of stored maps that metrics are measured on.", show_default="256"),
    ] = None,
    dataset: Annotated[
        str | None, Option(metavar="SPEC", help="Images of stored maps.", show_default="those that were explained")
    ] = None,
    device: Annotated[str | None, Option(metavar="NAME", help="Device for metrics of stored maps.")] = None,
) -> None:
    """Write one self-contained HTML page about a run or about stored maps, and its tables as Markdown, LaTeX and CSV beside it."""
    with caveats_as_notes(), spinner(f"reporting {run}"):
        from vitreous.mapping.shard_files import list_complete_files
        from vitreous.report import write_map_report, write_report

        holds_maps = bool(list_complete_files(run))
        # readers of the folder as a Parquet dataset leave out names that begin with an underscore
        page = out or (run / "_report" / "report.html" if holds_maps else run / "report.html")
        if holds_maps:
            if name is not None:
                raise SpecError(f"'{run}' holds maps, and no runs to choose from by --run")
            limit = {} if images is None else {"images": images}
            measured: dict[str, Any] = {"metrics": metric or (), "dataset": dataset, "device": device, **limit}
            written = write_map_report(run, page, gallery=gallery, **measured)
        else:
            values_by_flag = {"--metric": metric, "--images": images, "--dataset": dataset, "--device": device}
            if flags := [flag for flag, value in values_by_flag.items() if value]:
                raise SpecError(f"{' and '.join(flags)} are for stored maps, and '{run}' holds none")
            written = write_report(run, page, gallery=gallery, run=name)
    print_notes(f"no images: {sentence}" for sentence in written.unreached)
    typer.echo(f"{written.page} and {len(written.tables)} tables in {written.tables[0].parent}")


def compare(
    before: Annotated[Path, Argument(metavar="RUN_A", help="A folder that `vitreous bench` wrote.")],
    after: Annotated[Path, Argument(metavar="RUN_B", help="Another folder, or the same one with --runs.")],
    runs: Annotated[
        tuple[str, str] | None,
        Option(metavar="NAME NAME", help="Which run of each folder.", show_default="the last ones"),
    ] = None,
    html: Annotated[Path | None, Option(metavar="FILE", help="Write a page in addition.")] = None,
    json: options.Json = False,
) -> None:
    """Print what changed from RUN_A to RUN_B: differences over the images and classes that both have, with intervals."""
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


def print_comparison(comparison: Comparison) -> None:
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


def demo(
    out: Annotated[Path, Option("--out", "-o", help="Path of the page.")] = Path("out/demo.html"),
    images: Annotated[int, Option(min=1, max=500, help="Images scored in each section.")] = 8,
    seed: Annotated[int, Option(min=0, help="Seed that selects the images.")] = 2026,
) -> None:
    """Explain scenes with the embedded model, score every map against the known evidence, and write one page."""
    from rich.progress import Progress

    from vitreous.demo import CHAPTERS, METHODS, page, run
    from vitreous.report.page import write_text

    with Progress(console=open_console(stderr=True), transient=True) as progress:
        task = progress.add_task("explaining", total=len(CHAPTERS) * len(METHODS))
        shows = run(images, seed=seed, step=lambda: progress.advance(task))
    write_text(out, page(shows))
    columns = [f"{show.chapter.title}: {score}" for show in shows for score in ("peak", "AP")]
    rows = []
    for row, method in enumerate(METHODS):
        scores = [(show.scores[row].pointing, show.scores[row].precision) for show in shows]
        rows.append((method, *(f"{value:.2f}" for pair in scores for value in pair)))
    print_table(("method", *columns), rows, right=columns)
    typer.echo("peak: share of maps whose peak lies on the known evidence; AP: average precision against it")
    typer.echo(f"page: {out.resolve()}")
