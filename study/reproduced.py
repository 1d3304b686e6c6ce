"""Run the shipped plans of `vitreous reproduce` on stand-ins of the papers' models and images, and tabulate them.

python study/reproduced.py [PLAN …] [--device cuda] [--assets FOLDER] [--stores runs/reproduced] [--out study/results]
                                [--images 60] [--minutes 9]
python study/reproduced.py --shard 1/15       a part of all plans, without tables; 15 such processes may share the stores
python study/reproduced.py --tables           tabulate the stores; nothing is run
python study/reproduced.py --take FOLDER      copy tables that another machine has written

ViT-Tiny replaces ViT-B and ViT-B/8, DeiT-Tiny replaces DeiT-B and EVA-L, a sample of ImageNet's validation set replaces the whole
of it, and Oxford-IIIT Pet replaces the two datasets with masks. The tables are OUT/reproduced.csv, -orders.csv and -pairs.csv; plans that are not run
keep their rows. Finished images stay in the stores, so a run that ended early continues where it stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts beside this one are `study`

from study.effects import Effect, Figure, compute_effect, compute_figures, load_rows, write_rows
from study.sheets import Sheet
from study.special import Order, centre_interval, correlate_ranks
from vitreous.bench.plan import Plan
from vitreous.bench.reproduce import find_reproduction, keep_models, plan_reproduction
from vitreous.bench.resample import resample_values
from vitreous.metrics.published import PublishedOrder, published_label, published_orders, published_table
from vitreous.report.page import name_sections
from vitreous.report.paper_columns import FilledColumn
from vitreous.report.paper_comparison import group_pairs, hash_spec, index_published_rows
from vitreous.report.paper_tables import make_paper_tables
from vitreous.report.stored_run import read_run

HERE = Path(__file__).parent
PLANS = {  # (number of images on a GPU, images in a cell)
    "skipplus:figure3": (160, 16),
    "skipplus:figure9": (160, 16),
    "skipplus:figure7": (160, 16),
    "skipplus:figure7-eva": (160, 16),
    "skipplus:figure8": (160, 16),
    "skipplus:figure10": (160, 16),
    "skipplus:figure11": (160, 16),
    "skipplus:figure12": (160, 16),
    "skipplus:figure4": (160, 16),
    "tis:sparseness": (48, 4),
    "tis:table4": (8, 1),
    "tis:masks": (32, 2),
    "tokentm:table4": (240, 16),
    "tokentm:table2": (240, 16),
    "tokentm:table3": (240, 16),
    "tis:table3": (100, 4),
    "tis:table1": (40, 2),
    "tis:table2": (40, 2),
}
WEIGHTS = {
    "ViT-Tiny": ("timm:vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"),
    "DeiT-Tiny": ("timm:deit_tiny_patch16_224", "deit_tiny_patch16_224.wvfunc-lnq8.safetensors"),
}
STAND_INS = {"vit-b": "ViT-Tiny", "deit-b": "DeiT-Tiny", "vit-b8": "ViT-Tiny", "eva-l": "DeiT-Tiny"}
DATA = {
    "imagenet-val": "folder:{assets}/imagenet-val-1k-256",
    "imagenet-seg": "pets:{assets}/oxford-pets-480",
    "imagenet-s": "pets:{assets}/oxford-pets-480?labels=imagenet",
}
LAYERS = 12  # of both stand-ins


@dataclass(frozen=True, slots=True)
class TableFigure(Figure):
    """A cell of a reproduced table; `metric` is the title of its column."""

    plan: str


@dataclass(frozen=True, slots=True)
class TableOrder(Order):
    """Agreement of a column with the published one."""

    plan: str


@dataclass(frozen=True, slots=True)
class TableEffect(Effect):
    """Difference of two methods that the text of the paper puts in an order."""

    plan: str


TABLES = {"reproduced": TableFigure, "reproduced-orders": TableOrder, "reproduced-pairs": TableEffect}


class OutOfTimeError(Exception):
    """Raised between two cells of work; finished rows are written."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="*", metavar="PLAN", help=f"of {', '.join(PLANS)}; all if there are none")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; a GPU if there is one")
    parser.add_argument("--assets", type=Path, help="folder of weights and images; VITREOUS_ASSETS by default")
    parser.add_argument("--stores", type=Path, default=Path("runs/reproduced"), help="folder of the stores")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where tables are written")
    parser.add_argument("--images", type=int, help="number of images of each dataset, instead of those in PLANS")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time, between two batches")
    parser.add_argument("--model", choices=list(WEIGHTS), help="only this one; the rows of others stay")
    parser.add_argument("--shard", help="i/n: every n-th cell of the plans from the i-th on, without tables")
    parser.add_argument("--tables", action="store_true", help="tabulate the stores; nothing is run")
    parser.add_argument("--take", type=Path, help="folder with tables of another machine; nothing is run")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.plans if name not in PLANS]:
        parser.error(f"{unknown[0]!r} has no stand-ins; known: {', '.join(PLANS)}")
    if options.take:
        return take_tables(options.take, options.out)
    if options.tables:
        for name in options.plans or PLANS:
            tabulate(name, options)
        return 0
    if not (options.assets or os.environ.get("VITREOUS_ASSETS")):
        parser.error("--assets FOLDER or the variable VITREOUS_ASSETS must name the folder of weights and images")
    options.assets = (options.assets or Path(os.environ["VITREOUS_ASSETS"])).resolve()
    if options.shard:
        limit_gpu_memory(options.shard)
    end, status = time.monotonic() + 60 * options.minutes, 0
    for name in options.plans or PLANS:
        status |= run_plan(name, options, end)
    return status


