"""Writes the table of promises and measured ranks of docs/how-to/precision.md; `--check` says whether it is up to date.

python docs/precision_page.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "precision.md"
RESULTS = ROOT / "benchmarks" / "results"
FILES = ("cpu-precision.json", "h200-precision.json")  # rows of later files replace those of earlier ones
MARKED = re.compile(r"(<!-- promises -->\n).*?(<!-- end -->)", re.DOTALL)
MODES = ("tf32", "bf16", "bf16 weights")


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
    about = "; ".join(dict.fromkeys(row["on"] for row in rows.values()))
    about = f"{about}. Median / minimum over images; – is not measured.\n\n" if measured else ""
    head = ["| method | `facts.precision` | TF32 | bfloat16 products | bfloat16 weights |", "|---|---|---|---|---|"]
    lines = [
        f"| `{spec}` | {vitreous.resolve(spec).facts.precision} | "
        + " | ".join(cell(rows.get(spec, {}).get(mode)) for mode in MODES)
        + " |"
        for spec in specs
    ]
    return about + "\n".join([*head, *lines])


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
