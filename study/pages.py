"""Pages with slots for tables, plots and answers, `<!-- table: NAME -->` to `<!-- end -->`, and the functions that fill them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from study.effects import Effect, Figure, load_rows
from study.special import Order

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs" / "study"
SLOT = re.compile(r"<!-- (table|answer|plot): ([a-z0-9-]+) -->\n.*?<!-- end -->", re.DOTALL)
FILLS: dict[str, Callable[[Results], str]] = {}
PLOTS: dict[str, Callable[[Results], Path | None]] = {}


class Results:
    """Tables of a folder, each read once; tables that do not exist are empty."""

    def __init__(self, folder: Path = HERE / "results") -> None:
        self.folder = folder
        self.figures = lru_cache(None)(lambda name: load_rows(folder / f"{name}.csv", Figure))
        self.effects = lru_cache(None)(lambda name: load_rows(folder / f"{name}.csv", Effect))
        self.orders = lru_cache(None)(lambda name: load_rows(folder / f"{name}.csv", Order))


def fill(name: str):
    """Register a function that writes a table or an answer from the results."""

    def add(function: Callable[[Results], str]) -> Callable[[Results], str]:
        FILLS[name] = function
        return function

    return add


def plot(name: str):
    """Register a function that draws images/NAME.svg from the results; it returns None if there is nothing to draw."""

    def add(function: Callable[[Results], Path | None]) -> Callable[[Results], Path | None]:
        PLOTS[name] = function
        return function

    return add


def fill_page(text: str, results: Results, page: str = "") -> str:
    """A page with every slot filled from the results."""

    def fill_slot(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "plot":
            if name not in PLOTS:
                raise LookupError(f"{page} asks for the plot {name!r}; known: {', '.join(sorted(PLOTS))}")
            exists = (PAGES / "images" / f"{name}.svg").is_file()
            image = f"images/{name}.svg"  # linked, since it is small on a phone
            inside = (
                f"[![{get_caption(name)}]({image})]({image})\n\n*{get_caption(name)}.*"
                if exists
                else "*Not measured yet.*"
            )
        else:
            if name not in FILLS:
                raise LookupError(f"{page} asks for {kind} {name!r}; known: {', '.join(sorted(FILLS))}")
            inside = FILLS[name](results)
        return f"<!-- {kind}: {name} -->\n\n{inside}\n\n<!-- end -->"

    return SLOT.sub(fill_slot, text)


def get_caption(plot: str) -> str:
    """Caption of a plot: the docstring of the function that draws it."""
    return (PLOTS[plot].__doc__ or plot).strip()


QUOTING = (
    HERE.parent / "README.md",
    PAGES.parent / "how-to" / "which-method.md",
)  # pages outside the study with slots


def list_pages() -> list[Path]:
    return sorted(PAGES.glob("*.md"))


def list_slots() -> set[str]:
    return {name for page in (*list_pages(), *QUOTING) for _, name in SLOT.findall(page.read_text(encoding="utf-8"))}
