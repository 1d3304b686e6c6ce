"""Every public object is documented: parameters, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

import vitreous
from vitreous.capture.targets import Target
from vitreous.data.reader import READERS
from vitreous.methods.fold import FOLDS, Fold
from vitreous.methods.method import METHODS
from vitreous.metrics.metric import METRICS
from vitreous.models.model_registry import ADAPTERS, SOURCES

REGISTRIES = (METHODS, METRICS, FOLDS, ADAPTERS, SOURCES, READERS)
BRIDGES = ("captum", "datasets", "fiftyone", "quantus", "shapiq", "training")
MODULES = ["vitreous", *(f"vitreous.{name}" for name in vitreous.MODULES), *(f"vitreous.bridges.{b}" for b in BRIDGES)]


def public_names(module: ModuleType) -> list[str]:
    """Names in `__all__`, else functions and classes of the package without an underscore."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if name != "__version__"]
    own = {name: value for name, value in vars(module).items() if inspect.isfunction(value) or inspect.isclass(value)}
    return [
        name for name, value in own.items() if not name.startswith("_") and value.__module__.startswith(module.__name__)
    ]


def public_objects() -> dict[str, Any]:
    """Functions and classes by their full name; each one once."""
    objects: dict[str, Any] = {}
    for module in map(import_module, MODULES):
        for name in public_names(module):
            value = getattr(module, name)
            value = value.function if isinstance(value, Fold) else value
            if (inspect.isfunction(value) or inspect.isclass(value)) and value not in objects.values():
                objects[f"{module.__name__}.{name}"] = value
    return objects


OBJECTS = public_objects()


def public_methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that the class introduces, and not a base class or an interface; without old names."""
    for name, value in vars(cls).items():
        function = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
        introduced = not any(inspect.getdoc(getattr(base, name, None)) for base in (*cls.__mro__[1:], Target))
        deprecated = (value.__doc__ or "").startswith("Deprecated")
        if inspect.isfunction(function) and not name.startswith("_") and introduced and not deprecated:
            yield name, value


def undocumented(value: Any, docstring: str) -> list[str]:
    """Public parameters that no entry of the docstring names."""
    names = [
        name
        for name in inspect.signature(value).parameters
        if name not in ("self", "cls", "args", "kwargs") and not name.startswith("_")
    ]
    entries = re.findall(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)$", docstring, flags=re.MULTILINE)
    documented = {name.strip("* ") for entry in entries for name in entry.split(",")}
    return [name for name in names if name not in documented]


@pytest.mark.parametrize("name", OBJECTS)
def test_the_example_of_a_public_object_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = [set(registry) for registry in REGISTRIES]
    value = OBJECTS[name]
    docstrings = [inspect.getdoc(value) or ""]
    if inspect.isclass(value):
        methods = [getattr(method, "__func__", method) for _, method in public_methods(value)]
        docstrings += [inspect.getdoc(method) or "" for method in methods]
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    try:
        for docstring in docstrings:
            runner.run(doctest.DocTestParser().get_doctest(docstring, {}, name, None, None), out=report.append)
    finally:
        for registry, names in zip(REGISTRIES, before, strict=True):
            for added in set(registry) - names:
                registry.discard(added)

    assert ">>>" in docstrings[0], f"{name} has no example"
    assert not report, "".join(report)


def test_parameters_of_public_functions_and_classes_are_documented():
    missing = {}
    for name, value in OBJECTS.items():
        inherited = value.__mro__ if inspect.isclass(value) else [value]
        docstring = "\n".join(inspect.getdoc(documented) or "" for documented in inherited)
        if not (inspect.isclass(value) and issubclass(value, BaseException)) and (
            names := undocumented(value, docstring)
        ):
            missing[name] = names

    assert missing == {}


def test_public_methods_are_documented_and_used_in_an_example():
    missing = []
    for name, cls in OBJECTS.items():
        if not inspect.isclass(cls) or issubclass(cls, BaseException):
            continue
        for method_name, method in public_methods(cls):
            function = getattr(method, "__func__", method)
            docstring = inspect.getdoc(function) or ""
            if not docstring:
                missing.append(f"{name}.{method_name} has no docstring")
            if isinstance(method, property) or not inspect.isfunction(function):
                continue
            if not re.search(rf">>>.*\.{method_name}\(", (inspect.getdoc(cls) or "") + docstring):
                missing.append(f"{name}.{method_name} is in no example")
            if names := undocumented(function, docstring):
                missing.append(f"{name}.{method_name} does not describe {', '.join(names)}")

    assert not missing, "\n".join(missing)
