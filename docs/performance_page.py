"""Writes the tables of docs/performance.md from benchmarks/results; `--check` tests whether they agree with the measurements.

python docs/performance_page.py [--check]
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from suite.row import Row  # noqa: E402
from suite.table import format_markdown  # noqa: E402
from suite.workload import WORDS  # noqa: E402 - the suite lies beside the package

PAGE = ROOT / "docs" / "performance.md"
FIGURE = "Seconds against tokens, depth, images and masks on logarithmic axes, measured points connected and the theoretical slope dotted"
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- (cpu|h200) (table|growth|precision) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, results: Path = RESULTS) -> str:
    """The page with the measurements between its marks; other text is unchanged."""

    def part(match: re.Match[str]) -> str:
        opening, name, kind, closing = match.groups()
        file = results / (f"{name}-precision.json" if kind == "precision" else f"{name}.json")
        if not file.exists():
            return f"{opening}\nNot measured yet.\n\n{closing}"
        measured = json.loads(file.read_text())
        text = {"table": table, "growth": partial(growth, name=name), "precision": precisions}[kind](measured)
        text = re.sub(r"\bpicture(s?)\b", r"image\1", text)  # stored notes of earlier measurements
        return f"{opening}\n{text}\n\n{closing}"

    return MARKED.sub(part, page)


def table(results: dict[str, Any]) -> str:
    rows = [Row.from_record(row) for row in results["rows"]]
    counts = {
        verdict: sum(row.verdict == verdict for row in rows) for verdict in ("met", "missed", "no target", "failed")
    }
    facts = results["machine"]
    versions = ", ".join(
        f"{key} {facts[key]}" for key in ("torch", "timm", "captum", "grad-cam", "quantus", "lxt") if key in facts
    )
    threads = f"{facts['threads']} thread{'s' if facts['threads'] > 1 else ''}"
    lines = [
        f"{facts['device']}, {threads}; {versions}. Seconds are {facts['clock']}; memory is {facts['memory']}. "
        f"Targets met: {counts['met']}, missed: {counts['missed']}; {counts['no target']} rows without a target, "
        f"{counts['failed']} that could not be measured.",
        "",
        *(f"    {plain(command)}" for command in results["commands"]),
        "",
        format_markdown(rows),
    ]
    return "\n".join(lines)


PRECISIONS = ("float32", "tf32", "bf16")
HALF_TARGETS = {"genatt": 1.6, "tokentm": 2.0}  # of the ratio in bfloat16, by the name before "+"
NO_TARGET = ("fuse",)  # two backward passes


def half_target(spec: str) -> float | None:
    """Largest ratio allowed in bfloat16."""
    if spec in NO_TARGET:
        return None
    return HALF_TARGETS.get(spec, 1.0 if spec.endswith("+skipplus") else 1.25)


def precisions(results: dict[str, Any]) -> str:
    """Milliseconds per image and ratio to the floor by method and precision, one table per size."""
    lines = [f"{results['machine']}.", "", "    python benchmarks/precision.py --out out"]
    sizes = list(dict.fromkeys(row["size"] for row in results["speed"]))
    for size in sizes:
        rows = {(row["method"], row["precision"]): row for row in results["speed"] if row["size"] == size}
        floors = {p: [r["floor_ms"] for (_, q), r in rows.items() if q == p and "ratio" in r] for p in PRECISIONS}
        lines += [
            "",
            f"**{WORDS[size]}**, milliseconds per image (ratio to one forward + backward in the same precision)",
            "",
        ]
        lines += [
            "| | float32 | TF32 | bfloat16 | bfloat16 as a CUDA graph | target in bfloat16 | bfloat16 without kernels |",
            "|---|---|---|---|---|---|---|",
        ]
        graph_floors = [
            row["graph_floor_ms"] for row in rows.values() if row.get("precision") == "bf16" and "graph_floor_ms" in row
        ]
        shown_floors = [f"{statistics.median(ms):.3f}" if ms else "–" for ms in (*floors.values(), graph_floors)]
        lines.append("| " + " | ".join(["one forward + backward", *shown_floors, "", ""]) + " |")
        for spec in dict.fromkeys(method for method, precision in rows if precision != "autocast"):
            cells = [speed_cell(rows.get((spec, precision), {})) for precision in PRECISIONS]
            half, target = rows.get((spec, "bf16"), {}), half_target(spec)
            ratio = half.get("graph_ratio", half.get("ratio"))
            met = "" if target is None or ratio is None else " met" if ratio <= target else " **missed**"
            eager = f"{half['eager_ratio']:.2f}" if "eager_ratio" in half else "–"
            cells += [graph_cell(half), "–" if target is None else f"≤ {target:g}{met}", eager]
            lines.append("| " + " | ".join([f"`{spec}`", *cells]) + " |")
    return "\n".join(lines)


def graph_cell(row: dict[str, Any]) -> str:
    """Milliseconds as a CUDA graph, and the ratios to the floor as it is and to the floor as a graph."""
    if "graph_ratio" not in row:
        return "–"
    return f"{row['graph_ms']:.3f} ({row['graph_ratio']:.2f}; {row['graph_ms'] / row['graph_floor_ms']:.2f})"


def speed_cell(row: dict[str, Any]) -> str:
    return f"{row['ms']:.3f} ({row['ratio']:.2f})" if "ratio" in row else "–"


def plain(command: str) -> str:
    """A command without the paths of its files."""
    return re.sub(r" --json \S+( --add)?", "", re.sub(r"(?<= )/\S*/", "", command))


def growth(results: dict[str, Any], name: str) -> str:
    if not results["growth"]:
        return "Not measured yet."
    figure = f"images/growth-{name}.svg"
    shown = [f"![{FIGURE}]({figure})", ""] if (PAGE.parent / figure).exists() else []
    head = ["| | over | from … to | exponent | theory |", "|---|---|---|---|---|"]
    lines = [
        f"| `{series['what']}` | {series['axis']} | {series['at'][0]} … {series['at'][-1]} | {series['exponent']:.2f} | {series['theory']:.2f} |"
        for series in results["growth"]
    ]
    return "\n".join([*shown, *head, *lines])


def main(arguments: list[str]) -> int | str:
    old = PAGE.read_text()
    new = filled(old)
    if "--check" in arguments:
        return 0 if old == new else "docs/performance.md is out of date; run python docs/performance_page.py"
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
