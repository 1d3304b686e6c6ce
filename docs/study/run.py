"""Run the plans of the study: `python docs/study/run.py [NAME …] [--device cuda] [--out runs/study] [--pictures N] [--minutes M]`.

Every plan fills a store of its own, OUT/NAME; what is known is not computed again, so a run that ended early goes on where
it was. Plans on photographs need VITREOUS_ASSETS. Two questions that no plan can ask are scripts: zebras and shortcut.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # the scripts beside this one are `study`
PLANS = HERE / "plans"
ORDER = (  # what matters most first, should time run out
    "beyond", "skipplus", "skipplus-pets", "tokentm-pets", "tokentm", "scenes-pair", "scenes", "tis", "newer", "newer-grid",
    "beyond-choose", "beyond-pets", "beyond-scenes", "skipplus-start", "tis-options", "tis-disagreement", "tis-pointing",
    "tis-sensitivity", "skipplus-vanish", "zebras", "shortcut",
)  # fmt: skip
SCRIPTS = ("zebras", "shortcut")


class OutOfTimeError(Exception):
    """Raised between two pieces of work; what is done is written."""


def main(arguments: list[str] | None = None) -> int:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ORDER)}; all if there are none")
    given.add_argument("--device", help="cpu, cuda, cuda:1; GPUs if there are any")
    given.add_argument("--out", type=Path, default=Path("runs/study"))
    given.add_argument("--pictures", type=int, help="of each data set, in place of what the plans say")
    given.add_argument(
        "--minutes", type=float, default=float("inf"), help="end after so many, between two pieces of work"
    )
    asked = given.parse_args(arguments)
    if unknown := [name for name in asked.names if name not in ORDER]:
        given.error(f"{unknown[0]!r} is no plan of the study; known: {', '.join(ORDER)}")
    end, failed = time.monotonic() + 60 * asked.minutes, False
    for name in [one for one in ORDER if one in asked.names or not asked.names]:
        begun = time.monotonic()
        try:
            said = run(name, asked.out, asked.device, asked.pictures, end)
        except OutOfTimeError:
            print(f"{name}: time is up after {time.monotonic() - begun:.0f} s; run it again to go on", flush=True)
            return 1
        except Exception as problem:  # noqa: BLE001 - one plan must not stop the others
            said = (
                f"failed: {problem}"
                if isinstance(problem, VitreousError)
                else f"failed: {type(problem).__name__}: {problem}"
            )
        failed |= "failed" in said
        print(f"{name}: {time.monotonic() - begun:.0f} s, {said}", flush=True)
    return int(failed)


def run(name: str, out: Path, device: str | None, pictures: int | None, end: float) -> str:
    """One plan into its store, or one script into its table; what came of it in a few words."""
    if name in SCRIPTS:
        from study import shortcut, zebras

        rows = {"zebras": zebras, "shortcut": shortcut}[name].write(out / f"{name}.csv", device, pictures)
        return f"{rows} rows"
    from vitreous.bench.check import check
    from vitreous.bench.drive import execute
    from vitreous.bench.read import read_plan
    from vitreous.bench.store import Store

    plan = read_plan(PLANS / f"{name}.toml", device=device, pictures=pictures)
    for note in check(plan):
        print(f"note: {note}", flush=True)
    with Store(out / name) as store:
        told = execute(plan, store, report=until(end))
    failed = sum(told.failed.values())
    for sentence, often in list(told.failed.items())[:5]:
        print(f"  failed {often} ×: {sentence}", flush=True)
    return f"{told.pictures} pictures, {told.rows} new rows" + (f", {failed} failed" if failed else "")


def until(end: float) -> Callable[[Any], None]:
    def report(_: Any) -> None:
        if time.monotonic() > end:
            raise OutOfTimeError

    return report


if __name__ == "__main__":
    sys.exit(main())
