"""The command line of `benchmarks/run`."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from suite.case import Case
from suite.clock import format_error, measure_case
from suite.row import Figure, Row
from suite.table import describe_machine, format_markdown, make_document, merge_documents, write_json
from suite.workload import SIZES, Workload, make_workload

ABOUT = """Time and memory of each method, relative to the computation that it is defined by (the baseline) and to other tools.

Every row is a ratio per image measured in one run: both sides alternate, the value is the median of the ratios within rounds, the
spread their minimum and maximum. On a CPU seconds are process time. Other tools are installed by hand: benchmarks/requirements.txt.
"""
MODULES = (
    "standins",
    "whitebox",
    "sampled",
    "image_metrics",
    "peers",
    "memory",
)  # each has `cases(workload)`, of its `GROUPS`
SLOWEST = "slowest"


def make_parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        "benchmarks/run", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, …")
    arguments.add_argument("--size", action="append", choices=sorted(SIZES), help="may be repeated; default: ti")
    arguments.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16", "float64"))
    arguments.add_argument(
        "--precision",
        default="",
        choices=("tf32", "bf16"),
        help="of products in a float32 model, on both sides; bf16: white-box methods and other tools, relative to a converted module",
    )
    arguments.add_argument(
        "--only", action="append", metavar="GROUP", help="sections of the table: 'one backward', 'start-up', …"
    )
    arguments.add_argument("--match", action="append", metavar="TEXT", help="rows whose name contains it")
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--rounds", type=int, help="default: 5, 2 with --quick")
    arguments.add_argument("--threads", type=int)
    arguments.add_argument(
        "--seconds-cap", type=float, default=math.inf, help="fewer rounds if a row would take longer"
    )
    arguments.add_argument("--quick", action="store_true", help="fewer and smaller rows")
    arguments.add_argument("--list", action="store_true", help="list the rows without measuring")
    arguments.add_argument(
        "--profile",
        metavar="ROW",
        help="print the operators with the largest share of this row's time instead; 'slowest': for three rows of the --json file",
    )
    arguments.add_argument(
        "--growth",
        type=Path,
        metavar="FIGURE",
        help="instead: measure time against tokens, depth, masks and images, and draw it to this file",
    )
    arguments.add_argument(
        "--kept", action="store_true", help="draw the growth of the --json file instead of measuring it"
    )
    arguments.add_argument("--json", type=Path, metavar="FILE", help="also write all results to this file")
    arguments.add_argument("--add", action="store_true", help="add to FILE; rows that are measured again are replaced")
    return arguments


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        make_parser().error(f"--device {options.device}: torch sees no CUDA device here")
    options.rounds = (2 if options.quick else 5) if options.rounds is None else options.rounds
    if options.batch < 1 or options.rounds < 1:
        make_parser().error("--batch and --rounds are whole numbers from 1 on")
    if (options.kept or options.profile == SLOWEST) and not (options.json and options.json.exists()):
        make_parser().error("--kept and --profile slowest need an existing --json file")
    if options.threads:
        torch.set_num_threads(options.threads)
    if arguments is None:  # started as a script
        limit_memory(options.device)
    command = shlex.join(["benchmarks/run", *(sys.argv[1:] if arguments is None else arguments)])
    if options.profile or options.list:
        return show_rows(options)
    rows, growth = [], []
    if options.growth:
        from suite.growth import draw_growth, measure_growth

        growth = (
            read_results(options)["growth"]
            if options.kept
            else measure_growth(options.device, options.rounds, options.quick)
        )
        if not options.kept:
            save_results(options, command, rows, growth)  # before drawing, which may fail
        try:
            draw_growth(growth, options.growth)
        except ImportError as problem:
            print(f"not drawn ({problem}); --kept draws it elsewhere", file=sys.stderr)
        print(
            "\n".join(
                f"{series['what']} over {series['axis']}: n^{series['exponent']:.2f}, theory n^{series['theory']:.2f}"
                for series in growth
            )
        )
    else:
        for row in measure_rows(options):
            rows.append(row)
            save_results(options, command, rows, growth)
            print(f"{row.size} {row.group} {row.what}: {row.verdict}", file=sys.stderr)
        print(format_markdown(rows))
    return 0


def show_rows(options: argparse.Namespace) -> int:
    """Print the names of rows, or profiles of some."""
    from suite.profile import find_slowest, profile_case

    slowest_rows = (
        find_slowest(map(Row.from_record, read_results(options)["rows"]), options.size or ["ti"])
        if options.profile == SLOWEST
        else []
    )
    options.only = [row.group for row in slowest_rows] or options.only
    keys = {row.key for row in slowest_rows}
    for workload in make_workloads(options):
        for case in select_entries(options, list_cases(workload, options.only)):
            if isinstance(case, Row):
                print(f"{workload.size} {case.group}: {case.error}")
            elif options.list:
                print(
                    f"{workload.size} · {case.group} · {case.what} against {case.against}"
                    + (f" ({case.note})" if case.note else "")
                )
            elif isinstance(case, Case) and (case.what == options.profile or Row.from_case(case, workload).key in keys):
                print(profile_case(case, workload), end="\n\n")
    return 0


def save_results(options: argparse.Namespace, command: str, rows: list[Row], growth: list[dict[str, Any]]) -> None:
    """Write the results so far, so that those of a stopped run are not lost."""
    if options.json is None:
        return
    results = make_document(describe_machine(options.device), [command], rows, growth)
    if options.add and options.json.exists():
        results = merge_documents(read_results(options), results)
    write_json(options.json, results)


def read_results(options: argparse.Namespace) -> dict[str, Any]:
    return json.loads(options.json.read_text())


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


def make_workloads(options: argparse.Namespace) -> Iterator[Workload]:
    for size in options.size or ["ti"]:
        yield make_workload(
            size, options.device, options.batch, getattr(torch, options.dtype), options.quick, options.precision
        )


def measure_rows(options: argparse.Namespace) -> Iterator[Row]:
    from suite import startup

    if not options.device.startswith("cuda") or "start-up" in (options.only or ()):  # does not use the GPU
        for figure in select_entries(options, startup.cases(options.rounds)):
            yield measure_figure(figure, "")
    if options.only == ["start-up"]:
        return
    for workload in make_workloads(options):
        for case in select_entries(options, list_cases(workload, options.only)):
            yield (
                measure_case(case, workload, options.rounds, options.seconds_cap)
                if isinstance(case, Case)
                else measure_figure(case, workload.size)
            )


def measure_figure(figure: Figure | Row, size: str) -> Row:
    """Measure a figure; an exception becomes a row with its message."""
    if isinstance(figure, Row):
        return figure
    try:
        return figure.measure()
    except Exception as problem:  # noqa: BLE001 - must not stop the run
        return Row(size, figure.group, figure.what, figure.against, error=format_error(problem), note=figure.note)


def list_cases(workload: Workload, only: list[str] | None = None) -> Iterator[Case | Figure | Row]:
    """Cases of all modules in these groups; a module that raises becomes a row with the error."""
    for name in MODULES if workload.arithmetic != "bf16" else ("whitebox", "peers"):
        try:
            module = import_module(f"suite.{name}")
            if not only or set(only) & set(module.GROUPS):
                yield from module.cases(workload)
        except Exception as problem:  # noqa: BLE001
            yield Row(workload.size, name, "all rows", "", error=format_error(problem))


def select_entries(options: argparse.Namespace, entries: Iterable[Case | Figure | Row]) -> Iterator[Any]:
    for entry in entries:
        in_group = not options.only or entry.group in options.only
        named = not options.match or any(text in entry.what for text in options.match)
        if isinstance(entry, Row) or (in_group and named):  # errors are always shown
            yield entry


def limit_memory(device: str) -> None:
    """Limit memory on a CPU, so that a case that does not fit raises instead of being killed by the system."""
    if device.startswith("cuda"):
        return
    try:
        import resource
    except ImportError:  # not available on this system
        return
    from vitreous.capture.memory import free_bytes

    free = free_bytes(torch.device("cpu"))
    status = Path("/proc/self/status")
    data_sizes = (
        [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmData")]
        if status.exists()
        else []
    )
    if data_sizes and math.isfinite(free):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = int(data_sizes[0]) * 1024 + int(free * 0.9)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
