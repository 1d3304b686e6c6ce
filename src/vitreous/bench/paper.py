"""Plans by protocol: the metrics, target classes, methods and preprocessing of a paper's evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.bench.origin import Origin
from vitreous.bench.plan import PAPER, DataSpec
from vitreous.core.errors import VitreousError


def of_protocol(
    name: Any, given: Mapping[str, Any], origin: Origin, datasets: Sequence[DataSpec]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Metrics of a protocol that the datasets have annotations for, and the plan entries that the protocol sets.

    The entries are `protocol`, `targets`, `preprocess` and, unless the plan sets other targets, `roles`: for every
    metric the classes whose maps it measures.

    Raises
    ------
    SpecError
        If the protocol is unknown, or none of its metrics can be computed on the datasets.
    """
    from vitreous.bench.check import served
    from vitreous.metrics.metric import resolve_metric

    paper = published(name, origin)
    roles: dict[str, list[str]] = {}
    for column in paper.columns.values():
        own = roles.setdefault(resolve_metric(column.metric).spec, [])
        # the dataset's label is the class of the mask
        role = "label" if column.explained == "mask" else column.explained
        own += [] if role in own else [role]
    metrics = served(tuple(roles), datasets, origin)
    if not metrics:
        raise origin.wrong(
            f"no data set here has what protocol {name!r} needs: {', '.join(paper.data)}", "protocol", name
        )
    both = {role for metric in metrics for role in roles[metric]}
    targets = both.pop() if len(both) == 1 else "predicted+label"
    chosen = {"protocol": paper.name, "targets": targets, "preprocess": paper.preprocess}
    if given.get("targets", targets) == targets:
        chosen["roles"] = tuple(tuple(roles[metric]) for metric in metrics)
    return metrics, chosen


def published(name: Any, origin: Origin) -> Any:
    """Look up a protocol by name; raise `SpecError` if it is unknown."""
    from vitreous.metrics.protocols import protocol

    try:
        return protocol(str(name))
    except VitreousError as problem:
        raise origin.wrong(str(problem), "protocol", name) from None


def published_methods(given: Mapping[str, Any], origin: Origin) -> tuple[str, ...] | None:
    """All methods of the paper's tables if the plan has methods = "protocol", otherwise None."""
    if given.get("methods") not in (PAPER, [PAPER], (PAPER,)):
        return None
    if given.get("protocol") is None:
        raise origin.wrong('methods = "protocol" needs a protocol; add protocol = "skipplus"', "methods")
    from vitreous.methods.spec import resolve

    return tuple(dict.fromkeys(resolve(spec).spec for spec in published(given["protocol"], origin).methods))
