"""A method: linearisation × signal × fold, or one whole function, with the facts it is held to."""

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
    if question is None or callable(question):  # a `Question` is callable too
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
    """A named way to explain. Facts are promises; `vitreous.testing.check_method` tries to break them."""

    name: str
    function: Callable[..., Any]  # of a Layer when there is a fold, of the Probe when there is none
    signed: bool
    class_specific: bool
    fold: Fold | None = None
    fixed_fold: str = ""  # why the fold is part of the method: what to use instead
    linearisation: Linearisation = PLAIN
    linearisation_name: str = ""  # as the user wrote it; empty: the method's own
    fixed_linearisation: bool = False
    attention: bool = False  # reads attention matrices
    mixing: bool = False  # its signal is token-to-token
    biases: bool = False  # adds the biases' shares to the tokens they belong to
    normed: bool = False  # may read the first norm's output and its gradient
    presence: bool = False  # reads what the score says of a token's being there
    complete: bool = False  # under a complete linearisation, tokens and biases add up to the score
    pixel: Callable[..., Tensor] | None = None  # (images, gradient, **options) → [r H W]: its form in pixel space
    native: str = "patch"
    question: Any = "logit"  # what is asked unless told otherwise: a name, a Question or a callable
    averages: bool = False  # its scores are means of answers, and have their sign
    trial: Mapping[str, Any] = field(
        default_factory=dict
    )  # options under which the law tries it, where its own take long
    black_box: Mapping[str, Any] | None = None  # options under which any classifier will do; None: it looks inside
    forwards: int | str = 1
    backwards: int | str = 1
    paper: str = ""
    title: str = ""
    formula: str = ""  # in one line, in the letters of docs/methods.md
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[..., Tensor] | None = None  # (patches, **options): a published last step
    # (probe, look, linearisation, **options): a pass of its own, which adds to the layers of `look()` what the signal reads
    through: Callable[..., Iterator[Layer]] | None = None
    layered: Callable[..., Tensor] | None = None  # of a whole function: its signal at a layer, for a fold
    caveat: Callable[[Method, ViT], str] | None = None  # what a user of this model must know; empty: nothing

    # ── composition ──────────────────────────────────────────────────────────────────────────────

    @property
    def known_options(self) -> dict[str, Any]:
        """Every option with its default: the function's, its fold's, and those that its form brings."""
        known = defaults(self.typed_options)
        return known if self.fold is None else {**known, **{k: v for k, v in self.fold.options.items() if k in known}}

    @property
    def typed_options(self) -> dict[str, Option]:
        known = dict(options_of(self.function))
        known |= {} if self.fold is None else options_of(self.fold.function)
        if self.pixel is not None:
            known |= {"space": SPACE, **options_of(self.pixel)}
        known |= {"row": ROW} if self.mixing else {}
        known |= {**options_of(self.finish), **({} if self.fold is None else options_of(self.through))}
        known |= {"question": Option("question", self.question, QUESTION)} if self.class_specific else {}
        return known | ({"preset": PRESET} if self.presets else {})

    def with_options(self, /, **given: Any) -> Method:
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
        question = made.question if given.get("question") is None else given["question"]
        return replace(made, options=given, question=question, signed=made.signed or made._signed_by(question))

    def _shared(self, given: dict[str, Any]) -> tuple[Method, dict[str, Any]]:
        """Options of a fold that is not the method's own go to that fold, where a spec writes them."""
        own = self._own
        if self.fold is None or own is None or own.fold is None or self.fold.name == own.fold.name:
            return self, given
        theirs = options_of(self.fold.function).keys() - options_of(self.function).keys()
        moved = {key: value for key, value in given.items() if key in theirs}
        made = replace(self, fold=self.fold.with_options(**moved)) if moved else self
        return made, {key: value for key, value in given.items() if key not in moved}

    def asked(self, question: Any = None, *, scalar: bool = False) -> Any:
        """What to ask: what the spec says, else what is asked of all methods, else what the method's paper asks.

        `scalar`: the model answers with one number, whose value is asked for instead of what the paper asks.
        """
        own = self.options.get("question")
        if own is not None:
            return own
        return question if question is not None else "logit" if scalar else self.question

    def _signed_by(self, question: Any) -> bool:
        return self.averages and getattr(question, "name", question) not in PROBABILITIES

    def of_black_box(self) -> Method:
        """The form that asks about pixels only."""
        if self.black_box is None:
            raise SpecError(f"{self.name!r} looks inside the model; of a black box ask one of: {black_box_methods()}")
        for key, needed in self.black_box.items():
            if self.options.get(key, needed) != needed:
                raise SpecError(
                    f"{self.name}({key}={self.options[key]!r}) looks inside the model; of a black box ask {self.name}({key}={needed!r})"
                )
        return self.with_options(**self.black_box)

    def folded(self, fold: Fold) -> Method:
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
        return made

    def linearised(self, name: str, point: Linearisation) -> Method:
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
        """The method as one string that `resolve` reads back."""
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
        """Explain what the probe asks."""
        if not self.class_specific:
            return self._agnostic(probe)
        return self._explain(probe)

    def _agnostic(self, probe: Probe) -> Attribution:
        """One map per image whatever is asked; repeated for every target."""
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
            scores, more = found if isinstance(found, tuple) else (found, {})  # more: other fields of the attribution
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
        """Scores of the tokens that entered, all or some of them, as the fold leaves them."""
        if self.fold is None:
            raise SpecError(f"{self.name!r} does not bring layers together; use one that does, such as 'ixg+plus'")
        tokens, ledger = self._walked(probe, self._resolved())
        return tokens if ledger is None else ledger.close(tokens)

    def _walked(self, probe: Probe, options: Mapping[str, Any]) -> tuple[TokenScores, Ledger | None]:
        """What the fold makes of the layers, and the book of biases where one is kept."""
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
        """The fold with every option that is its own."""
        assert self.fold is not None
        known = options_of(self.fold.function)
        given = {**self.fold.options, **{k: v for k, v in self.options.items() if k in known}}
        own = self._own
        if given.get("mode") == "restart" and own is not None and own.fold is not None and own.fold.name == "rollout":
            given = {**{k: v for k, v in own.fold.options.items() if k in known}, **given}  # restarted as it rolls
        return replace(self.fold, options=given)

    @staticmethod
    def _pick(options: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
        return {key: options[key] for key in options_of(function) if key in options}

    def _adds_up(self, probe: Probe) -> bool:
        return self.complete and self.linearisation.complete and probe.question.affine and self._passes_by

    @property
    def _passes_by(self) -> bool:
        """A pass of its own, asked for nothing, leaves the layers and their books alone."""
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
        """`scores` are tokens [r n], patches [r p] or pixels [r H W]."""
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
    """As every reference implementation does, also for models whose head reads something else."""
    for layer in layers:
        row = torch.zeros_like(layer.readout)
        row[:, 0] = 1
        yield replace(layer, readout=row)


def described(probe: Probe) -> dict[str, Any]:
    """The logits and the explained number, row by row."""
    k = probe.targets_per_image
    raw = probe.reading.logits.repeat_interleave(k, 0)
    with torch.no_grad():
        score = probe.answer(raw, probe.targets)
    return {"score": score, "logits": probe.full_logits.repeat_interleave(k, 0)}


METHODS: Registry[Method] = Registry("method")
SPELLINGS: dict[str, str] = {}  # other names → specs


def black_box_methods() -> str:
    """Those that any classifier can be explained by."""
    return ", ".join(name for name in METHODS if METHODS[name].black_box is not None)


def method(name: str, *, aliases: tuple[str, ...] = (), **facts: Any) -> Callable[[Callable[..., Any]], Method]:
    """Register a function as a method, with the facts it is held to; the decorated name is then the `Method`.

    With `fold=` the function takes a `Layer` and returns token scores [r n] (or, with `mixing=True`, [r n n]);
    without, it takes the `Probe` and returns patch scores [r p] or a pixel map [r H W], alone or with other fields of the
    `Attribution` in a dict.
    """

    def register(function: Callable[..., Any]) -> Method:
        title = (function.__doc__ or "").strip().split("\n")[0]
        made = Method(name, function, **{"title": title, **facts})
        METHODS.add(name, made, function.__module__)
        SPELLINGS.update(dict.fromkeys((alias.lower() for alias in aliases), name))
        return made

    return register


def spelling(alias: str, spec: str) -> None:
    """Another name of the literature for a spec."""
    SPELLINGS[alias.lower()] = spec
