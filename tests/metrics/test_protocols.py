"""Protocols of papers: every spec can be run on a small model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import vitreous
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.metrics.metric import resolve_metric
from vitreous.metrics.protocols import CHOICES, PROTOCOLS, protocol
from vitreous.models.image_input import Preprocess
from vitreous.testing import tiny_vits

NAMES = ("skipplus", "released", "tokentm", "tis", "chefer")
ROOT = Path(__file__).parents[2]


def test_all_protocols_are_there():
    assert set(PROTOCOLS) == set(NAMES)
    with pytest.raises(SpecError, match="no protocol 'tokentn'; did you mean 'tokentm'"):
        protocol("tokentn")


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_and_method_of_it_is_ours(name):
    found = protocol(name)
    keys = set(re.findall(r"@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text()))

    for column in found.columns.values():
        assert resolve_metric(column.metric).spec == column.metric
        assert column.explained in CHOICES
    for spec in found.methods:
        assert vitreous.resolve(vitreous.resolve(spec).spec).spec == vitreous.resolve(spec).spec
    assert found.paper in keys
    assert found.data
    assert all(found.notes)


@pytest.mark.parametrize("name", NAMES)
def test_its_models_and_its_preprocessing_exist(name):
    import timm

    own = Preprocess.plain((224, 224))

    models = (*protocol(name).models, *protocol(name).fine_tuned.values())
    assert all(timm.is_model(model.removeprefix("timm:")) for model in models)
    assert Preprocess.published(protocol(name).preprocess, own).size == (224, 224)


def test_the_authors_code_is_a_separate_protocol():
    paper, code = protocol("skipplus"), protocol("released")

    assert set(paper.columns) == set(code.columns)
    assert paper.rows["AttCAT"] == "attcat"
    assert code.rows["AttCAT"] == "attcat(preset='skipplus')"
    assert resolve_metric(paper.columns["Deletion AOPC"].metric).settings["track"] == "predicted"
    assert resolve_metric(code.columns["Deletion AOPC"].metric).settings["track"] == "label"
    assert set(paper.rows) == set(code.rows)


def test_rows_whose_name_differs_from_their_method():
    assert protocol("tokentm").rows["Grad-CAM"] == "attcam(preset='chefer')"
    assert protocol("tis").rows["Att. Rollout"] == "rollout(preset='vit-explain')"
    assert protocol("skipplus").rows["GradSAM"] == "genatt(row='cls')+plus"
    assert protocol("tis").columns["Deletion Rand"].metric == "deletion(preset='tis', baseline='random')"
    assert {column.explained for column in protocol("tokentm").columns.values()} == {"predicted", "label"}


@pytest.mark.parametrize("name", NAMES)
def test_every_row_explains(name):
    vit = tiny_vits(torch.float32)["class token"]
    images = torch.randn(1, 3, *vit.size, generator=torch.Generator().manual_seed(0))
    probe = Probe(vit, images, torch.tensor([1]))

    for spec in protocol(name).methods:
        method = vitreous.resolve(spec)
        if method.name in ("rise", "tis", "vitcx"):  # their published settings take long
            method = method.with_options(**method.facts.trial)
        assert method(probe).patches.shape == (1, 16)


@pytest.mark.parametrize("name", NAMES)
def test_every_column_measures(name):
    vit = tiny_vits(torch.float32)["class token"]
    images = torch.randn(2, 3, *vit.size, generator=torch.Generator().manual_seed(0))
    objects = torch.zeros(2, 32, 32, dtype=torch.bool)
    objects[:, :8, :16] = True
    boxes = [torch.tensor([[0, 0, 16, 8]])] * 2
    found = vitreous.explain(vit, images, [1, 2], "genatt")
    quick = {"insertion": "steps=4", "deletion": "steps=4", "max_sensitivity": "samples=2"}
    specs = [
        spec[:-1] + f", {quick[head]})" if (head := spec.split("(")[0].split("_minus")[0]) in quick else spec
        for spec in protocol(name).metrics
    ]
    results = vitreous.evaluate(vit, images, found, specs, labels=[1, 2], objects=objects, boxes=boxes)

    assert [result.metric for result in results] == specs
    assert all(result.undefined == 0 for result in results)


def test_reading_it_needs_no_torch():
    import subprocess
    import sys

    program = "import sys, vitreous.metrics.protocols as p; p.protocol('tis'); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
