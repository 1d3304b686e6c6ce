"""Which code computes the rows of a plan: text for keys, for fingerprints of cells and for provenance."""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn

from vitreous.capture.operation_registry import RULES
from vitreous.capture.score_function import resolve_score_function
from vitreous.core.code_identity import CodeIdentity, identify_code, identify_library
from vitreous.core.plugins import find_plugin
from vitreous.data.reader import READERS, expand_path, recognise, split_spec
from vitreous.data.remote import is_uri
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import resolve_metric
from vitreous.models.model_registry import ADAPTERS, SOURCES, find_source

if TYPE_CHECKING:
    from vitreous.bench.plan import Plan


def format_code(**parts: tuple[CodeIdentity, ...]) -> str:
    """JSON text of the library's identity, and of the identities of other code by what it computes."""
    others = {part: [str(identity) for identity in identities] for part, identities in parts.items() if identities}
    return json.dumps({"vitreous": identify_library(), **others}, ensure_ascii=False)


def identify_model(name: str) -> tuple[CodeIdentity, ...]:
    """Code by which a model may be built and described, as far as it is known before the model is built."""
    return identify_code(find_builder(name), [ADAPTERS[known] for known in ADAPTERS], RULES)


def find_builder(name: str) -> Any:
    """What builds a model: the function of its source, or what a module of the user calls by this name."""
    source, own_name = find_source(name)
    module = find_own_module(name)
    if module is None:
        return source.create
    builder = getattr(module, own_name, None)
    return type(builder) if isinstance(builder, nn.Module) else builder


def find_own_module(name: str) -> ModuleType | None:
    """The module of the user that a model's name begins with, where no source has that name; else None."""
    prefix = name.partition(":")[0]
    return find_plugin(prefix) if SOURCES.find(prefix) is None else None


def identify_module(name: str, module: Any) -> tuple[CodeIdentity, ...]:
    """Code by which a model is built, described and run: of its source, its classes, adapters that match, and rules."""
    parts = [*module.modules()] if isinstance(module, nn.Module) else [module]
    matching = [adapter for adapter in map(ADAPTERS.__getitem__, ADAPTERS) if any(map(adapter.matches, parts))]
    classes = {type(part) for part in parts} if isinstance(module, nn.Module) else parts
    return identify_code(find_builder(name), matching, RULES, classes)


def identify_reader(spec: str) -> tuple[CodeIdentity, ...]:
    """Code of the reader of a dataset."""
    if is_uri(spec):
        return ()
    kind, place, _ = split_spec(spec)
    if is_uri(place):
        return ()
    kind, place = ("", f"assets:{place}") if kind == "assets" else (kind, place)
    return identify_code(READERS[kind or recognise(expand_path(place))].read)


def identify_score(question: Any) -> tuple[CodeIdentity, ...]:
    """Code of a score function."""
    return () if question is None else identify_code(resolve_score_function(question))


def format_plan_code(plan: Plan) -> str:
    """JSON text of all code that computes the rows of a plan, as far as it is known before its models are built."""
    metrics = dict.fromkeys(spec for evaluation in plan.evaluations for spec in evaluation.metrics)
    methods = [resolve(spec) for spec in plan.methods]
    questions = {method.chosen_question(plan.question) for method in methods}
    return format_code(
        methods=identify_code(*methods),
        metrics=identify_code(*map(resolve_metric, metrics)),
        score=join_identities(identify_score(name) for name in questions if isinstance(name, str)),
        models=join_identities(identify_model(model.name) for model in plan.models),
        datasets=join_identities(identify_reader(data.spec) for data in plan.datasets),
    )


def join_identities(identities: Iterable[tuple[CodeIdentity, ...]]) -> tuple[CodeIdentity, ...]:
    return tuple(sorted({identity for own in identities for identity in own}))


def compare_code(before: str, after: str) -> str:
    """Names of what differs between two results of `format_code`, as a part of a sentence."""
    parts = [json.loads(text) for text in (before, after)]
    names: list[str] = []
    for part in dict.fromkeys((*parts[0], *parts[1])):
        old, new = ({own.get(part, "")} if part == "vitreous" else set(own.get(part, ())) for own in parts)
        changed = sorted({identity.split()[0] for identity in old ^ new if identity})
        names += ["the library"] if part == "vitreous" and changed else changed if part != "vitreous" else []
    return ", ".join(dict.fromkeys(names))
