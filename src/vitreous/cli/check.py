"""`vitreous check`: does this model, method or metric keep what it promises, and which methods will work here?"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any

import typer

from vitreous.core.errors import DataError, SpecError, VitreousError


def check(
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="Such as timm:vit_base_patch16_224.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Local weights: safetensors, or a torch file.")
    ] = None,
    pretrained: Annotated[bool, typer.Option(help="Fetch weights when there is no checkpoint.")] = True,
    method: Annotated[
        list[str] | None, typer.Option("--method", "-x", metavar="SPEC", help="Hold this method to the law.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", metavar="SPEC", help="Hold this metric to it.")
    ] = None,
    plugin: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Run this Python file first: it registers your own.")
    ] = None,
    model_arg: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="For the model's builder; repeat for several.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> int:
    """Hold a model to its own logits, a method or metric to the law; say which methods work on the model."""
    from vitreous.cli.explain import builder_arguments
    from vitreous.cli.say import document, notes

    if not (model or method or metric):
        raise SpecError("nothing to check: give --model NAME, --method SPEC or --metric SPEC")
    with notes():
        for file in plugin or []:
            run_file(file)
        found: dict[str, Any] = {}
        vit = None
        if model:
            from vitreous.front import load

            vit = load(model, checkpoint=checkpoint, pretrained=pretrained, **builder_arguments(model_arg or []))
            found["model"] = {"name": vit.name, **seen(vit)}
        laws = [*(held_method(spec, vit) for spec in method or []), *(held_metric(spec) for spec in metric or [])]
        found["laws"] = laws
        found["methods"] = tried(vit) if vit is not None and not laws else []
    if json:
        document(found)
    else:
        say(found)
    return 1 if any(law["broken"] for law in laws) else 0


def run_file(file: Path) -> None:
    """A file of the user's own, so that what it registers is known."""
    spec = spec_from_file_location(file.stem, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise DataError(f"no Python file {str(file)!r}")
    try:
        spec.loader.exec_module(module_from_spec(spec))
    except VitreousError:
        raise
    except Exception as problem:
        raise DataError(f"{str(file)!r} stopped with {type(problem).__name__}: {problem}") from problem


def seen(vit: Any) -> dict[str, Any]:
    """What the handshake found, as plain values."""
    from vitreous.capture.handshake import handshake

    layout = vit.layout(vit.size)
    return {
        "largest logit difference": float(handshake(vit)),
        "blocks": vit.depth,
        "grid": list(layout.grid),
        "patch": list(layout.patch),
        "prefix tokens": layout.prefix,
        "outputs": vit.outputs,
    }


def held_method(spec: str, vit: Any) -> dict[str, Any]:
    from vitreous.testing import check_method

    return held("method", spec, lambda: check_method(spec, None if vit is None else {vit.name: vit}))


def held_metric(spec: str) -> dict[str, Any]:
    from vitreous.testing import check_metric

    return held("metric", spec, lambda: check_metric(spec))


def held(kind: str, spec: str, law: Callable[[], dict[str, str]]) -> dict[str, Any]:
    """What the law says, and the sentence where it is broken."""
    from vitreous.cli.say import busy
    from vitreous.testing import LawBroken

    with busy(f"trying to break {spec}"):
        try:
            return {"kind": kind, "spec": spec, "held": law(), "broken": ""}
        except LawBroken as broken:
            return {"kind": kind, "spec": spec, "held": {}, "broken": str(broken)}


def tried(vit: Any) -> list[dict[str, str]]:
    """Every method, put to one random picture under the options of a trial: does it work here, and if not, why?"""
    import warnings

    import torch

    from vitreous.cli.say import Watch
    from vitreous.core.errors import Caveat
    from vitreous.front import cautions, explain, list_methods
    from vitreous.methods.spec import resolve

    picture = torch.randn(1, 3, *vit.size, generator=torch.Generator().manual_seed(0)).to(vit.device, vit.dtype)
    found = []
    for name in Watch([one["name"] for one in list_methods()], "methods"):
        made = resolve(name)
        made = made.with_options(**made.trial)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Caveat)
                scores = explain(vit, picture, method=made).patches
            bad = scores is not None and not bool(scores.isfinite().all())
            found.append(
                {
                    "method": name,
                    "works": "no" if bad else "yes",
                    "note": "scores are not finite" if bad else cautions(made, vit),
                }
            )
        except VitreousError as problem:
            found.append({"method": name, "works": "no", "note": str(problem)})
    return found


def say(found: dict[str, Any]) -> None:
    from vitreous.cli.say import console, show, table

    out = console()
    if "model" in found:
        facts = table("", "")
        facts.show_header = False
        for key, value in found["model"].items():
            facts.add_row(key, f"{value:.1e}" if isinstance(value, float) else str(value))
        show(facts)
    for law in found["laws"]:
        out.print(
            f"\n{law['kind']} {law['spec']}: " + (f"BROKEN: {law['broken']}" if law["broken"] else "keeps the law")
        )
        for sentence in law["held"].values():
            out.print(f"  · {sentence}", style="dim")
    if found["methods"]:
        rows = table("method", "works", "note")
        for one in found["methods"]:
            rows.add_row(one["method"], one["works"], one["note"] or "–")
        out.print()
        show(rows)
