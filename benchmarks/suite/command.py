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

from suite.bed import SIZES, Bed, lay
from suite.case import Case
from suite.clock import error_line, measured
from suite.row import Figure, Row
from suite.table import document, joined, machine, markdown, write

ABOUT = """Each method beside the work that its mathematics needs, and beside its peers.

Every row is a ratio measured in one run, per image: both sides take turns, the figure is the median of the ratios within rounds, the
spread their ends. On a CPU seconds are process time, so that neighbours do not count. Peers are installed by hand: benchmarks/requirements.txt.
"""
MODULES = (
    "standins",
    "whitebox",
    "sampled",
    "image_metrics",
    "peers",
    "memory",
)  # each has `cases(bed)`, of its `GROUPS`
SLOWEST = "slowest"


def parser() -> argparse.ArgumentParser:
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
        help="of products in a float32 model, on both sides; bf16: methods that look inside and peers, beside a converted module",
    )
    arguments.add_argument(
        "--only", action="append", metavar="GROUP", help="sections of the table: 'one backward', 'start-up', …"
    )
    arguments.add_argument("--match", action="append", metavar="TEXT", help="rows whose name contains it")
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--rounds", type=int, help="default: 5, 2 with --quick")
    arguments.add_argument("--threads", type=int)
    arguments.add_argument(
        "--seconds-cap", type=float, default=math.inf, help="fewer rounds where a row would take longer"
    )
    arguments.add_argument("--quick", action="store_true", help="fewer and smaller rows")
    arguments.add_argument("--list", action="store_true", help="name the rows and measure nothing")
    arguments.add_argument(
        "--profile",
        metavar="ROW",
        help="print the operators that take most of this row's time instead; 'slowest': of three in the --json file",
    )
    arguments.add_argument(
        "--growth",
        type=Path,
        metavar="FIGURE",
        help="instead: time against tokens, depth, masks and images, drawn here",
    )
    arguments.add_argument(
        "--kept", action="store_true", help="the growth that the --json file holds is drawn, not measured"
    )
    arguments.add_argument("--json", type=Path, metavar="FILE", help="write everything here as well")
    arguments.add_argument(
        "--add", action="store_true", help="to what FILE holds already; rows measured again are replaced"
    )
    return arguments


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser().error(f"--device {options.device}: torch sees no CUDA device here")
    options.rounds = (2 if options.quick else 5) if options.rounds is None else options.rounds
    if options.batch < 1 or options.rounds < 1:
        parser().error("--batch and --rounds are whole numbers from 1 on")
    if (options.kept or options.profile == SLOWEST) and not (options.json and options.json.exists()):
        parser().error("--kept and --profile slowest read a --json file that is there")
    if options.threads:
        torch.set_num_threads(options.threads)
    if arguments is None:  # a process of its own
        fence(options.device)
    command = shlex.join(["benchmarks/run", *(sys.argv[1:] if arguments is None else arguments)])
    if options.profile or options.list:
        return show(options)
    rows, growth = [], []
    if options.growth:
        from suite.growth import drawn, grown

        growth = read(options)["growth"] if options.kept else grown(options.device, options.rounds, options.quick)
        if not options.kept:
            keep(options, command, rows, growth)  # before a figure that may not be drawn
        try:
            drawn(growth, options.growth)
        except ImportError as problem:
            print(f"not drawn ({problem}); --kept draws it elsewhere", file=sys.stderr)
        print(
            "\n".join(
                f"{series['what']} over {series['axis']}: n^{series['exponent']:.2f}, theory n^{series['theory']:.2f}"
                for series in growth
            )
        )
    else:
        for row in every_row(options):
            rows.append(row)
            keep(options, command, rows, growth)
            print(f"{row.size} {row.group} {row.what}: {row.verdict}", file=sys.stderr)
        print(markdown(rows))
    return 0


