"""`evaluate`: measure attributions with metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from vitreous.arguments import check_batch_size, describe_model, prepare_images
from vitreous.capture.argument_types import ArrayInput, ClassInput, ImageInput, ModelInput, OutputScore, TargetInput
from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.precision import computing, effective_precision, without_autocast
from vitreous.capture.probe import probe_of
from vitreous.capture.score_function import QUESTIONS
from vitreous.capture.targets import class_index, class_indices
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.core.progress import ProgressDisplay, show_progress
from vitreous.methods.attribution import Attribution
from vitreous.methods.map_arrays import patch_sums
from vitreous.methods.method import Method
from vitreous.methods.pass_counts import evaluate_cost
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import Metric, resolve_metric
from vitreous.metrics.metric_result import MetricResult, join_results
from vitreous.metrics.output_counts import count_shared_passes
from vitreous.models.eval_mode import evaluating
from vitreous.models.model import BlackBox, Network


@overload
def evaluate(
    model: ModelInput,
    images: ImageInput | None,
    attribution: Attribution | Tensor,
    metric: str | Metric = "deletion_aopc",
    *,
    target: TargetInput = None,
    labels: ClassInput | None = None,
    objects: Tensor | NDArray[Any] | None = None,
    rivals: Tensor | NDArray[Any] | None = None,
    boxes: Sequence[ArrayInput | None] | ArrayInput | None = None,
    method: str | Method | None = None,
    score: OutputScore | None = None,
    batch_size: int = 32,
    precision: str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> MetricResult: ...
@overload
def evaluate(
    model: ModelInput,
    images: ImageInput | None,
    attribution: Attribution | Tensor,
    metric: Sequence[str | Metric],
    *,
    target: TargetInput = None,
    labels: ClassInput | None = None,
    objects: Tensor | NDArray[Any] | None = None,
    rivals: Tensor | NDArray[Any] | None = None,
    boxes: Sequence[ArrayInput | None] | ArrayInput | None = None,
    method: str | Method | None = None,
    score: OutputScore | None = None,
    batch_size: int = 32,
    precision: str | None = None,
    progress: bool | None = None,
) -> list[MetricResult]: ...
@without_autocast()
def evaluate(
    model: ModelInput,
    images: ImageInput | None,
    attribution: Attribution | Tensor,
    metric: str | Metric | Sequence[str | Metric] = "deletion_aopc",
    *,
    target: TargetInput = None,
    labels: ClassInput | None = None,
    objects: Tensor | NDArray[Any] | None = None,
    rivals: Tensor | NDArray[Any] | None = None,
    boxes: Sequence[ArrayInput | None] | ArrayInput | None = None,
    method: str | Method | None = None,
    score: OutputScore | None = None,
    batch_size: int = 32,
    precision: str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> MetricResult | list[MetricResult]:
    """Score attributions with one metric, or with several that share their model evaluations.

    Parameters
    ----------
    model
        A model from `load`, `wrap` or `see_through`, an `nn.Module`, or a model name.
    images
        The explained images in any form that `explain` accepts; None for the images stored in the attribution.
    attribution
        The result of `explain`, or a tensor of maps [b p] (patches), [b rows columns] (patch grid) or [b H W] (pixels).
        A tensor needs `target`. With k targets per image there are b·k maps.
    metric
        A metric spec such as "deletion_aopc" or "insertion(steps=28)", a `Metric`, or a list or tuple of these.
    target
        The explained classes, as in `explain`. Read only if `attribution` is a tensor; not needed for a model with one
        output value.
    labels
        True classes by index or name, one for all images or one per image; −1 for unknown.
    objects
        Masks [b H W] of the object at the model's input size: 1 object, 0 background, −1 ignored.
    rivals
        Masks of the object of another class, in the same format.
    boxes
        For every image a tensor [k 4] of boxes x0 y0 x1 y1 at the model's input size, or None.
    method
        The method for metrics that compute the explanation again. Default: the method named in the attribution.
    score
        The `score` that was explained, if `explain` was given one.
    batch_size
        Number of images evaluated at once.
    precision
        As in `explain`; metrics are not computed in bfloat16, so "bf16" is "tf32" here.
    progress
        Whether to show a bar on stderr, with the number of forward passes, if it takes more than two seconds. None does so
        in terminals and notebooks.
    **options
        Options of the metric. Options of several metrics are part of their specs.

    Returns
    -------
    MetricResult or list of MetricResult
        A list if `metric` is a list or tuple. Results have one score per map, NaN where the metric is undefined.

    Raises
    ------
    SpecError
        If a metric or option is unknown, an input that the metric needs is missing, or the metric does not apply to
        these maps.
    ShapeError
        If the numbers or shapes of maps, images, labels, masks or boxes do not match.
    ModelError
        If the model cannot be wrapped, or does not have what the metric needs.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> attribution = vitreous.explain(vit, images, method="ixg")
    >>> result = vitreous.evaluate(vit, images, attribution, "deletion_aopc")
    >>> result.scores.shape
    torch.Size([1])
    """
    specs = [metric] if isinstance(metric, str | bytes) or not isinstance(metric, Sequence) else metric
    several = specs is metric
    if several and options:
        raise SpecError("options of several metrics are written into their specs: 'insertion(steps=28)'")
    check_batch_size(batch_size)
    chosen = [resolve_metric(spec, **options) for spec in specs]
    explained = attribution if isinstance(attribution, Attribution) else None
    described = describe_model(
        model,
        None if explained is None else explained.layout.size,
        score,
        black_box=explained is not None and explained.patches is None,
    )
    if isinstance(described, Network) and described.clip is not None:
        raise ModelError(
            f"metrics compare maps with images, and {described.name!r} takes clips; explain, .maps() and .plot() work on clips"
        )
    if images is None and (explained is None or explained.images is None):
        raise ShapeError(
            "the explained images are needed, and the attribution holds none: give them to evaluate, or save it by save(images=True)"
        )
    described, _, tensor = prepare_images(
        described, explained.images if images is None and explained is not None else images
    )
    effective = effective_precision(precision, described, "tf32")
    maps = (
        attribution if isinstance(attribution, Attribution) else as_attribution(described, tensor, attribution, target)
    )
    refuse_unmeasurable(maps, chosen)
    share = len(maps) // len(tensor)  # targets per image
    if len(maps) % len(tensor) or not same_images(maps, share):
        raise ShapeError(f"there are {len(maps)} maps of {len(tensor)} images")
    annotations: dict[str, Any] = {
        "labels": None if labels is None else find_label_indices(described, labels, len(tensor)),
        "objects": None if objects is None else as_masks(objects, "objects"),
        "rivals": None if rivals is None else as_masks(rivals, "rivals"),
        "boxes": None if boxes is None else boxes_of_images(boxes),
    }
    rows = {
        name: spread_over_rows(name, value, len(tensor), share)
        for name, value in annotations.items()
        if value is not None
    }
    again = find_method(maps, method)
    question = question_of(maps, again, described)
    parts: list[list[MetricResult]] = []
    starts = range(0, len(tensor), batch_size)
    with (
        torch.inference_mode(False),
        evaluating(described.module),
        computing(effective, described.device),
        show_progress(progress, "metrics", len(starts) * len(chosen)) as display,
    ):
        for start in starts:
            batch_rows = slice(start * share, (start + batch_size) * share)
            piece = maps[batch_rows].to(described.device)
            probe = probe_of(described, tensor[start : start + batch_size], piece.targets.view(-1, share), question)
            here = {
                name: value[batch_rows] if isinstance(value, list) else value[batch_rows].to(described.device)
                for name, value in rows.items()
            }
            parts.append(measure(chosen, piece, probe, display, method=again, **here))
    results = [join_results(list(column)) for column in zip(*parts, strict=True)]
    return results if several else results[0]


def measure(
    metrics: Sequence[Metric],
    attribution: Attribution,
    probe: BlackBoxProbe,
    display: ProgressDisplay | None = None,
    /,
    **annotations: Any,
) -> list[MetricResult]:
    """Evaluate several metrics on one batch of maps; a shared memo avoids repeated model evaluations.

    Parameters
    ----------
    metrics
        Metrics to evaluate.
    attribution
        Maps of the batch, one per row of the probe.
    probe
        Model, images and targets of the batch.
    display
        Where every metric is a step.
    **annotations
        Other inputs that metrics may take, by the names in `FIXTURES`: labels, objects, rivals, boxes, method.

    Returns
    -------
    list of MetricResult
        One result per metric, in the same order.
    """
    memo: dict[Any, Any] = {}
    display = display if display is not None and display.is_shown else None
    passes = {} if display is None else count_shared_passes(metrics, attribution.layout)
    results = []
    for metric in metrics:
        if display is not None:
            display.begin_step(describe_cost(metric, passes.get(metric.spec), attribution))
        results.append(metric(attribution, probe=probe, memo=memo, **annotations))
        if display is not None:
            display.end_step()
    return results


def describe_cost(metric: Metric, passes: int | None, attribution: Attribution) -> str:
    """Spec of a metric and, if it runs the model, how often; `passes` as `count_shared_passes` counts them."""
    if passes is None:
        layout = attribution.layout
        stated = evaluate_cost(metric.forwards, {"patches": layout.patches, **metric.settings})
        if stated is None:  # in explanations, or a number that depends on the image
            return f"{metric.spec} ({metric.forwards} for each map)"
        passes = round(stated)
    maps = len(attribution)
    return f"{metric.spec} (about {passes:,} forward passes for each of {maps} maps)" if passes else metric.spec


def find_method(attribution: Attribution, method: str | Method | None) -> Method | None:
    """The method to explain again with: `method` if given, else the attribution's; None if that is not registered."""
    if method is not None:
        return resolve(method)
    try:
        return resolve(attribution.method)
    except SpecError:
        return None


