"""The maps of a run over their pictures: stored maps where they are, made again where they are not."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from vitreous.bench.cells import opened
from vitreous.bench.job import loaded
from vitreous.bench.keys import hash_of
from vitreous.bench.plan import Plan
from vitreous.bench.read import Origin, make_plan
from vitreous.core.errors import Caveat, DataError, VitreousError
from vitreous.data import Dataset
from vitreous.front import explain
from vitreous.methods.attribution import Attribution
from vitreous.models.picture import Preprocess
from vitreous.models.vit import ViT
from vitreous.report.block import Block, Question, Run

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class Easel:
    """One block's pictures, its model, and the maps that were kept."""

    vit: ViT
    dataset: Dataset
    block: Block
    maps: pa.Table | None
    asked: str | None = None  # the plan's question; None: each method's own
    remade: list[str] = field(default_factory=list)  # methods whose maps were made again
    _held: dict[tuple[str, str, int], Attribution] = field(default_factory=dict)

    def picture(self, question: Question) -> Image.Image:
        """The photograph itself, if it is still the one that was measured."""
        if not 0 <= question.index < len(self.dataset) or self.dataset.keys[question.index] != question.picture:
            raise DataError(f"{self.block.dataset} no longer has {question.picture!r} where it was")
        return self.dataset[question.index].picture

    def mask(self, question: Question) -> np.ndarray | None:
        """Where the class that was asked about is, in the picture's own pixels."""
        sample = self.dataset[question.index]
        found = sample.mask if question.target == sample.label else sample.rivals.get(question.target)
        return None if found is None or not (found == 1).any() else found == 1

    def attribution(self, method: str, question: Question) -> Attribution:
        """A map with its picture; NaN scores are hatched when it is drawn."""
        key = (method, *question.key)
        if key not in self._held:
            self._held[key] = self._stored(method, question) or self._again(method, question)
        return self._held[key]

    def _stored(self, method: str, question: Question) -> Attribution | None:
        row = self._row(method, question)
        if row is None or row["grid"] is None:
            return None
        picture = self.picture(question)
        assert self.vit.preprocess is not None  # data sets are measured through it
        image = self.vit.preprocess(picture)
        if row["pixels"] and hash_of(image) != row["pixels"]:
            raise DataError(f"{question.picture!r} of {self.block.dataset} is no longer the picture that was measured")
        layout = self.vit.layout((image.shape[-2], image.shape[-1]))
        grid = torch.tensor(np.array(row["grid"], np.float32) * np.float32(row["scale"]))[None]
        own: dict[str, Any] = {"patches": grid}
        if (row["rows"], row["columns"]) != tuple(layout.grid):
            own = {"patches": None, "native_pixels": grid.view(1, row["rows"], row["columns"])}
        return Attribution(
            **own,
            layout=layout,
            targets=torch.tensor([question.target]),
            method=method,
            signed=bool(row["signed"]),
            images=image[None],
            pictures=(picture,),
            preprocess=self.vit.preprocess,
            names=(question.name,),
            provenance={"question": row["question"], "model": self.block.model},
        )

    def _row(self, method: str, question: Question) -> dict[str, Any] | None:
        import pyarrow.compute as pc

        if self.maps is None:
            return None
        here = pc.and_(pc.equal(self.maps["picture"], question.picture), pc.equal(self.maps["target"], question.target))
        for row in self.maps.filter(here).to_pylist():
            if row["method"] == method and row["error"] is None:
                return row
        return None

    def _again(self, method: str, question: Question) -> Attribution:
        if method not in self.remade:
            self.remade.append(method)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Caveat)
            return explain(self.vit, self.picture(question), [question.target], method, self.asked)


def easel_of(run: Run, block: Block) -> Easel:
    """Load the model and open the data set of a block; a sentence says what cannot be reached."""
    import pyarrow.compute as pc

    plan = plan_of(run)
    model = next((one for one in plan.models if one.label == block.model), None)
    data = next((one for one in plan.datasets if one.label == block.dataset), None)
    if model is None or data is None:
        raise DataError(f"the plan of the run names no {block.model if model is None else block.dataset}")
    have = loaded(model, plan.precision, None)
    known = block.provenance.get("weights", ())
    if known and have.weights not in known:
        raise DataError(f"{block.model} no longer has the weights that were measured")
    vit, maps = have.vit, run.maps
    if plan.preprocess is not None and vit.preprocess is not None:
        vit = replace(vit, preprocess=Preprocess.published(plan.preprocess, vit.preprocess))
    if maps is not None:
        maps = maps.filter(pc.and_(pc.equal(maps["model"], block.model), pc.equal(maps["dataset"], block.dataset)))
    return Easel(vit, opened(data), block, maps, plan.question)


def plan_of(run: Run) -> Plan:
    try:
        return make_plan(tomllib.loads(run.plan), Origin(), run.plan)
    except (tomllib.TOMLDecodeError, VitreousError) as problem:
        raise DataError(f"the plan of the run cannot be read again: {problem}") from None


def class_specific(methods: Sequence[str]) -> list[str]:
    """Methods whose maps depend on the class."""
    from vitreous.draw.captions import class_specific as own

    return [method for method in methods if own(method)]
