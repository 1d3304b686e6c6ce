"""Writes the tables of docs/performance.md from benchmarks/results; `--check` says whether they still are what was measured.

python docs/performance_page.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from suite.row import Row  # noqa: E402 - the suite lies beside the package
from suite.table import markdown  # noqa: E402

PAGE = ROOT / "docs" / "performance.md"
FIGURE = "Seconds against tokens, depth, images and masks on logarithmic axes, measured points joined and the theory's slope dotted"
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- (cpu|h200) (table|growth) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, results: Path = RESULTS) -> str:
    """The page with what was measured between its marks; words outside them are left alone."""

    def part(match: re.Match[str]) -> str:
        opening, name, kind, closing = match.groups()
        file = results / f"{name}.json"
        found = json.loads(file.read_text()) if file.exists() else None
        said = "Not measured yet." if found is None else table(found) if kind == "table" else growth(found, name)
        return f"{opening}\n{said}\n\n{closing}"

    return MARKED.sub(part, page)


def table(found: dict[str, Any]) -> str:
    rows = [Row.read(one) for one in found["rows"]]
    counts = {
        verdict: sum(row.verdict == verdict for row in rows) for verdict in ("met", "missed", "no target", "failed")
    }
    facts = found["machine"]
    versions = ", ".join(
        f"{key} {facts[key]}" for key in ("torch", "timm", "captum", "grad-cam", "quantus", "lxt") if key in facts
    )
    threads = f"{facts['threads']} thread{'s' if facts['threads'] > 1 else ''}"
    lines = [
        f"{facts['device']}, {threads}; {versions}. Seconds are {facts['clock']}; memory is {facts['memory']}. "
        f"Targets met: {counts['met']}, missed: {counts['missed']}; {counts['no target']} rows without a target, "
        f"{counts['failed']} that could not be measured.",
        "",
        *(f"    {plain(command)}" for command in found["commands"]),
        "",
        markdown(rows),
    ]
    return "\n".join(lines)


def plain(command: str) -> str:
    """A command without the places of its files, which are one machine's."""
    return re.sub(r" --json \S+( --add)?", "", re.sub(r"(?<= )/\S*/", "", command))


def growth(found: dict[str, Any], name: str) -> str:
    if not found["growth"]:
        return "Not measured yet."
    figure = f"images/growth-{name}.svg"
    shown = [f"![{FIGURE}]({figure})", ""] if (PAGE.parent / figure).exists() else []
    head = ["| | over | from … to | exponent | theory |", "|---|---|---|---|---|"]
    lines = [
        f"| `{one['what']}` | {one['axis']} | {one['at'][0]} … {one['at'][-1]} | {one['exponent']:.2f} | {one['theory']:.2f} |"
        for one in found["growth"]
    ]
    return "\n".join([*shown, *head, *lines])


def main(arguments: list[str]) -> int | str:
    old = PAGE.read_text()
    made = filled(old)
    if "--check" in arguments:
        return 0 if old == made else "docs/performance.md is not what was measured; run python docs/performance_page.py"
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
