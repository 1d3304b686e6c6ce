"""`vitreous methods`: every method with its facts, or one with its options. Reads the catalogue, not torch."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from vitreous.core.errors import SpecError


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, for its options, presets and other names.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods and what each promises."""
    from vitreous.cli.say import document

    known = everything()
    chosen = known if name is None else [look_up(name, known)]
    if json:
        document(chosen if name is None else chosen[0])
    elif name is None:
        list_all(known)
    else:
        describe(chosen[0])


def everything() -> list[dict[str, Any]]:
    """The catalogue; with plugins installed, what is registered, since only they know their facts."""
    from vitreous.catalogue import FILE, read

    if FILE.exists() and not entry_points(group="vitreous.methods"):
        return read()["methods"]
    from vitreous.front import list_methods

    return list_methods()


def look_up(name: str, known: list[dict[str, Any]]) -> dict[str, Any]:
    """By name or paper name; a whole spec such as 'genatt@libra+plus' finds the method it begins with."""
    names = {spelling.lower(): one for one in known for spelling in (one["name"], *one["aliases"])}
    wanted = name.strip().lower()
    for length in range(len(wanted), 0, -1):
        if wanted[:length] in names and (length == len(wanted) or wanted[length] in "(@+"):
            return names[wanted[:length]]
    near = get_close_matches(wanted, names, n=1)
    raise SpecError(
        f"no method {name!r}; " + (f"did you mean {near[0]!r}?" if near else "`vitreous methods` lists them")
    )


def yes(fact: bool) -> str:
    return "yes" if fact else "–"


def cost(one: dict[str, Any]) -> str:
    return f"{one['forwards']} fwd, {one['backwards']} bwd"


def list_all(known: list[dict[str, Any]]) -> None:
    from vitreous.cli.say import console, show, table

    shown = table("method", "class-specific", "signed", "complete", "cost", "fold", "paper")
    for one in known:
        facts = (yes(one["class_specific"]), yes(one["signed"]), yes(one["complete"]))
        origin = "" if one["origin"] == "vitreous" else f" [{one['origin']}]"
        shown.add_row(one["name"] + origin, *facts, cost(one), one["fold"] or "–", one["paper"] or "–")
    out = console()
    show(shown)
    out.print(
        "\nCompose as name(options)@linearisation+fold, for example decompx+skipplus or genatt@libra+plus; "
        "`vitreous methods NAME` shows one method.",
        style="dim",
    )


def describe(one: dict[str, Any]) -> None:
    from vitreous.cli.say import console, show, table

    out = console()
    out.print(one["name"], style="bold", end="  ")
    out.print(one["title"])
    facts = table("", "")
    facts.show_header = False
    for word in ("class_specific", "signed", "complete", "attention"):
        label = {"class_specific": "class-specific", "attention": "reads attention"}.get(word, word)
        facts.add_row(label, yes(one[word]))
    facts.add_row("explains", f"the {one['question']}, unless asked otherwise")
    facts.add_row("cost", cost(one))
    facts.add_row("map", f"one score per {one['native']}")
    facts.add_row("fold", fold(one))
    facts.add_row("paper", one["paper"] or "–")
    facts.add_row("also called", ", ".join(one["aliases"]) or "–")
    facts.add_row("presets", ", ".join(f"{one['name']}(preset={preset!r})" for preset in one["presets"]) or "–")
    facts.add_row("options", ", ".join(f"{key}={value!r}" for key, value in one["options"].items()) or "–")
    show(facts)


def fold(one: dict[str, Any]) -> str:
    if one["fold"] is None:
        return "none: a whole function"
    return f"{one['fold']}, replaced by writing {one['name']}+FOLD" if one["composes"] else f"{one['fold']}, built in"
