"""Rows of a run sorted into sections, while cells are added."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vitreous.bench.rows import to_table
from vitreous.bench.section_files import CELLS_AT_ONCE, SUMMARISED, SectionFiles, TemporaryBatches

if TYPE_CHECKING:
    import pyarrow as pa


def table_of(cell: int) -> pa.Table:
    """Two methods on one image; the weights differ from cell to cell."""
    row = {
        "model": "m",
        "dataset": "d",
        "image": str(cell),
        "index": cell,
        "role": "predicted",
        "target": 0,
        "metric": "sparseness",
        "value": 0.5,
        "higher_is_better": True,
        "parts": [],
        "weights": f"weights {cell}",
    }
    return to_table("scores", [{**row, "method": method} for method in ("ixg", "random")]).select(SUMMARISED)


@pytest.mark.parametrize("more", [1, CELLS_AT_ONCE])
def test_facts_count_the_rows_of_all_cells_also_after_they_were_read(more):
    section = SectionFiles(TemporaryBatches())
    for cell in range(2):
        section.add(cell, table_of(cell))

    assert section.facts["rows"].sum() == 4
    for cell in range(2, 2 + more):
        section.add(cell, table_of(cell))
    assert section.facts["rows"].sum() == 4 + 2 * more
    assert section.facts["weights"].nunique() == 2 + more
