"""`vitreous methods`, `metrics` and `models`: list the catalogue, or show one entry. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from operator import itemgetter
from typing import Annotated, Any, Literal

from typer import Argument, Option

from vitreous.catalogue import catalogue_entries
from vitreous.cli.console import open_console, print_json, print_table
from vitreous.core.errors import SpecError

Entry = Mapping[str, Any]  # a method or metric of the catalogue
Kind = Literal["method", "metric"]
Json = Annotated[bool, Option("--json", help="Print JSON.")]

NEEDS = {
    "black box": "any classifier: it is only run on images",
    "network": "a network: states and gradients at its blocks",
    "ViT": "a ViT: attention matrices, values or token removal, which need an adapter",
}
BETTER = {True: "more", False: "less", None: "–"}  # which is better
DIRECTIONS = {True: "more is better", False: "less is better", None: "it describes and does not judge"}
HINTS = {
    "method": "Compose as name(options)@linearisation+fold, for example decompx+skipplus or genatt@libra+plus; "
    "`vitreous methods NAME` shows one method.",
    "metric": "Options are written as name(option=value), for example insertion(baseline='blur', steps=28); "
    "`vitreous metrics NAME` shows one metric, `vitreous metrics --protocol tis` a paper's evaluation.",
}


def methods(
    name: Annotated[str | None, Argument(help="A method, to see its options, presets and other names.")] = None,
    json: Json = False,
) -> None:
    """List the methods and their properties."""
    if name is None:
        print_entries("method", catalogue_entries("methods"), METHOD_COLUMNS, as_json=json)
    else:
        print_entry(look_up("method", name), METHOD_FACTS, as_json=json)


def metrics(
    name: Annotated[str | None, Argument(help="A metric, to see its formula, options and presets.")] = None,
    protocol: Annotated[
        str | None, Option(help="A paper's evaluation: skipplus, released, tokentm, tis or chefer.")
    ] = None,
    json: Json = False,
) -> None:
    """List the metrics and their properties."""
    if protocol is not None and name is not None:
        raise SpecError("give a metric or --protocol, not both")
    if protocol is not None:
        print_protocol(protocol, json)
    elif name is None:
        listed = catalogue_entries("metrics")
        if not json:
            listed = sorted(listed, key=itemgetter("family", "name"))
        print_entries("metric", listed, METRIC_COLUMNS, as_json=json)
    else:
        print_entry(look_up("metric", name), METRIC_FACTS, as_json=json)


def models(json: Json = False) -> None:
    """List the model families, with a name to load each by."""
    families = catalogue_entries("models")
    if json:
        print_json(families)
    else:
        print_table(("family", "for example", "notes"), map(itemgetter("family", "example", "notes"), families))


# ── entries ──────────────────────────────────────────────────────────────────────────────────────


def look_up(kind: Kind, name: str) -> Entry:
    """Find a method or metric by name or alias; for a spec such as 'genatt@libra+plus', the one that it begins with."""
    spelling = name.strip().lower()
    if kind == "metric":
        spelling = spelling.replace("-", "_")
    listed = catalogue_entries("methods" if kind == "method" else "metrics")
    by_name = {text.lower(): entry for entry in listed for text in (entry["name"], *entry["aliases"])}
    for length in range(len(spelling), 0, -1):
        if spelling[:length] in by_name and (length == len(spelling) or spelling[length] in "(@+"):
            return by_name[spelling[:length]]
    near = get_close_matches(spelling.split("(", maxsplit=1)[0], by_name, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"`vitreous {kind}s` lists them"
    raise SpecError(f"no {kind} {name!r}; {hint}")


def print_entries(
    kind: Kind, listed: Sequence[Entry], columns: Mapping[str, Callable[[Entry], str]], *, as_json: bool
) -> None:
    """Print all entries: as JSON, or as a table with a hint on how to read it."""
    if as_json:
        print_json(listed)
        return
    rows = []
    for entry in listed:
        origin = "" if entry["origin"] == "vitreous" else f" [{entry['origin']}]"
        rows.append((entry["name"] + origin, *(format_cell(entry) or "–" for format_cell in columns.values())))
    print_table((kind, *columns), rows)
    open_console().print(f"\n{HINTS[kind]}", style="dim")


def print_entry(entry: Entry, formats: Mapping[str, Callable[[Entry], str]], *, as_json: bool) -> None:
    """Print one entry: as JSON, or its title, its facts, and those that methods and metrics have in common."""
    if as_json:
        print_json(entry)
        return
    facts = {name: format_fact(entry) for name, format_fact in formats.items()}
    console = open_console()
    console.print(entry["name"], style="bold", end="  ")
    console.print(entry["title"])
    options = [f"{key}={value!r}" for key, value in entry["options"].items() if key != "preset"]
    presets = [f"{entry['name']}(preset={preset!r})" for preset in entry["presets"]]
    common = {"paper": entry["paper"], "also called": ", ".join(entry["aliases"])}
    meanings = {key: text for key, text in entry.get("meanings", {}).items() if key not in ("preset", "question")}
    common |= {"presets": ", ".join(presets), "options": ", ".join(options), **meanings}
    print_table(("", ""), ((name, fact or "–") for name, fact in {**facts, **common}.items()))


# ── methods ──────────────────────────────────────────────────────────────────────────────────────


def format_flag(key: str) -> Callable[[Entry], str]:
    return lambda method: "yes" if method[key] else "–"


def format_passes(method: Entry) -> str:
    return f"{method['forwards']} fwd, {method['backwards']} bwd"


def format_fold(method: Entry) -> str:
    fold = method["fold"]
    if fold is None:
        return "none: a whole function"
    return f"{fold}, replaced by writing {method['name']}+FOLD" if method["composes"] else f"{fold}, built in"


FLAGS = {
    "class-specific": format_flag("class_specific"),
    "signed": format_flag("signed"),
    "complete": format_flag("complete"),
}
METHOD_COLUMNS = {
    "needs": itemgetter("capability"),
    **FLAGS,
    "cost": format_passes,
    "fold": itemgetter("fold"),
    "paper": itemgetter("paper"),
}
METHOD_FACTS = {
    "needs": lambda method: NEEDS[method["capability"]],
    **FLAGS,
    "reads attention": format_flag("attention"),
    "explains": lambda method: f"the {method['question']}, by default" if method["class_specific"] else "",
    "cost": format_passes,
    "map": lambda method: f"one score per {method['native']}",
    "fold": format_fold,
}


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


def format_bounds(metric: Entry) -> str:
    if metric["bounds"] is None:
        return "–"
    low, high = metric["bounds"]
    return f"{'−∞' if low is None else format_number(low)} to {'∞' if high is None else format_number(high)}"


def format_number(number: int | float) -> str:
    return f"{number:.4g}".replace("-", "−")


def format_data(metric: Entry) -> str:
    """Annotations that a metric needs and, in brackets, those that it can use."""
    optional = [name for name in metric["takes"] if name not in metric["needs"]]
    if {"objects", "boxes"} <= set(optional):
        return "objects or boxes"
    return " ".join([*metric["needs"], *(f"({name})" for name in optional)])


def format_forwards(metric: Entry) -> str:
    forwards = metric["forwards"]
    if forwards == 0:
        return ""
    return f"{forwards} fwd" if isinstance(forwards, int) else forwards


METRIC_COLUMNS = {
    "better": lambda metric: BETTER[metric["higher_is_better"]],
    "from … to": format_bounds,
    "reads": format_data,
    "forwards": format_forwards,
    "paper": itemgetter("paper"),
}
METRIC_FACTS = {
    "formula": itemgetter("formula"),
    "direction": lambda metric: DIRECTIONS[metric["higher_is_better"]],
    "from … to": format_bounds,
    "a·map + b": lambda metric: "has the score of the map" if metric["affine_invariant"] else "may have another score",
    "of a dataset": lambda metric: "pooled over images" if metric["pooled"] else "mean over images",
    "reads": format_data,
    "forwards": format_forwards,
    "family": itemgetter("family"),
}


def print_protocol(name: str, as_json: bool) -> None:
    """Print a paper's evaluation: its columns, its rows and notes on them."""
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
