"""Maps of a run with their images: read from the store, or computed again if the run did not keep them."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from vitreous.bench.keys import hash_tensor
from vitreous.bench.model_options import load_cached
from vitreous.bench.run import map_precision
from vitreous.bench.scores import ScoreSection
from vitreous.bench.section_files import ImageTarget
from vitreous.bench.work_cells import open_cached
from vitreous.core.errors import Caveat, DataError, VitreousError
from vitreous.data import Dataset
from vitreous.front import explain
from vitreous.maps import as_attribution
from vitreous.methods.attribution import Attribution
from vitreous.models.image_input import Preprocess
from vitreous.models.model import BlackBox
from vitreous.report.stored_run import StoredRun

if TYPE_CHECKING:
    import pyarrow as pa

    from vitreous.bench.plan import Plan


@dataclass(frozen=True, eq=False)
class MapLoader:
    """Model, images and stored maps of a section.

    Parameters
    ----------
    vit, dataset, section
        The model, the dataset and their rows.
    read_maps
        Function that reads the rows of the stored maps of an image and target.
    score
        Name of the plan's score function; None for each method's own.
    precision
        Precision of the maps, as for `explain`.
    remade
        Methods whose maps were computed again; filled by `attribution`.
    """

    vit: BlackBox
    dataset: Dataset
    section: ScoreSection
    read_maps: Callable[[ImageTarget], pa.Table]
    score: str | None = None
    precision: str | None = None
    remade: list[str] = field(default_factory=list)
    _loaded: dict[tuple[str, str, int], Attribution] = field(default_factory=dict)
    _rows: dict[tuple[str, int], pa.Table] = field(default_factory=dict)

    def image(self, question: ImageTarget) -> Image.Image:
        """Read the image; raise `DataError` if the dataset no longer has it at the same index."""
        if not 0 <= question.index < len(self.dataset) or self.dataset.keys[question.index] != question.image:
            raise DataError(f"{self.section.dataset} no longer has {question.image!r} where it was")
        return self.dataset[question.index].image

    def mask(self, question: ImageTarget) -> np.ndarray | None:
        """Mask of the explained class in the pixels of the original image; None if there is none."""
        sample = self.dataset[question.index]
        mask = sample.mask if question.target == sample.label else sample.rivals.get(question.target)
        return None if mask is None or not (mask == 1).any() else mask == 1

    def attribution(self, method: str, question: ImageTarget) -> Attribution:
        """Read or compute the map of a method for one image and target; cached."""
        key = (method, *question.key)
        if key not in self._loaded:
            self._loaded[key] = self._read(method, question) or self._compute(method, question)
        return self._loaded[key]

    def _read(self, method: str, question: ImageTarget) -> Attribution | None:
        import pyarrow.compute as pc

        if question.key not in self._rows:
            self._rows[question.key] = self.read_maps(question)
        has_map = (pc.field("method") == method) & pc.field("error").is_null() & pc.field("grid").is_valid()
        rows = self._rows[question.key].filter(has_map).slice(0, 1)
        if not len(rows):
            return None
        original = self.image(question)
        assert self.vit.preprocess is not None  # runs on datasets need preprocessing
        image = self.vit.preprocess(original)
        if rows["pixels"][0].as_py() not in ("", None, hash_tensor(image)):
            raise DataError(f"{question.image!r} of {self.section.dataset} is no longer the image that was measured")
        layout = self.vit.layout((image.shape[-2], image.shape[-1]))
        return replace(
            as_attribution(rows, {"layout": asdict(layout)}),
            layout=layout,
            images=image[None],
            originals=(original,),
            preprocess=self.vit.preprocess,
            names=(question.target_name,),
        )

    def _compute(self, method: str, question: ImageTarget) -> Attribution:
        if method not in self.remade:
            self.remade.append(method)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Caveat)
            return explain(
                self.vit, self.image(question), [question.target], method, self.score, precision=self.precision
            )


def open_maps(run: StoredRun, section: ScoreSection) -> MapLoader:
    """Load the model and open the dataset of a section.

    Raises
    ------
    VitreousError
        If the plan, the model or the dataset cannot be loaded, or the model's weights have changed.
    """
    plan = parse_plan(run)
    model = next((entry for entry in plan.models if entry.label == section.model), None)
    data = next((entry for entry in plan.datasets if entry.label == section.dataset), None)
    if model is None or data is None:
        raise DataError(f"the plan of the run names no {section.model if model is None else section.dataset}")
    loaded = load_cached(model, plan.precision, None)
    stored_weights = section.provenance.get("weights", ())
    if stored_weights and loaded.weights not in stored_weights:
        raise DataError(f"{section.model} no longer has the weights that were measured")
    vit, preprocess = loaded.vit, plan.evaluations[plan.datasets.index(data)].preprocess
    if preprocess is not None and vit.preprocess is not None:
        vit = replace(vit, preprocess=Preprocess.published(preprocess, vit.preprocess))
    read_maps = partial(run.read_maps, section)
    return MapLoader(vit, open_cached(data), section, read_maps, plan.question, map_precision(plan))


def parse_plan(run: StoredRun) -> Plan:
    from vitreous.bench.plan_parser import Origin, make_plan  # needs pydantic, and `vitreous demo` does not

    try:
        return make_plan(tomllib.loads(run.plan), Origin(), run.plan)
    except (tomllib.TOMLDecodeError, VitreousError) as problem:
        raise DataError(f"the plan of the run cannot be read again: {problem}") from None
