"""Outputs of published implementations, for the methods that `test_goldens` does not compare."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

from tests.methods.test_goldens import Golden, golden
from vitreous.capture.probe import Probe
from vitreous.methods.attribution import Attribution
from vitreous.methods.spec import resolve

__all__ = ["Golden", "golden"]  # the fixture serves here too


def targets(golden: Golden) -> tuple[str, ...]:
    return ("top",) if golden.name == "real" else ("top", "other")


def few(golden: Golden, reference: np.ndarray) -> np.ndarray:
    """One image is enough for the real model."""
    return reference[:1] if golden.name == "real" else reference


def arrays(golden: Golden, file: str):
    if golden.entry(file) is None:
        pytest.skip(f"no {file} for {golden.name}")
    return golden.arrays(file)


def probe_of(golden: Golden, which: str, count: int) -> Probe:
    return Probe(golden.vit, golden.images[:count], golden.targets[which][:count])


def explained(golden: Golden, spec: str, which: str, count: int) -> Attribution:
    return resolve(spec)(probe_of(golden, which, count))


def agree(golden: Golden, file: str, found: Tensor, reference: np.ndarray, slack: float = 0.0) -> None:
    """Within the tolerance that the reference states, and `slack` of the largest value."""
    tolerance = golden.entry(file)["tolerance"]
    largest = np.abs(reference).reshape(len(reference), -1).max(1).reshape(-1, *[1] * (reference.ndim - 1))
    allowed = tolerance["rtol"] * np.abs(reference) + (tolerance["atol_rel_to_max"] + slack) * largest

    assert found.shape == reference.shape
    worst = (np.abs(found.numpy() - reference) - allowed).max()
    assert worst <= 0, f"{golden.name} {file}: beyond tolerance by {worst:.2g}"


def agrees(golden: Golden, file: str, spec: str) -> None:
    """A patch or pixel map of a file, for every target: `top`, `top_patchsum`, `top_first1`."""
    stored = arrays(golden, file)
    for which in targets(golden):
        found = explained(
            golden, spec, which, len(few(golden, stored[f"{which}_patchsum" if which not in stored else which]))
        )
        for key, kind in ((which, None), (f"{which}_patchsum", "patch"), (f"{which}_first1", "pixel")):
            if key in stored:
                reference = few(golden, stored[key])
                pixels = kind == "pixel" or (kind is None and reference.ndim == 3)
                agree(golden, file, found.native_pixels if pixels else found.patches, reference)
