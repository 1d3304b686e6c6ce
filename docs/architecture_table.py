"""Check many architectures against plain autograd and write docs/architectures.md.

python docs/architecture_table.py          # all of them
python docs/architecture_table.py resnet18 # only these rows
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from architecture_case import Case
from architecture_cases import SMALL
from architecture_oracle import expect

import vitreous
from vitreous.core.errors import VitreousError
from vitreous.models.model import Network

PAGE = Path(__file__).with_name("architectures.md")


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of the check of one architecture.

    Attributes
    ----------
    missing
        Largest difference between a score and its shares at a block, relative to the score.
    bypass
        Share of the image's gradient that passes by the first blocks.
    difference
        Largest difference of `ixg` at the first blocks from tokens × gradient by plain autograd, relative to its maximum.
    misplaced
        Number of examined tokens of the first blocks that depend most on pixels elsewhere.
    """

    case: Case
    blocks: int = 0
    grid: str = ""
    missing: float = math.nan
    bypass: float = math.nan
    difference: float = math.nan
    misplaced: int = 0
    caution: str = ""
    refusal: str = ""

    @property
    def complete(self) -> bool:
        """Whether nothing of the image is lost or passes by, and the map of the first blocks is that of plain autograd."""
        exact = 1e-5 if self.missing > 1e-9 else 1e-9  # norms in float32
        return self.bypass <= exact and self.difference <= exact and not self.misplaced


def examine(case: Case, network: Network | None = None) -> Finding:
    """Check an architecture with random weights in float64; `network` is given where it was examined before."""
    try:
        network = case.see_through() if network is None else network
        image = case.random_input()
        attribution = vitreous.explain(network, image, method="ixg+first", score=case.score)
    except VitreousError as problem:
        return Finding(case, refusal=str(problem))
    expected = expect(network, image, case.call, case.score)
    difference = (attribution.maps()[0] - expected.tokens).abs().max() / expected.tokens.abs().max()
    grids = dict.fromkeys("×".join(map(str, block.tokens.grid)) for block in network.blocks)
    return Finding(
        case,
        len(network.blocks),
        ", ".join(grids),
        network.missing,
        expected.bypass,
        float(difference),
        expected.misplaced,
        str(attribution.provenance.get("caveat", "")),
    )


def row(finding: Finding) -> str:
    """The row of a finding, without its numbers if it was refused."""
    start = f"| `{finding.case.name}` | {finding.case.library} | {finding.blocks or '–'} | {finding.grid or '–'} |"
    if finding.refusal:
        return f"{start} refused: {finding.refusal.split(': ', 1)[-1].split(';')[0]} | – | – |"
    caution = f" ({finding.caution.split(';')[0]})" if finding.bypass > 1e-5 and finding.caution else ""
    return f"{start} {finding.missing:.0e} | {finding.bypass:.0e}{caution} | {finding.difference:.0e} |"


def page(rows: dict[str, str]) -> str:
    """The page with the rows of all architectures, in the order of the cases."""
    lines = [rows[case.name] for case in SMALL if case.name in rows]
    refused = sum("| refused: " in line for line in lines)
    return (
        "# Architectures\n\n"
        f"{len(lines) - refused} of {len(lines)} architectures are explained by their operations, as networks without an adapter, and "
        f"{refused or 'none'} {'is' if refused == 1 else 'are'} refused: small models with random weights, in float64, one image and one "
        "score each. Three figures are measured; the last two by plain autograd on the untouched module, with hooks that share no "
        "code with the library:\n\n"
        "- *missing*: the largest difference between a score and its shares at a block, relative to the score;\n"
        "- *passes by*: the norm of the image's gradient with the input tokens of the first blocks held, relative to that of the "
        "module;\n"
        "- *difference*: of `ixg` at the first blocks from tokens × gradient, relative to the largest value of the map.\n\n"
        "They are 1e-8 to 1e-6 where a model computes norms in float32. Grids of videos are time × rows × columns. "
        "Written by `docs/architecture_table.py`.\n\n"
        "| architecture | library | blocks | token grids | missing | passes by | difference |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )


def main(names: list[str]) -> None:
    """Examine all architectures, or those that are named, and write their rows."""
    warnings.filterwarnings("ignore")
    rows = (
        {line.split("`")[1]: line for line in PAGE.read_text().splitlines() if line.startswith("| `")} if names else {}
    )
    start = time.process_time()
    for case in SMALL:
        if names and case.name not in names:
            continue
        try:
            finding = examine(case)
        except (RuntimeError, TypeError, ValueError, AttributeError) as problem:  # not in this version of the library
            print(f"{case.name}: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            continue
        rows[case.name] = row(finding)
        print(f"{'' if finding.refusal or finding.complete else 'WRONG '}{rows[case.name]}", flush=True)
    print(f"{time.process_time() - start:.0f} s of CPU", file=sys.stderr)
    PAGE.write_text(page(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
