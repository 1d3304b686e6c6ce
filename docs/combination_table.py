"""Table of the methods that can be combined with PLUS, SkipPLUS, roll-out and another linearisation.

Every combination is tried with `resolve`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.core.errors import SpecError
from vitreous.methods.method import METHODS, Method
from vitreous.methods.recipe import LayerSignal
from vitreous.methods.spec import resolve

ENDINGS = (  # appended to a method's name
    "+plus(mode='layers')",
    "+plus(mode='restart')",
    "+skipplus(mode='layers')",
    "+skipplus(mode='restart')",
    "+rollout",
    "@libra",
)


@dataclass(frozen=True, slots=True)
class Combination:
    """A method name with one ending: the resulting method, or None and the error message (`refusal`)."""

    spec: str
    method: Method | None
    refusal: str = ""


def describe_combination(name: str, ending: str) -> Combination:
    """Try one combination."""
    try:
        return Combination(name + ending, resolve(name + ending))
    except SpecError as problem:
        return Combination(name + ending, None, str(problem))


def list_combinations() -> dict[str, dict[str, Combination]]:
    """Every method of this package (not of plugins) with every ending, by name and ending."""
    names = sorted(name for name in METHODS if METHODS.owner(name).split(".")[0] == "vitreous")
    return {name: {ending: describe_combination(name, ending) for ending in ENDINGS} for name in names}


def restart_differs(method: Method) -> bool:
    """Whether `mode="restart"` differs from "layers": for token-to-token signals and for methods that add biases."""
    recipe = method.recipe
    return isinstance(recipe, LayerSignal) and (recipe.mixing or recipe.needs.biases)
