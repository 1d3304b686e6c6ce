"""Folds, which combine the signals of the layers into one map, and their registry.

A fold consumes an iterator of layers from the last to the first. `reach` gives the first layer that it needs; earlier
layers are not computed. A token-to-token signal [r n n] is reduced to the row that the head reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from vitreous.core.errors import SpecError
from vitreous.core.registry import Registry
from vitreous.methods.options import OptionFunction, Options, fit_options
from vitreous.models.tensor_types import TokenScores

if TYPE_CHECKING:
    from vitreous.methods.method import Method


Accumulated = Literal["sum", "product"] | None


@dataclass(frozen=True)  # without slots: every fold has the docstring of its function
class Fold:
    """A way to combine the signals of the layers into one map.

    Attributes
    ----------
    name
        Name in specs.
    signature
        The function with its options, read when the fold is registered.
    reach
        `(depth, **options)` → index of the first layer that is read.
    mixing
        Whether the fold accepts token-to-token signals [r n n] only.
    options
        Options that were given.
    accumulates
        What `LayerScores` computes with the fold's options and the fold returns, so that `vitreous.inside` can show every step:
        the "sum" of the maps of layers, or the "product" of token-to-token matrices (a roll-out). None for other folds.
    single_layer
        Whether the fold reads the signal of its first layer only; otherwise costs count the signal of every layer.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.skipplus.with_options(start=3).first_layer(12)  # first layer that is read in a model of 12 blocks
    3
    """

    name: str
    signature: OptionFunction
    reach: OptionFunction
    mixing: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    accumulates: Accumulated = None
    single_layer: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.function.__doc__)  # for `help(vitreous.plus)`

    @property
    def function(self) -> Callable[..., TokenScores]:
        """`(layers, signal, **options)` → token scores [r n]. `layers` runs from the last to the first."""
        return self.signature.call

    @property
    def typed_options(self) -> Options:
        """Every option by name."""
        return self.signature.options

    def with_options(self, /, **options: Any) -> Fold:
        """The fold with these options set; a SpecError if one does not exist or does not fit.

        Parameters
        ----------
        **options
            Options by name.

        Returns
        -------
        Fold
            The copy.
        """
        options = fit_options(f"fold {self.name!r}", options, self.typed_options)
        return replace(self, options={**self.options, **options})

    def first_layer(self, depth: int) -> int:
        """Index of the first layer that is read in a model of this depth; a SpecError if there is no such layer.

        Parameters
        ----------
        depth
            Number of blocks of the model.

        Returns
        -------
        int
            The index, from 0.
        """
        reach_options = self.reach.pick(self.options)
        for key, value in reach_options.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise SpecError(f"fold {self.name!r} takes a whole number for {key!r}, not {value!r}")
        start = self.reach(depth, **reach_options)
        if not 0 <= start < depth:
            raise SpecError(f"fold {self.name!r} starts at layer {start}, but the model has layers 0 to {depth - 1}")
        return start

    def __call__(self, method: Method | str, /, **options: Any) -> Method:
        """The method with this fold: `skipplus(decompx)`, `skipplus("decompx", start=4)`.

        Parameters
        ----------
        method
            A method or its spec.
        **options
            Options of the fold.

        Raises
        ------
        SpecError
            If the method cannot be combined with this fold, or an option is invalid.
        """
        from vitreous.methods.spec import resolve

        return resolve(method).with_fold(self.with_options(**options))


FOLDS: Registry[Fold] = Registry("fold", "vitreous.methods")


def fold(
    name: str | None = None,
    *,
    reach: Callable[..., int],
    mixing: bool = False,
    accumulates: Accumulated = None,
    single_layer: bool = False,
) -> Callable[[Callable[..., TokenScores]], Fold]:
    """Decorator that registers a function `(layers, signal, **options) -> [r n]` as a fold.

    Parameters
    ----------
    name
        Name in specs; by default the function's name.
    reach
        `(depth, **options)` → index of the first layer that is read.
    mixing
        Whether the fold accepts token-to-token signals [r n n] only.
    accumulates, single_layer
        As for `Fold`.

    Returns
    -------
    Callable
        Decorator that returns the `Fold`.

    Examples
    --------
    >>> import vitreous
    >>> from vitreous.methods.folds import read_token_scores
    >>> @vitreous.fold("strongest", reach=lambda depth: 0)
    ... def strongest(layers, signal):
    ...     '''Largest score of every token over all layers.'''
    ...     scores = [read_token_scores(layer, signal(layer)) for layer in layers]
    ...     return max(scores, key=lambda score: score.max())
    >>> vitreous.resolve("gradcam+strongest").fold.name
    'strongest'
    """

    def register(function: Callable[..., TokenScores]) -> Fold:
        functions = OptionFunction.of(function), OptionFunction.of(reach)
        registered = Fold(
            name or function.__name__, *functions, mixing, accumulates=accumulates, single_layer=single_layer
        )
        return FOLDS.add(registered.name, registered, function.__module__)

    return register
