"""`vitreous check`: run the contract tests of a model, method or metric, and list the methods that work on a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from vitreous.cli import options
from vitreous.cli.console import ProgressBar, caveats_as_notes, open_console, print_json, print_table, spinner
from vitreous.core.errors import Caveat, SpecError, VitreousError

if TYPE_CHECKING:
    from vitreous.methods.method import Method
    from vitreous.models.model import BlackBox


@options.takes_model_options()
def check(
    model: options.OptionalModel = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    method: Annotated[list[str] | None, Option("--method", "-x", metavar="SPEC", help="Test this method.")] = None,
    metric: Annotated[list[str] | None, Option(metavar="SPEC", help="Test this metric.")] = None,
    arguments: dict[str, Any] = options.NO_ARGUMENTS,
    json: options.Json = False,
) -> int:
    """Check a model, method or metric, and list the methods that work on the model, with what the others need."""
    if not (model or method or metric):
        raise SpecError("nothing to check: give --model NAME, --method SPEC or --metric SPEC")
    with caveats_as_notes():
        result: dict[str, Any] = {}
        vit = None
        if model:
            with spinner(f"loading {model}", lines=True):
                from vitreous.bench.model_options import load_model

                vit = load_model(model, checkpoint, pretrained, arguments=arguments)
                result["model"] = {"name": vit.name, **describe_model(vit)}
        from vitreous.testing import check_method, check_metric

        models: Any = None if vit is None else {vit.name: vit}
        tests = [run_contract("method", spec, partial(check_method, spec, models)) for spec in method or []]
        tests += [run_contract("metric", spec, partial(check_metric, spec)) for spec in metric or []]
        result["laws"] = tests
        result["methods"] = try_methods(vit) if vit is not None and not tests else []
    if json:
        print_json(result)
    else:
        print_result(result)
    return 1 if any(test["broken"] for test in tests) else 0


def describe_model(model: BlackBox) -> dict[str, Any]:
    """Properties of a model as JSON values."""
    from vitreous.capture.adapter_check import compare_with_model
    from vitreous.models.model import Network
    from vitreous.models.vit import ViT

    if not isinstance(model, Network):
        return {"seen as": "black box", "because": model.reason, "input": list(model.size), "outputs": model.outputs}
    layout = model.layout(model.size)
    if isinstance(model, ViT):
        checked = {"seen as": "ViT", "largest logit difference": compare_with_model(model).gap}
    else:
        checked = {"seen as": "network", "because": model.reason, "missing share": model.missing}
    return {
        **checked,
        "blocks": model.depth,
        "grid": list(layout.grid),
        "patch": list(layout.patch),
        "prefix tokens": layout.prefix,
        "outputs": None if model.output_type is None else model.outputs,
    }


def run_contract(kind: str, spec: str, contract: Callable[[], dict[str, str]]) -> dict[str, Any]:
    """Run contract tests; the result contains their statements, or the message of the one that failed."""
    from vitreous.testing import ContractError

    with spinner(f"testing {kind} {spec}", lines=True):
        try:
            return {"kind": kind, "spec": spec, "held": contract(), "broken": ""}
        except ContractError as broken:
            return {"kind": kind, "spec": spec, "held": {}, "broken": str(broken)}


def try_methods(model: BlackBox) -> list[dict[str, str]]:
    """Run every method on one random image with its trial options; return whether it works, and if not, why."""
    import torch

    from vitreous.catalogue import list_methods
    from vitreous.explanation import cautions
    from vitreous.front import explain
    from vitreous.methods.spec import resolve

    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, model.channels, *model.size, generator=generator).to(model.device, model.dtype)
    score = None if model.output_type is not None and not model.embedding else average_output
    trials = []
    for name in ProgressBar([facts["name"] for facts in list_methods()], "methods", lines=True):
        method = resolve(name)
        method = method.with_options(**method.facts.trial)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Caveat)
                scores = explain(model, image, method=method, score=score).patches
            finite = scores is None or bool(scores.isfinite().all())
            note = cautions(method, model) if finite else "scores are not finite"
            trials.append({"method": name, "works": "yes" if finite else "no", "note": note})
        except VitreousError as problem:
            trials.append({"method": name, "works": "no", "note": reason_against(method, model) or str(problem)})
    return trials


def reason_against(method: Method, model: BlackBox) -> str:
    """The capability that a method needs and the model does not have; empty if it is not that."""
    from vitreous.catalogue import CAPABILITIES

    if isinstance(model, method.capability):
        return ""
    needed, seen_as = CAPABILITIES[method.capability.__name__], CAPABILITIES[type(model).__name__]
    return f"needs a {needed}, and this model is seen as a {seen_as}"


def average_output(output: Any) -> Any:
    """A score for models without logits: the mean of the first tensor that they return."""
    from vitreous.models.model import tensors_of

    return tensors_of(output)[0].flatten(1).mean(1)


def print_result(result: dict[str, Any]) -> None:
    console = open_console()
    if "model" in result:
        facts = result["model"].items()
        print_table(("", ""), ((key, format_fact(value)) for key, value in facts))
    for test in result["laws"]:
        verdict = f"FAILED: {test['broken']}" if test["broken"] else "passed all contract tests"
        console.print(f"\n{test['kind']} {test['spec']}: {verdict}")
        for sentence in test["held"].values():
            console.print(f"  · {sentence}", style="dim")
    if result["methods"]:
        console.print()
        rows = ((trial["method"], trial["works"], trial["note"] or "–") for trial in result["methods"])
        print_table(("method", "works", "note"), rows)


def format_fact(value: Any) -> str:
    return f"{value:.1e}" if isinstance(value, float) else "–" if value is None else str(value)
