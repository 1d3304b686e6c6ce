"""Estimate the cost of a plan.

Numbers of forward and backward passes are evaluated from the formulas that methods and metrics declare; the time per
pass is measured in a short calibration.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vitreous.bench.model_options import load_cached
from vitreous.bench.pool import list_devices
from vitreous.bench.work_cells import WorkCell
from vitreous.capture.probe import probe_of
from vitreous.core.errors import SpecError
from vitreous.methods.pass_counts import ModelSizes, evaluate_cost, evaluate_passes
from vitreous.methods.regions import SQUARES, square_of
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import Metric, resolve_metric
from vitreous.models.model import BlackBox, Network
from vitreous.models.random_draws import normal_numbers
from vitreous.models.vit import ViT

if TYPE_CHECKING:
    from vitreous.bench.plan import Evaluation, Plan
    from vitreous.methods.method import Method


@dataclass(slots=True)
class Estimate:
    """Estimated cost of one model.

    Parameters
    ----------
    model
        Label of the model.
    cells, images
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
    images: int
    forwards: float = 0
    backwards: float = 0
    seconds: float = 0
    unknown: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """The estimate as JSON values; images are called pictures there."""
        return {"pictures" if name == "images" else name: value for name, value in asdict(self).items()}


def estimate(plan: Plan, cells: Sequence[WorkCell]) -> list[Estimate]:
    """Return one estimate per model that occurs in `cells`; loads the models and measures their speed."""
    estimates = []
    for place, model in enumerate(plan.models):
        own_cells = [cell for cell in cells if cell.model == place]
        if not own_cells:
            continue
        vit = load_cached(model, plan.precision, list_devices(plan)[0]).vit
        total = Estimate(model.label, len(own_cells), sum(len(cell.places) for cell in own_cells))
        for dataset, evaluation in enumerate(plan.evaluations):
            image_count = sum(len(cell.places) for cell in own_cells if cell.dataset == dataset)
            ahead, back, unknown = estimate_passes(plan.methods, evaluation, vit)
            total.forwards, total.backwards = total.forwards + ahead * image_count, total.backwards + back * image_count
            total.unknown += [spec for spec in unknown if image_count and spec not in total.unknown]
        one_ahead, one_back = calibrate(vit, plan.batch_size or plan.slice)
        total.seconds = total.forwards * one_ahead + total.backwards * one_back
        estimates.append(total)
    return estimates


def estimate_passes(methods: Sequence[str], evaluation: Evaluation, model: BlackBox) -> tuple[float, float, list[str]]:
    """Cost of one image: forward passes, backward passes, and the specs whose cost is unknown.

    The forward pass that computes the logits of the image is counted once, since methods and metrics share it.
    """
    rows, sizes, unknown = count_targets(evaluation.targets), read_model_sizes(model), []
    ahead, back = 1.0, 0.0
    for method in map(resolve, methods):
        own = count_method_passes(method, model, sizes)
        if own is None:
            unknown.append(method.spec)
        forwards, backwards = own or (0.0, 0.0)
        turns = rows if method.class_specific else 1
        shared = own is not None and method.facts.shares_forward and method.fold is None
        ahead, back = ahead + forwards - shared, back + backwards * turns
        for metric in map(resolve_metric, evaluation.metrics):
            explanations = count_explanations(metric, sizes)
            passes = evaluate_cost(metric.forwards, {**sizes, **metric.settings}) if explanations is None else 0
            if passes is None:
                unknown.append(metric.spec)
            ahead += rows * (max((passes or 0) - 1, 0) + (explanations or 0) * forwards)
            back += rows * (explanations or 0) * backwards
    return ahead, back, list(dict.fromkeys(unknown))


def count_method_passes(method: Method, model: BlackBox, sizes: ModelSizes) -> tuple[float, float] | None:
    """Forward and backward passes of the form that a method has for this kind of model; None if they are not known."""
    try:
        return evaluate_passes(method.for_model(model), sizes)
    except SpecError:  # the method needs more than the model has
        return None


def count_targets(targets: str | tuple[int | str, ...]) -> int:
    """Number of target classes that are explained per image."""
    if isinstance(targets, tuple):
        return len(targets)
    if targets.startswith("top "):
        return int(targets.split()[1])
    return 2 if targets in ("pair", "predicted+label") else 1


def read_model_sizes(model: BlackBox) -> ModelSizes:
    """Sizes of a model, and of the images that enter it, by the names that cost formulas use.

    Squares of the image stand for the patches of a black box, as they do for methods.
    """
    examined_only = isinstance(model, Network) and not isinstance(model, ViT)  # other sizes need another examination
    layout = model.layout(model.size if model.preprocess is None or examined_only else model.preprocess.size)
    if not isinstance(model, Network):
        squares = math.prod(min(SQUARES, side) for side in layout.size)
        return {"patches": squares, "size": layout.size, "patch": square_of(layout.size)}
    sizes = {"patches": layout.patches, "size": layout.size, "patch": layout.patch}
    if not isinstance(model, ViT):
        return sizes
    with torch.no_grad():
        width = model.embed(torch.zeros(1, model.channels, *model.size, device=model.device, dtype=model.dtype)).shape[
            -1
        ]
    return {**sizes, "channels": width, "layers": model.depth, "depth": model.depth}


def count_explanations(metric: Metric, sizes: ModelSizes) -> float | None:
    """Number of attributions that a metric computes, if its cost is stated in explanations; otherwise None."""
    formula = str(metric.forwards).split(",")[0]
    if "explanation" not in formula:
        return None
    return evaluate_cost(re.sub(r"explanations?", "", formula), {**sizes, **metric.settings}) or 1


def calibrate(model: BlackBox, batch: int, budget: float = 2.0) -> tuple[float, float]:
    """Measure seconds per image of a forward and of a backward pass.

    Parameters
    ----------
    model
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
    images = normal_numbers(torch.Generator().manual_seed(0), (min(batch, 8), model.channels, *model.size))

    def ahead() -> None:
        _ = probe_of(model, images).head_output

    def both() -> None:
        for _ in probe_of(model, images).layers(attention=False):
            pass

    forward = measure_shortest_time(ahead, model.device, budget / 2)
    backward = (
        0.0
        if not isinstance(model, Network)
        else max(measure_shortest_time(both, model.device, budget / 2) - forward, 0.0)
    )
    return forward / len(images), backward / len(images)


def measure_shortest_time(work: Any, device: torch.device, budget: float) -> float:
    """Run `work` 2 to 6 times and return the shortest time in seconds; the first run is a warm-up."""
    rounds, begun = [], time.perf_counter()
    while len(rounds) < 2 or (len(rounds) < 6 and time.perf_counter() - begun < budget):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        rounds.append(time.perf_counter() - start)
    return min(rounds[1:])
