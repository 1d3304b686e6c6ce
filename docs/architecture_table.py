"""Run the completeness check on many architectures and write docs/architectures.md."""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from architecture_cases import SMALL, Case, randomise

from vitreous.capture.see_through import see_through
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
    """Build one architecture with random weights in float64 and see through it."""
    torch.manual_seed(0)
    module = randomise(case.build()).double().eval()
    start = time.perf_counter()
    try:
        model = see_through(module, case.name, size=case.size, blocks=case.blocks, inputs=case.others or None)
    except VitreousError as problem:
        return Finding(case, 0, "", float("nan"), str(problem), time.perf_counter() - start)
    grids = dict.fromkeys(f"{rows}×{columns}" for block in model.blocks for rows, columns in [block.tokens.grid])
    return Finding(case, model.depth, ", ".join(grids), model.missing, "", time.perf_counter() - start)


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
    if not names:
        seen = sum(not found.refusal for found in findings)
        PAGE.write_text(
            "# Architectures\n\n"
            f"{seen} of {len(findings)} architectures are seen through: small models with random weights, in float64. The "
            "missing share is what the completeness check loses of a score at the worst block, relative to the score. "
            "Written by `docs/architecture_table.py`.\n\n" + table(findings) + "\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
