"""What a method promises (`Facts`) and how it computes its map: a `LayerSignal` with a fold, or a `ProbeFunction`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, TypedDict

from vitreous.capture.argument_types import QuestionInput
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.score_function import resolve_score_function
from vitreous.core.errors import SpecError
from vitreous.methods.fold import Fold
from vitreous.methods.options import Option, OptionFunction, options_of
from vitreous.methods.pass_counts import Counts, ModelSizes
from vitreous.models.tensor_types import TokenScores
from vitreous.models.vit import ViT

if TYPE_CHECKING:
    from vitreous.methods.method import Method


def check_question(question: Any) -> None:
    """Raise a SpecError unless the score function (`question`) is None, a callable or a registered name."""
    if question is None or callable(question):  # includes `ScoreFunction`
        return
    if not isinstance(question, str):
        raise SpecError(f"a question is a name or a callable of the logits, not {type(question).__name__!r}")
    resolve_score_function(question)


QUESTION = Annotated[Any, check_question]
PRESET = Option("preset", None)
SPACE = Option("space", "tokens", Literal["tokens", "pixels"])
ROW = Option("row", "readout", Literal["readout", "cls"])


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What a method promises; `vitreous.testing.check_method` tests it.

    Attributes
    ----------
    signed
        Whether scores can be negative.
    class_specific
        Whether scores depend on the target class.
    complete
        Whether, under a complete linearisation, tokens and biases add up to the score.
    native
        Resolution of the scores, "patch" or "pixel".
    question
        Default score function: a name, a `ScoreFunction` or a callable.
    averages
        Whether scores are means of model scores, and therefore have their sign.
    forwards, backwards
        Number of passes, or a formula of options and sizes of the model, such as "1 + masks" or "1 + patches".
    counts
        `(method, sizes)` → values of names in these formulas, in place of options and sizes of the same name; under the
        names "forwards" and "backwards", numbers or formulas that replace them.
    shares_forward
        Whether one of the forward passes only computes the logits of the image, which benchmarks do once for all methods.
        It does not hold under a fold.
    coarser
        `(method, sizes)` → options that take fewer and fewer passes, for users to whom the method takes too long.
    family
        Heading under which the method is documented.
    paper
        Key in the bibliography, or a citation.
    title
        One line for the catalogue.
    formula
        One line, in the notation of docs/methods.md.
    trial
        Options for the contract tests, for methods that are slow with their defaults.
    caveat
        `(method, vit)` → a warning for users of this model, or an empty string.
    precision
        Lowest precision that keeps the ranks of the map: "float32"; "tf32"; "bf16", bfloat16 products with a float32
        residual stream and head; "bf16 weights", also a model whose weights were converted to bfloat16. Against
        float64, the Spearman correlation has a median of at least 0.9999 in TF32, and a median of at least 0.999 and a
        minimum of at least 0.98 in bfloat16.
    """

    signed: bool
    class_specific: bool
    complete: bool = False
    native: str = "patch"
    question: QuestionInput = "logit"
    averages: bool = False
    forwards: int | str = 1
    backwards: int | str = 1
    counts: Callable[[Method, ModelSizes], Counts] | None = None
    shares_forward: bool = False
    coarser: Callable[[Method, ModelSizes], Iterable[Mapping[str, Any]]] | None = None
    family: str = "Others"
    paper: str = ""
    title: str = ""
    formula: str = ""
    trial: Mapping[str, Any] = field(default_factory=dict)
    caveat: Callable[[Method, ViT], str] | None = None
    precision: Literal["float32", "tf32", "bf16", "bf16 weights"] = "tf32"


@dataclass(frozen=True, slots=True)
class LayerNeeds:
    """What a layer must hold for the signal, besides states and (for class-specific methods) gradients.

    Attributes
    ----------
    attention
        Attention matrices, and their gradients.
    normed
        The gradient at the first norm's output.
    presence
        The derivative of the score with respect to a token's presence.
    exact_presence
        The same derivative, of a second backward pass that is exact.
    biases
        Bias shares; they are added to the tokens that the biases are added to.
    own_pass
        States only: the signal runs blocks of a `ViT` again, and computes gradients there if it needs any.
    """

    attention: bool = False
    normed: bool = False
    presence: bool = False
    exact_presence: bool = False
    biases: bool = False
    own_pass: bool = False

    @property
    def only_in_vits(self) -> bool:
        """Whether states and gradients at the inputs of blocks are not enough."""
        return self.attention or self.presence or self.exact_presence or self.own_pass


