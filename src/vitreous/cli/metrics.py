"""`vitreous metrics`: list the metrics, show one with its options, or a paper's evaluation. Does not import torch."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

import typer

from vitreous.core.errors import SpecError

BETTER = {True: "more", False: "less", None: "–"}  # which is better


def metrics(
    name: Annotated[str | None, typer.Argument(help="A metric, to see its formula, options and presets.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="A paper's evaluation: skipplus, released, tokentm, tis or chefer.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the metrics and their properties."""
    from vitreous.catalogue import entries
    from vitreous.cli.console import print_json

    if protocol is not None:
        if name is not None:
            raise SpecError("give a metric or --protocol, not both")
        return show_protocol(protocol, json)
    metric_entries = entries("metrics")
    if json:
        print_json(metric_entries if name is None else look_up(name, metric_entries))
    elif name is None:
        list_all(metric_entries)
    else:
        describe(look_up(name, metric_entries))
    return None


def look_up(name: str, metric_entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Find a metric by name or alias; for a spec such as 'insertion(steps=28)', the metric without options."""
    names = {name: metric for metric in metric_entries for name in (metric["name"], *metric["aliases"])}
    metric_name = name.strip().lower().split("(")[0].replace("-", "_")
    if metric_name in names:
        return names[metric_name]
    near = get_close_matches(metric_name, names, n=1)
    raise SpecError(
        f"no metric {name!r}; " + (f"did you mean {near[0]!r}?" if near else "`vitreous metrics` lists them")
    )


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
    return " ".join([*metric["needs"], *(f"({name})" for name in optional)]) or "–"


def format_cost(metric: dict[str, Any]) -> str:
    forwards = metric["forwards"]
    if forwards == 0:
        return "–"
    return f"{forwards} fwd" if isinstance(forwards, int) else forwards


def list_all(metric_entries: list[dict[str, Any]]) -> None:
    from vitreous.cli.console import new_table, open_console, print_table

    table = new_table("metric", "better", "from … to", "reads", "forwards", "paper")
    for metric in sorted(metric_entries, key=lambda metric: (metric["family"], metric["name"])):
        origin = "" if metric["origin"] == "vitreous" else f" [{metric['origin']}]"
        table.add_row(
            metric["name"] + origin,
            BETTER[metric["higher_is_better"]],
            format_bounds(metric),
            format_data(metric),
            format_cost(metric),
            metric["paper"] or "–",
        )
    print_table(table)
    open_console().print(
        "\nOptions are written as name(option=value), for example insertion(baseline='blur', steps=28); "
        "`vitreous metrics NAME` shows one metric, `vitreous metrics --protocol tis` a paper's evaluation.",
        style="dim",
    )


def describe(metric: dict[str, Any]) -> None:
    """Print everything about one metric."""
    from vitreous.cli.console import new_table, open_console, print_table

    console = open_console()
    console.print(metric["name"], style="bold", end="  ")
    console.print(metric["title"])
    facts = new_table("", "")
    facts.show_header = False
    better = {True: "more is better", False: "less is better", None: "it describes and does not judge"}
    facts.add_row("formula", metric["formula"] or "–")
    facts.add_row("direction", better[metric["higher_is_better"]])
    facts.add_row("from … to", format_bounds(metric))
    facts.add_row("a·map + b", "scores as the map does" if metric["affine_invariant"] else "may score differently")
    facts.add_row("of a set", "pooled over images" if metric["pooled"] else "mean over images")
    facts.add_row("reads", format_data(metric))
    facts.add_row("forwards", format_cost(metric))
    facts.add_row("family", metric["family"] or "–")
    facts.add_row("paper", metric["paper"] or "–")
    facts.add_row("also called", ", ".join(metric["aliases"]) or "–")
    facts.add_row("presets", ", ".join(f"{metric['name']}(preset={preset!r})" for preset in metric["presets"]) or "–")
    options = {key: value for key, value in metric["options"].items() if key != "preset"}
    facts.add_row("options", ", ".join(f"{key}={value!r}" for key, value in options.items()) or "–")
    print_table(facts)


def show_protocol(name: str, json: bool) -> None:
    """Print a paper's evaluation: its columns, its rows and notes on them."""
    from vitreous.cli.console import new_table, open_console, print_json, print_table
    from vitreous.metrics.protocols import protocol

    evaluation = protocol(name)
    if json:
        columns = {
            title: {"metric": column.metric, "explained": column.explained, "data": column.data}
            for title, column in evaluation.columns.items()
        }
        print_json(
            {
                "name": evaluation.name,
                "paper": evaluation.paper,
                "preprocess": evaluation.preprocess,
                "models": evaluation.models,
                "columns": columns,
                "rows": dict(evaluation.rows),
                "notes": evaluation.notes,
            }
        )
        return
    columns, rows = new_table("column", "metric", "explained class", "data"), new_table("row", "method")
    for title, column in evaluation.columns.items():
        columns.add_row(title, column.metric, column.explained, column.data)
    for title, spec in evaluation.rows.items():
        rows.add_row(title, spec)
    console = open_console()
    console.print(evaluation.name, style="bold", end="  ")
    fine_tuned = [f"{model} fine-tuned on {data}" for data, model in evaluation.fine_tuned.items()]
    console.print(f"{evaluation.paper}; {', '.join([*evaluation.models, *fine_tuned])}\n")
    print_table(columns)
    console.print()
    print_table(rows)
    console.print()
    for note in evaluation.notes:
        console.print(f"· {note}")
