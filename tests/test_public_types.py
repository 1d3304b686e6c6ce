"""Keywords of the public decorators; `make pyright` checks a program that uses the library, `tests/typed_program.py`."""

from __future__ import annotations

from dataclasses import MISSING, fields

import vitreous
from tests.cases import each
from vitreous.methods.recipe import Facts, LayerNeeds, LayerSignal, RecipeKeywords
from vitreous.metrics.metric import Metric, MetricKeywords


def test_keywords_of_a_method_are_the_fields_of_its_parts():
    keywords = RecipeKeywords.__annotations__
    required = {field.name for field in fields(Facts) if field.default is field.default_factory is MISSING}

    assert {name for name, hint in keywords.items() if hint.__forward_arg__.startswith("Required")} == required
    assert keywords.keys() == {
        *(field.name for part in (Facts, LayerNeeds) for field in fields(part)),
        *(field.name for field in fields(LayerSignal) if field.name not in ("signal", "fold", "needs")),
    }


@each("name", vitreous.MODULES)
def test_a_public_module_lists_its_own_names_and_no_imports(name):
    module = getattr(vitreous, name)

    assert dir(module) == sorted(module.__all__)
    for public in module.__all__:
        assert getattr(getattr(module, public), "__module__", "vitreous.").startswith("vitreous."), public


def test_keywords_of_a_metric_are_its_fields_with_a_default():
    optional = {field.name for field in fields(Metric) if not field.default is field.default_factory is MISSING}

    assert MetricKeywords.__annotations__.keys() == optional
