"""Which methods PLUS, SkipPLUS, roll-out and another linearisation go with: asked of the grammar itself."""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.core.errors import SpecError
from vitreous.methods import load_all
from vitreous.methods.method import METHODS, Method
from vitreous.methods.spec import resolve

ENDINGS = (  # what is written behind a method's name
    "+plus(mode='layers')",
    "+plus(mode='restart')",
    "+skipplus(mode='layers')",
    "+skipplus(mode='restart')",
    "+rollout",
    "@libra",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A method with an ending: what it is made into, or the sentence that refuses it."""

    spec: str
    made: Method | None
    refusal: str = ""


def cell(name: str, ending: str) -> Cell:
    try:
        return Cell(name + ending, resolve(name + ending))
    except SpecError as problem:
        return Cell(name + ending, None, str(problem))


def cells() -> dict[str, dict[str, Cell]]:
    """Every method of the package with every ending."""
    load_all()
    names = sorted(name for name in METHODS if METHODS.owner(name).split(".")[0] == "vitreous")
    return {name: {ending: cell(name, ending) for ending in ENDINGS} for name in names}


def two_readings(method: Method) -> bool:
    """A restart is another sum than that of the layers' maps: maps are token to token, or biases are reached again."""
    return method.mixing or method.biases
