"""`vitreous demo`: explain scenes whose evidence is known, and write one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Path of the page.")] = Path("out/demo.html"),
    images: Annotated[int, typer.Option("--images", min=1, max=500, help="Images scored in each chapter.")] = 8,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed that selects the images.")] = 2026,
) -> None:
    """Explain scenes with the embedded model, score every map against the known evidence, and write one page."""
    from rich.progress import Progress

    from vitreous.cli.console import open_console, print_table
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
