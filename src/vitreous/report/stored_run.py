"""One run of a store: its plan, and its rows by model and dataset."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.bench.rows import make_schema
from vitreous.bench.scores import SUMMARISED, ImageTarget, ScoreSection, collect_sections, make_sections
from vitreous.bench.store import Store
from vitreous.core.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A stored run: plan, provenance, and scores by section. Rows are read when they are needed."""

    folder: Path
    name: str
    plan: str  # TOML
    made: float  # seconds since 1970
    about: Mapping[str, Any]
    sections: tuple[ScoreSection, ...]  # predicted and true classes separately, if both were explained
    whole_sections: tuple[ScoreSection, ...]  # the same with both classes together

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

    def read_maps(self, section: ScoreSection, question: ImageTarget) -> pa.Table:
        """Rows of the stored maps of an image and a target class, one per method."""
        import pyarrow as pa
        import pyarrow.compute as pc

        pairs = zip(section.files.questions, section.files.cells, strict=True)
        cells = dict.fromkeys(cell for own, cell in pairs if own.image == question.image)
        with Store(self.folder, create=False) as store:
            tables = store.scan(self.name, "maps", cells=[*cells])
            is_own = (pc.field("image") == question.image) & (pc.field("target") == question.target)
            return pa.concat_tables([make_schema("maps").empty_table(), *(table.filter(is_own) for table in tables)])


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
        files = collect_sections(enumerate(store.scan(run["name"], "scores", SUMMARISED)))
    if not files:
        raise DataError(f"run {run['name']!r} in '{folder}' has no rows yet; run the plan first")
    sections, whole = (tuple(make_sections(files, by_class=by_class)) for by_class in (True, False))
    return StoredRun(Path(folder), run["name"], run["plan"], run["made"], run["about"], sections, whole)
