"""Which stored results are computed again on request."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING

from vitreous.core.errors import SpecError

if TYPE_CHECKING:
    from vitreous.bench.plan import Plan


def list_metrics(plan: Plan) -> tuple[str, ...]:
    """Canonical specs of the metrics of all datasets of a plan."""
    return tuple(dict.fromkeys(spec for evaluation in plan.evaluations for spec in evaluation.metrics))


def find_specs(patterns: Sequence[str], *specs: Sequence[str]) -> tuple[str, ...]:
    """Specs that one of the patterns matches, as a whole or by the name that they begin with.

    Parameters
    ----------
    patterns
        Specs, names, or shell patterns of these; a spec is also matched as it is written.
    *specs
        Canonical specs of a plan's methods and metrics.

    Raises
    ------
    SpecError
        If a pattern matches nothing.

    Examples
    --------
    >>> find_specs(["gen*", "insertion"], ["genatt", "random"], ["insertion(steps=28)"])
    ('genatt', 'insertion(steps=28)')
    """
    known = list(chain.from_iterable(specs))
    specs_found: dict[str, None] = {}
    for pattern in patterns:
        matches = [
            spec for spec in known if spec == pattern or any(fnmatchcase(name, pattern) for name in names_of(spec))
        ]
        if not matches:
            raise SpecError(
                f"--recompute {pattern!r} is none of the methods and metrics of this run: {', '.join(known)}"
            )
        specs_found |= dict.fromkeys(matches)
    return tuple(specs_found)


def names_of(spec: str) -> tuple[str, str]:
    """A spec, and its name without options, linearisation and fold."""
    name = spec
    for mark in "(@+":
        name = name.partition(mark)[0]
    return spec, name
