"""`vitreous reproduce`: run the shipped plan of a published table or figure, and report it beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from vitreous.cli import options
from vitreous.cli.console import print_notes, print_table, resumable, spinner
from vitreous.core.errors import SpecError

if TYPE_CHECKING:
    from vitreous.bench.plan import Plan
    from vitreous.bench.pool import Executor
    from vitreous.bench.reproduce import Reproduction


def reproduce(
    name: Annotated[str | None, Argument(metavar="NAME", help="Such as tis:table1; see --list.")] = None,
    show_list: Annotated[bool, Option("--list", help="List all tables and figures, and stop.")] = False,
    data: Annotated[
        list[str] | None, Option("--data", "-d", metavar="KEY=PATH", help="Path of a dataset; repeatable.")
    ] = None,
    models: Annotated[
        list[str] | None,
        Option(
            "--models",
            "--model",
            "-m",
            metavar="KEY[=NAME]",
            help="Use only this model of the paper; or use NAME?argument=value&… in its place.",
        ),
    ] = None,
    checkpoint: Annotated[
        list[str] | None, Option(metavar="KEY=FILE", help="Local weights of a model; repeatable.")
    ] = None,
    images: Annotated[
        int | None, Option(min=1, help="Number of images of each dataset.", show_default="the paper's")
    ] = None,
    subset: Annotated[
        list[str] | None, Option(metavar="[KEY=]FILE", help="List of the images to use: indices or file names.")
    ] = None,
    out: options.ResultFolder = None,
    precision: options.RunPrecision = None,
    device: options.RunDevice = None,
    batch_size: options.BatchSize = None,
    workers: options.Workers = 1,
    ray: options.Ray = None,
    gpus: options.RayGpus = None,
    recompute: options.Recompute = None,
    shard: options.Shard = None,
    merge: Annotated[bool, Option("--merge", help="Merge the shards and report; compute nothing.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the plan as TOML, and on stderr what it costs.")] = False,
) -> int:
    """Reproduce a table or figure of a paper. Stored results are not computed again."""
    if show_list:
        return print_list()
    if name is None:
        raise SpecError("no table is named; `vitreous reproduce --list` shows all of them")
    from vitreous.bench.reproduce import find_reproduction, keep_models, parse_model, parse_pairs, plan_reproduction

    selected = find_reproduction(name)
    named = models or []
    stand_ins = parse_pairs(
        [text for text in named if "=" in text], "--models", "KEY=NAME, such as vit-b=timm:vit_tiny_patch16_224"
    )
    if only := [text for text in named if "=" not in text]:
        selected = keep_models(selected, [*only, *stand_ins])
    with resumable():
        with spinner("reading the plan", lines=True):
            from vitreous.bench.plan_check import check
            from vitreous.bench.work_cells import select_shard
            from vitreous.cli.run_output import choose_executor, print_estimate

            if shard is not None:
                select_shard([], shard)  # check the shard before a folder is created for it
            plan = plan_reproduction(
                selected,
                parse_pairs(data or (), "--data", "KEY=PATH, such as imagenet-val=/data/imagenet"),
                models={key: parse_model(text) for key, text in stand_ins.items()},
                checkpoints=parse_pairs(checkpoint or (), "--checkpoint", "KEY=FILE"),
                images=images,
                subsets=name_subsets(selected, subset or ()),
                precision=precision,
                device=device,
                batch_size=batch_size,
            )
        folder = Path(out or f"runs/{name.replace(':', '-')}")
        print_notes([f"reduced: {plan.reduced}"] if plan.reduced else [])
        print_notes([*selected.notes, *(f"assumed: {text}" for text in selected.assumes)])
        if merge:
            return merge_and_report(selected, plan, folder)
        with spinner("checking models and data", lines=True):
            print_notes(check(plan))
        if dry_run:
            typer.echo(plan.toml, nl=False)
            return print_estimate(plan, folder, shard, workers, as_json=False, stderr=True)
        from vitreous.bench.recompute import find_specs, list_metrics

        specs = find_specs(recompute or (), plan.methods, list_metrics(plan))
        return run_and_report(selected, plan, folder, choose_executor(workers, ray, gpus), shard, specs)


def print_list() -> int:
    """Print name, title, data and models of every reproduction."""
    from vitreous.bench.reproduce import list_reproductions

    rows = []
    for name, entry in list_reproductions().items():
        data = [f"[{key}]" if fact.get("optional") else key for key, fact in entry.data.items()]
        models = [f"{key}*" if "needs" in fact else key for key, fact in entry.models.items()]
        rows.append((name, entry.title, ", ".join(data), ", ".join(models)))
    print_table(("name", "shows", "--data", "models"), rows)
    typer.echo("[…] is optional; * needs a --checkpoint")
    return 0


def name_subsets(selected: Reproduction, subsets: Sequence[str]) -> dict[str, str]:
    """Files that list images by key of the data; a file without a key belongs to the only data there is."""
    from vitreous.bench.reproduce import parse_pairs

    keys = [key for key, entry in selected.data.items() if not entry.get("optional")]
    named = [
        text if text.partition("=")[0] in selected.data or len(keys) > 1 else f"{keys[0]}={text}" for text in subsets
    ]
    return parse_pairs(named, "--subset", f"KEY=FILE, with KEY one of {', '.join(keys)}")


def run_and_report(
    selected: Reproduction,
    plan: Plan,
    folder: Path,
    executor: Executor,
    shard: str | None,
    recompute: Sequence[str] = (),
) -> int:
    """Compute what is missing, write the report and print the table; return the exit status.

    A shard has neither: it is reported once all of them are merged.
    """
    from vitreous.bench.run_plan import execute
    from vitreous.bench.store import Store
    from vitreous.cli.run_output import choose_store_folder, print_counts, print_failures, run_display

    place = choose_store_folder(folder, shard)
    with Store(place) as store, run_display(place) as display:
        progress = execute(plan, store, executor, shard=shard, recompute=recompute, report=display)
    print_notes(progress.mended)
    print_failures(progress)
    if shard is None:
        report(selected, folder)
    print_counts(progress, place)
    return 1 if progress.failed else 0


def merge_and_report(selected: Reproduction, plan: Plan, folder: Path) -> int:
    """Merge the shards, write the report and print the table; return the exit status."""
    from vitreous.cli.run_output import merge_stores, print_counts, print_failures

    progress = merge_stores(plan, folder)
    print_failures(progress)
    report(selected, folder)
    print_counts(progress, folder)
    return 1 if progress.failed else 0


def report(selected: Reproduction, folder: Path) -> None:
    """Write the report and print the tables of the paper."""
    from vitreous.report import write_report
    from vitreous.report.tables import to_markdown

    with spinner("writing the report"):
        written = write_report(folder, folder / "report.html", gallery=6 if selected.shows_images else 0)
    print_notes(f"no images: {sentence}" for sentence in written.unreached)
    for table in written.papers:
        typer.echo(to_markdown(table))
    for table in written.comparisons:
        for note in table.notes[1:]:
            typer.echo(f"{table.title}, {note}")
    for table in written.orders:
        typer.echo(to_markdown(table))
    typer.echo(f"report: {written.page}")
