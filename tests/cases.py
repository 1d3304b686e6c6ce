"""Several cases in one test: every case runs, and each failing one is reported separately."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import wraps
from typing import Any

from _pytest.outcomes import OutcomeException

from tests.shapes import check_shapes


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test function for every case, as `pytest.mark.parametrize` does, within one test.

    Use it for cheap cases of one promise; `--first-case` runs only the first, and shapes are checked in the first unless
    the test is marked `shapes`. Fixtures are made once for all cases, so a test that changes what a fixture gave it
    (`monkeypatch`, `tmp_path`) needs `pytest.mark.parametrize`.

    Parameters
    ----------
    names : str
        Names of the arguments that the cases give, separated by commas.
    cases : iterable
        A value per case, or a tuple of values where there are several names.
    """
    keys = [name.strip() for name in names.split(",")]
    values = [case if len(keys) > 1 else (case,) for case in cases]
    assert values, f"no case for {names}"

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function)
        fixtures = [p for p in signature.parameters.values() if p.name not in keys]

        @wraps(function)
        def run(subtests: Any, request: Any, **given: Any) -> None:
            every_case = request.node.get_closest_marker("shapes") is not None
            for number, value in enumerate(values[:1] if request.config.getoption("first_case") else values):
                case = dict(zip(keys, value, strict=True))
                try:
                    with nullcontext() if number == 0 else check_shapes(every_case):
                        function(**given, **case)
                except (Exception, OutcomeException) as failure:  # cases that pass need no report of their own
                    with subtests.test(**{key: str(part) for key, part in case.items()}):
                        raise failure

        requested = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("subtests", "request")]
        run.__signature__ = signature.replace(parameters=[*requested, *fixtures])  # type: ignore[attr-defined]
        return run

    return decorate
