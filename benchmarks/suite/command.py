"""What `benchmarks/run` does with what it is told."""

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
from suite.clock import measured, told
from suite.row import Figure, Row
from suite.table import document, joined, machine, markdown, write

ABOUT = """Each method beside the work that its mathematics needs, and beside its peers.

Every row is a ratio measured in one run, per image: both sides take turns, the figure is the median of the ratios within rounds, the
spread their ends. On a CPU seconds are process time, so that neighbours do not count. Peers are installed by hand: benchmarks/requirements.txt.
"""
MODULES = ("standins", "whitebox", "sampled", "pictures", "peers", "memory")  # each has `cases(bed)`, of its `GROUPS`
SLOWEST = "slowest"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "benchmarks/run", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, …")
    made.add_argument(
        "--size", action="append", choices=sorted(SIZES), help="may be repeated; ti unless told otherwise"
    )
    made.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16", "float64"))
    made.add_argument(
        "--precision",
        default="",
        choices=("tf32", "bf16"),
        help="of products in a float32 model, on both sides; bf16: methods that look inside, beside a converted module",
    )
    made.add_argument(
        "--only", action="append", metavar="GROUP", help="sections of the table: 'one backward', 'start-up', …"
    )
    made.add_argument("--match", action="append", metavar="TEXT", help="rows whose name contains it")
    made.add_argument("--batch", type=int, default=8)
    made.add_argument("--rounds", type=int, help="5 unless told otherwise, 2 of a quick run")
    made.add_argument("--threads", type=int)
    made.add_argument("--seconds-cap", type=float, default=math.inf, help="fewer rounds where a row would take longer")
    made.add_argument("--quick", action="store_true", help="fewer and smaller rows")
    made.add_argument("--list", action="store_true", help="name the rows and measure nothing")
    made.add_argument(
        "--profile",
        metavar="ROW",
        help="print the operators that take most of this row's time instead; 'slowest': of three in the --json file",
    )
    made.add_argument(
        "--growth",
        type=Path,
        metavar="FIGURE",
        help="instead: time against tokens, depth, masks and images, drawn here",
    )
    made.add_argument(
        "--kept", action="store_true", help="the growth that the --json file holds is drawn, not measured"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write everything here as well")
    made.add_argument("--add", action="store_true", help="to what FILE holds already; rows measured again are replaced")
    return made


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser().error(f"--device {given.device}: torch sees no CUDA device here")
    given.rounds = (2 if given.quick else 5) if given.rounds is None else given.rounds
    if given.batch < 1 or given.rounds < 1:
        parser().error("--batch and --rounds are whole numbers from 1 on")
    if (given.kept or given.profile == SLOWEST) and not (given.json and given.json.exists()):
        parser().error("--kept and --profile slowest read a --json file that is there")
    if given.threads:
        torch.set_num_threads(given.threads)
    if arguments is None:  # a process of its own
        fence(given.device)
    command = shlex.join(["benchmarks/run", *(sys.argv[1:] if arguments is None else arguments)])
    if given.profile or given.list:
        return show(given)
    rows, growth = [], []
    if given.growth:
        from suite.growth import drawn, grown

        growth = read(given)["growth"] if given.kept else grown(given.device, given.rounds, given.quick)
        if not given.kept:
            keep(given, command, rows, growth)  # before a figure that may not be drawn
        try:
            drawn(growth, given.growth)
        except ImportError as problem:
            print(f"not drawn ({problem}); --kept draws it elsewhere", file=sys.stderr)
        print(
            "\n".join(
                f"{one['what']} over {one['axis']}: n^{one['exponent']:.2f}, theory n^{one['theory']:.2f}"
                for one in growth
            )
        )
    else:
        for row in every_row(given):
            rows.append(row)
            keep(given, command, rows, growth)
            print(f"{row.size} {row.group} {row.what}: {row.verdict}", file=sys.stderr)
        print(markdown(rows))
    return 0


def show(given: argparse.Namespace) -> int:
    """Names of rows, or the operators of some."""
    from suite.profile import profiled, slowest

    wanted = slowest(map(Row.read, read(given)["rows"]), given.size or ["ti"]) if given.profile == SLOWEST else []
    given.only = [row.group for row in wanted] or given.only
    keys = {row.key for row in wanted}
    for bed in beds(given):
        for case in chosen(given, cases_of(bed, given.only)):
            if isinstance(case, Row):
                print(f"{bed.size} {case.group}: {case.error}")
            elif given.list:
                print(
                    f"{bed.size} · {case.group} · {case.what} against {case.against}"
                    + (f" ({case.note})" if case.note else "")
                )
            elif isinstance(case, Case) and (case.what == given.profile or Row.of(case, bed).key in keys):
                print(profiled(case, bed), end="\n\n")
    return 0


def keep(given: argparse.Namespace, command: str, rows: list[Row], growth: list[dict[str, Any]]) -> None:
    """All that was found so far, so that a run that is stopped has not been in vain."""
    if given.json is None:
        return
    made = document(machine(given.device), [command], rows, growth)
    if given.add and given.json.exists():
        made = joined(read(given), made)
    write(given.json, made)


def read(given: argparse.Namespace) -> dict[str, Any]:
    return json.loads(given.json.read_text())


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


def beds(given: argparse.Namespace) -> Iterator[Bed]:
    for size in given.size or ["ti"]:
        yield lay(size, given.device, given.batch, getattr(torch, given.dtype), given.quick, given.precision)


def every_row(given: argparse.Namespace) -> Iterator[Row]:
    from suite import startup

    if not given.device.startswith("cuda") or "start-up" in (given.only or ()):  # no GPU has a part in it
        for figure in chosen(given, startup.cases(given.rounds)):
            yield taken(figure, "")
    if given.only == ["start-up"]:
        return
    for bed in beds(given):
        for case in chosen(given, cases_of(bed, given.only)):
            yield (
                measured(case, bed, given.rounds, given.seconds_cap)
                if isinstance(case, Case)
                else taken(case, bed.size)
            )


def taken(figure: Figure | Row, size: str) -> Row:
    """The row of a figure; what raises becomes a row that says so."""
    if isinstance(figure, Row):
        return figure
    try:
        return figure.measure()
    except Exception as problem:  # noqa: BLE001 - never the end of the run
        return Row(size, figure.group, figure.what, figure.against, error=told(problem), note=figure.note)


def cases_of(bed: Bed, only: list[str] | None = None) -> Iterator[Case | Figure | Row]:
    """What every module would measure of these groups; a module that cannot say so is a row that says why."""
    for name in MODULES if bed.arithmetic != "bf16" else ("whitebox",):
        try:
            room = import_module(f"suite.{name}")
            if not only or set(only) & set(room.GROUPS):
                yield from room.cases(bed)
        except Exception as problem:  # noqa: BLE001
            yield Row(bed.size, name, "all rows", "", error=told(problem))


def chosen(given: argparse.Namespace, found: Iterable[Case | Figure | Row]) -> Iterator[Any]:
    for one in found:
        wanted = not given.only or one.group in given.only
        named = not given.match or any(text in one.what for text in given.match)
        if isinstance(one, Row) or (wanted and named):  # what failed is never left out
            yield one


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
    held = (
        [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmData")]
        if status.exists()
        else []
    )
    if held and math.isfinite(room):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = int(held[0]) * 1024 + int(room * 0.9)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
