"""Estimate the cost of a plan.

Numbers of forward and backward passes are evaluated from the formulas that methods and metrics declare; the time per
pass is measured in a short calibration.
"""

from __future__ import annotations

import ast
import operator
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vitreous.bench.plan import Evaluation, Plan
from vitreous.bench.pool import devices
from vitreous.bench.work_cells import Cell
from vitreous.bench.worker_job import loaded
from vitreous.capture.probe import probe_of
from vitreous.methods.method import Method
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import Metric, resolve_metric
from vitreous.models.model import BlackBox, Network
from vitreous.models.vit import ViT

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow}


@dataclass(slots=True)
class Estimate:
    """Estimated cost of one model.

    Parameters
    ----------
    model
        Label of the model.
    cells, pictures
        Number of cells and images to compute.
    forwards, backwards
        Number of forward and backward passes, each counted per image, over all images.
    seconds
        Estimated time on one worker.
    unknown
        Methods and metrics whose cost formula could not be evaluated; they are not counted.
    """

    model: str
    cells: int
    pictures: int
    forwards: float = 0
    backwards: float = 0
    seconds: float = 0
    unknown: list[str] = field(default_factory=list)


def estimate(plan: Plan, cells: Sequence[Cell]) -> list[Estimate]:
    """Return one estimate per model that occurs in `cells`; loads the models and measures their speed."""
    found = []
    for place, model in enumerate(plan.models):
        mine = [cell for cell in cells if cell.model == place]
        if not mine:
            continue
        vit = loaded(model, plan.precision, devices(plan)[0]).vit
        told = Estimate(model.label, len(mine), sum(len(cell.places) for cell in mine))
        for dataset, evaluation in enumerate(plan.evaluations):
            pictures = sum(len(cell.places) for cell in mine if cell.dataset == dataset)
            ahead, back, unknown = per_picture(plan.methods, evaluation, vit)
            told.forwards, told.backwards = told.forwards + ahead * pictures, told.backwards + back * pictures
            told.unknown += [spec for spec in unknown if pictures and spec not in told.unknown]
        one_ahead, one_back = calibrated(vit, plan.batch_size or plan.slice)
        told.seconds = told.forwards * one_ahead + told.backwards * one_back
        found.append(told)
    return found


def per_picture(methods: Sequence[str], evaluation: Evaluation, vit: BlackBox) -> tuple[float, float, list[str]]:
    """Cost of one image: forward passes, backward passes, and the specs whose cost is unknown.

    The forward pass of the image itself is counted once, since all methods share it.
    """
    rows, sizes, unknown = targets_per_picture(evaluation.targets), facts_of(vit), []
    ahead, back = 1.0, 0.0
    for method in map(resolve, methods):
        own = (
            spent(method.facts.forwards, {**sizes, **settings(method)}),
            spent(method.facts.backwards, {**sizes, **settings(method)}),
        )
        if None in own:
            unknown.append(method.spec)
        forwards, backwards = (value or 0 for value in own)
        turns = rows if method.class_specific else 1
        ahead, back = ahead + forwards, back + backwards * turns
        for metric in map(resolve_metric, evaluation.metrics):
            again = explanations(metric, sizes)
            passes = spent(metric.forwards, {**sizes, **settings(metric)}) if again is None else 0
            if passes is None:
                unknown.append(metric.spec)
            ahead += rows * ((passes or 0) + (again or 0) * forwards)
            back += rows * (again or 0) * backwards
    return ahead, back, list(dict.fromkeys(unknown))


def targets_per_picture(targets: str | tuple[int | str, ...]) -> int:
    """Number of target classes that are explained per image."""
    if isinstance(targets, tuple):
        return len(targets)
    if targets.startswith("top "):
        return int(targets.split()[1])
    return 2 if targets in ("pair", "predicted+label") else 1


def facts_of(vit: BlackBox) -> dict[str, Any]:
    """Sizes of a model by the names that cost formulas use."""
    layout = vit.layout(vit.size)
    if not isinstance(vit, ViT):
        return {"patches": layout.patches}
    with torch.no_grad():
        width = vit.embed(torch.zeros(1, vit.channels, *vit.size, device=vit.device, dtype=vit.dtype)).shape[-1]
    return {"patches": layout.patches, "channels": width, "layers": vit.depth, "depth": vit.depth}


def settings(what: Method | Metric) -> dict[str, Any]:
    """Values of all options of a method or metric, defaults included."""
    return what.settings


def explanations(metric: Metric, sizes: Mapping[str, Any]) -> float | None:
    """Number of attributions that a metric computes, if its cost is stated in explanations; otherwise None."""
    said = str(metric.forwards).split(",")[0]
    if "explanation" not in said:
        return None
    return spent(re.sub(r"explanations?", "", said), {**sizes, **metric.settings}) or 1


def spent(said: int | str, names: Mapping[str, Any]) -> float | None:
    """Evaluate a cost formula.

    Parameters
    ----------
    said
        A number or a formula such as `"1 + 2 steps"`; text after a comma is ignored, and a space between two names or
        numbers is a product.
    names
        Values of the names in the formula; a list counts by its length.

    Returns
    -------
    float or None
        None if the text is not a formula of known names.
    """
    text = re.sub(r"²", "**2", str(said).split(",")[0])
    text = re.sub(r"(?<=[\w)])\s+(?=[\w(])", "*", text.strip())
    try:
        return value_of(ast.parse(text, mode="eval").body, names)
    except (SyntaxError, KeyError, TypeError, ValueError):
        return None


def value_of(node: ast.AST, names: Mapping[str, Any]) -> float:
    """Evaluate a parsed arithmetic expression."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name():
            value = names[node.id]
            return float(len(value)) if isinstance(value, list | tuple) else float(value)
        case ast.BinOp() if type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value_of(node.left, names), value_of(node.right, names))
    raise ValueError(ast.dump(node))


def calibrated(vit: BlackBox, batch: int, budget: float = 2.0) -> tuple[float, float]:
    """Measure seconds per image of a forward and of a backward pass.

    Parameters
    ----------
    vit
        The model.
    batch
        Batch size; at most 8 images are used.
    budget
        Seconds for the whole measurement, approximately.

    Returns
    -------
    tuple of float
        Forward and backward time; the backward time of a black-box model is 0.
    """
    images = torch.randn(min(batch, 8), vit.channels, *vit.size, generator=torch.Generator().manual_seed(0))

    def ahead() -> None:
        _ = probe_of(vit, images).reading

    def both() -> None:
        for _ in probe_of(vit, images).layers(attention=False):
            pass

    forward = timed(ahead, vit.device, budget / 2)
    backward = 0.0 if not isinstance(vit, Network) else max(timed(both, vit.device, budget / 2) - forward, 0.0)
    return forward / len(images), backward / len(images)


def timed(work: Any, device: torch.device, budget: float) -> float:
    """Run `work` 2 to 6 times and return the shortest time in seconds; the first run is a warm-up."""
    rounds, begun = [], time.perf_counter()
    while len(rounds) < 2 or (len(rounds) < 6 and time.perf_counter() - begun < budget):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        rounds.append(time.perf_counter() - start)
    return min(rounds[1:])
