"""`vitreous demo`: explain pictures whose evidence is known, and write one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path("out/demo.html"),
    pictures: Annotated[int, typer.Option("--pictures", min=1, max=500, help="Pictures scored in each chapter.")] = 8,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Other pictures.")] = 2026,
) -> None:
    """Explain scenes with the embedded model, score every map against the known evidence, and write one page."""
    from rich.progress import Progress

    from vitreous.cli.say import console, show, table
    from vitreous.demo import CHAPTERS, METHODS, page, run

    with Progress(console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("explaining", total=len(CHAPTERS) * len(METHODS))
        told = run(pictures, seed=seed, step=lambda: progress.advance(task))
    out.parent.mkdir(parents=True, exist_ok=True)
    half = out.with_name(out.name + ".part")
    half.write_text(page(told), encoding="utf-8")
    half.replace(out)
    columns = [f"{one.chapter.title}: {what}" for one in told for what in ("peak", "AP")]
    listing = table("method", *columns, right=columns)
    for row, method in enumerate(METHODS):
        numbers = [f"{value:.2f}" for one in told for value in (one.scores[row].pointing, one.scores[row].precision)]
        listing.add_row(method, *numbers)
    show(listing)
    typer.echo("peak: share of maps whose peak lies on the known evidence; AP: average precision against it")
    typer.echo(f"page: {out.resolve()}")