def question_of(attribution: Attribution, method: Method | None, model: BlackBox) -> str:
    """Name of the score function (`question`) of the attribution; "logit" for custom ones."""
    name = attribution.provenance.get(
        "question", "logit" if method is None else method.chosen_question(scalar=model.scalar)
    )
    return name if name in QUESTIONS else "logit"


# ── maps and annotations as they are given: checked, and one entry per row ────────────────────────


def same_images(attribution: Attribution, share: int) -> bool:
    """Whether each `share` consecutive rows are of one image, as far as the images are stored."""
    if share == 1 or attribution.images is None:
        return True
    groups = attribution.images.unflatten(0, (-1, share))
    return bool((groups == groups[:, :1]).all())


def as_attribution(model: BlackBox, images: Tensor, maps: Tensor, target: Any) -> Attribution:
    """Convert a tensor of maps (per patch, patch grid or pixels) to an `Attribution`."""
    layout = model.layout((images.shape[-2], images.shape[-1]))
    targets = class_indices(model, 0 if target is None and model.scalar else target, len(images))
    if targets is None:
        raise ShapeError("maps of your own need target=…, the class that they explain")
    if not isinstance(maps, Tensor) or maps.ndim not in (2, 3) or len(maps) != targets.numel():
        raise ShapeError(
            f"maps are a tensor [{targets.numel()} patches] or [{targets.numel()} H W], one per image and target"
        )
    if maps.is_complex():
        raise ShapeError(f"maps are real numbers, not {maps.dtype}")
    if maps.ndim == 2 and maps.shape[-1] == layout.patches:
        return Attribution(maps, layout, targets.flatten(), "given")
    if maps.ndim == 3 and tuple(maps.shape[1:]) == layout.grid:
        return Attribution(maps.flatten(1), layout, targets.flatten(), "given")
    if maps.ndim == 3 and tuple(maps.shape[1:]) == layout.size:
        sums = patch_sums(maps, layout)
        return Attribution(sums, layout, targets.flatten(), "given", native="pixel", native_pixels=maps)
    patches = (
        "" if not isinstance(model, Network) else f"has {layout.patches} patches on a grid {list(layout.grid)} and "
    )
    raise ShapeError(f"maps are {list(maps.shape)}; the model {patches}sees images {list(layout.size)}")


