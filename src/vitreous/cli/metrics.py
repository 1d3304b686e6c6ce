"""`vitreous metrics`: every metric with its facts, one with its options, or a paper's evaluation. Reads the catalogue, not torch."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from vitreous.core.errors import SpecError

BETTER = {True: "more", False: "less", None: "–"}  # of it is better


def metrics(
    name: Annotated[str | None, typer.Argument(help="A metric, for its formula, options and presets.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="A paper's evaluation in our names: skipplus, tokentm, tis or chefer.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the metrics and what each promises."""
    from vitreous.cli.say import document

    if protocol is not None:
        if name is not None:
            raise SpecError("give a metric or --protocol, not both")
        return show_protocol(protocol, json)
    known = everything()
    if json:
        document(known if name is None else look_up(name, known))
    elif name is None:
        list_all(known)
    else:
        describe(look_up(name, known))
    return None


def everything() -> list[dict[str, Any]]:
    """The catalogue; with plugins installed, what is registered, since only they know their facts."""
    from vitreous.catalogue import FILE, read

    if FILE.exists() and not entry_points(group="vitreous.metrics"):
        return read()["metrics"]
    from vitreous.measure import list_metrics

    return list_metrics()


def look_up(name: str, known: list[dict[str, Any]]) -> dict[str, Any]:
    """By name or other name; a whole spec such as 'insertion(steps=28)' finds its metric."""
    names = {spelling: one for one in known for spelling in (one["name"], *one["aliases"])}
    wanted = name.strip().lower().split("(")[0].replace("-", "_")
    if wanted in names:
        return names[wanted]
    near = get_close_matches(wanted, names, n=1)
    raise SpecError(
        f"no metric {name!r}; " + (f"did you mean {near[0]!r}?" if near else "`vitreous metrics` lists them")
    )


def bounds(one: dict[str, Any]) -> str:
    if one["bounds"] is None:
        return "–"
    low, high = one["bounds"]
    return f"{'−∞' if low is None else signed(low)} to {'∞' if high is None else signed(high)}"


def signed(number: int | float) -> str:
    return f"{number:.4g}".replace("-", "−")


def data(one: dict[str, Any]) -> str:
    """What must be there, and in brackets what may be."""
    may = [name for name in one["takes"] if name not in one["needs"]]
    if {"objects", "boxes"} <= set(may):
        return "objects or boxes"
    return " ".join([*one["needs"], *(f"({name})" for name in may)]) or "–"


def cost(one: dict[str, Any]) -> str:
    return (
        "–"
        if one["forwards"] == 0
        else f"{one['forwards']} fwd"
        if isinstance(one["forwards"], int)
        else one["forwards"]
    )


def list_all(known: list[dict[str, Any]]) -> None:
    from vitreous.cli.say import console, show, table

    shown = table("metric", "better", "from … to", "reads", "forwards", "paper")
    for one in sorted(known, key=lambda one: (one["family"], one["name"])):
        origin = "" if one["origin"] == "vitreous" else f" [{one['origin']}]"
        shown.add_row(
            one["name"] + origin,
            BETTER[one["higher_is_better"]],
            bounds(one),
            data(one),
            cost(one),
            one["paper"] or "–",
        )
    show(shown)
    console().print(
        "\nOptions are written as name(option=value), for example insertion(baseline='blur', steps=28); "
        "`vitreous metrics NAME` shows one metric, `vitreous metrics --protocol tis` a paper's evaluation.",
        style="dim",
    )


def describe(one: dict[str, Any]) -> None:
    from vitreous.cli.say import console, show, table

    out = console()
    out.print(one["name"], style="bold", end="  ")
    out.print(one["title"])
    facts = table("", "")
    facts.show_header = False
    better = {True: "more is better", False: "less is better", None: "it describes and does not judge"}
    facts.add_row("formula", one["formula"] or "–")
    facts.add_row("direction", better[one["higher_is_better"]])
    facts.add_row("from … to", bounds(one))
    facts.add_row("a·map + b", "scores as the map does" if one["affine_invariant"] else "may score differently")
    facts.add_row("of a set", "pooled over pictures" if one["pooled"] else "mean over pictures")
    facts.add_row("reads", data(one))
    facts.add_row("forwards", cost(one))
    facts.add_row("family", one["family"] or "–")
    facts.add_row("paper", one["paper"] or "–")
    facts.add_row("also called", ", ".join(one["aliases"]) or "–")
    facts.add_row("presets", ", ".join(f"{one['name']}(preset={preset!r})" for preset in one["presets"]) or "–")
    options = {key: value for key, value in one["options"].items() if key != "preset"}
    facts.add_row("options", ", ".join(f"{key}={value!r}" for key, value in options.items()) or "–")
    show(facts)


def show_protocol(name: str, json: bool) -> None:
    from vitreous.cli.say import console, document, show, table
    from vitreous.metrics.protocols import protocol

    found = protocol(name)
    if json:
        document(
            {
                "name": found.name,
                "paper": found.paper,
                "preprocess": found.preprocess,
                "models": found.models,
                "columns": {
                    title: {"metric": one.metric, "explained": one.explained, "data": one.data}
                    for title, one in found.columns.items()
                },
                "rows": dict(found.rows),
                "notes": found.notes,
            }
        )
        return
    columns, rows = table("column", "metric", "explained class", "data"), table("row", "method")
    for title, one in found.columns.items():
        columns.add_row(title, one.metric, one.explained, one.data)
    for title, spec in found.rows.items():
        rows.add_row(title, spec)
    out = console()
    out.print(found.name, style="bold", end="  ")
    out.print(f"{found.paper}; {', '.join(found.models)}\n")
    show(columns)
    out.print()
    show(rows)
    out.print()
    for note in found.notes:
        out.print(f"· {note}")
