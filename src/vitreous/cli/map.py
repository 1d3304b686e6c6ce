"""`vitreous map`: explain a whole data set and keep the maps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitreous.core.errors import SpecError

DEFAULT = "temper"


def map(  # noqa: A001 - the verb
    data: Annotated[
        str, typer.Argument(metavar="DATASET", help="A folder of pictures, or a spec such as scenes:pair.")
    ],
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME", help="Such as timm:vit_base_patch16_224.")],
    checkpoint: Annotated[str | None, typer.Option(metavar="FILE", help="Local weights.")] = None,
    model_arg: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="For the model's builder.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-x", metavar="SPEC", help="Repeat for several.", show_default=DEFAULT),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where maps go.")] = Path("vitreous-maps"),
    format: Annotated[str, typer.Option(help="parquet or safetensors.")] = "parquet",  # noqa: A002
    targets: Annotated[str | None, typer.Option(help="predicted, label, pair or 'top 2'.")] = None,
    question: Annotated[str | None, typer.Option(metavar="NAME", show_default="the method's own")] = None,
    pictures: Annotated[int | None, typer.Option(min=1, help="Only so many.", show_default="all")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bf16 or float64.")] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", show_default="GPUs if there are any")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Pictures run at once.")] = None,
    slice: Annotated[int | None, typer.Option(min=1, help="Pictures in a piece of work.")] = None,  # noqa: A002
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Processes on this machine.")] = 1,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="auto, local or host:port of a cluster.")] = None,
    gpus: Annotated[float | None, typer.Option(min=0, help="GPUs for each Ray worker.")] = None,
    recheck: Annotated[bool, typer.Option("--recheck", help="Look again at pictures of finished work.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Explain every picture of a data set. Maps are float16 grids with a scale, in files that need no Vitreous to be read."""
    from vitreous.cli.bench import executor, looked_at, models_of, plan_of
    from vitreous.cli.say import busy, notes

    if format not in ("parquet", "safetensors"):
        raise SpecError(f"--format {format!r} is not known; known: parquet, safetensors")
    given = {
        "models": models_of([model], checkpoint, model_arg), "datasets": [data], "methods": method or [DEFAULT], "metrics": [],
        "targets": targets, "question": question, "pictures": pictures, "precision": precision, "device": device,
        "batch_size": batch_size, "slice": slice,
    }  # fmt: skip
    with notes():
        with busy("looking at the model and the data"):
            plan = plan_of(None, given)
            looked_at(plan)
        return work(plan, out, executor(plan, workers, ray, gpus), format, recheck=recheck, as_json=json)


def work(plan: Any, folder: Path, run: Any, format: str, *, recheck: bool, as_json: bool) -> int:  # noqa: A002
    from vitreous.bench.drive import execute
    from vitreous.bench.maps import export_parquet, export_safetensors
    from vitreous.bench.store import Store
    from vitreous.cli.say import document
    from vitreous.cli.standings import bar, tell

    with Store(folder / "store") as store:
        with bar() as report:
            told = execute(plan, store, run, recheck=recheck, report=report)
        files = (export_parquet if format == "parquet" else export_safetensors)(store, folder)
        if as_json:
            document(
                {
                    "folder": str(folder),
                    "run": plan.run,
                    "new_maps": told.rows,
                    "failed": told.failed,
                    "files": [one.name for one in files],
                }
            )
        else:
            tell(plan, store, told, as_json=False, table=False)
            typer.echo(
                f"{len(files)} file{'' if len(files) == 1 else 's'} of maps in {folder}: {', '.join(one.name for one in files[:3])}{' …' if len(files) > 3 else ''}"
            )
    return 1 if told.failed else 0
