"""A program that uses the library: `make pyright` has to accept its valid calls, and to report the wrong ones.

Every wrong call names the rule by which it is reported; pyright reports an `ignore` that nothing needs. The program is not run.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedExpression=false

from collections.abc import Iterable
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
vitreous.load("scenes", preprocess=3)  # pyright: ignore[reportArgumentType]
vitreous.wrap("scenes")  # pyright: ignore[reportArgumentType]

attribution = vitreous.explain(model, images)
assert_type(attribution, vitreous.Attribution)
assert_type([*attribution], list[vitreous.Attribution])
rows: Iterable[vitreous.Attribution] = attribution
vitreous.explain("scenes", paths, target=["zebra", "horse"], question="contrast")
vitreous.explain(module, Path("zebra.jpg"), 3, question=margin)
vitreous.explain(module, [Image.new("RGB", (8, 8))], np.array([3]), question=lambda logits: logits[:, 0])
vitreous.explain(module, images, [[1, 2]], score=first_output)
vitreous.explain(module, images, score=vitreous.scores.value(1))
vitreous.explain(module, images, vitreous.text_target(torch.zeros(8), scale=100, names="a cat"))
vitreous.explain(3, images)  # pyright: ignore[reportArgumentType]
vitreous.explain(model, 4)  # pyright: ignore[reportArgumentType]
vitreous.explain(model, images, target=1.5)  # pyright: ignore[reportArgumentType]
vitreous.explain(model, images, question=17)  # pyright: ignore[reportArgumentType]
vitreous.explain(model, images, score="no")  # pyright: ignore[reportArgumentType]
vitreous.inside(model, images, question=17)  # pyright: ignore[reportArgumentType]
vitreous.explain_pair(module, images, 3, images)  # pyright: ignore[reportArgumentType]
vitreous.export.onnx(3, "map.onnx")  # pyright: ignore[reportArgumentType]

assert_type(vitreous.evaluate(model, None, attribution, "insertion(steps=28)"), vitreous.MetricResult)
assert_type(vitreous.evaluate(model, None, attribution, steps=28), vitreous.MetricResult)
assert_type(vitreous.evaluate(model, None, attribution, specs), list[vitreous.MetricResult])
both = "deletion_aopc", vitreous.resolve_metric("insertion")
assert_type(vitreous.evaluate(model, images, attribution, both, labels=[3]), list[vitreous.MetricResult])
vitreous.evaluate(model, None, attribution, "ap", objects=np.zeros((1, 112, 112), bool), boxes=[None])
vitreous.evaluate(model, None, attribution, 3)  # pyright: ignore[reportArgumentType, reportCallIssue]
vitreous.evaluate(model, None, attribution, [3])  # pyright: ignore[reportArgumentType, reportCallIssue]
vitreous.evaluate(model, None, attribution, specs, steps=28)  # pyright: ignore[reportArgumentType]
vitreous.evaluate(model, None, attribution, "ap", labels=1.5)  # pyright: ignore[reportArgumentType, reportCallIssue]


@vitreous.method("token_length", fold=vitreous.last, signed=False, class_specific=False, backwards=0)
def token_length(layer: vitreous.Layer) -> Tensor:
    return layer.hidden.square().sum(-1).sqrt()


@vitreous.metric("top_score", higher_is_better=None, bounds=(0, 1))
def top_score(attribution: vitreous.Attribution) -> Tensor:
    return attribution.maps().flatten(1).amax(-1)


assert_type(token_length.with_fold(vitreous.plus), vitreous.Method)
assert_type(top_score.with_options(), vitreous.Metric)
vitreous.method("other", fold=vitreous.last, class_specific=False)  # pyright: ignore[reportCallIssue]
vitreous.method("other", signed=False, class_specific=False, bakwards=0)  # pyright: ignore[reportCallIssue]
vitreous.method("other", signed=False, class_specific=False, precision="float16")  # pyright: ignore[reportArgumentType]
vitreous.metric("other", higher_is_better=None, bonds=(0, 1))  # pyright: ignore[reportCallIssue]
vitreous.fold("other", reach=3)  # pyright: ignore[reportArgumentType]
vitreous.adapter("other", matches="timm")  # pyright: ignore[reportArgumentType]

assert_type([entry["title"] for entry in vitreous.list_methods()], list[str])
vitreous.list_methods()[0]["titel"]  # pyright: ignore[reportGeneralTypeIssues]
