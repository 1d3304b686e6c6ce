"""`Method`: facts, a recipe and options, under a name; the registry of methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitreous.capture.argument_types import QuestionInput
from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.score_function import PROBABILITIES, resolve_score_function
from vitreous.core.errors import SpecError
from vitreous.core.registry import Registry
from vitreous.methods import run
from vitreous.methods.attribution import Attribution
from vitreous.methods.capability_lists import black_box_methods, naming_gradient_free_methods
from vitreous.methods.fold import Fold
from vitreous.methods.options import Option, check_choice, check_names, defaults, fit_options, write_options
from vitreous.methods.recipe import PRESET, QUESTION, Facts, LayerSignal, ProbeFunction, Recipe
from vitreous.models.model import BlackBox, Network
from vitreous.models.tensor_types import TokenScores
from vitreous.models.vit import ViT


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
    >>> vitreous.resolve("genatt+skipplus").read_layers(12)
    range(6, 12)
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

    # ── properties ───────────────────────────────────────────────────────────────────────────────

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

    def signed_by(self, question: QuestionInput) -> bool:
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
    def question(self) -> QuestionInput:
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
        fold_options = {} if self.fold is None else self.fold.options
        return default_options | {key: value for key, value in fold_options.items() if key in default_options}

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
        recipe, preset = self.recipe, self.options.get("preset")
        options = {key: value for key, value in self.options.items() if key != "preset"}
        if preset is not None:
            by_preset = self.presets[preset]
            options = {"preset": preset} | {k: v for k, v in options.items() if by_preset.get(k, ...) != v}
        text = f"{self.name}{write_options(options)}"
        if not isinstance(recipe, LayerSignal):
            return text
        text += f"@{recipe.linearisation_name}" if recipe.linearisation_name else ""
        own = self.registered
        own = own if own is None or preset is None else own.with_options(preset=preset)
        if own is None or recipe.fold == own.fold:
            return text
        return f"{text}+{recipe.fold.name}{write_options(recipe.fold.options)}"

    # ── options, fold and linearisation ──────────────────────────────────────────────────────────

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
        options = {**self.options, **options}
        preset, method = options.get("preset"), self
        if preset is not None and self.presets:
            check_choice("preset", preset, tuple(self.presets))
            setting = dict(self.presets[preset])
            method = self._replace_fold(setting.pop("fold")) if "fold" in setting else self
            options = {**setting, **options}
        options = fit_options(f"method {self.name!r}", options, method.typed_options)
        return method._set_options(options)._refuse_rescaled_biases()

    def _set_options(self, options: Mapping[str, Any]) -> Method:
        """Set valid options, those of a fold that is not the method's default at that fold, because a spec writes them there."""
        fold, own = self.fold, self.registered_fold
        if fold is None or own is None or fold.name == own.name:
            return replace(self, options=options)
        assert isinstance(self.recipe, LayerSignal)
        of_fold = fold.typed_options.keys() - self.recipe.signal.options.keys()
        moved = {key: value for key, value in options.items() if key in of_fold}
        rest = {key: value for key, value in options.items() if key not in of_fold}
        return replace(self._replace_fold(fold.with_options(**moved)) if moved else self, options=rest)

    def _refuse_rescaled_biases(self) -> Method:
        """The method; a SpecError if its fold would rescale layers' maps and then add bias shares at another scale."""
        if isinstance(self.recipe, LayerSignal) and self.recipe.needs.biases:
            rule = {**self.recipe.fold.options, **self.options}.get("normalise", "none")
            if rule != "none":
                raise SpecError(
                    f"{self.name!r} adds bias shares to the sum of its layers, which normalise={rule!r} would rescale without "
                    f"them; use 'ixg+{self.recipe.fold.name}(normalise={rule!r})'"
                )
        return self

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
        layers = self.recipe.per_layer if isinstance(self.recipe, ProbeFunction) else self.recipe
        if layers is None:
            example = f"{'genatt' if fold.mixing else 'ixg'}+{fold.name}"
            raise SpecError(
                f"{self.name!r} has no signal per layer for {fold.name!r} to fold; use it alone, or one that has, as {example!r}"
            )
        current = self.fold
        if fold.mixing and not layers.mixing:
            summed = self.name if current is not None and current.name == "plus" else f"{self.name}+plus"
            raise SpecError(
                f"{self.name!r} has no token-to-token signal per layer for {fold.name!r} to fold; use {summed!r}"
            )
        if layers.fixed_fold:
            raise SpecError(
                f"{self.name!r} has its fold built in; for {fold.name!r} use {layers.fixed_fold.format(fold=fold.name)!r}"
            )
        fold_options = current.options if current is not None and current.name == fold.name else {}
        folded = self._replace_fold(replace(fold, options={**fold_options, **fold.options}))
        check_names(f"{self.name!r} under fold {fold.name!r}", self.options, folded.typed_options)
        return folded._refuse_rescaled_biases()

    def read_layers(self, depth: int) -> range:
        """Layers that the fold reads in a model of this depth; the method must have one.

        Parameters
        ----------
        depth
            Number of blocks of the model.

        Returns
        -------
        range
            Indices of the layers.

        Raises
        ------
        SpecError
            If the model has no layer at which the fold starts.
        """
        assert isinstance(self.recipe, LayerSignal)
        return range(run.effective_fold(self, self.recipe).first_layer(depth), depth)

    def _replace_fold(self, fold: Fold) -> Method:
        """The method with another fold, without a check that it fits; a function of the probe becomes its per-layer form."""
        recipe = self.recipe
        if isinstance(recipe, LayerSignal):
            return replace(self, recipe=replace(recipe, fold=fold))
        assert recipe.per_layer is not None
        facts = replace(self.facts, native="patch")
        return replace(self, facts=facts, recipe=replace(recipe.per_layer, fold=fold))

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
        recipe, facts = self.recipe, self.facts
        if recipe.fixed_linearisation:
            raise SpecError(f"{self.name!r} has its own way back through the layers; for another use 'ixg@{name}'")
        if not facts.class_specific or (isinstance(recipe, ProbeFunction) and facts.backwards == 0):
            raise SpecError(f"{self.name!r} takes no gradient through the layers, so '@{name}' changes nothing")
        if isinstance(recipe, ProbeFunction):
            raise SpecError(
                f"{self.name!r} takes gradients of the whole model as it is, where '@{name}' does not reach; use 'ixg@{name}'"
            )
        return replace(self, recipe=replace(recipe, linearisation=point, linearisation_name=name))

    # ── models ───────────────────────────────────────────────────────────────────────────────────

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
        if self.black_box is None:
            raise SpecError(
                f"{self.name!r} looks inside the model; of a black box ask one of: {black_box_methods(METHODS)}"
            )
        for key, needed in self.black_box.items():
            if self.options.get(key, needed) != needed:
                raise SpecError(
                    f"{self.name}({key}={self.options[key]!r}) looks inside the model; of a black box ask {self.name}({key}={needed!r})"
                )
        return self.with_options(**self.black_box)

    @property
    def capability(self) -> type[BlackBox]:
        """The least that a model must be for this method: `BlackBox`, `Network` or `ViT`."""
        if self.black_box is not None:
            return BlackBox
        return Network if self.works_on_networks else ViT

    def for_model(self, model: BlackBox) -> Method:
        """The form of the method for this kind of model.

        A `ViT` gets the method itself, a `Network` too if states and gradients are enough, else the form for black boxes.

        Parameters
        ----------
        model
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
        if isinstance(model, ViT):
            return self
        if isinstance(model, Network):
            takes_clips = model.clip is not None
            if self.works_on_networks and not (takes_clips and self.settings.get("space") == "pixels"):
                return self
            if takes_clips:
                raise SpecError(
                    f"{self.spec!r} reads more than states and gradients at blocks, and {model.name!r} takes clips; of clips ask "
                    f"one of: {', '.join(name for name in sorted(METHODS) if METHODS[name].works_on_networks)}"
                )
            if self.black_box is None:
                reason = f" ({model.reason})" if model.reason else ""
                others = ", ".join(name for name in sorted(METHODS) if METHODS[name].capability is not ViT)
                raise SpecError(
                    f"{self.spec!r} needs the parts of a ViT (attention matrices, norms, token removal), and {model.name!r} is a "
                    f"network without an adapter{reason}; of a network ask one of: {others}"
                )
        return self.for_black_box()

    @property
    def works_on_networks(self) -> bool:
        """Whether states and gradients at blocks are enough for this method with these options."""
        recipe = self.recipe
        if not isinstance(recipe, LayerSignal) or recipe.mixing or recipe.needs.only_in_vits:
            return False
        if recipe.linearisation.residual or recipe.changes_pass(self.options):
            return False
        return self.settings.get("of", "input") in ("input", "output")

    def chosen_question(self, question: QuestionInput | None = None, *, scalar: bool = False) -> QuestionInput:
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
        with naming_gradient_free_methods(self.name, METHODS):
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
        if not isinstance(self.recipe, LayerSignal):
            raise SpecError(f"{self.name!r} does not bring layers together; use one that does, such as 'ixg+plus'")
        tokens, accounting = run.run_layers(self, self.recipe, probe, self.settings)
        return tokens if accounting is None else accounting.close(tokens)

    def __repr__(self) -> str:
        return f"Method({self.spec!r})"


METHODS: Registry[Method] = Registry("method", "vitreous.methods")
SPEC_ALIASES: dict[str, str] = {}  # alias in lower case → spec
