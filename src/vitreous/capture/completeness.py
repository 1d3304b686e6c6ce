"""Check that nothing of a score is lost on the way back through the operations of a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitreous.capture.linearise import LINEARISATIONS, Linearisation
from vitreous.capture.operation_registry import RULES, Call, Role, name_of, role_of, without_parameters
from vitreous.capture.operations import Added, LinearisedForward
from vitreous.capture.trace import Trace, backward, share, trace
from vitreous.capture.unseen_operations import SeenNodes, Unseen, find_unseen, without_graph
from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.model import Network, logits_of, tensors_of
from vitreous.models.random_draws import normal_numbers
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


@dataclass(frozen=True, slots=True)
class Completeness:
    """Findings of the check of completeness.

    Attributes
    ----------
    copy
        Whether states have to be copied because the module changes them in place.
    missing
        The largest share of a score that is lost at a cut.
    varying
        The share of a score that is counted as constants but is another one for another image.
    """

    copy: bool
    missing: float
    varying: float = 0.0


# Ways through modules (the blocks, and the operations of a forward) for which places of tokens were found.
PLACED: WeakKeyDictionary[nn.Module, set[tuple[Any, ...]]] = WeakKeyDictionary()
# Ways through modules (the blocks that are cut, and the operations of a linearised forward) on which nothing is lost.
COMPLETE: WeakKeyDictionary[nn.Module, set[tuple[Any, ...]]] = WeakKeyDictionary()


def way_of(model: Network, mode: LinearisedForward) -> tuple[Any, ...]:
    return names_of(model), mode.path


def names_of(model: Network) -> tuple[str, ...]:
    return tuple(block.name for block in model.blocks)


def check_completeness(
    model: Network, image: Images, call: Callable[[Images], Any], output: Any, other: Images | None = None
) -> Completeness:
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
    other
        Another image, for which constants have to be the same; None if that is not checked.

    Returns
    -------
    Completeness

    Raises
    ------
    ModelError
        With the share that is lost, the block and the operation that has no rule.
    """
    lin, image = LINEARISATIONS["decompx"], with_gradient(image, model)
    worst, place = 0.0, ""
    for copy in (False, True):
        try:
            mode = LowestPrecision(lin, record_constants=True, copy_recorded=copy)
            traced = trace(model.module, lambda: call(image), model.blocks, mode, outside=model.outside)
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
            steps: list[tuple[float, str]] = []
            constants: list[tuple[Added, Tensor]] = []
            for step in backward(traced, score, measure=True):
                steps.append((abs(step.missing) / max(scale, 1e-30), step.segment.block.name))
                constants += [*step.added, *((added, gradient) for _, added, gradient in step.added_beside)]
        except RuntimeError as problem:  # autograd: a state was changed in place
            if copy or "inplace" not in str(problem).replace("-", ""):
                unseen = unseen_operations(model, lambda: call(image), lin)
                if unseen is None:
                    raise without_graph(model.name, problem) from problem
                raise ModelError(f"{model.name!r} cannot be linearised: it uses {unseen.sentence}") from problem
            continue
        worst, place = max(steps)
        if worst <= max(LARGEST_MISSING.get(mode.lowest, 1e-3), LARGEST_MISSING.get(model.dtype, 1e-3)):
            varying = 0.0
            if other is not None:
                again = trace(
                    model.module,
                    partial(call, with_gradient(other, model)),
                    model.blocks,
                    LinearisedForward(lin, record_constants=True, copy_recorded=copy),
                    outside=model.outside,
                )
                varying = changed_share(traced, again, constants) / max(scale, 1e-30)
                PLACED.setdefault(model.module, set()).add((names_of(model), mode.functions))
            COMPLETE.setdefault(model.module, set()).add(way_of(model, mode))
            return Completeness(copy, worst, varying)
        break
    else:
        raise ModelError(
            f"{model.name!r} changes states in place that were recorded, in a way that cannot be followed; a model that makes new "
            "tensors instead would work, and black_box=True needs none of this"
        )
    where = f"after block {place!r}" if place else "on the way from the pixels"
    missing = f"{model.name!r} cannot be seen through: {worst:.2g} of a score is lost {where}"
    lost = operations_without_rule(model, lambda: call(image), lin)
    if not lost and (unseen := unseen_operations(model, lambda: call(image), lin)):
        raise ModelError(f"{missing}; it uses {unseen.sentence}")
    named = f" ({lost} has no rule that keeps it)" if lost else ""
    raise ModelError(f"{missing}{named}; vitreous.operation_rule registers a rule, and black_box=True needs none")


def with_gradient(image: Images, model: Network) -> Images:
    """The image; one that requires gradients if inputs of blocks are read from the graph."""
    if not model.outside:
        return image
    with torch.enable_grad():
        return image.detach().requires_grad_().clone()


def changed_share(traced: Trace, again: Trace, constants: list[tuple[Added, Tensor]]) -> float:
    """By how much constants of a score change from one image to another."""
    first, second = ([added for segment in part.segments for added in segment.added] for part in (traced, again))
    if [added.constant.shape for added in first] != [added.constant.shape for added in second]:
        return float("inf")  # other operations ran
    changes = {
        id(own): own.constant - other.constant
        for own, other in zip(first, second, strict=True)
        if own.constant is not other.constant and not torch.equal(own.constant, other.constant)
    }
    parts = [
        share(changes[id(added)].nan_to_num(0, 0, 0), grad).sum() for added, grad in constants if id(added) in changes
    ]
    return sum(abs(part.item()) for part in parts)