def run_plan(name: str, options: argparse.Namespace, end: float) -> int:
    """Run a plan, or a shard of it, and tabulate its store; returns 1 if something failed or time was up."""
    from vitreous.bench.run_plan import execute
    from vitreous.bench.store import Store

    start = time.monotonic()
    images, slice_size = PLANS[name]
    only = [options.model] if options.model else list(WEIGHTS)
    plan = make_plan(name, options.assets, options.images or images, options.device, slice_size, only)

    def report(_: object) -> None:
        if time.monotonic() > end:
            raise OutOfTimeError

    message, status = "", 0
    try:
        with Store(get_store_folder(name, options)) as store:
            progress = execute(plan, store, shard=options.shard, report=report)
        message = "".join(f"; failed {count} times: {text}" for text, count in progress.failed.items())
        status = int(bool(progress.failed))
    except OutOfTimeError:
        message, status = "; time is up, run it again to continue", 1
    print(f"{name}: {time.monotonic() - start:.0f} s{message}", flush=True)
    if options.shard is None:
        tabulate(name, options, plan.run)
    return status


def limit_gpu_memory(shard: str) -> None:
    """Limit the GPU memory of this process, so that the processes of all shards fit on one GPU."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(0.85 / int(shard.partition("/")[2]))


def get_store_folder(name: str, options: argparse.Namespace) -> Path:
    """Folder of the store of all plans of a paper."""
    return options.stores / name.split(":", maxsplit=1)[0]


def tabulate(name: str, options: argparse.Namespace, run: str | None = None) -> None:
    """Write the tables of a run of a plan; by default of the run with the most images in the store."""
    from vitreous.bench.store import Store
    from vitreous.core.errors import DataError

    folder = get_store_folder(name, options)
    try:
        if run is None:
            with Store(folder, create=False) as store:
                runs = [stored["name"] for stored in store.runs() if f'reproduces = "{name}"' in stored["plan"]]
                if not runs:
                    raise DataError("it was not run")
                run = max(runs, key=lambda stored: sum(len(cell["rows"]) for cell in store.listings(stored).values()))
        columns = list(read_columns(name, folder, run))
        write_tables(name, columns, options.out, [options.model] if options.model else list(WEIGHTS))
    except DataError as problem:
        print(f"{name}: no table: {problem}", flush=True)


def make_plan(
    name: str,
    assets: Path,
    images: int,
    device: str | None,
    slice_size: int = 32,
    only: Sequence[str] = tuple(WEIGHTS),
) -> Plan:
    """The shipped plan with the models of `only` and datasets of `assets` instead of the paper's."""
    reduced = keep_models(
        find_reproduction(name), [key for key in find_reproduction(name).models if STAND_INS.get(key) in only]
    )
    if name == "skipplus:figure7-eva":  # EVA-L has more layers than its stand-in
        reduced = replace(reduced, methods=reduced.methods[:LAYERS])
    models = {
        key: {"name": WEIGHTS[label][0], "checkpoint": str(assets / "weights" / WEIGHTS[label][1])}
        for key, label in STAND_INS.items()
        if key in reduced.models
    }
    data = {key: DATA[key].format(assets=assets) for key in reduced.data if key in DATA}
    # small cells, so that a run stops soon after its time is up
    return plan_reproduction(reduced, data, models=models, images=images, device=device, slice=slice_size)


def read_columns(name: str, folder: Path, run: str | None = None) -> Iterator[tuple[str, FilledColumn]]:
    """Columns of the reproduced table that have scores, with their titles."""
    stored = read_run(folder, run)
    for table in make_paper_tables(name_sections(stored.whole_sections), stored.families, name):
        for title, column in table.columns.items():
            if column.scores is not None:
                yield title, column


