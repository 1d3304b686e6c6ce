"""Tables of the catalogue, shared by `vitreous methods` and `vitreous metrics`. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Literal

from vitreous.catalogue import catalogue_entries
from vitreous.cli.console import open_console, print_json, print_table
from vitreous.core.errors import SpecError

Entry = dict[str, Any]  # a method or metric of the catalogue


def look_up(kind: Literal["method", "metric"], name: str) -> Entry:
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


def list_entries(
    kind: str, listed: list[Entry], columns: Mapping[str, Callable[[Entry], str]], hint: str, *, as_json: bool
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
    open_console().print(f"\n{hint}", style="dim")


def print_entry(entry: Entry, facts: Mapping[str, str], *, as_json: bool) -> None:
    """Print one entry: as JSON, or its title, its facts, and those that methods and metrics have in common."""
    if as_json:
        print_json(entry)
        return
    console = open_console()
    console.print(entry["name"], style="bold", end="  ")
    console.print(entry["title"])
    options = [f"{key}={value!r}" for key, value in entry["options"].items() if key != "preset"]
    presets = [f"{entry['name']}(preset={preset!r})" for preset in entry["presets"]]
    common = {"paper": entry["paper"], "also called": ", ".join(entry["aliases"])}
    meanings = {key: text for key, text in entry.get("meanings", {}).items() if key not in ("preset", "question")}
    common |= {"presets": ", ".join(presets), "options": ", ".join(options), **meanings}
    print_table(("", ""), ((name, fact or "–") for name, fact in {**facts, **common}.items()))
