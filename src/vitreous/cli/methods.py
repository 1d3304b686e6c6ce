"""`vitreous methods`: list the methods with their properties, or one with its options. Does not import torch."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Any

import typer

NEEDS = {
    "black box": "any classifier: it is only run on images",
    "network": "a network: states and gradients at its blocks",
    "ViT": "a ViT: attention matrices, values or token removal, which an adapter knows",
}
HINT = (
    "Compose as name(options)@linearisation+fold, for example decompx+skipplus or genatt@libra+plus; "
    "`vitreous methods NAME` shows one method."
)


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to see its options, presets and other names.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods and their properties."""
    from vitreous.cli.listing import catalogue_entries, list_entries, look_up, print_entry

    if name is None:
        list_entries("method", catalogue_entries("methods"), COLUMNS, HINT, as_json=json)
    else:
        method = look_up("method", name)
        print_entry(method, describe(method), as_json=json)


def format_flag(fact: bool) -> str:
    return "yes" if fact else "–"


def format_cost(method: dict[str, Any]) -> str:
    return f"{method['forwards']} fwd, {method['backwards']} bwd"


COLUMNS = {
    "needs": itemgetter("capability"),
    "class-specific": lambda method: format_flag(method["class_specific"]),
    "signed": lambda method: format_flag(method["signed"]),
    "complete": lambda method: format_flag(method["complete"]),
    "cost": format_cost,
    "fold": itemgetter("fold"),
    "paper": itemgetter("paper"),
}


def describe(method: dict[str, Any]) -> dict[str, str]:
    """Facts about one method."""
    return {
        "needs": NEEDS[method["capability"]],
        "class-specific": format_flag(method["class_specific"]),
        "signed": format_flag(method["signed"]),
        "complete": format_flag(method["complete"]),
        "reads attention": format_flag(method["attention"]),
        "explains": f"the {method['question']}, by default",
        "cost": format_cost(method),
        "map": f"one score per {method['native']}",
        "fold": format_fold(method),
    }


def format_fold(method: dict[str, Any]) -> str:
    fold = method["fold"]
    if fold is None:
        return "none: a whole function"
    return f"{fold}, replaced by writing {method['name']}+FOLD" if method["composes"] else f"{fold}, built in"
