"""Plans by protocol: the metrics, target classes, methods and preprocessing of a paper's evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitreous.bench.plan import PAPER, DataSpec, Evaluation
from vitreous.bench.plan_source import Origin, suggest
from vitreous.core.errors import VitreousError


def settle_protocol(name: Any, checked_entries: Mapping[str, Any], data: DataSpec, origin: Origin) -> Evaluation:
    """What a protocol measures on a dataset.

    These are the columns that the dataset's entry `columns` names, or all columns that it has annotations for; each
    metric measures the maps of the classes that its columns explain.

    Raises
    ------
    SpecError
        If the protocol or a column is unknown, or the dataset has the annotations of none of the columns.
    """
    from vitreous.bench.plan_check import keep_measurable
    from vitreous.metrics.metric import resolve_metric

    paper = find_protocol(name, origin)
    for title in data.columns or ():
        if title not in paper.columns:
            suggestion = suggest(title, list(paper.columns))
            raise origin.wrong(f"protocol {paper.name!r} has no column {title!r}; {suggestion}", "columns", title)
    roles: dict[str, list[str]] = {}
    for title in data.columns or paper.columns:
        column = paper.columns[title]
        own = roles.setdefault(resolve_metric(column.metric).spec, [])
        # the dataset's label is the class of the mask
        role = "label" if column.explained == "mask" else column.explained
        own += [] if role in own else [role]
    metrics = tuple(roles) if data.columns is not None else keep_measurable(tuple(roles), data, origin)
    if not metrics:
        raise origin.wrong(
            f"dataset {data.label!r} has nothing of what protocol {name!r} needs: {', '.join(paper.data)}",
            "protocol",
            name,
        )
    both = {role for metric in metrics for role in roles[metric]}
    targets = both.pop() if len(both) == 1 else "predicted+label"
    return Evaluation(metrics, tuple(tuple(roles[metric]) for metric in metrics), targets, preprocess=paper.preprocess)


def find_protocol(name: Any, origin: Origin) -> Any:
    """Look up a protocol by name; raise `SpecError` if it is unknown."""
    from vitreous.metrics.protocols import protocol

    try:
        return protocol(str(name))
    except VitreousError as problem:
        raise origin.wrong(str(problem), "protocol", name) from None


def list_published_methods(entries: Mapping[str, Any], origin: Origin) -> tuple[str, ...] | None:
    """All methods of the paper's tables if the plan has methods = "protocol", otherwise None."""
    if entries.get("methods") not in (PAPER, [PAPER], (PAPER,)):
        return None
    if entries.get("protocol") is None:
        raise origin.wrong('methods = "protocol" needs a protocol; add protocol = "skipplus"', "methods")
    from vitreous.methods.spec import resolve

    return tuple(dict.fromkeys(resolve(spec).spec for spec in find_protocol(entries["protocol"], origin).methods))
