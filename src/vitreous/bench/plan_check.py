"""Validate a plan before anything is computed: models, datasets, device, targets and metrics exist and fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from vitreous.bench.model_options import LoadedModel, load_cached
from vitreous.bench.plan import DataSpec, Evaluation, ModelSpec, Plan, Targets
from vitreous.bench.plan_source import FLAGS, Origin
from vitreous.bench.work_cells import choose_places, open_cached
from vitreous.capture.targets import class_indices
from vitreous.core.errors import DataError, SpecError, VitreousError
from vitreous.data import Sample
from vitreous.metrics.metric import METRICS, Metric, resolve_metric
from vitreous.models.model import BlackBox

LOOK = 16  # images read to find out which annotations a dataset has
WORDS = {"labels": "labels", "objects": "masks", "boxes": "boxes", "rivals": "masks of a second class"}


def check(plan: Plan) -> list[str]:
    """Load the models and open the datasets of a plan without computing anything.

    Returns
    -------
    list of str
        Notes for the user that do not prevent the run.

    Raises
    ------
    SpecError
        If the plan cannot run; the message is one sentence and names the line or the flag.
    """
    from vitreous.bench.pool import list_devices

    origin = Origin(plan.source, plan.text, FLAGS)
    for data, evaluation in zip(plan.datasets, plan.evaluations, strict=True):
        check_data(data, evaluation, origin)
    with origin.blame("device"):
        device = list_devices(plan)[0]
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as problem:
            message = str(problem).strip().splitlines()[0]
            raise SpecError(f"device {plan.device!r} is not available here ({message}); 'cpu' is") from None
    notes = [note_left_out(plan)]
    targets = dict.fromkeys(evaluation.targets for evaluation in plan.evaluations)
    for model in plan.models:
        vit = check_model(model, plan.precision, device, targets, origin, suggest_checkpoint(plan, model.label)).vit
        notes += [
            note_other_classes(vit, model.label, open_cached(data).classes, data.label)
            for data in plan.datasets
            if not data.models or model.label in data.models
        ]
    return [note for note in notes if note]


def check_model(
    model: ModelSpec, precision: str, device: str, targets: Iterable[Targets], origin: Origin, advice: str = ""
) -> LoadedModel:
    """Load a model.

    Raises
    ------
    SpecError
        If it cannot be loaded (`advice` follows the reason), does not say how images are prepared, or does not have
        classes among the targets.
    """
    try:
        loaded = load_cached(model, precision, device)
    except VitreousError as problem:
        raise origin.wrong(str(problem) + advice, "models", model.name) from None
    if loaded.vit.preprocess is None:
        raise origin.wrong(
            f"model {model.name!r} does not say how images are prepared; give its mean and std", "models", model.name
        )
    for classes in targets:
        if isinstance(classes, tuple):
            try:
                class_indices(loaded.vit, [list(classes)], 1)
            except VitreousError as problem:
                raise origin.wrong(f"{loaded.vit.name}: {problem}", "targets") from None
    return loaded


def suggest_checkpoint(plan: Plan, label: str) -> str:
    """The flag of `vitreous reproduce` that gives local weights of a model; an empty string for other plans."""
    if not plan.reproduces:
        return ""
    from vitreous.bench.reproduce import find_reproduction
    from vitreous.metrics.published import published_label

    models = find_reproduction(plan.reproduces).models
    key = next((key for key, entry in models.items() if entry["label"] == published_label(label)), None)
    return f"; here: --checkpoint {key}=FILE, or --models {key}=NAME for another model" if key else ""


def note_left_out(plan: Plan) -> str:
    """Note on the metrics of the protocol that no dataset has annotations for, or an empty string.

    Columns that a dataset's entry leaves out on purpose are not noted.
    """
    if plan.protocol is None or any(data.columns is not None for data in plan.datasets):
        return ""
    from vitreous.metrics.protocols import protocol

    columns = protocol(plan.protocol).columns
    missing = [name for name, column in columns.items() if resolve_metric(column.metric).spec not in plan.metrics]
    if not missing:
        return ""
    return f"of protocol {plan.protocol}, {', '.join(missing)} are left out: the data has not what they need"


def check_data(data: DataSpec, evaluation: Evaluation, origin: Origin) -> None:
    """Raise `SpecError` if a dataset cannot be used.

    It must be readable, have as many images as the plan asks for, and have the annotations that metrics and targets
    need.
    """
    annotations = list_annotations(data, origin)
    try:
        choose_places(data, evaluation)
    except SpecError as problem:
        raise origin.wrong(str(problem), "images") from None
    except DataError as problem:
        raise origin.wrong(str(problem), "subset", data.subset) from None
    for spec in evaluation.metrics:
        if lacking := describe_missing(resolve_metric(spec), annotations):
            raise origin.wrong(
                f"metric {spec!r} needs {lacking}, and dataset {data.label!r} has none; leave it out, or take data that has them",
                "metrics",
                spec,
            )
    need = {"label": "labels", "predicted+label": "labels", "pair": "rivals"}.get(str(evaluation.targets))
    if need is not None and need not in annotations:
        raise make_target_error(evaluation.targets, WORDS[need], data.label, origin)


def make_target_error(targets: Targets, need: str, dataset: str, origin: Origin) -> SpecError:
    """Error of targets that need annotations which a dataset does not have."""
    sentence = f'targets = "{targets}" needs {need}, and dataset {dataset!r} has none; "predicted" would work'
    return origin.wrong(sentence, "targets")


def note_other_classes(model: BlackBox, label: str, classes: tuple[str, ...] | None, dataset: str) -> str:
    """Note that dataset and model class names differ, so that labels may not match; an empty string if they agree."""
    if not (model.classes and classes) or [*map(str.lower, model.classes)] == [*map(str.lower, classes)]:
        return ""
    return f"the classes of {dataset} ({classes[0]}, …) are not those of {label} ({model.classes[0]}, …); labels are counted as they are"


def list_annotations(data: DataSpec, origin: Origin) -> set[str]:
    """Names of the annotations that at least one of the first `LOOK` images of a dataset has.

    Raises
    ------
    SpecError
        If the dataset cannot be opened, or has no images, or none of these can be read.
    """
    with origin.blame("datasets", data.spec):
        dataset = open_cached(data)
        if not len(dataset):
            raise DataError(f"dataset {data.label!r} holds no image")
        annotations = find_annotations(partial(dataset.__getitem__, place) for place in range(min(len(dataset), LOOK)))
        if annotations is None:
            raise DataError(f"none of the first {LOOK} images of dataset {data.label!r} can be read")
    return annotations


def find_annotations(readers: Iterable[Callable[[], Sample]]) -> set[str] | None:
    """Names of the annotations that at least one of some images has; None if no image can be read."""
    annotations: set[str] | None = None
    for read in readers:
        try:
            sample = read()
        except DataError:
            continue
        label = sample.label if sample.cover is None else sample.cover
        values = {"labels": label, "objects": sample.mask, "boxes": sample.boxes, "rivals": sample.rivals or None}
        annotations = (annotations or set()) | {name for name, value in values.items() if value is not None}
    return annotations


def describe_missing(metric: Metric, annotations: set[str]) -> str:
    """Annotations that a metric needs and the dataset lacks, in words; an empty string if there are none."""
    needs = list(metric.needs)
    if "label" in (metric.settings.get("judge"), metric.settings.get("track")):
        needs.append("labels")  # the class whose accuracy or probability is measured
    missing = [WORDS[name] for name in needs if name in WORDS and name not in annotations]
    optional = [name for name in ("objects", "boxes") if name in metric.takes and name not in metric.needs]
    if optional and not missing and not annotations & set(optional):
        missing = [" or ".join(WORDS[name] for name in optional)]
    return " and ".join(missing)


def list_metrics_for(data: DataSpec, origin: Origin) -> tuple[str, ...]:
    """All registered metrics that can be computed on a dataset."""
    return keep_measurable(sorted(METRICS), data, origin)


def keep_measurable(metrics: Sequence[str], data: DataSpec, origin: Origin) -> tuple[str, ...]:
    """The metrics among `metrics` that a dataset has annotations for."""
    annotations = list_annotations(data, origin)
    return tuple(spec for spec in metrics if not describe_missing(resolve_metric(spec), annotations))
