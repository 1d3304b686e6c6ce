"""Annotations of the public functions: what a type checker accepts and reports in a program that uses the library."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from vitreous.methods.method import RECIPE
from vitreous.methods.recipe import Facts, LayerNeeds, RecipeKeywords
from vitreous.metrics.metric import Metric, MetricKeywords

SOURCE = Path(__file__).parents[1] / "src"

# pyright has to report the lines that end in "# wrong", and no others
PROGRAM = """
from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import vitreous

module = nn.Identity()
images = torch.zeros(1, 3, 112, 112)
paths = ["zebra.jpg", "horse.jpg"]
specs = ["deletion_aopc", "insertion"]


def margin(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.gather(1, targets[:, None])[:, 0] - logits.amax(1)


def first_output(output: tuple[Tensor, Tensor]) -> Tensor:
    return output[0][:, 0]


model = vitreous.load("scenes", preprocess=vitreous.Preprocess((112, 112)))
assert_type(model, vitreous.Network)
assert_type(vitreous.wrap(module, preprocess=lambda image: torch.zeros(3, *image.size)), vitreous.BlackBox)
vitreous.load("scenes", preprocess=3)  # wrong
vitreous.wrap("scenes")  # wrong

attribution = vitreous.explain(model, images)
assert_type(attribution, vitreous.Attribution)
vitreous.explain("scenes", paths, target=["zebra", "horse"], question="contrast")
vitreous.explain(module, Path("zebra.jpg"), 3, question=margin)
vitreous.explain(module, [Image.new("RGB", (8, 8))], np.array([3]), question=lambda logits: logits[:, 0])
vitreous.explain(module, images, [[1, 2]], score=first_output)
vitreous.explain(module, images, score=vitreous.scores.value(1))
vitreous.explain(module, images, vitreous.text_target(torch.zeros(8), scale=100, names="a cat"))
vitreous.explain(3, images)  # wrong
vitreous.explain(model, 4)  # wrong
vitreous.explain(model, images, target=1.5)  # wrong
vitreous.explain(model, images, question=17)  # wrong
vitreous.explain(model, images, score="no")  # wrong
vitreous.inside(model, images, question=17)  # wrong
vitreous.explain_pair(module, images, 3, images)  # wrong
vitreous.export.onnx(3, "map.onnx")  # wrong

assert_type(vitreous.evaluate(model, None, attribution, "insertion(steps=28)"), vitreous.MetricResult)
assert_type(vitreous.evaluate(model, None, attribution, steps=28), vitreous.MetricResult)
assert_type(vitreous.evaluate(model, None, attribution, specs), list[vitreous.MetricResult])
both = "deletion_aopc", vitreous.resolve_metric("insertion")
assert_type(vitreous.evaluate(model, images, attribution, both, labels=[3]), list[vitreous.MetricResult])
vitreous.evaluate(model, None, attribution, "ap", objects=np.zeros((1, 112, 112), bool), boxes=[None])
vitreous.evaluate(model, None, attribution, 3)  # wrong
vitreous.evaluate(model, None, attribution, [3])  # wrong
vitreous.evaluate(model, None, attribution, specs, steps=28)  # wrong
vitreous.evaluate(model, None, attribution, "ap", labels=1.5)  # wrong


@vitreous.method("token_length", fold=vitreous.last, signed=False, class_specific=False, backwards=0)
def token_length(layer: vitreous.Layer) -> Tensor:
    return layer.hidden.square().sum(-1).sqrt()


@vitreous.metric("top_score", higher_is_better=None, bounds=(0, 1))
def top_score(attribution: vitreous.Attribution) -> Tensor:
    return attribution.maps().flatten(1).amax(-1)


assert_type(token_length.with_fold(vitreous.plus), vitreous.Method)
assert_type(top_score.with_options(), vitreous.Metric)
vitreous.method("other", fold=vitreous.last, class_specific=False)  # wrong
vitreous.method("other", signed=False, class_specific=False, bakwards=0)  # wrong
vitreous.method("other", signed=False, class_specific=False, precision="float16")  # wrong
vitreous.metric("other", higher_is_better=None, bonds=(0, 1))  # wrong
vitreous.fold("other", reach=3)  # wrong
vitreous.adapter("other", matches="timm")  # wrong

assert_type([entry["title"] for entry in vitreous.list_methods()], list[str])
vitreous.list_methods()[0]["titel"]  # wrong
"""


@pytest.mark.slow
def test_a_type_checker_accepts_valid_calls_and_reports_wrong_ones(tmp_path):
    pytest.importorskip("pyright")
    (tmp_path / "program.py").write_text(PROGRAM)
    settings = {"include": ["program.py"], "extraPaths": [str(SOURCE)], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({**settings, "reportUnusedExpression": False}))

    finished = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    lines = PROGRAM.splitlines()
    messages: dict[str, list[str]] = {line: [] for line in lines if line.endswith("# wrong")}
    for report in json.loads(finished.stdout)["generalDiagnostics"]:
        messages.setdefault(lines[report["range"]["start"]["line"]], []).append(report["message"])
    assert [line for line, texts in messages.items() if not texts] == [], "not reported"
    assert {line: texts for line, texts in messages.items() if not line.endswith("# wrong")} == {}


def test_keywords_of_a_method_are_the_fields_of_its_parts():
    keywords = RecipeKeywords.__annotations__
    required = {field.name for field in fields(Facts) if field.default is field.default_factory is MISSING}

    assert {name for name, hint in keywords.items() if hint.__forward_arg__.startswith("Required")} == required
    assert keywords.keys() == {
        *(field.name for part in (Facts, LayerNeeds) for field in fields(part)),
        *RECIPE,
    }


def test_keywords_of_a_metric_are_its_fields_with_a_default():
    optional = {field.name for field in fields(Metric) if not field.default is field.default_factory is MISSING}

    assert MetricKeywords.__annotations__.keys() == optional
