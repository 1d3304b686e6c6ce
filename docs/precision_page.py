"""Writes the table of precisions and measured ranks of docs/how-to/precision.md; `--check` tests whether it is up to date.

python docs/precision_page.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "precision.md"
RESULTS = ROOT / "benchmarks" / "results"
FILES = ("cpu-precision.json", "h200-precision.json")  # rows of later files replace those of earlier ones
MARKED = re.compile(r"(<!-- promises -->\n).*?(<!-- end -->)", re.DOTALL)
PHOTOGRAPHS = re.compile(r"^(.*), (\d+(?: to \d+)?) photographs(.*)$")
NUMBER = r"\2"
MODES = ("float32", "tf32", "bf16", "bf16 weights")


def filled(page: str, results: Path = RESULTS) -> str:
    """The page with the table between its marks."""
    files = [results / name for name in FILES if (results / name).exists()]
    measured = [row for file in files for row in json.loads(file.read_text())["ranks"]]
    return MARKED.sub(lambda match: f"{match[1]}\n{table(measured)}\n\n{match[2]}", page)


def table(measured: list[dict[str, Any]]) -> str:
    """One row per measured spec and, after them, per method that was not measured."""
    import vitreous

    rows = {row["method"]: row for row in measured}
    specs = sorted({*rows, *(method["name"] for method in vitreous.list_methods())})
    about = f"{describe(rows.values())}. Median / minimum over images; – is not measured.\n\n" if measured else ""
    head = [
        "| method | `facts.precision` | float32 | TF32 | bfloat16 products | bfloat16 weights | images |",
        "|---|---|---|---|---|---|---|",
    ]
    lines = [
        f"| `{spec}` | {vitreous.resolve(spec).facts.precision} | "
        + " | ".join(cell(rows.get(spec, {}).get(mode)) for mode in MODES)
        + f" | {PHOTOGRAPHS.sub(NUMBER, rows[spec]['on']) if spec in rows else '–'} |"
        for spec in specs
    ]
    return about + "\n".join([*head, *lines])


def describe(rows: Iterable[Mapping[str, Any]]) -> str:
    """Description of the measurements: texts that differ only in the number of photographs are joined."""
    return "; ".join(dict.fromkeys(PHOTOGRAPHS.sub(r"\1, photographs\3", row["on"]) for row in rows))


def cell(measured: dict[str, float] | None) -> str:
    return "–" if measured is None else f"{measured['median']:.4f} / {measured['min']:.3f}"


def main(arguments: list[str]) -> int | str:
    old = PAGE.read_text()
    new = filled(old)
    if "--check" in arguments:
        return 0 if old == new else "docs/how-to/precision.md is out of date; run python docs/precision_page.py"
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