def as_masks(masks: Any, name: str) -> Int[Tensor, "b H W"]:
    try:
        tensor = torch.as_tensor(masks)
    except (TypeError, ValueError, RuntimeError):
        raise ShapeError(f"{name} must be a tensor or an array [b H W], not {type(masks).__name__!r}") from None
    if tensor.ndim != 3 or tensor.is_floating_point():
        raise ShapeError(f"{name} must be whole numbers or booleans [b H W], not {tensor.dtype} {list(tensor.shape)}")
    if odd := sorted(set(tensor.unique().tolist()) - {-1, 0, 1}):
        raise ShapeError(f"{name} hold the number {odd[0]}; 1 is the object, 0 not, and −1 does not count")
    return tensor.to(torch.int8)


def find_label_indices(model: BlackBox, labels: Any, images: int) -> Int[Tensor, " b"]:
    """Class indices of labels given by index or name, one for all images or one per image; −1 is unknown."""
    labels_list = labels.tolist() if isinstance(labels, Tensor | np.ndarray | np.generic) else labels
    try:
        listed = [labels_list] * images if isinstance(labels_list, str | int) else list(labels_list)
        indices = torch.tensor([class_index(model, label) for label in listed], dtype=torch.long)
    except ShapeError:
        raise
    except (TypeError, ValueError):
        raise ShapeError(f"labels are one class per image, not {labels_list!r}") from None
    if odd := [label for label in indices.tolist() if not -1 <= label < model.outputs]:
        raise ShapeError(f"label {odd[0]} is not a class: the model has 0 to {model.outputs - 1}, and −1 says unknown")
    return indices