def make_sheet(name: str, title: str, column: FilledColumn) -> Sheet:
    """Scores of a column as a sheet, with the names of the stand-in and of the column."""
    scores = column.scores
    assert scores is not None
    labels = {
        entry["label"]: STAND_INS[key] for key, entry in find_reproduction(name).models.items() if key in STAND_INS
    }
    section = scores.section
    return Sheet(
        labels[published_label(section.model)], published_label(section.dataset), "", title, column.higher, section.methods,
        tuple(target.image for target in section.questions), scores.parts,
        lambda parts: column.scale * scores.reduce(parts),
        np.array([target.probability for target in section.questions]),
    )  # fmt: skip


def write_tables(
    name: str, columns: Sequence[tuple[str, FilledColumn]], out: Path, only: Sequence[str] = tuple(WEIGHTS)
) -> None:
    """Write the rows of one plan and of the models of `only` into the tables, in place of those that are there."""
    sheets = [sheet for sheet in (make_sheet(name, title, column) for title, column in columns) if sheet.model in only]
    rows: dict[str, list] = {table: [] for table in TABLES}
    published = published_table(name)
    for sheet in sheets:
        rows["reproduced"] += [TableFigure(**asdict(row), plan=name) for row in compute_figures(sheet, draws=1000)]
        if published is not None and sheet.metric in published.columns:
            printed = {spec: values[sheet.metric] for spec, values in index_published_rows(published).items()}
            rows["reproduced-orders"].append(TableOrder(**asdict(compare_order(sheet, printed)), plan=name))
        rows["reproduced-pairs"] += [
            TableEffect(**asdict(compute_effect(sheet, *pair, draws=1000)), plan=name)
            for pair in list_claimed_pairs(name, sheet)
        ]
    for table, kind in TABLES.items():
        path = out / f"{table}.csv"
        others = [row for row in load_rows(path, kind) if row.plan != name or row.model not in only]
        if others or rows[table]:
            write_rows(path, sorted(others + rows[table], key=find_place))


def find_place(row: TableFigure | TableOrder | TableEffect) -> tuple[int, int]:
    """Sort key of a row in a table: plans in the order of PLANS, models in that of the paper."""
    models = [STAND_INS[key] for key in find_reproduction(row.plan).models if key in STAND_INS]
    return list(PLANS).index(row.plan), models.index(row.model)


def compare_order(sheet: Sheet, printed: Mapping[str, float], draws: int = 1000) -> Order:
    """Kendall's τ between our values of a column and the published ones; images are resampled."""
    sign = -1 if sheet.higher is False else 1
    rows = {method: sheet.row(method) for method in sheet.methods if hash_spec(method) in printed}
    published_values = sign * np.array([printed[hash_spec(method)] for method in rows])
    drawn = resample_values(rows, sheet.reduce, sheet.images, draws, seed=0)
    tau, rho = correlate_ranks(
        sign * np.array([float(sheet.reduce(parts)) for parts in rows.values()]), published_values
    )
    spread = np.array([correlate_ranks(sign * values, published_values) for values in np.stack(list(drawn.values())).T])
    where = (sheet.model, sheet.dataset, sheet.metric, "published", "all", len(rows), len(set(sheet.images)))
    return Order(*where, tau, *centre_interval(tau, spread[:, 0]), rho, *centre_interval(rho, spread[:, 1]))


def list_stated_orders(name: str) -> tuple[PublishedOrder, ...]:
    """Orders that the paper states about a plan; those of figure 7 for 12 layers are used for both stand-ins."""
    return published_orders().get(name.removesuffix("-eva"), ())


def is_about(order: PublishedOrder, name: str, model: str, column: str) -> bool:
    """Whether an order is about this stand-in and this column of the plan."""
    labels = {
        STAND_INS[key]: entry["label"] for key, entry in find_reproduction(name).models.items() if key in STAND_INS
    }
    return (not order.models or labels.get(model) in order.models) and (
        not order.columns or column.rpartition(": ")[2] in order.columns
    )


def list_claimed_pairs(name: str, sheet: Sheet) -> list[tuple[str, str]]:
    """Pairs of methods (first, second) whose order the paper states."""
    orders = [order for order in list_stated_orders(name) if is_about(order, name, sheet.model, sheet.metric)]
    pairs = [pair for order in orders for group in group_pairs(sheet.methods, order) for pair in group]
    return list(dict.fromkeys(pairs))


def take_tables(source: Path, out: Path) -> int:
    """Copy the rows of other tables, in place of those of the same plans."""
    for table, kind in TABLES.items():
        new = load_rows(source / f"{table}.csv", kind)
        plans = {row.plan for row in new}
        rows = [row for row in load_rows(out / f"{table}.csv", kind) if row.plan not in plans] + new
        if rows:
            write_rows(out / f"{table}.csv", sorted(rows, key=find_place))
        print(f"{table}: {', '.join(sorted(plans)) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
