"""Registration of methods: the decorator `method`, `make_method` and further names of specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Unpack

from vitreous.methods.fold import Fold
from vitreous.methods.folds import first
from vitreous.methods.method import FACTS, METHODS, NEEDS, SPEC_ALIASES, Method
from vitreous.methods.options import OptionFunction
from vitreous.methods.recipe import Facts, LayerNeeds, LayerSignal, MethodKeywords, ProbeFunction, RecipeKeywords

FUNCTIONS = ("adapt", "pixel", "finish")  # of a `LayerSignal`, each with options of its own
LAYER_INPUTS = ("probe", "linearisation")  # that a signal may have besides the layer


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
        The keywords below; `signed` and `class_specific` are required.

    Other Parameters
    ----------------
    signed : bool
        Whether scores can be negative.
    class_specific : bool
        Whether scores depend on the target class.
    fold : Fold or None
        How the signals of the layers are combined; None (the default) for a function of the `Probe`.
    mixing : bool
        Whether the function returns scores from every token to every other, [r n n].
    attention : bool
        Whether layers hold attention matrices and their gradients.
    normed : bool
        Whether layers hold the gradient at the output of the first norm.
    presence : bool
        Whether layers hold the gradient in the presence of every token.
    biases : bool
        Whether layers hold shares of the biases, which are also added to the map.
    linearisation : Linearisation
        Which factors the backward pass treats as constants; none by default.
    fixed_linearisation : bool
        Whether the spec may not name another linearisation.
    fixed_fold : str
        If the spec may not name another fold: the spec to use instead, with "{fold}" for the name of the fold.
    complete : bool
        Whether tokens and biases add up to the score under a complete linearisation.
    forwards, backwards : int or str
        Number of passes per image, or a formula of options such as "1 + masks"; 1 by default.
    question : str or Callable
        Score function that is explained by default; "logit" if it is not given.
    averages : bool
        Whether scores are means of model outputs, and have their sign.
    native : str
        Resolution of the scores, "patch" (the default) or "pixel".
    precision : str
        Lowest precision that keeps the order of patches: "float32", "tf32" (the default), "bf16" or "bf16 weights".
    family : str
        Heading in listings and pages.
    formula : str
        Formula in one line, in the notation of the page of methods.
    paper : str
        Key in docs/references.bib, or a citation.
    title : str
        Title, if it is not the first line of the docstring.
    presets : dict
        Named settings of options: {name: {option: value}}.
    trial : dict
        Options for the contract tests, for methods that are slow with their defaults.
    caveat : Callable
        `(method, vit)` → a warning for users of this model, or an empty string.
    black_box : dict
        Options with which the method needs only the outputs of a model, such as {"space": "pixels"}.
    layered : Callable
        For a function of the `Probe`: the signal of a layer to use if the spec names a fold.
    pixel, finish, adapt : Callable
        As in `vitreous.methods.recipe.LayerSignal`.
    own_pass, exact_presence : bool
        As in `vitreous.methods.recipe.LayerNeeds`.

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
    if not (fold is None or isinstance(fold, Fold)):
        raise TypeError(f"fold={fold!r} of method {name!r}; a fold such as vitreous.last or vitreous.plus would work")
    signature = OptionFunction.of(function)
    title = (signature.call.__doc__ or "").strip().split("\n")[0]
    keywords: dict[str, Any] = {**facts}
    check_keywords(name, keywords)
    if fold is None:
        signature.check_inputs(f"method {name!r}")
    else:
        hint = f"; besides the layer, a signal may take {' and '.join(LAYER_INPUTS)}"
        signature.check_inputs(f"method {name!r}", LAYER_INPUTS, hint)
    promised = Facts(**{"title": title, **{key: keywords.pop(key) for key in FACTS & keywords.keys()}})
    needs = LayerNeeds(**{key: keywords.pop(key) for key in NEEDS & keywords.keys()})
    functions = {key: OptionFunction.of(keywords.pop(key)) for key in FUNCTIONS if keywords.get(key) is not None}
    parts: dict[str, Any] = {"needs": needs, **functions, **keywords}
    if fold is not None:
        recipe = LayerSignal(signature, fold, **parts)
    else:
        layers = None if layered is None else LayerSignal(OptionFunction.of(layered), first, **parts)
        fixed = keywords.get("fixed_linearisation", False)
        recipe = ProbeFunction(signature, layers, needs.attention, fixed, functions.get("finish"))
    return Method(name, promised, recipe, presets or {}, black_box)


def check_keywords(name: str, keywords: Mapping[str, Any]) -> None:
    """Raise a TypeError for keywords that do not exist, and for required ones that are missing."""
    if unknown := sorted(keywords.keys() - RecipeKeywords.__annotations__.keys()):
        near = get_close_matches(unknown[0], ["aliases", *MethodKeywords.__annotations__], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"method {name!r} has unknown keywords: {', '.join(unknown)}{hint}")
    if missing := [key for key in ("signed", "class_specific") if key not in keywords]:
        raise TypeError(f"method {name!r} does not state {' and '.join(f'{key}=True or False' for key in missing)}")


def register_alias(alias: str, spec: str) -> None:
    """Register `alias`, a name used in the literature, for a spec."""
    SPEC_ALIASES[alias.lower()] = spec
