"""Registration of methods: the decorator `method`, `make_method` and further names of specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from vitreous.methods.fold import Fold
from vitreous.methods.folds import first
from vitreous.methods.method import FACTS, METHODS, NEEDS, RECIPE, SPEC_ALIASES, Method
from vitreous.methods.options import OptionFunction
from vitreous.methods.recipe import Facts, LayerNeeds, LayerSignal, MethodKeywords, ProbeFunction, RecipeKeywords

FUNCTIONS = ("adapt", "pixel", "finish")  # of a `LayerSignal`, each with options of its own


def method(
    name: str, *, aliases: tuple[str, ...] = (), **facts: Unpack[MethodKeywords]
) -> Callable[[Callable[..., Any]], Method]:
    """Decorator that registers a function as a method; the decorated name becomes the `Method`.

    With `fold=` the function takes a `Layer` and returns token scores [r n] (or, with `mixing=True`, [r n n]);
    without, it takes the `Probe` and returns patch scores [r p] or a pixel map [r H W], alone or in a tuple with a
    dict of further fields of the `Attribution`. The first line of its docstring becomes the method's title.

    Parameters
    ----------
    name
        Name in specs, in lower case.
    aliases
        Further names, case-insensitive.
    **facts
        As for `make_method`; `signed` and `class_specific` are required.

    Returns
    -------
    Callable
        Decorator that returns the `Method`.

    Examples
    --------
    >>> import vitreous
    >>> @vitreous.method("token_length", fold=vitreous.last, signed=False, class_specific=False, backwards=0)
    ... def token_length(layer):
    ...     '''Norm of the tokens that enter the last block.'''
    ...     return layer.hidden.norm(dim=-1)
    >>> vitreous.resolve("token_length+plus").spec
    'token_length+plus'
    """

    def register(function: Callable[..., Any]) -> Method:
        signature = OptionFunction.of(function)
        registered = METHODS.add(name, make_method(name, signature, **facts), signature.call.__module__)
        SPEC_ALIASES.update(dict.fromkeys((alias.lower() for alias in aliases), name))
        return registered

    return register


def make_method(
    name: str,
    function: Callable[..., Any],
    *,
    fold: Fold | None = None,
    layered: Callable[..., Any] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    black_box: Mapping[str, Any] | None = None,
    **facts: Unpack[RecipeKeywords],
) -> Method:
    """Make a `Method` that is not registered.

    Parameters
    ----------
    name
        Name of the method.
    function
        Function of a `Layer` if there is a fold, else of the `Probe`; its parameters with a default are options.
    fold
        How the signals of the layers are combined; None for a function of the `Probe`.
    layered
        For a function of the `Probe`: the per-layer signal to use under a fold.
    presets, black_box
        As for `Method`.
    **facts
        Attributes of `Facts`, `LayerNeeds` and `LayerSignal`.

    Returns
    -------
    Method
        The method, with its options read from the signatures.

    Raises
    ------
    TypeError
        If a keyword is none of these, or `signed` or `class_specific` is missing.
    """
    signature = OptionFunction.of(function)
    title = (signature.call.__doc__ or "").strip().split("\n")[0]
    keywords: dict[str, Any] = {**facts}
    promised = Facts(**{"title": title, **{key: keywords.pop(key) for key in FACTS & keywords.keys()}})
    needs = LayerNeeds(**{key: keywords.pop(key) for key in NEEDS & keywords.keys()})
    functions = {key: OptionFunction.of(keywords.pop(key)) for key in FUNCTIONS if keywords.get(key) is not None}
    if unknown := sorted(keywords.keys() - RECIPE.keys()):
        raise TypeError(f"method {name!r} has unknown keywords: {', '.join(unknown)}")
    parts: dict[str, Any] = {"needs": needs, **functions, **keywords}
    if fold is not None:
        recipe = LayerSignal(signature, fold, **parts)
    else:
        layers = None if layered is None else LayerSignal(OptionFunction.of(layered), first, **parts)
        fixed = keywords.get("fixed_linearisation", False)
        recipe = ProbeFunction(signature, layers, needs.attention, fixed, functions.get("finish"))
    return Method(name, promised, recipe, presets or {}, black_box)


def register_alias(alias: str, spec: str) -> None:
    """Register `alias`, a name used in the literature, for a spec."""
    SPEC_ALIASES[alias.lower()] = spec
