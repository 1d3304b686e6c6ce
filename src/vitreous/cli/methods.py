"""`vitreous methods`: list the methods with their properties, or one with its options. Does not import torch."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

import typer

from vitreous.core.errors import SpecError


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to see its options, presets and other names.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods and their properties."""
    from vitreous.catalogue import entries
    from vitreous.cli.console import print_json

    method_entries = entries("methods")
    if json:
        print_json(method_entries if name is None else look_up(name, method_entries))
    elif name is None:
        list_all(method_entries)
    else:
        describe(look_up(name, method_entries))


def look_up(name: str, method_entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Find a method by name or alias; for a spec such as 'genatt@libra+plus', the method that it begins with."""
    names = {name.lower(): method for method in method_entries for name in (method["name"], *method["aliases"])}
    method_name = name.strip().lower()
    for length in range(len(method_name), 0, -1):
        if method_name[:length] in names and (length == len(method_name) or method_name[length] in "(@+"):
            return names[method_name[:length]]
    near = get_close_matches(method_name, names, n=1)
    raise SpecError(
        f"no method {name!r}; " + (f"did you mean {near[0]!r}?" if near else "`vitreous methods` lists them")
    )


NEEDS = {
    "black box": "any classifier: it is only run on images",
    "network": "a network: states and gradients at its blocks",
    "ViT": "a ViT: attention matrices, values or token removal, which an adapter knows",
}


def yes_or_dash(fact: bool) -> str:
    return "yes" if fact else "–"


def format_cost(method: dict[str, Any]) -> str:
    return f"{method['forwards']} fwd, {method['backwards']} bwd"


def list_all(method_entries: list[dict[str, Any]]) -> None:
    from vitreous.cli.console import new_table, open_console, print_table

    table = new_table("method", "needs", "class-specific", "signed", "complete", "cost", "fold", "paper")
    for method in method_entries:
        facts = [yes_or_dash(method[name]) for name in ("class_specific", "signed", "complete")]
        origin = "" if method["origin"] == "vitreous" else f" [{method['origin']}]"
        table.add_row(
            method["name"] + origin,
            method["capability"],
            *facts,
            format_cost(method),
            method["fold"] or "–",
            method["paper"] or "–",
        )
    print_table(table)
    open_console().print(
        "\nCompose as name(options)@linearisation+fold, for example decompx+skipplus or genatt@libra+plus; "
        "`vitreous methods NAME` shows one method.",
        style="dim",
    )


def describe(method: dict[str, Any]) -> None:
    """Print everything about one method."""
    from vitreous.cli.console import new_table, open_console, print_table

    console = open_console()
    console.print(method["name"], style="bold", end="  ")
    console.print(method["title"])
    facts = new_table("", "")
    facts.show_header = False
    facts.add_row("needs", NEEDS[method["capability"]])
    for key in ("class_specific", "signed", "complete", "attention"):
        label = {"class_specific": "class-specific", "attention": "reads attention"}.get(key, key)
        facts.add_row(label, yes_or_dash(method[key]))
    facts.add_row("explains", f"the {method['question']}, by default")
    facts.add_row("cost", format_cost(method))
    facts.add_row("map", f"one score per {method['native']}")
    facts.add_row("fold", format_fold(method))
    facts.add_row("paper", method["paper"] or "–")
    facts.add_row("also called", ", ".join(method["aliases"]) or "–")
    facts.add_row("presets", ", ".join(f"{method['name']}(preset={preset!r})" for preset in method["presets"]) or "–")
    facts.add_row("options", ", ".join(f"{key}={value!r}" for key, value in method["options"].items()) or "–")
    print_table(facts)


def format_fold(method: dict[str, Any]) -> str:
    fold = method["fold"]
    if fold is None:
        return "none: a whole function"
    return f"{fold}, replaced by writing {method['name']}+FOLD" if method["composes"] else f"{fold}, built in"
