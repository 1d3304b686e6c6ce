"""`vitreous metrics`: list the metrics, show one with its options, or a paper's evaluation. Does not import torch."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Any

import typer

from vitreous.core.errors import SpecError

BETTER = {True: "more", False: "less", None: "–"}  # which is better
DIRECTIONS = {True: "more is better", False: "less is better", None: "it describes and does not judge"}
HINT = (
    "Options are written as name(option=value), for example insertion(baseline='blur', steps=28); "
    "`vitreous metrics NAME` shows one metric, `vitreous metrics --protocol tis` a paper's evaluation."
)


def metrics(
    name: Annotated[str | None, typer.Argument(help="A metric, to see its formula, options and presets.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="A paper's evaluation: skipplus, released, tokentm, tis or chefer.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the metrics and their properties."""
    from vitreous.cli.listing import catalogue_entries, list_entries, look_up, print_entry

    if protocol is not None and name is not None:
        raise SpecError("give a metric or --protocol, not both")
    if protocol is not None:
        show_protocol(protocol, json)
    elif name is None:
        listed = catalogue_entries("metrics")
        if not json:
            listed = sorted(listed, key=itemgetter("family", "name"))
        list_entries("metric", listed, COLUMNS, HINT, as_json=json)
    else:
        metric = look_up("metric", name)
        print_entry(metric, describe(metric), as_json=json)


def format_bounds(metric: dict[str, Any]) -> str:
    if metric["bounds"] is None:
        return "–"
    low, high = metric["bounds"]
    return f"{'−∞' if low is None else format_number(low)} to {'∞' if high is None else format_number(high)}"


def format_number(number: int | float) -> str:
    return f"{number:.4g}".replace("-", "−")


def format_data(metric: dict[str, Any]) -> str:
    """Annotations that a metric needs and, in brackets, those that it can use."""
    optional = [name for name in metric["takes"] if name not in metric["needs"]]
    if {"objects", "boxes"} <= set(optional):
        return "objects or boxes"
    return " ".join([*metric["needs"], *(f"({name})" for name in optional)])


def format_cost(metric: dict[str, Any]) -> str:
    forwards = metric["forwards"]
    if forwards == 0:
        return ""
    return f"{forwards} fwd" if isinstance(forwards, int) else forwards


COLUMNS = {
    "better": lambda metric: BETTER[metric["higher_is_better"]],
    "from … to": format_bounds,
    "reads": format_data,
    "forwards": format_cost,
    "paper": itemgetter("paper"),
}


def describe(metric: dict[str, Any]) -> dict[str, str]:
    """Facts about one metric."""
    return {
        "formula": metric["formula"],
        "direction": DIRECTIONS[metric["higher_is_better"]],
        "from … to": format_bounds(metric),
        "a·map + b": "scores as the map does" if metric["affine_invariant"] else "may score differently",
        "of a set": "pooled over images" if metric["pooled"] else "mean over images",
        "reads": format_data(metric),
        "forwards": format_cost(metric),
        "family": metric["family"],
    }


def show_protocol(name: str, as_json: bool) -> None:
    """Print a paper's evaluation: its columns, its rows and notes on them."""
    from vitreous.cli.console import open_console, print_json, print_table
    from vitreous.metrics.protocols import protocol

    evaluation = protocol(name)
    if as_json:
        facts = {key: getattr(evaluation, key) for key in ("name", "paper", "preprocess", "models")}
        columns = {
            title: {key: getattr(column, key) for key in ("metric", "explained", "data")}
            for title, column in evaluation.columns.items()
        }
        print_json({**facts, "columns": columns, "rows": dict(evaluation.rows), "notes": evaluation.notes})
        return
    console = open_console()
    console.print(evaluation.name, style="bold", end="  ")
    fine_tuned = [f"{model} fine-tuned on {data}" for data, model in evaluation.fine_tuned.items()]
    console.print(f"{evaluation.paper}; {', '.join([*evaluation.models, *fine_tuned])}\n")
    columns = [(title, column.metric, column.explained, column.data) for title, column in evaluation.columns.items()]
    print_table(("column", "metric", "explained class", "data"), columns)
    console.print()
    print_table(("row", "method"), evaluation.rows.items())
    console.print()
    for note in evaluation.notes:
        console.print(f"· {note}")
