"""Validate a plan before anything is computed: models, datasets, device, targets and metrics exist and fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import torch

from vitreous.bench.plan import DataSpec, Evaluation, Plan
from vitreous.bench.plan_source import FLAGS, Origin
from vitreous.bench.work_cells import chosen, opened
from vitreous.capture.targets import class_indices
from vitreous.core.errors import DataError, SpecError, VitreousError
from vitreous.data import Dataset, Sample
from vitreous.metrics.metric import METRICS, Metric, resolve_metric
from vitreous.models.model import BlackBox

LOOK = 16  # images read to find out which annotations a dataset has
OFFERS = {"labels": "label", "objects": "mask", "boxes": "boxes", "rivals": "rivals"}
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
    from vitreous.bench.pool import devices
    from vitreous.bench.worker_job import loaded

    origin = Origin(plan.source, plan.text, FLAGS)
    for data, evaluation in zip(plan.datasets, plan.evaluations, strict=True):
        check_data(data, evaluation, origin)
    try:
        device = devices(plan)[0]
        torch.empty(0, device=device)
    except VitreousError as problem:
        raise origin.wrong(str(problem), "device") from None
    except (RuntimeError, AssertionError) as problem:
        said = str(problem).strip().splitlines()[0]
        raise origin.wrong(f"device {plan.device!r} is not available here ({said}); 'cpu' is", "device") from None
    notes = [left_out(plan)]
    for model in plan.models:
        try:
            vit = loaded(model, plan.precision, device).vit
        except VitreousError as problem:
            raise origin.wrong(str(problem) + checkpoint_hint(plan, model.label), "models", model.name) from None
        if vit.preprocess is None:
            raise origin.wrong(f"model {model.name!r} does not say how images are prepared", "models", model.name)
        check_classes(plan, vit, origin)
        notes += [
            strangers(vit, model.label, data) for data in plan.datasets if not data.models or model.label in data.models
        ]
    return [note for note in notes if note]


def checkpoint_hint(plan: Plan, label: str) -> str:
    """The flag of `vitreous reproduce` that gives local weights of a model; an empty string for other plans."""
    if not plan.reproduces:
        return ""
    from vitreous.bench.reproduce import reproduction

    models = reproduction(plan.reproduces).models
    key = next((key for key, entry in models.items() if entry["label"] == label), None)
    return f"; here: --checkpoint {key}=FILE, or --models {key}=NAME for another model" if key else ""


def check_classes(plan: Plan, vit: BlackBox, origin: Origin) -> None:
    """Raise `SpecError` if the plan names target classes that the model does not have."""
    for targets in dict.fromkeys(evaluation.targets for evaluation in plan.evaluations):
        if isinstance(targets, tuple):
            try:
                class_indices(vit, [list(targets)], 1)
            except VitreousError as problem:
                raise origin.wrong(f"{vit.name}: {problem}", "targets") from None


def left_out(plan: Plan) -> str:
    """Note on the metrics of the protocol that no dataset has annotations for, or an empty string.

    Columns that a dataset's entry leaves out on purpose are not noted.
    """
    if plan.protocol is None or any(data.columns is not None for data in plan.datasets):
        return ""
    from vitreous.metrics.protocols import protocol

    columns = protocol(plan.protocol).columns
    lost = [name for name, column in columns.items() if resolve_metric(column.metric).spec not in plan.metrics]
    return (
        f"of protocol {plan.protocol}, {', '.join(lost)} are left out: the data has not what they need" if lost else ""
    )


def check_data(data: DataSpec, evaluation: Evaluation, origin: Origin) -> None:
    """Raise `SpecError` if a dataset cannot be used.

    It must be readable, have as many images as the plan asks for, and have the annotations that metrics and targets
    need.
    """
    dataset = looked_at(data, origin)
    try:
        chosen(data, evaluation)
    except SpecError as problem:
        raise origin.wrong(str(problem), "pictures") from None
    except DataError as problem:
        raise origin.wrong(str(problem), "subset", data.subset) from None
    has = offers(dataset, data, origin)
    for spec in evaluation.metrics:
        if lacking := lacks(resolve_metric(spec), has):
            raise origin.wrong(
                f"metric {spec!r} needs {lacking}, and dataset {data.label!r} has none; leave it out, or take data that has them",
                "metrics",
                spec,
            )
    for word, need in (("label", "labels"), ("predicted+label", "labels"), ("pair", "rivals")):
        if evaluation.targets == word and need not in has:
            raise origin.wrong(
                f'targets = "{word}" needs {WORDS[need]}, and dataset {data.label!r} has none; "predicted" would work',
                "targets",
            )


def strangers(vit: BlackBox, label: str, data: DataSpec) -> str:
    """Note that dataset and model class names differ, so that labels may not match; an empty string if they agree."""
    own, theirs = vit.classes, opened(data).classes
    if own is None or theirs is None or [name.lower() for name in own] == [name.lower() for name in theirs]:
        return ""
    return f"the classes of {data.label} ({theirs[0]}, …) are not those of {label} ({own[0]}, …); labels are counted as they are"


def looked_at(data: DataSpec, origin: Origin) -> Dataset:
    """Open a dataset; raise `SpecError` if it cannot be opened or has no images."""
    try:
        dataset = opened(data)
    except VitreousError as problem:
        raise origin.wrong(str(problem), "datasets", data.spec) from None
    if not len(dataset):
        raise origin.wrong(f"dataset {data.label!r} holds no image", "datasets", data.spec)
    return dataset


def offers(dataset: Dataset, data: DataSpec, origin: Origin) -> set[str]:
    """Names of the annotations that at least one of the first `LOOK` readable images has."""
    found: set[str] = set()
    read = 0
    for sample in islice(readable(dataset), LOOK):
        read += 1
        found |= {name for name, attribute in OFFERS.items() if has(getattr(sample, attribute))}
        found |= {"labels"} if sample.cover is not None else set()
    if not read:
        raise origin.wrong(
            f"none of the first {LOOK} images of dataset {data.label!r} can be read", "datasets", data.spec
        )
    return found


def has(value: object) -> bool:
    return value is not None and not (isinstance(value, Mapping) and not value)


def readable(dataset: Dataset) -> Iterator[Sample]:
    for place in range(min(len(dataset), LOOK)):
        try:
            yield dataset[place]
        except DataError:
            continue


def lacks(metric: Metric, has: set[str]) -> str:
    """Annotations that a metric needs and the dataset lacks, in words; an empty string if there are none."""
    needs = list(metric.needs)
    if "label" in (metric.settings.get("judge"), metric.settings.get("track")):
        needs.append("labels")  # the class whose accuracy or probability is measured
    missing = [WORDS[one] for one in needs if one in OFFERS and one not in has]
    either = [one for one in ("objects", "boxes") if one in metric.takes and one not in metric.needs]
    if either and not missing and not has & set(either):
        missing = [" or ".join(WORDS[one] for one in either)]
    return " and ".join(missing)


def list_metrics_for(data: DataSpec, origin: Origin) -> tuple[str, ...]:
    """All registered metrics that can be computed on a dataset."""
    from vitreous.metrics import load_all

    load_all()
    return keep_served(sorted(METRICS), data, origin)


def keep_served(metrics: Sequence[str], data: DataSpec, origin: Origin) -> tuple[str, ...]:
    """The metrics among `metrics` that a dataset has annotations for."""
    has = offers(looked_at(data, origin), data, origin)
    return tuple(spec for spec in metrics if not lacks(resolve_metric(spec), has))
