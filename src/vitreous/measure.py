"""Public entry points for measuring attributions: `evaluate` and `list_metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from vitreous.arguments import as_images, check_batch_size, with_known_outputs
from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.precision import computing, effective_precision
from vitreous.capture.probe import probe_of
from vitreous.capture.score_function import QUESTIONS
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import Method
from vitreous.methods.spec import resolve
from vitreous.metric_inputs import (
    as_attribution,
    boxes_of_images,
    check_masks,
    find_label_indices,
    refuse_texts,
    refuse_unrepeatable,
    same_images,
    spread_over_rows,
)
from vitreous.metrics.metric import METRICS, Metric, resolve_metric
from vitreous.metrics.metric_result import MetricResult, join_results
from vitreous.models.eval_mode import evaluating
from vitreous.models.model import BlackBox, Network
from vitreous.models.outputs import with_score
from vitreous.wrapping import load, wrap


@overload
def evaluate(
    model: Any, images: Any, attribution: Attribution | Tensor, metric: str | Metric = ..., **inputs: Any
) -> MetricResult: ...
@overload
def evaluate(
    model: Any, images: Any, attribution: Attribution | Tensor, metric: list[str | Metric], **inputs: Any
) -> list[MetricResult]: ...
def evaluate(
    model: Any,
    images: Any,
    attribution: Attribution | Tensor,
    metric: str | Metric | list[str | Metric] = "deletion_aopc",
    *,
    target: Any = None,
    labels: Any = None,
    objects: Tensor | None = None,
    rivals: Tensor | None = None,
    boxes: Sequence[Any] | None = None,
    method: str | Method | None = None,
    score: Any = None,
    batch_size: int = 32,
    precision: str | None = None,
    **options: Any,
) -> MetricResult | list[MetricResult]:
    """Score attributions with one metric, or with several that share their model evaluations.

    Parameters
    ----------
    model
        A loaded `ViT`, a module, or a model name.
    images
        The explained images in any form that `explain` accepts; None for the images stored in the attribution.
    attribution
        The result of `explain`, or a tensor of maps [b p] (patches), [b rows columns] (patch grid) or [b H W] (pixels).
        A tensor needs `target`. With k targets per image there are b·k maps.
    metric
        A metric spec such as "deletion_aopc" or "insertion(steps=28)", a `Metric`, or a list of these.
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
    **options
        Options of the metric. Options of several metrics are part of their specs.

    Returns
    -------
    MetricResult or list of MetricResult
        A list if `metric` is a list. Results have one score per map, NaN where the metric is undefined.

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
    several = isinstance(metric, list)
    if several and options:
        raise SpecError("options of several metrics are written into their specs: 'insertion(steps=28)'")
    check_batch_size(batch_size)
    chosen = [resolve_metric(spec, **options) for spec in (metric if several else [metric])]
    opaque = isinstance(attribution, Attribution) and attribution.patches is None
    vit = (
        model
        if isinstance(model, BlackBox)
        else load(model)
        if isinstance(model, str)
        else wrap_for_maps(model, opaque, attribution)
    )
    vit = vit if score is None else with_score(vit, score)
    if isinstance(vit, Network) and vit.clip is not None:
        raise ModelError(
            f"metrics compare maps with images, and {vit.name!r} takes clips; explain, .maps() and .plot() work on clips"
        )
    _, tensor = as_images(
        vit, attribution.images if images is None and isinstance(attribution, Attribution) else images
    )
    vit = with_known_outputs(vit, tensor)
    effective = effective_precision(precision, vit, "tf32")
    maps = attribution if isinstance(attribution, Attribution) else as_attribution(vit, tensor, attribution, target)
    refuse_texts(maps, chosen)
    refuse_unrepeatable(maps, chosen)
    if images is None and isinstance(attribution, Attribution):  # a stored attribution has one image per row
        share = 1
    elif len(maps) % len(tensor) or not same_images(maps, len(maps) // len(tensor)):
        raise ShapeError(f"there are {len(maps)} maps of {len(tensor)} images")
    else:
        share = len(maps) // len(tensor)
    annotations = {
        "labels": None if labels is None else find_label_indices(vit, labels, len(tensor)),
        "objects": check_masks(objects, "objects"),
        "rivals": check_masks(rivals, "rivals"),
        "boxes": boxes_of_images(boxes),
    }
    rows = {
        name: spread_over_rows(name, value, len(tensor), share)
        for name, value in annotations.items()
        if value is not None
    }
    again = find_method(maps, method)
    parts: list[list[MetricResult]] = []
    with torch.inference_mode(False), evaluating(vit.module), computing(effective, vit.device):
        for start in range(0, len(tensor), batch_size):
            batch_rows = slice(start * share, (start + batch_size) * share)
            piece = maps[batch_rows].to(vit.device)
            probe = probe_of(
                vit, tensor[start : start + batch_size], piece.targets.view(-1, share), question_of(maps, again, vit)
            )
            here = {
                name: value[batch_rows] if isinstance(value, list) else value[batch_rows].to(vit.device)
                for name, value in rows.items()
            }
            parts.append(measure(chosen, piece, probe, method=again, **here))
    results = [join_results(list(column)) for column in zip(*parts, strict=True)]
    return results if several else results[0]


def wrap_for_maps(model: Any, opaque: bool, attribution: Any) -> BlackBox:
    size = attribution.layout.size if isinstance(attribution, Attribution) else None
    try:
        return wrap(model, black_box=opaque, size=size)
    except ModelError as problem:
        raise ModelError(
            f"{problem}; as a black box it is measured after vitreous.wrap(model, black_box=True)"
        ) from None


def measure(
    metrics: Sequence[Metric], attribution: Attribution, probe: BlackBoxProbe, **annotations: Any
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
    **annotations
        Other inputs that metrics may take, by the names in `FIXTURES`: labels, objects, rivals, boxes, method.

    Returns
    -------
    list of MetricResult
        One result per metric, in the same order.
    """
    memo: dict[Any, Any] = {}
    return [metric(attribution, probe=probe, memo=memo, **annotations) for metric in metrics]


def find_method(attribution: Attribution, method: str | Method | None) -> Method | None:
    """The method to explain again with: `method` if given, else the attribution's; None if that is not registered."""
    if method is not None:
        return resolve(method)
    try:
        return resolve(attribution.method)
    except SpecError:
        return None


def question_of(attribution: Attribution, method: Method | None, vit: BlackBox) -> str:
    """Name of the score function (`question`) of the attribution; "logit" for custom ones."""
    name = attribution.provenance.get(
        "question", "logit" if method is None else method.chosen_question(scalar=vit.scalar)
    )
    return name if name in QUESTIONS else "logit"


def list_metrics() -> list[dict[str, Any]]:
    """List every registered metric.

    Returns
    -------
    list of dict
        Name, title, family, options and other declared properties of each metric, sorted by name.

    Examples
    --------
    >>> import vitreous
    >>> "pointing_game" in [metric["name"] for metric in vitreous.list_metrics()]
    True
    """
    from vitreous.catalogue import metric_facts
    from vitreous.metrics import load_all

    load_all()
    return [metric_facts(METRICS[name]) for name in sorted(METRICS)]
