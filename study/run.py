"""Run the plans of the study: `python study/run.py [NAME …] [--device cuda] [--jobs 4] [--out runs/study] [--images N] [--minutes M]
[--model LABEL] [--precision tf32]`.

Every plan fills its own store, OUT/NAME; finished rows are not computed again, so a run that ended early continues where it
stopped. With --model it is OUT/NAME@LABEL, so that processes can share a plan. Plans on photographs need VITREOUS_ASSETS. Two
measurements that a plan cannot express are scripts: zebras and shortcut.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # the scripts beside this one are `study`
PLANS = HERE / "plans"
ORDER = (  # the most important first, in case time runs out; small ones last, so that no process waits long for another
    "beyond", "skipplus", "skipplus-pets", "tokentm-pets", "tokentm", "scenes-pair", "scenes", "tis", "newer", "newer-grid",
    "beyond-choose", "beyond-pets", "beyond-scenes", "skipplus-start", "tis-options", "tis-disagreement", "tis-pointing",
    "tis-sensitivity", "skipplus-vanish", "scenes-swin", "zebras", "shortcut",
)  # fmt: skip
SCRIPTS = ("zebras", "shortcut")


class OutOfTimeError(Exception):
    """Raised between two cells of work; finished rows are written."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ORDER)}; all if there are none")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; GPUs if there are any")
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--plans", type=Path, default=PLANS, help="another folder of plans, by their file names")
    parser.add_argument(
        "--images",
        "--pictures",
        dest="images",
        type=int,
        help="number of images of each dataset, instead of that of the plans",
    )
    parser.add_argument("--model", help="label of the only model of the plans to run; its store is OUT/NAME@LABEL")
    parser.add_argument(
        "--shard", metavar="i/n", help="every n-th cell from the i-th on, into a store that --merge adds"
    )
    parser.add_argument("--merge", action="store_true", help="add up the stores of shards; compute nothing")
    parser.add_argument("--precision", help="of products: float32, tf32, …; that of the plans if not given")
    parser.add_argument("--jobs", type=int, default=1, help="plans at once, each in a process of its own")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time, between two cells")
    options = parser.parse_args(arguments)
    order = ORDER if options.plans == PLANS else tuple(sorted(path.stem for path in options.plans.glob("*.toml")))
    if unknown := [name for name in options.names if name not in order]:
        parser.error(f"{unknown[0]!r} is no plan of the study; known: {', '.join(order)}")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} must be 1 or more")
    names = [name for name in order if name in options.names or not options.names]
    end = time.monotonic() + 60 * options.minutes
    return run_at_once(names, options, end) if options.jobs > 1 else run_in_turn(names, options, end)


def run_in_turn(names: list[str], options: argparse.Namespace, end: float) -> int:
    """Run plans one after the other in this process; returns 1 if something failed or time was up."""
    failed = False
    for name in names:
        start = time.monotonic()
        try:
            outcome = run_plan(name, options, end)
        except OutOfTimeError:
            print(f"{name}: time is up after {time.monotonic() - start:.0f} s; run it again to continue", flush=True)
            return 1
        except Exception as problem:  # noqa: BLE001 - one plan must not stop the others
            outcome = (
                f"failed: {problem}"
                if isinstance(problem, VitreousError)
                else f"failed: {type(problem).__name__}: {problem}"
            )
        failed |= "failed" in outcome
        print(f"{name}: {time.monotonic() - start:.0f} s, {outcome}", flush=True)
    return int(failed)


def run_at_once(names: list[str], options: argparse.Namespace, end: float) -> int:
    """Run plans in parallel processes; returns 1 if something failed or time was up."""
    with ThreadPoolExecutor(options.jobs) as pool:
        return int(any(list(pool.map(lambda name: run_in_process(name, options, end), names))))


def run_in_process(name: str, options: argparse.Namespace, end: float) -> int:
    """Run this script with one plan in a process, print its output as it comes, and return its exit status."""
    minutes = (end - time.monotonic()) / 60
    if minutes <= 0:
        print(f"{name}: time is up before it began; run it again", flush=True)
        return 1
    flags = {
        "device": options.device,
        "images": options.images,
        "out": options.out,
        "plans": options.plans,
        "minutes": minutes,
        "model": options.model,
        "precision": options.precision,
        "shard": options.shard,
    }
    words = [word for flag, value in flags.items() if value is not None for word in (f"--{flag}", str(value))]
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    with subprocess.Popen(
        [sys.executable, __file__, name, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        encoding="utf-8", env={"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONIOENCODING": "utf-8"},
    ) as process:  # fmt: skip
        for line in process.stdout or ():
            print(line if line.startswith(f"{name}:") else f"{name}: {line}", end="", flush=True)
    if process.returncode not in (0, 1):
        print(f"{name}: failed, its process ended with {process.returncode}", flush=True)
    return process.returncode


def run_plan(name: str, options: argparse.Namespace, end: float) -> str:
    """Run a plan into its store, or a script into its table; returns a summary."""
    if name in SCRIPTS:
        from study import shortcut, zebras

        script = {"zebras": zebras, "shortcut": shortcut}[name]
        return f"{script.write_table(options.out / f'{name}.csv', options.device, options.images)} rows"
    from vitreous.bench.plan_check import check
    from vitreous.bench.plan_parser import read_plan
    from vitreous.bench.run_plan import execute
    from vitreous.bench.store import Store

    folder = options.out / (name if options.model is None else f"{name}@{options.model}")
    if options.merge:
        return merge_shards(folder)
    overrides = {"device": options.device, "images": options.images, "precision": options.precision}
    if options.model is not None:
        entries = tomllib.loads((options.plans / f"{name}.toml").read_text(encoding="utf-8"))
        overrides["models"] = [
            entry for entry in entries["models"] if entry.get("label", entry["name"]) == options.model
        ]
    plan = read_plan(options.plans / f"{name}.toml", **overrides)
    for note in check(plan):
        print(f"note: {note}", flush=True)
    with Store(folder if options.shard is None else folder / "shards" / options.shard.replace("/", "-of-")) as store:
        progress = execute(plan, store, shard=options.shard, report=stop_after(end))
    failed = sum(progress.failed.values())
    for message, count in list(progress.failed.items())[:5]:
        print(f"  failed {count} ×: {message}", flush=True)
    return f"{progress.images} images, {progress.rows} new rows" + (f", {failed} failed" if failed else "")


def merge_shards(folder: Path) -> str:
    """Add the stores of shards to the store of their plan."""
    from vitreous.bench.store import Store

    with Store(folder) as store:
        return f"{store.merge(sorted((folder / 'shards').glob('*-of-*')))} rows added"


def stop_after(end: float) -> Callable[[Any], None]:
    def report(_: Any) -> None:
        if time.monotonic() > end:
            raise OutOfTimeError

    return report


if __name__ == "__main__":
    sys.exit(main())
