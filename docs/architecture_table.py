"""Run the completeness check on many architectures and write docs/architectures.md."""

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
    """See through one architecture with random weights in float64."""
    start = time.process_time()
    try:
        model = case.see_through()
    except VitreousError as problem:
        return Finding(case, 0, "", float("nan"), str(problem), time.process_time() - start)
    grids = dict.fromkeys("×".join(map(str, block.tokens.grid)) for block in model.blocks)
    return Finding(case, model.depth, ", ".join(grids), model.missing, "", time.process_time() - start)


def table(findings: list[Finding]) -> str:
    lines = ["| architecture | library | blocks | token grids | missing share |", "|---|---|---|---|---|"]
    for found in findings:
        share = (
            f"{found.missing:.0e}"
            if not found.refusal
            else f"refused: {found.refusal.split(': ', 1)[-1].split(';')[0]}"
        )
        lines.append(
            f"| `{found.case.name}` | {found.case.library} | {found.blocks or '–'} | {found.grid or '–'} | {share} |"
        )
    return "\n".join(lines)


def main(names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    findings = []
    for case in SMALL:
        if names and case.name not in names:
            continue
        try:
            findings.append(examine(case))
        except (RuntimeError, TypeError, ValueError, AttributeError) as problem:  # not in this version of the library
            print(f"{case.name}: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            continue
        print(
            findings[-1].case.name,
            findings[-1].blocks,
            findings[-1].grid,
            findings[-1].missing,
            findings[-1].refusal,
            f"{findings[-1].seconds:.1f}s",
            flush=True,
        )
    print(f"{sum(found.seconds for found in findings):.0f} s of CPU", file=sys.stderr)
    if not names:
        seen = sum(not found.refusal for found in findings)
        PAGE.write_text(
            "# Architectures\n\n"
            f"{seen} of {len(findings)} architectures are seen through: small models with random weights, in float64. The "
            "missing share is what the completeness check loses of a score at the worst block, relative to the score; about "
            "1e-8 where a model computes norms in float32, whatever its weights. Grids of videos are time × rows × columns. "
            "Written by `docs/architecture_table.py`.\n\n" + table(findings) + "\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
