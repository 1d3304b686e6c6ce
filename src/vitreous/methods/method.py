"""`Method`: facts, a recipe and options, under a name; the registry of methods."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.score_function import PROBABILITIES, resolve_score_function
from vitreous.core.deprecation import rename_warnings
from vitreous.core.registry import Registry
from vitreous.methods import capability, compose, run
from vitreous.methods.attribution import Attribution
from vitreous.methods.fold import Fold
from vitreous.methods.options import Option, defaults
from vitreous.methods.recipe import PRESET, QUESTION, Facts, LayerNeeds, LayerSignal, Recipe
from vitreous.models.model import BlackBox
from vitreous.models.tensor_types import TokenScores


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A named attribution method.

    Methods are made by the decorator `method` and by `resolve`.

    Attributes
    ----------
    name
        Name in the registry.
    facts
        What the method promises.
    recipe
        How the map is computed: a signal per layer with a fold, or a function of the `Probe`.
    presets
        Named option settings.
    black_box
        Options with which the method works for any classifier; None if it needs access to the model's layers.
    options
        Options that were given.

    Examples
    --------
    >>> import vitreous
    >>> method = vitreous.resolve("genatt")
    >>> method.class_specific, method.signed
    (True, False)
    >>> method.with_options(start=1).spec, method.with_fold(vitreous.plus).spec
    ('genatt(start=1)', 'genatt+plus')
    >>> method.with_linearisation("libra", vitreous.resolve("ixg@libra").linearisation).spec
    'genatt@libra'
    >>> method.chosen_question(), method.chosen_question("margin")
    ('logit', 'margin')
    >>> vitreous.resolve("rise").signed_by("probability"), vitreous.resolve("rise").signed_by("logit")
    (False, True)
    >>> vitreous.resolve("occlusion").for_black_box().spec
    "occlusion(space='pixels')"
    >>> vit = vitreous.load("scenes")
    >>> method.for_model(vit) is method
    True
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> method.token_scores(vitreous.Probe(vit, images)).shape  # the class token and 196 patches
    torch.Size([1, 197])
    """

    name: str
    facts: Facts
    recipe: Recipe
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    black_box: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fold(self) -> Fold | None:
        """How the signals of the layers are combined; None for a function of the `Probe`."""
        return self.recipe.fold if isinstance(self.recipe, LayerSignal) else None

    @property
    def linearisation(self) -> Linearisation:
        """How the backward pass treats attention, norms and activations."""
        return self.recipe.linearisation if isinstance(self.recipe, LayerSignal) else PLAIN

    @property
    def class_specific(self) -> bool:
        """Whether scores depend on the target class."""
        return self.facts.class_specific

    @property
    def signed(self) -> bool:
        """Whether scores can be negative, given the method's score function."""
        return self.facts.signed or self.signed_by(self.question)

    def signed_by(self, question: Any) -> bool:
        """Whether scores can be negative because those of this score function can.

        Parameters
        ----------
        question
            Name of a score function, or a callable.

        Returns
        -------
        bool
        """
        score_function = resolve_score_function(question) if isinstance(question, str) else question
        return self.facts.averages and getattr(score_function, "name", score_function) not in PROBABILITIES

    @property
    def question(self) -> Any:
        """Score function: the option `question` if it is given, else that of the method's paper."""
        own = self.options.get("question")
        return self.facts.question if own is None else own

    @property
    def typed_options(self) -> dict[str, Option]:
        """Every option by name: those of the recipe, `question` (class-specific methods) and `preset`."""
        options = self.recipe.typed_options
        options |= {"question": Option("question", self.facts.question, QUESTION)} if self.class_specific else {}
        return options | ({"preset": PRESET} if self.presets else {})

    @property
    def known_options(self) -> dict[str, Any]:
        """Default of every option, by name; the fold's own settings replace the defaults of its function."""
        default_options = defaults(self.typed_options)
        return (
            default_options
            if self.fold is None
            else {**default_options, **{k: v for k, v in self.fold.options.items() if k in default_options}}
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Value of every option: defaults, overridden by the given options."""
        return {**self.known_options, **self.options}

    @property
    def registered(self) -> Method | None:
        """The method of this name in the registry, without options."""
        return METHODS.find(self.name)

    @property
    def registered_fold(self) -> Fold | None:
        """The fold of the method in the registry."""
        return None if self.registered is None else self.registered.fold

    @property
    def spec(self) -> str:
        """The method as a string; `resolve` makes the same method of it."""
        return compose.write_spec(self)

    def with_options(self, /, **options: Any) -> Method:
        """The method with these options set; options set before are kept unless they are given again.

        Parameters
        ----------
        **options
            Options by name. With `preset`, its settings are used for options that are not given.

        Returns
        -------
        Method

        Raises
        ------
        SpecError
            If an option or preset does not exist, or a value does not fit the option's annotation.
        """
        return compose.with_options(self, options)

    def with_fold(self, fold: Fold) -> Method:
        """The method with another fold.

        Parameters
        ----------
        fold
            The fold, with its options.

        Returns
        -------
        Method

        Raises
        ------
        SpecError
            If the method has no per-layer signal, its signal is not token-to-token but the fold needs one, its fold
            cannot be replaced, or one of its options does not exist under the fold.
        """
        return compose.with_fold(self, fold)

    def with_linearisation(self, name: str, point: Linearisation) -> Method:
        """The method with another linearisation.

        Parameters
        ----------
        name
            The linearisation as written in a spec.
        point
            The linearisation.

        Returns
        -------
        Method

        Raises
        ------
        SpecError
            If the method's linearisation cannot be replaced, or the method takes no gradient through the layers.
        """
        return compose.with_linearisation(self, name, point)

    def for_black_box(self) -> Method:
        """The form that uses pixels only and therefore works for any classifier (a black box).

        Returns
        -------
        Method

        Raises
        ------
        SpecError
            If the method has no such form, or an option excludes it.
        """
        return compose.with_black_box_options(self, capability.black_box_methods(METHODS))

    @property
    def capability(self) -> type[BlackBox]:
        """The least that a model must be for this method: `BlackBox`, `Network` or `ViT`."""
        return capability.needed_capability(self)

    def for_model(self, vit: BlackBox) -> Method:
        """The form of the method for this kind of model.

        A `ViT` gets the method itself, a `Network` too if states and gradients are enough, else the form for black boxes.

        Parameters
        ----------
        vit
            The model.

        Returns
        -------
        Method
            This method, or a copy with the options for black boxes.

        Raises
        ------
        SpecError
            If the method needs more than the model has.
        """
        return capability.form_for_model(self, vit, METHODS)

    @property
    def works_on_networks(self) -> bool:
        """Whether states and gradients at blocks are enough for this method with these options."""
        return capability.works_on_networks(self)

    def chosen_question(self, question: Any = None, *, scalar: bool = False) -> Any:
        """The score function to explain.

        Parameters
        ----------
        question
            Score function for all methods of a run; used if the spec does not set one.
        scalar
            Whether the model has a single output. "logit" is then used instead of the paper's score function.

        Returns
        -------
        str, ScoreFunction or callable
            The spec's option if set, else `question` if given, else "logit" for a scalar model, else the default.
        """
        own = self.options.get("question")
        if own is not None:
            return own
        return question if question is not None else "logit" if scalar else self.facts.question

    # ── explanation ──────────────────────────────────────────────────────────────────────────────

    def __call__(self, probe: BlackBoxProbe) -> Attribution:
        """Attribution of the probe's score, one row per image and target."""
        return run.run_method(self, probe)

    def token_scores(self, probe: BlackBoxProbe) -> TokenScores:
        """Scores [r n] of the tokens that entered the encoder (all or a subset), as the fold returns them.

        Parameters
        ----------
        probe
            Model, images and targets.

        Returns
        -------
        Tensor

        Raises
        ------
        SpecError
            If the method has no fold.
        """
        return run.run_tokens(self, probe)

    def __repr__(self) -> str:
        return f"Method({self.spec!r})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Read facts and parts of the recipe under the names that they had as fields of `Method`."""
            if name in FACTS:
                place, value = f"facts.{name}", getattr(self.facts, name)
            elif name == "attention":
                place, value = f"recipe.{name}", self.recipe.attention
            elif name in NEEDS:
                place, value = f"recipe.needs.{name}", getattr(getattr(self.recipe, "needs", LayerNeeds()), name)
            elif name in RECIPE:
                place, value = f"recipe.{name}", getattr(self.recipe, name, RECIPE[name])
            elif name in OLD_METHODS:
                place, value = OLD_METHODS[name], getattr(self, OLD_METHODS[name])
            else:
                raise AttributeError(f"'Method' object has no attribute {name!r}")
            warnings.warn(f"Method.{name} is now Method.{place}", DeprecationWarning, stacklevel=2)
            return value


METHODS: Registry[Method] = Registry("method")
SPEC_ALIASES: dict[str, str] = {}  # alias in lower case → spec

OLD_METHODS = {
    "asked": "chosen_question",
    "folded": "with_fold",
    "linearised": "with_linearisation",
    "of_black_box": "for_black_box",
}
FACTS = frozenset(fact.name for fact in fields(Facts))
NEEDS = frozenset(need.name for need in fields(LayerNeeds))
RECIPE = {key.name: key.default for key in fields(LayerSignal) if key.name not in ("signal", "fold", "needs")}

__getattr__ = rename_warnings(
    __name__,
    {
        "SPELLINGS": "SPEC_ALIASES",
        "method": "vitreous.methods.register_method.method",
        "make_method": "vitreous.methods.register_method.make_method",
        "spelling": "vitreous.methods.register_method.register_alias",
    },
)