def show(options: argparse.Namespace) -> int:
    """Names of rows, or the operators of some."""
    from suite.profile import profiled, slowest

    slowest_rows = (
        slowest(map(Row.read, read(options)["rows"]), options.size or ["ti"]) if options.profile == SLOWEST else []
    )
    options.only = [row.group for row in slowest_rows] or options.only
    keys = {row.key for row in slowest_rows}
    for bed in beds(options):
        for case in chosen(options, cases_of(bed, options.only)):
            if isinstance(case, Row):
                print(f"{bed.size} {case.group}: {case.error}")
            elif options.list:
                print(
                    f"{bed.size} · {case.group} · {case.what} against {case.against}"
                    + (f" ({case.note})" if case.note else "")
                )
            elif isinstance(case, Case) and (case.what == options.profile or Row.of(case, bed).key in keys):
                print(profiled(case, bed), end="\n\n")
    return 0


def keep(options: argparse.Namespace, command: str, rows: list[Row], growth: list[dict[str, Any]]) -> None:
    """All that was found so far, so that a run that is stopped has not been in vain."""
    if options.json is None:
        return
    results = document(machine(options.device), [command], rows, growth)
    if options.add and options.json.exists():
        results = joined(read(options), results)
    write(options.json, results)


def read(options: argparse.Namespace) -> dict[str, Any]:
    return json.loads(options.json.read_text())


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


def beds(options: argparse.Namespace) -> Iterator[Bed]:
    for size in options.size or ["ti"]:
        yield lay(size, options.device, options.batch, getattr(torch, options.dtype), options.quick, options.precision)


def every_row(options: argparse.Namespace) -> Iterator[Row]:
    from suite import startup

    if not options.device.startswith("cuda") or "start-up" in (options.only or ()):  # no GPU has a part in it
        for figure in chosen(options, startup.cases(options.rounds)):
            yield measure_figure(figure, "")
    if options.only == ["start-up"]:
        return
    for bed in beds(options):
        for case in chosen(options, cases_of(bed, options.only)):
            yield (
                measured(case, bed, options.rounds, options.seconds_cap)
                if isinstance(case, Case)
                else measure_figure(case, bed.size)
            )


def measure_figure(figure: Figure | Row, size: str) -> Row:
    """The row of a figure; what raises becomes a row that says so."""
    if isinstance(figure, Row):
        return figure
    try:
        return figure.measure()
    except Exception as problem:  # noqa: BLE001 - never the end of the run
        return Row(size, figure.group, figure.what, figure.against, error=error_line(problem), note=figure.note)


def cases_of(bed: Bed, only: list[str] | None = None) -> Iterator[Case | Figure | Row]:
    """What every module would measure of these groups; a module that cannot say so is a row that says why."""
    for name in MODULES if bed.arithmetic != "bf16" else ("whitebox", "peers"):
        try:
            module = import_module(f"suite.{name}")
            if not only or set(only) & set(module.GROUPS):
                yield from module.cases(bed)
        except Exception as problem:  # noqa: BLE001
            yield Row(bed.size, name, "all rows", "", error=error_line(problem))


def chosen(options: argparse.Namespace, entries: Iterable[Case | Figure | Row]) -> Iterator[Any]:
    for entry in entries:
        in_group = not options.only or entry.group in options.only
        named = not options.match or any(text in entry.what for text in options.match)
        if isinstance(entry, Row) or (in_group and named):  # what failed is never left out
            yield entry


def fence(device: str) -> None:
    """On a CPU, what does not fit should raise, and become a row, before the system ends the process."""
    if device.startswith("cuda"):
        return
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    from vitreous.capture.memory import free_bytes

    room = free_bytes(torch.device("cpu"))
    status = Path("/proc/self/status")
    data_sizes = (
        [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmData")]
        if status.exists()
        else []
    )
    if data_sizes and math.isfinite(room):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = int(data_sizes[0]) * 1024 + int(room * 0.9)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
