"""Arrays of .npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of a file, which is closed again: numpy reads arrays when they are accessed, and keeps it open."""
    with np.load(path) as file:
        return dict(file)
