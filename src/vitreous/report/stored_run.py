"""One run of a store: its plan, and its rows by model and dataset."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.bench.rows import make_schema
from vitreous.bench.scores import ScoreSection, make_sections
from vitreous.bench.section_files import SUMMARISED, ImageTarget, collect_sections
from vitreous.bench.store import Store
from vitreous.core.errors import DataError
from vitreous.report.formatting import format_count

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
    # predicted and true classes separately, if both were explained, and methods that explain different scores
    sections: tuple[ScoreSection, ...]
    whole_sections: tuple[ScoreSection, ...]  # the same with both classes and all scores together

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
        models = list_tables(self.entries, "models")
        return {model["label"]: model["family"] for model in models if model.get("family")}

    def describe(self, *sections: ScoreSection) -> dict[str, str]:
        """What some sections were measured on, for people: models, datasets with images, and how the run is reduced."""
        plan = self.entries
        models = {entry.get("label"): entry for entry in list_tables(plan, "models")}
        datasets = {entry.get("label"): entry for entry in list_tables(plan, "datasets")}
        image_sets: dict[str, set[str]] = {}
        for section in sections:
            image_sets.setdefault(section.dataset, set()).update(question.image for question in section.questions)
        model_names = dict.fromkeys(section.model for section in sections)
        about = {
            "model": "; ".join(describe_model(name, models.get(name, {})) for name in model_names),
            "dataset": "; ".join(
                f"{describe_dataset(name, datasets.get(name, {}))}, {format_count(len(images), 'image')}"
                for name, images in image_sets.items()
            ),
        }
        if reduced := plan.get("reduced"):
            about["reduced"] = f"not the published evaluation: {reduced}"
        return about

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


def list_tables(plan: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Entries of a plan that are tables."""
    return [entry for entry in plan.get(key, []) if isinstance(entry, dict)]


def describe_model(label: str, entry: Mapping[str, Any]) -> str:
    """Label of a model, its name for `vitreous.load` if that is another one, and where its weights come from."""
    checkpoint, name = entry.get("checkpoint"), str(entry.get("name", label))
    weights = (
        f" with {Path(checkpoint).name}"
        if checkpoint
        else ""
        if entry.get("pretrained", True)
        else " with random weights"
    )
    return f"{label}{'' if name in label else f' is {name}'}{weights}"


def describe_dataset(label: str, entry: Mapping[str, Any]) -> str:
    """Label of a dataset, and its spec and part if these are not in the label; of a path, only the last part."""
    spec = str(entry.get("spec", label))
    if f"{spec} {entry.get('part') or ''}".strip() == label or spec in label:
        return label
    place, mark, options = spec.partition("?")
    kind, colon, path = place.rpartition(":")
    part = f", part {entry['part']}" if entry.get("part") else ""
    return f"{label} is {kind}{colon}{Path(path).name}{mark}{options}{part}"


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
    sections, whole = (tuple(make_sections(files, by_class=split, by_score=split)) for split in (True, False))
    return StoredRun(Path(folder), run["name"], run["plan"], run["made"], run["about"], sections, whole)