def boxes_of_images(boxes: Any) -> list[Tensor | None]:
    """Boxes of every image as tensors [k 4]; None for an image without boxes."""
    if not isinstance(boxes, list | tuple | Tensor | np.ndarray):
        raise ShapeError(f"boxes are a list with a tensor [k 4] or None for every image, not {type(boxes).__name__!r}")
    return [None if image_boxes is None else as_boxes(image_boxes) for image_boxes in boxes]


def as_boxes(boxes: Any) -> Tensor:
    """Boxes of one image as a tensor [k 4]."""
    try:
        tensor = torch.as_tensor(boxes).reshape(-1, 4)
    except (TypeError, ValueError, RuntimeError):
        tensor = None
    if tensor is None or not (tensor[:, :2] <= tensor[:, 2:]).all():
        raise ShapeError(f"boxes of an image are [k 4] as x0 y0 x1 y1, x0 ≤ x1 and y0 ≤ y1, not {boxes!r}")
    return tensor


def spread_over_rows(name: str, value: Any, images: int, share: int) -> Any:
    """One entry per row: entries given per image are repeated for each of its `share` targets."""
    if len(value) == images * share:
        return value
    if len(value) != images:
        raise ShapeError(f"{name} has {len(value)} entries for {images} images")
    if isinstance(value, list):
        return [entry for entry in value for _ in range(share)]
    return value.repeat_interleave(share, 0)


def refuse_unmeasurable(attribution: Attribution, metrics: Sequence[Metric]) -> None:
    """Raise a `SpecError` if a metric has to run the model on a text, or to repeat an explanation that cannot be repeated.

    Metrics of masks or of the map alone work for text targets, too. Not repeatable are a part of an attribution and maps of a
    custom score function (`question`).
    """
    question, part = (attribution.provenance.get(key) for key in ("question", "part"))
    runs_model = [metric.name for metric in metrics if {"probe", "method"} & set(metric.takes)]
    if runs_model and attribution.provenance.get("target") == "text":
        raise SpecError(
            f"metric {runs_model[0]!r} asks the model about classes, and these maps explain a text; metrics of masks and of the map "
            "alone work ('ap', 'pointing_game', 'sparseness'), or give the tower a head whose rows are the texts"
        )
    again = [metric.name for metric in metrics if "method" in metric.takes]
    if again and part is not None:
        raise SpecError(f"metric {again[0]!r} explains again, and this map is a part, {part!r}, of what was explained")
    if again and question is not None and question not in QUESTIONS:
        raise SpecError(
            f"metric {again[0]!r} explains again, and this map answers a question of your own, {question!r}, which it does not hold; "
            f"known: {', '.join(QUESTIONS)}"
        )
