"""One run of a store: its plan, and its rows by model and dataset."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.bench.rows import to_frame
from vitreous.bench.scores import ScoreSection, split_sections
from vitreous.bench.store import Store
from vitreous.core.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A stored run: plan, provenance, and rows by section."""

    folder: Path
    name: str
    plan: str  # TOML
    made: float  # seconds since 1970
    about: Mapping[str, Any]
    sections: tuple[ScoreSection, ...]  # predicted and true classes separately, if both were explained
    whole_sections: tuple[ScoreSection, ...]  # the same with both classes together
    maps: pd.DataFrame

    @property
    def entries(self) -> dict[str, Any]:
        """Entries of the plan; empty if it is not valid TOML."""
        try:
            return tomllib.loads(self.plan)
        except tomllib.TOMLDecodeError:
            return {}

    @property
    def families(self) -> dict[str, str]:
        """Family of every model that has one, by label."""
        models = self.entries.get("models", [])
        return {model["label"]: model["family"] for model in models if isinstance(model, dict) and model.get("family")}


def read_run(folder: str | Path, name: str | None = None) -> StoredRun:
    """Read one run of a store.

    Parameters
    ----------
    folder
        The folder that `vitreous bench` wrote.
    name
        Name of the run; the last one if None.

    Returns
    -------
    StoredRun

    Raises
    ------
    DataError
        If the folder holds no such run, or the run has no rows.
    """
    with Store(folder, create=False) as store:
        runs = store.runs()
        if not runs:
            raise DataError(f"'{folder}' holds no run; `vitreous bench … --out {folder}` would put one there")
        run = next((run for run in reversed(runs) if name is None or run["name"] == name), None)
        if run is None:
            run_names = ", ".join(run["name"] for run in runs)
            raise DataError(f"'{folder}' holds no run {name!r}; known: {run_names}")
        scores, maps = (to_frame(store.table(run["name"], kind=kind)) for kind in ("scores", "maps"))
    if not len(scores):
        raise DataError(f"run {run['name']!r} in '{folder}' has no rows yet; run the plan first")
    sections, whole = (tuple(split_sections(scores, by_class=by_class)) for by_class in (True, False))
    return StoredRun(Path(folder), run["name"], run["plan"], run["made"], run["about"], sections, whole, maps)
