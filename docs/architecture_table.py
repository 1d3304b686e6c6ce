"""Run the completeness check on many architectures and write docs/architectures.md.

python docs/architecture_table.py          # all of them
python docs/architecture_table.py resnet18 # only these rows
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from architecture_cases import SMALL, Case

from vitreous.core.errors import VitreousError

PAGE = Path(__file__).with_name("architectures.md")


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of the check of one architecture."""

    case: Case
    blocks: int
    grid: str
    missing: float
    refusal: str
    seconds: float


def examine(case: Case) -> Finding:
    """Check an architecture with random weights in float64."""
    start = time.process_time()
    try:
        model = case.see_through()
    except VitreousError as problem:
        return Finding(case, 0, "", float("nan"), str(problem), time.process_time() - start)
    grids = dict.fromkeys("×".join(map(str, block.tokens.grid)) for block in model.blocks)
    return Finding(case, model.depth, ", ".join(grids), model.missing, "", time.process_time() - start)


def row(finding: Finding) -> str:
    refusal = finding.refusal.split(": ", 1)[-1].split(";")[0]
    share = f"refused: {refusal}" if finding.refusal else f"{finding.missing:.0e}"
    return f"| `{finding.case.name}` | {finding.case.library} | {finding.blocks or '–'} | {finding.grid or '–'} | {share} |"


def page(rows: dict[str, str]) -> str:
    """The page with the rows of all architectures, in the order of the cases."""
    lines = [rows[case.name] for case in SMALL if case.name in rows]
    count = sum("| refused: " not in line for line in lines)
    return (
        "# Architectures\n\n"
        f"{count} of {len(lines)} architectures pass the check of `see_through`: small models with random weights, in float64. The "
        "missing share is the largest difference between a score and its shares at a block, relative to the score; it is 1e-6 to "
        "1e-8 if a model computes norms in float32. Grids of videos are time × rows × columns. "
        "Written by `docs/architecture_table.py`.\n\n"
        "| architecture | library | blocks | token grids | missing share |\n|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )


def main(names: list[str]) -> None:
    """Examine all architectures, or those that are named, and write their rows."""
    warnings.filterwarnings("ignore")
    rows = (
        {line.split("`")[1]: line for line in PAGE.read_text().splitlines() if line.startswith("| `")} if names else {}
    )
    seconds = 0.0
    for case in SMALL:
        if names and case.name not in names:
            continue
        try:
            finding = examine(case)
        except (RuntimeError, TypeError, ValueError, AttributeError) as problem:  # not in this version of the library
            print(f"{case.name}: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            continue
        rows[case.name] = row(finding)
        seconds += finding.seconds
        print(f"{rows[case.name]} {finding.seconds:.1f} s", flush=True)
    print(f"{seconds:.0f} s of CPU", file=sys.stderr)
    PAGE.write_text(page(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
