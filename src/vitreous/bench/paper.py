"""A plan in the words of a paper: its metrics, whose maps they measure, its methods, its way to see pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.bench.origin import Origin
from vitreous.bench.plan import PAPER, DataSpec
from vitreous.core.errors import VitreousError


def of_protocol(
    name: Any, given: Mapping[str, Any], origin: Origin, datasets: Sequence[DataSpec]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A paper's metrics, as far as the data can serve them, each with the class whose maps it measures."""
    from vitreous.bench.check import served
    from vitreous.metrics.metric import resolve_metric

    paper = published(name, origin)
    roles: dict[str, list[str]] = {}
    for column in paper.columns.values():
        own = roles.setdefault(resolve_metric(column.metric).spec, [])
        role = "label" if column.explained == "mask" else column.explained  # the reader's label is the mask's class
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
    from vitreous.metrics.protocols import protocol

    try:
        return protocol(str(name))
    except VitreousError as problem:
        raise origin.wrong(str(problem), "protocol", name) from None


def published_methods(given: Mapping[str, Any], origin: Origin) -> tuple[str, ...] | None:
    """With methods = "protocol", every row of the paper's tables."""
    if given.get("methods") not in (PAPER, [PAPER], (PAPER,)):
        return None
    if given.get("protocol") is None:
        raise origin.wrong('methods = "protocol" needs a protocol; add protocol = "skipplus"', "methods")
    from vitreous.methods.spec import resolve

    return tuple(dict.fromkeys(resolve(spec).spec for spec in published(given["protocol"], origin).methods))
