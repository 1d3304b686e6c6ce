"""Every public object has an example in its docstring, and the examples run."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

import vitreous
from vitreous.methods.fold import FOLDS, Fold
from vitreous.methods.method import METHODS
from vitreous.metrics.metric import METRICS
from vitreous.models.model_registry import ADAPTERS, SOURCES

REGISTRIES = (METHODS, METRICS, FOLDS, ADAPTERS, SOURCES)
OBJECTS = [name for name in vitreous.__all__ if name != "__version__"]
OBJECTS = [name for name in OBJECTS if not isinstance(getattr(vitreous, name), ModuleType)]


def docstring(name: str) -> str:
    value = getattr(vitreous, name)
    return (value.function if isinstance(value, Fold) else value).__doc__ or ""


@pytest.mark.parametrize("name", OBJECTS)
def test_the_example_of_a_public_object_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for list_all in (vitreous.list_methods, vitreous.list_metrics, vitreous.list_models):
        list_all()  # registers what belongs to the package
    before = [set(registry) for registry in REGISTRIES]
    test = doctest.DocTestParser().get_doctest(docstring(name), {}, name, None, None)
    assert test.examples, f"vitreous.{name} has no example"
    report: list[str] = []
    try:
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test, out=report.append)
    finally:
        for registry, known in zip(REGISTRIES, before, strict=True):
            for added in set(registry) - known:
                registry.discard(added)

    assert not report, "".join(report)
