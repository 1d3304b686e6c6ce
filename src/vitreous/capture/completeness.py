"""Check that nothing of a score is lost on the way back through the operations of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vitreous.capture.diagnosis import operations_without_rule
from vitreous.capture.linearise import LINEARISATIONS
from vitreous.capture.operation_registry import Role, role_of
from vitreous.capture.operations import LinearisedForward
from vitreous.capture.trace import backward, trace
from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.model import Network, logits_of, tensors_of
from vitreous.models.tensor_types import Images

LARGEST_MISSING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 3e-2}


class LowestPrecision(LinearisedForward):
    """Notes the lowest precision that a model computes in: some compute norms in float32, whatever their weights."""

    lowest = torch.float64

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = super().__torch_function__(func, types, args, kwargs)
        if isinstance(output, Tensor) and output.requires_grad:
            self.lowest = min(self.lowest, output.dtype, key=lambda dtype: torch.finfo(dtype).bits)
        return output


def check_completeness(model: Network, image: Images, call: Callable[[Images], Any], output: Any) -> tuple[bool, float]:
    """Check that, under DecompX's rules, outputs are the model's own and what enters every cut comes out of it.

    Parameters
    ----------
    model
        The network with its blocks.
    image
        One image.
    call
        Runs the model.
    output
        What the model returns for the image without our rules.

    Returns
    -------
    bool
        Whether states have to be copied because the module changes them in place.
    float
        The largest share of a score that is lost at a cut.

    Raises
    ------
    ModelError
        With the share that is lost, the block and the operation that has no rule.
    """
    modules = [block.module for block in model.blocks]
    lin = LINEARISATIONS["decompx"]
    worst, place, names = 0.0, 0, [block.name for block in model.blocks]
    for copy in (False, True):
        try:
            mode = LowestPrecision(lin, record_constants=True, copy_recorded=copy)
            traced = trace(model.module, lambda: call(image), modules, mode)
            if traced.changed_in_place:
                continue
            refuse_other_values(model, output, traced.output)
            refuse_probabilities(model, traced.output)
            with torch.enable_grad():
                score = random_score(traced.output)
            if score is None:
                raise ModelError(
                    f"the outputs of {model.name!r} have no gradient path to the images; a model that is differentiable would work"
                )
            if not score.item() and traced.segments[-1].output is not None:  # a head that was initialised with zeros
                with torch.enable_grad():
                    score = random_score(traced.segments[-1].output) or score
            scale = abs(score.item())
            steps = [
                (abs(step.missing) / max(scale, 1e-30), step.segment.index)
                for step in backward(traced, score, measure=True)
            ]
        except RuntimeError as problem:  # autograd: a state was changed in place
            if copy or "inplace" not in str(problem).replace("-", ""):
                raise ModelError(f"{model.name!r} cannot be linearised: {str(problem).splitlines()[0]}") from problem
            continue
        worst, place = max(steps)
        if worst <= max(LARGEST_MISSING.get(mode.lowest, 1e-3), LARGEST_MISSING.get(model.dtype, 1e-3)):
            return copy, worst
        break
    else:
        raise ModelError(
            f"{model.name!r} changes states in place that were recorded, in a way that cannot be followed; a model that makes new "
            "tensors instead would work, and black_box=True needs none of this"
        )
    lost = operations_without_rule(model.module, lambda: call(image), modules, lin, random_score)
    named = f" ({lost} has no rule that keeps it)" if lost else ""
    raise ModelError(
        f"{model.name!r} cannot be seen through: {worst:.2g} of a score is lost after block {names[place]!r}{named}; "
        "vitreous.operation_rule registers a rule, and black_box=True needs none"
    )


def refuse_other_values(model: Network, own: Any, ours: Any) -> None:
    """Raise `ModelError` if a forward under our rules gives other outputs than the model's own."""
    tolerance = LARGEST_MISSING.get(model.dtype, 1e-3)
    for expected, tensor in zip(tensors_of(own), tensors_of(ours), strict=False):
        scale = expected.nan_to_num().abs().max().clamp(min=1e-30) if expected.numel() else 1
        if tensor.shape != expected.shape or bool((tensor - expected).nan_to_num().abs().max() > tolerance * scale):
            raise ModelError(
                f"{model.name!r} gives other outputs when its operations are followed, so it relies on a change in place or on the "
                "type of its tensors; black_box=True would work"
            )


def refuse_probabilities(model: Network, output: Any) -> None:
    """Raise `ModelError` if a classifier ends with a sigmoid or a softmax."""
    try:
        logits = logits_of(output)
    except ShapeError:
        return
    ends_with_one = role_of(logits) in (Role.BOUNDED_GATE, Role.ATTENTION_WEIGHTS)
    if ends_with_one and logits.ndim == 2 and logits.shape[1] > 1 and bool(((logits >= 0) & (logits <= 1)).all()):
        raise ModelError(
            f"{model.name!r} seems to answer with probabilities; give it without its last sigmoid or softmax, so that it answers "
            "with logits"
        )


def random_score(output: Any) -> Tensor | None:
    """A random linear function of the logits, as a score for the check; of all outputs if there are no logits.

    None without a gradient.
    """
    generator = torch.Generator().manual_seed(2)
    total: Tensor | None = None
    try:
        tensors = [logits_of(output)]
    except ShapeError:
        tensors = tensors_of(output)
    for tensor in tensors:
        if tensor.requires_grad and bool(tensor.isfinite().all()):
            weight = torch.randn(tensor.shape, generator=generator).to(tensor)
            part = (tensor * weight).sum()
            total = part if total is None else total + part
    return total
