"""`Method`: linearisation × signal × fold, or one function of the `Probe`, and its properties; the registry."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.probe import Probe
from vitreous.capture.question import PROBABILITIES, ask
from vitreous.core.errors import SpecError
from vitreous.core.registry import Registry
from vitreous.methods.attribution import Attribution, patch_sums
from vitreous.methods.fold import Fold
from vitreous.methods.ledger import Ledger
from vitreous.methods.options import Option, check_names, choice, defaults, fit_options, options_of, written
from vitreous.models.shapes import TokenScores
from vitreous.models.vit import ViT


def check_question(question: Any) -> None:
    """Raise a SpecError unless the score function (`question`) is None, a callable or a registered name."""
    if question is None or callable(question):  # includes `Question`
        return
    if not isinstance(question, str):
        raise SpecError(f"a question is a name or a callable of the logits, not {type(question).__name__!r}")
    ask(question)


QUESTION = Annotated[Any, check_question]
SPACE = Option("space", "tokens", Literal["tokens", "pixels"])
ROW = Option("row", "readout", Literal["readout", "cls"])
PRESET = Option("preset", None)


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A named attribution method and its declared properties.

    `vitreous.testing.check_method` runs contract tests of the declared properties.

    Attributes
    ----------
    name
        Name in the registry.
    function
        Takes a `Layer` if the method has a fold, else the `Probe`; followed by the method's options.
    signed
        Whether scores can be negative.
    class_specific
        Whether scores depend on the target class.
    fold
        How the signals of the layers are combined; None for a function of the `Probe`.
    fixed_fold
        Set if the fold cannot be replaced: the spec to use instead, with `{fold}` in place of the fold's name.
    linearisation
        How the backward pass treats attention, norms and activations.
    linearisation_name
        Name of the linearisation as written in the spec; empty if it is the method's own.
    fixed_linearisation
        Whether the linearisation cannot be replaced.
    attention
        Whether the method reads attention matrices.
    mixing
        Whether the signal is token-to-token [r n n].
    biases
        Whether bias shares are added to the tokens that the biases are added to.
    normed
        Whether the method may read the first norm's output and its gradient.
    presence
        Whether the method reads the derivative of the score with respect to a token's presence.
    complete
        Whether, under a complete linearisation, tokens and biases add up to the score.
    pixel
        `(images, gradient, **options)` → [r H W]: the method's form in pixel space.
    native
        Resolution of the scores, "patch" or "pixel".
    question
        Default score function: a name, a `Question` or a callable.
    averages
        Whether scores are means of model scores, and therefore have their sign.
    trial
        Options for the contract tests, for methods that are slow with their defaults.
    black_box
        Options with which the method works for any classifier; None if it needs access to the model's layers.
    forwards, backwards
        Number of passes, or an expression for it.
    paper
        Key in the bibliography.
    title
        One line for the catalogue.
    formula
        One line, in the notation of docs/methods.md.
    presets
        Named option settings.
    options
        Options that were given.
    finish
        `(patches, **options)`: a published post-processing step.
    through
        `(probe, look, linearisation, **options)`: a separate pass that adds to the layers of `look()` what the signal
        reads.
    layered
        For a function of the `Probe`: the per-layer signal to use under a fold.
    caveat
        `(method, vit)` → a warning for users of this model, or an empty string.
    """

    name: str
    function: Callable[..., Any]
    signed: bool
    class_specific: bool
    fold: Fold | None = None
    fixed_fold: str = ""
    linearisation: Linearisation = PLAIN
    linearisation_name: str = ""
    fixed_linearisation: bool = False
    attention: bool = False
    mixing: bool = False
    biases: bool = False
    normed: bool = False
    presence: bool = False
    complete: bool = False
    pixel: Callable[..., Tensor] | None = None
    native: str = "patch"
    question: Any = "logit"
    averages: bool = False
    trial: Mapping[str, Any] = field(default_factory=dict)
    black_box: Mapping[str, Any] | None = None
    forwards: int | str = 1
    backwards: int | str = 1
    paper: str = ""
    title: str = ""
    formula: str = ""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[..., Tensor] | None = None
    through: Callable[..., Iterator[Layer]] | None = None
    layered: Callable[..., Tensor] | None = None
    caveat: Callable[[Method, ViT], str] | None = None

    # ── composition ──────────────────────────────────────────────────────────────────────────────

    @property
    def known_options(self) -> dict[str, Any]:
        """Default of every option, by name; the fold's own settings replace the defaults of its function."""
        known = defaults(self.typed_options)
        return known if self.fold is None else {**known, **{k: v for k, v in self.fold.options.items() if k in known}}

    @property
    def typed_options(self) -> dict[str, Option]:
        """Every option by name: of the function, fold, pixel form, post-processing and separate pass, and common ones.

        The common ones are `space` (with a pixel form), `row` (token-to-token signals), `question` (class-specific
        methods) and `preset` (methods with presets).
        """
        known = dict(options_of(self.function))
        known |= {} if self.fold is None else options_of(self.fold.function)
        if self.pixel is not None:
            known |= {"space": SPACE, **options_of(self.pixel)}
        known |= {"row": ROW} if self.mixing else {}
        known |= {**options_of(self.finish), **({} if self.fold is None else options_of(self.through))}
        known |= {"question": Option("question", self.question, QUESTION)} if self.class_specific else {}
        return known | ({"preset": PRESET} if self.presets else {})

    def with_options(self, /, **given: Any) -> Method:
        """The method with these options set; options set before are kept unless they are given again.

        Parameters
        ----------
        **given
            Options by name. With `preset`, its settings are used for options that are not given.

        Returns
        -------
        Method
            A copy of this method.

        Raises
        ------
        SpecError
            If an option or preset does not exist, or a value does not fit the option's annotation.
        """
        given = {**self.options, **given}
        preset = given.get("preset")
        if preset is not None and self.presets:
            choice("preset", preset, tuple(self.presets))
            setting = dict(self.presets[preset])
            made = replace(self, fold=setting.pop("fold", self.fold))
            given = {**setting, **given}
        else:
            made = self
        given = fit_options(f"method {self.name!r}", given, made.typed_options)
        made, given = made._shared(given)
        made._refuse_rescaled_biases(given)
        question = made.question if given.get("question") is None else given["question"]
        return replace(made, options=given, question=question, signed=made.signed or made._signed_by(question))

    def _shared(self, given: dict[str, Any]) -> tuple[Method, dict[str, Any]]:
        """Move options of a fold that is not the method's default to that fold, because a spec writes them there."""
        own = self._own
        if self.fold is None or own is None or own.fold is None or self.fold.name == own.fold.name:
            return self, given
        theirs = options_of(self.fold.function).keys() - options_of(self.function).keys()
        moved = {key: value for key, value in given.items() if key in theirs}
        made = replace(self, fold=self.fold.with_options(**moved)) if moved else self
        return made, {key: value for key, value in given.items() if key not in moved}

    def asked(self, question: Any = None, *, scalar: bool = False) -> Any:
        """The score function to explain.

        Parameters
        ----------
        question
            Score function for all methods of a run; used if the spec does not set one.
        scalar
            Whether the model has a single output. "logit" is then used instead of the paper's score function.

        Returns
        -------
        str, Question or callable
            The spec's `question` option if set, else `question` if given, else "logit" for a scalar model, else the
            method's default (that of its paper).
        """
        own = self.options.get("question")
        if own is not None:
            return own
        return question if question is not None else "logit" if scalar else self.question

    def _signed_by(self, question: Any) -> bool:
        return self.averages and getattr(question, "name", question) not in PROBABILITIES

    def of_black_box(self) -> Method:
        """The form that uses pixels only and therefore works for any classifier (a black box).

        Raises
        ------
        SpecError
            If the method has no such form, or an option excludes it.
        """
        if self.black_box is None:
            raise SpecError(f"{self.name!r} looks inside the model; of a black box ask one of: {black_box_methods()}")
        for key, needed in self.black_box.items():
            if self.options.get(key, needed) != needed:
                raise SpecError(
                    f"{self.name}({key}={self.options[key]!r}) looks inside the model; of a black box ask {self.name}({key}={needed!r})"
                )
        return self.with_options(**self.black_box)

    def folded(self, fold: Fold) -> Method:
        """The method with another fold.

        Raises
        ------
        SpecError
            If the method has no per-layer signal, its signal is not token-to-token but the fold needs one, its fold
            cannot be replaced, or one of its options does not exist under the fold.
        """
        if self.fold is None and self.layered is None:
            known = f"{'genatt' if fold.mixing else 'ixg'}+{fold.name}"
            raise SpecError(
                f"{self.name!r} has no signal per layer for {fold.name!r} to fold; use it alone, or one that has, as {known!r}"
            )
        if fold.mixing and not self.mixing:
            summed = self.name if self.fold is not None and self.fold.name == "plus" else f"{self.name}+plus"
            raise SpecError(
                f"{self.name!r} has no token-to-token signal per layer for {fold.name!r} to fold; use {summed!r}"
            )
        if self.fixed_fold:
            raise SpecError(
                f"{self.name!r} has its fold built in; for {fold.name!r} use {self.fixed_fold.format(fold=fold.name)!r}"
            )
        own = self.fold.options if self.fold and self.fold.name == fold.name else {}
        made = replace(self, fold=replace(fold, options={**own, **fold.options}))
        made = replace(made, function=self.layered, layered=None, native="patch") if self.layered else made
        check_names(f"{self.name!r} under fold {fold.name!r}", self.options, made.known_options)
        made._refuse_rescaled_biases(made.options)
        return made

    def _refuse_rescaled_biases(self, options: Mapping[str, Any]) -> None:
        """Raise a SpecError if a fold would rescale layers' maps and then add bias shares at another scale."""
        given = {**({} if self.fold is None else self.fold.options), **options}
        if self.biases and self.fold is not None and given.get("normalise", "none") != "none":
            other = f"ixg+{self.fold.name}(normalise={given['normalise']!r})"
            raise SpecError(
                f"{self.name!r} adds bias shares to the sum of its layers, which normalise={given['normalise']!r} would "
                f"rescale without them; use {other!r}"
            )

    def linearised(self, name: str, point: Linearisation) -> Method:
        """The method with another linearisation.

        Parameters
        ----------
        name
            The linearisation as written in a spec.
        point
            The linearisation.

        Raises
        ------
        SpecError
            If the method's linearisation cannot be replaced, or the method takes no gradient through the layers.
        """
        if self.fixed_linearisation:
            raise SpecError(f"{self.name!r} has its own way back through the layers; for another use 'ixg@{name}'")
        if not self.class_specific or (self.fold is None and self.backwards == 0):
            raise SpecError(f"{self.name!r} takes no gradient through the layers, so '@{name}' changes nothing")
        if self.fold is None:
            raise SpecError(
                f"{self.name!r} takes gradients of the whole model as it is, where '@{name}' does not reach; use 'ixg@{name}'"
            )
        return replace(self, linearisation=point, linearisation_name=name)

    @property
    def spec(self) -> str:
        """The method as a string; `resolve` makes the same method of it."""
        mode = f"@{self.linearisation_name}" if self.linearisation_name else ""
        options = {key: value for key, value in self.options.items() if key != "preset"}
        if (preset := self.options.get("preset")) is not None:
            options = {"preset": preset} | {k: v for k, v in options.items() if self.presets[preset].get(k, ...) != v}
        folded = ""
        own = self._own
        if self.fold is not None and own is not None and self.fold != own.with_options(**self._preset()).fold:
            folded = f"+{self.fold.name}{written(self.fold.options)}"
        return f"{self.name}{written(options)}{mode}{folded}"

    @property
    def _own(self) -> Method | None:
        return METHODS.find(self.name)

    def _preset(self) -> dict[str, Any]:
        return {"preset": self.options["preset"]} if self.options.get("preset") is not None else {}

    # ── explanation ──────────────────────────────────────────────────────────────────────────────

    def __call__(self, probe: Probe) -> Attribution:
        """Attribution of the probe's score, one row per image and target."""
        if not self.class_specific:
            return self._agnostic(probe)
        return self._explain(probe)

    def _agnostic(self, probe: Probe) -> Attribution:
        """One map per image, which does not depend on the target; repeated for every target."""
        k = probe.targets_per_image
        if k == 1:
            return self._explain(probe)
        found = self._explain(probe.once())
        rows = {
            name: None if (t := getattr(found, name)) is None else t.repeat_interleave(k, 0)
            for name in ("patches", "prefix", "bias", "residual", "native_pixels")
        }
        return replace(found, **rows, targets=probe.targets, **described(probe))

    def _explain(self, probe: Probe) -> Attribution:
        options = self._resolved()
        if self.fold is None:
            found = self.function(probe, **self._pick(options, self.function))
            scores, more = found if isinstance(found, tuple) else (found, {})  # `more`: further fields of `Attribution`
            return replace(self._attribution(probe, scores, options), **more)
        if options.get("space", "tokens") == "pixels":
            return self._in_pixels(probe, options)
        tokens, ledger = self._walked(probe, options)
        residual = None
        if ledger is not None and self._adds_up(probe) and not self.mixing:
            residual = ledger.missing(described(probe)["score"], tokens)
        if ledger is None:
            return self._attribution(probe, tokens, options)
        found = self._attribution(probe, ledger.close(tokens), options)
        return replace(found, bias=ledger.elsewhere, residual=residual)

    def token_scores(self, probe: Probe) -> TokenScores:
        """Scores [r n] of the tokens that entered the encoder (all or a subset), as the fold returns them.

        Raises
        ------
        SpecError
            If the method has no fold.
        """
        if self.fold is None:
            raise SpecError(f"{self.name!r} does not bring layers together; use one that does, such as 'ixg+plus'")
        tokens, ledger = self._walked(probe, self._resolved())
        return tokens if ledger is None else ledger.close(tokens)

    def _walked(self, probe: Probe, options: Mapping[str, Any]) -> tuple[TokenScores, Ledger | None]:
        """Token scores returned by the fold, and the bias accounting (`Ledger`) if biases are needed, else None."""
        assert self.fold is not None
        fold = self._fold()
        with_biases = self.biases or (self._adds_up(probe) and self.fold.name == "first")
        look = partial(
            probe.layers,
            lin=self.linearisation,
            attention=self.attention,
            gradients=self.class_specific,
            biases=with_biases,
            normed=self.normed,
            presence=self.presence,
            down_to=fold.down_to(probe.vit.depth),
        )
        if self.through is None:
            layers = look()
        else:
            layers = self.through(probe, look, self.linearisation, **self._pick(options, self.through))
        counted = options.get("biases") or ("repeat" if options.get("mode") == "restart" else "once")
        ledger = Ledger(probe, self.biases, counted == "repeat")
        signal_options = self._pick(options, self.function)

        def signal(layer: Layer) -> Tensor:
            return ledger.add(layer, self.function(layer, **signal_options))

        if options.get("row", "readout") != "readout":
            if not probe.layout.prefix:
                raise SpecError(f"{probe.vit.name!r} has no class token for row='cls' to read; use row='readout'")
            layers = read_at_the_class_token(layers)
        layers = ledger.watch(layers) if with_biases else layers
        return fold.function(layers, signal, **fold.options), ledger if with_biases else None

    def _resolved(self) -> dict[str, Any]:
        return {**self.known_options, **self.options}

    def _fold(self) -> Fold:
        """The fold, with those of the method's options that belong to it."""
        assert self.fold is not None
        known = options_of(self.fold.function)
        given = {**self.fold.options, **{k: v for k, v in self.options.items() if k in known}}
        own = self._own
        if given.get("mode") == "restart" and own is not None and own.fold is not None and own.fold.name == "rollout":
            # a restart rolls out with the settings of the method's own roll-out
            given = {**{k: v for k, v in own.fold.options.items() if k in known}, **given}
        return replace(self.fold, options=given)

    @staticmethod
    def _pick(options: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
        return {key: options[key] for key in options_of(function) if key in options}

    def _adds_up(self, probe: Probe) -> bool:
        return self.complete and self.linearisation.complete and probe.question.affine and self._passes_by

    @property
    def _passes_by(self) -> bool:
        """Whether `through` has only default options, with which it leaves layers and bias shares unchanged."""
        return all(self.options.get(key, own) == own for key, own in defaults(options_of(self.through)).items())

    def _in_pixels(self, probe: Probe, options: Mapping[str, Any]) -> Attribution:
        assert self.pixel is not None
        assert self.fold is not None
        if self.fold.name != "first" or not self._passes_by:
            other = f"fold {self.fold.name!r}" if self.fold.name != "first" else f"{self.spec!r}"
            raise SpecError(f"space='pixels' reads the picture itself; it does not compose with {other}")
        layer = deque(probe.layers(self.linearisation, self.attention), maxlen=1)[0]
        gradient = probe.pixel_grad(layer.hidden_grad)
        images = layer.rows(probe.images)
        picked = {key: options[key] for key in options_of(self.pixel)}
        return self._attribution(probe, self.pixel(images, gradient, **picked), options)

    def _attribution(self, probe: Probe, scores: Tensor, options: Mapping[str, Any]) -> Attribution:
        """Build the `Attribution`; `scores` are of tokens [r n], patches [r p] or pixels [r H W]."""
        layout, prefix, pixels = probe.layout, None, None
        if scores.ndim == 3:
            pixels, patches = scores, None if probe.black_box else patch_sums(scores, layout)
        elif scores.shape[-1] == layout.tokens and self.fold is not None:
            prefix, patches = scores[:, : layout.prefix], scores[:, layout.prefix :]
        else:
            patches = scores
        if self.finish is not None:
            patches = self.finish(patches, **self._pick(options, self.finish))
        return Attribution(
            patches=patches,
            layout=layout,
            targets=probe.targets,
            method=self.spec,
            native="patch" if pixels is None else "pixel",
            native_pixels=pixels,
            prefix=prefix,
            signed=self.signed or self._signed_by(probe.question),
            **described(probe),
        )

    def __repr__(self) -> str:
        return f"Method({self.spec!r})"


def read_at_the_class_token(layers: Iterator[Layer]) -> Iterator[Layer]:
    """Layers whose read-out is the class token, as in published code, also if the model's head reads other tokens."""
    for layer in layers:
        row = torch.zeros_like(layer.readout)
        row[:, 0] = 1
        yield replace(layer, readout=row)


def described(probe: Probe) -> dict[str, Any]:
    """The explained score [r] and the logits [r c], as fields of `Attribution`."""
    k = probe.targets_per_image
    raw = probe.reading.logits.repeat_interleave(k, 0)
    with torch.no_grad():
        score = probe.answer(raw, probe.targets)
    return {"score": score, "logits": probe.full_logits.repeat_interleave(k, 0)}


METHODS: Registry[Method] = Registry("method")
SPELLINGS: dict[str, str] = {}  # alias in lower case → spec


def black_box_methods() -> str:
    """Names of the methods that work for any classifier, separated by commas."""
    return ", ".join(name for name in METHODS if METHODS[name].black_box is not None)


def method(name: str, *, aliases: tuple[str, ...] = (), **facts: Any) -> Callable[[Callable[..., Any]], Method]:
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
        Fields of `Method`; `signed` and `class_specific` are required.

    Returns
    -------
    Callable
        Decorator that returns the `Method`.
    """

    def register(function: Callable[..., Any]) -> Method:
        title = (function.__doc__ or "").strip().split("\n")[0]
        made = Method(name, function, **{"title": title, **facts})
        METHODS.add(name, made, function.__module__)
        SPELLINGS.update(dict.fromkeys((alias.lower() for alias in aliases), name))
        return made

    return register


def spelling(alias: str, spec: str) -> None:
    """Register `alias`, a name used in the literature, for a spec."""
    SPELLINGS[alias.lower()] = spec