def refuse_other_values(model: Network, output: Any, followed: Any) -> None:
    """Raise `ModelError` if a forward under the backward rules gives another output than the model's own."""
    tolerance = LARGEST_MISSING.get(model.dtype, 1e-3)
    for expected, tensor in zip(tensors_of(output), tensors_of(followed), strict=False):
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
            weight = normal_numbers(generator, tensor.shape).to(tensor)
            part = (tensor * weight).sum()
            total = part if total is None else total + part
    return total


class OperationCheck(LinearisedForward):
    """Repeats every operation on copies of its inputs and checks it by itself in the backward pass.

    Inputs times their gradients, and added constants times theirs, must make up the output times its gradient. `lost`
    holds the difference of every operation by name, summed over its calls.
    """

    def __init__(self, linearisation: Linearisation) -> None:
        super().__init__(linearisation, copy_recorded=True)
        self.lost: dict[str, float] = {}
        self.busy = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        local = None
        if torch.is_grad_enabled() and not self.busy:
            self.busy = True
            try:
                local = self.repeat(func, args, kwargs)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                local = None  # a call that cannot be repeated on copies of its inputs is not checked
            finally:
                self.busy = False
        output = super().__torch_function__(func, types, args, kwargs)
        if local is not None:
            repeated, inputs, constants = local
            for tensor, own in zip(tensors_of(output), repeated, strict=True):
                if tensor.requires_grad and own.requires_grad:
                    tensor.register_hook(partial(self.check, name_of(func), own, inputs, constants))
        return output

    def repeat(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]] | None:
        """Outputs of an operation on copies, the copies and recorded outputs, and the constants of the latter."""
        leaves: list[Tensor] = []

        def copied(value: Any) -> Any:
            if isinstance(value, Tensor) and value.requires_grad and not isinstance(value, nn.Parameter):
                leaf = value.detach().clone().requires_grad_()
                own = leaf.clone()  # an operation may change it in place
                for name in ("_vitreous_role", "_vitreous_source", "_vitreous_scaled"):
                    if hasattr(value, name):
                        setattr(own, name, getattr(value, name))
                leaves.append(leaf)
                return own
            if isinstance(value, list | tuple):
                return type(value)(map(copied, value))
            return without_parameters(value)

        name = name_of(func)
        copied_args, named = tuple(map(copied, args)), {key: copied(value) for key, value in kwargs.items()}
        if not leaves:
            return None
        inner = LinearisedForward(self.linearisation, record_constants=True)
        rule = RULES.get(name)
        output = func(*copied_args, **named) if rule is None else rule(Call(func, copied_args, named, inner))
        outputs = tensors_of(output)
        if not any(tensor.requires_grad for tensor in outputs):
            return None
        constants: list[Tensor | None] = [*([None] * len(leaves)), *(added.constant for added in inner.added)]
        return outputs, [*leaves, *(added.output for added in inner.added)], constants

    def check(
        self,
        name: str,
        output: Tensor,
        inputs: list[Tensor],
        constants: list[Tensor | None],
        gradient: Tensor | None,
    ) -> None:
        """Add up what is lost of output times gradient, which is None for an output that is not used."""
        if gradient is None:
            return
        grads = torch.autograd.grad(output, inputs, gradient, allow_unused=True, retain_graph=True)
        missing = (output.detach() * gradient).nan_to_num(0, 0, 0).sum(dtype=torch.float64)
        for x, constant, grad in zip(inputs, constants, grads, strict=True):
            if grad is not None:
                missing = missing - share(x.detach() if constant is None else constant, grad).sum(dtype=torch.float64)
        self.lost[name] = self.lost.get(name, 0.0) + abs(missing.item())


def unseen_operations(model: Network, forward: Callable[[], Any], linearisation: Linearisation) -> Unseen | None:
    """What of a network is not called as torch functions, which rules need; None if all of it is."""
    mode = SeenNodes(linearisation, record_constants=True, copy_recorded=True)

    def run() -> list[Tensor]:
        traced = trace(model.module, forward, model.blocks, mode, outside=model.outside)
        return [*tensors_of(traced.output), *(segment.entered for segment in traced.segments)]

    return find_unseen(model.module, mode, run)


def operations_without_rule(model: Network, forward: Callable[[], Any], linearisation: Linearisation) -> str:
    """Names of the operations that lose most of a random score, separated by commas; empty if none is found."""
    mode = OperationCheck(linearisation)
    traced = trace(model.module, forward, model.blocks, mode, outside=model.outside)
    with torch.enable_grad():
        score = random_score(traced.output)
    if score is None:
        return ""
    for _ in backward(traced, score):
        pass
    largest = max(mode.lost.values(), default=0.0)
    ranked = sorted((name for name, lost in mode.lost.items() if lost > 0.1 * largest), key=lambda n: -mode.lost[n])
    return ", ".join(repr(name) for name in ranked[:3]) if largest > 1e-6 * abs(score.item()) else ""
