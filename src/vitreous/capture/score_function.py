"""Score functions: the number per row, computed from the logits, that is explained."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from vitreous.core.errors import ShapeError, SpecError, unexpected_errors_as
from vitreous.core.registry import Registry

Rows = Float[Tensor, "r c"]
Targets = Int[Tensor, " r"]


@dataclass(frozen=True, slots=True)
class ScoreFunction:
    """A named score function of logits and targets.

    Parameters
    ----------
    name
        Name in specs and provenance.
    function
        Maps logits [r c] and targets [r] to one score per row.
    affine
        Whether the score is (piecewise) affine in the logits, so that shares of tokens and biases can add up to it.
    own
        Whether only the target's logit is read.
    compares
        Whether the score compares classes, and is undefined for a single output.
    """

    name: str
    function: Callable[[Rows, Targets], Float[Tensor, " r"]]
    affine: bool = False
    own: bool = False
    compares: bool = False

    def __call__(self, logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
        return self.function(logits, targets)


# The score function of logits: a name, or a function of logits [r c], or of logits and targets [r], to scores [r].
QuestionInput: TypeAlias = str | ScoreFunction | Callable[[Tensor], Tensor] | Callable[[Tensor, Tensor], Tensor]


def select_target(values: Rows, targets: Targets) -> Float[Tensor, " r"]:
    return values.gather(-1, targets[:, None])[:, 0]


def logit(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """Logit of the target class."""
    return select_target(logits, targets)


def probability(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """Softmax probability of the target class."""
    return precise_sigmoid(log_odds(logits, targets))


def sigmoid(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """Sigmoid of the target's logit, independent of the other classes: for multi-label heads."""
    return precise_sigmoid(select_target(logits, targets))


def precise_sigmoid(z: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
    """Sigmoid whose gradient stays accurate where the value rounds to 1."""
    return torch.where(z > 0, 1 - (-z).sigmoid(), z.sigmoid())


def log_probability(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """Logarithm of the softmax probability of the target class: the negative cross-entropy."""
    return -softplus(-log_odds(logits, targets))


def log_odds(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """Log-odds of the target class against all others together.

    Keeps 1 − p accurate for confident predictions, where a softmax rounds it to 0.
    """
    others = logits.scatter(-1, targets[:, None], torch.finfo(logits.dtype).min)
    return select_target(logits, targets) - others.logsumexp(-1)


def margin(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """Logit of the target class minus the largest other logit."""
    others = logits.scatter(-1, targets[:, None], -torch.inf)
    return select_target(logits, targets) - others.amax(-1)


QUESTIONS: Registry[ScoreFunction] = Registry("question")
for _question, _aliases in (
    (ScoreFunction("logit", logit, affine=True, own=True), ("support", "score", "value")),
    (ScoreFunction("probability", probability, compares=True), ("contrast", "prob", "softmax")),
    (ScoreFunction("log-probability", log_probability, compares=True), ("logprob",)),
    (ScoreFunction("margin", margin, affine=True, compares=True), ()),
    (ScoreFunction("sigmoid", sigmoid, own=True), ()),
):
    QUESTIONS.add(_question.name, _question, "vitreous", _aliases)
PROBABILITIES = frozenset({"probability", "sigmoid"})  # never negative


def resolve_score_function(question: str | ScoreFunction | Callable[..., Tensor]) -> ScoreFunction:
    """Return the score function (`question`) as a `ScoreFunction`.

    Parameters
    ----------
    question
        A registered name, a `ScoreFunction`, or a differentiable callable of the logits [r c], or of logits and targets [r],
        that returns one number per row.

    Raises
    ------
    SpecError
        If the name is unknown, or `question` is not a callable of one or two arguments. Calling the returned `ScoreFunction`
        raises a `ShapeError` if the callable fails or its result has a wrong shape or no gradient.
    """
    if isinstance(question, ScoreFunction):
        return question
    if isinstance(question, str):
        return QUESTIONS[question]
    if not callable(question):
        raise SpecError(f"a question is a name or a callable of the logits, not {type(question).__name__!r}")
    name, count = getattr(question, "__name__", "custom"), required_arguments(question)

    def function(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
        shape = list(logits.shape)
        with unexpected_errors_as(lambda why: ShapeError(f"question {name!r} failed on logits {shape} ({why})")):
            score = question(logits) if count == 1 else question(logits, targets)
        if not isinstance(score, Tensor) or score.shape != targets.shape:
            returned = list(score.shape) if isinstance(score, Tensor) else f"a {type(score).__name__}"
            raise ShapeError(f"a question must answer with one number per row [{len(targets)}], not {returned}")
        if not score.is_floating_point() or (
            torch.is_grad_enabled() and logits.requires_grad and not score.requires_grad
        ):
            raise ShapeError(
                f"question {name!r} answers with {score.dtype} numbers that do not depend on the logits by a gradient; "
                "a differentiable function of the logits would work"
            )
        return score

    return ScoreFunction(name, function)


def required_arguments(question: Callable[..., Any]) -> int:
    """Number of arguments of a score function: 1 (the logits) or 2 (logits and targets)."""
    try:
        parameters = inspect.signature(question).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return 1
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    unnamed = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(needed) > 2 or not (positional or unnamed):
        raise SpecError(
            f"question {getattr(question, '__name__', 'custom')!r} takes {len(needed)} arguments; "
            "a function of the logits, or of logits and targets, would work"
        )
    return len(needed) or (2 if unnamed and not positional else 1)


def per_row(scores: Float[Tensor, "b s k"]) -> Float[Tensor, "r s"]:
    """Scores [b s k] → [r s], with rows ordered image by image, then target by target."""
    return scores.transpose(1, 2).flatten(0, 1)


def two_class_logits(logits: Float[Tensor, "b 1"]) -> Float[Tensor, "b 2"]:
    """Logits [0, z] of the two classes of a binary output z."""
    return torch.cat([torch.zeros_like(logits), logits], -1)