@dataclass(frozen=True, slots=True, eq=False)
class LayerSignal:
    """Recipe of a method that combines a signal of every layer by a fold.

    Attributes
    ----------
    signal
        `(layer, **options)` → token scores [r n], or [r n n] if `mixing`. A signal that also has the inputs `probe` or
        `linearisation` gets the `Probe` or the linearisation of the pass.
    fold
        How the signals of the layers are combined.
    linearisation
        How the backward pass treats attention, norms and activations.
    linearisation_name
        Name of the linearisation as written in the spec; empty if it is the method's own.
    fixed_fold
        Set if the fold cannot be replaced: the spec to use instead, with `{fold}` in place of the fold's name.
    fixed_linearisation
        Whether the linearisation cannot be replaced.
    mixing
        Whether the signal is token-to-token [r n n].
    needs
        What a layer must hold.
    adapt
        `(layer_pass, **options)` → the `LayerPass` over the layers that the signal needs with these options.
    pixel
        `(images, gradient, **options)` → [r H W]: the method's form in pixel space.
    finish
        `(patches, **options)`: a published post-processing step.
    measures
        `(layer, **options)`, with the options of the signal → token scores by name, which `vitreous.inside` shows instead of
        the signal.
    """

    signal: OptionFunction
    fold: Fold
    linearisation: Linearisation = PLAIN
    linearisation_name: str = ""
    fixed_fold: str = ""
    fixed_linearisation: bool = False
    mixing: bool = False
    needs: LayerNeeds = LayerNeeds()
    adapt: OptionFunction | None = None
    pixel: OptionFunction | None = None
    finish: OptionFunction | None = None
    measures: Callable[..., Mapping[str, TokenScores]] | None = None

    @property
    def attention(self) -> bool:
        """Whether attention matrices are read."""
        return self.needs.attention

    @property
    def typed_options(self) -> dict[str, Option]:
        """Every option by name; `space` with a pixel form and `row` with a token-to-token signal."""
        return {
            **self.signal.options,
            **self.fold.typed_options,
            **({} if self.pixel is None else {"space": SPACE, **self.pixel.options}),
            **({"row": ROW} if self.mixing else {}),
            **options_of(self.finish),
            **options_of(self.adapt),
        }

    def changes_pass(self, options: Mapping[str, Any]) -> bool:
        """Whether the given options change the pass over the layers, and with it states, gradients or bias shares."""
        pass_options = options_of(self.adapt)
        return any(options.get(key, option.default) != option.default for key, option in pass_options.items())


@dataclass(frozen=True, slots=True, eq=False)
class ProbeFunction:
    """Recipe of a method that is one function of the `Probe`.

    Attributes
    ----------
    function
        `(probe, **options)` → patch scores [r p] or a pixel map [r H W], alone or with further fields of `Attribution`.
    per_layer
        The method's signal of a layer, to use under a fold; its own fold is a placeholder. None if there is none.
    attention
        Whether attention matrices are read.
    fixed_linearisation
        Whether the method has its own way back through the layers.
    finish
        `(patches, **options)`: a published post-processing step.
    """

    function: OptionFunction
    per_layer: LayerSignal | None = None
    attention: bool = False
    fixed_linearisation: bool = False
    finish: OptionFunction | None = None

    @property
    def typed_options(self) -> dict[str, Option]:
        """Every option by name."""
        return {**self.function.options, **options_of(self.finish)}


Recipe = LayerSignal | ProbeFunction


class RecipeKeywords(TypedDict, total=False):
    """Keywords of `make_method`: attributes of `Facts`, of `LayerNeeds`, and those of `LayerSignal` that may be given."""

    signed: Required[bool]
    class_specific: Required[bool]
    complete: bool
    native: str
    question: QuestionInput
    averages: bool
    forwards: int | str
    backwards: int | str
    counts: Callable[[Method, ModelSizes], Counts] | None
    shares_forward: bool
    coarser: Callable[[Method, ModelSizes], Iterable[Mapping[str, Any]]] | None
    family: str
    paper: str
    title: str
    formula: str
    trial: Mapping[str, Any]
    caveat: Callable[[Method, ViT], str] | None
    precision: Literal["float32", "tf32", "bf16", "bf16 weights"]

    attention: bool
    normed: bool
    presence: bool
    exact_presence: bool
    biases: bool
    own_pass: bool

    linearisation: Linearisation
    linearisation_name: str
    fixed_fold: str
    fixed_linearisation: bool
    mixing: bool
    adapt: Callable[..., Any] | None
    pixel: Callable[..., Any] | None
    finish: Callable[..., Any] | None
    measures: Callable[..., Mapping[str, TokenScores]] | None


class MethodKeywords(RecipeKeywords, total=False):
    """Keywords of the decorator `method`: also those that `make_method` names itself."""

    fold: Fold | None
    layered: Callable[..., Any] | None
    presets: Mapping[str, Mapping[str, Any]] | None
    black_box: Mapping[str, Any] | None
