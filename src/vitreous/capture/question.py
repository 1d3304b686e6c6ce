"""What is being explained: one number per row, made of the logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from vitreous.core.errors import ShapeError, SpecError
from vitreous.core.registry import Registry

Rows = Float[Tensor, "r c"]
Targets = Int[Tensor, " r"]


@dataclass(frozen=True, slots=True)
class Question:
    """A named function of logits and targets. `affine`: shares of tokens and biases can add up to it."""

    name: str
    function: Callable[[Rows, Targets], Float[Tensor, " r"]]
    affine: bool = False

    def __call__(self, logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
        return self.function(logits, targets)


def chosen(values: Rows, targets: Targets) -> Float[Tensor, " r"]:
    return values.gather(-1, targets[:, None])[:, 0]


def logit(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """The class's own logit."""
    return chosen(logits, targets)


def probability(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """The class's softmax probability."""
    lead = led(logits, targets)
    return torch.where(lead > 0, 1 - (-lead).sigmoid(), lead.sigmoid())


def log_probability(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """The logarithm of the class's softmax probability: the cross-entropy, negated."""
    return -softplus(-led(logits, targets))


def led(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """The log-odds of the class against all others together: of a sure model 1 − p is all there is to explain, and a softmax rounds it away."""
    others = logits.scatter(-1, targets[:, None], torch.finfo(logits.dtype).min)
    return chosen(logits, targets) - others.logsumexp(-1)


def margin(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
    """How far the class's logit stands above the best other one."""
    others = logits.scatter(-1, targets[:, None], -torch.inf)
    return chosen(logits, targets) - others.amax(-1)


QUESTIONS: Registry[Question] = Registry("question")
QUESTIONS.add("logit", Question("logit", logit, affine=True), "vitreous", ("score",))
QUESTIONS.add("probability", Question("probability", probability), "vitreous", ("prob", "softmax"))
QUESTIONS.add("log-probability", Question("log-probability", log_probability), "vitreous", ("logprob",))
QUESTIONS.add("margin", Question("margin", margin, affine=True), "vitreous")


def ask(question: str | Question | Callable[..., Any]) -> Question:
    """A question by name, or any callable of the logits, or of logits and targets."""
    if isinstance(question, Question):
        return question
    if isinstance(question, str):
        return QUESTIONS[question]
    if not callable(question):
        raise SpecError(f"a question is a name or a callable of the logits, not {type(question).__name__!r}")
    needed = [
        p
        for p in inspect.signature(question).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]

    def function(logits: Rows, targets: Targets) -> Float[Tensor, " r"]:
        answer = question(logits) if len(needed) == 1 else question(logits, targets)
        if answer.shape != targets.shape:
            raise ShapeError(
                f"a question must answer with one number per row [{len(targets)}], not {list(answer.shape)}"
            )
        return answer

    return Question(getattr(question, "__name__", "custom"), function)
