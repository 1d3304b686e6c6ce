"""Maps that a loss can be put on: probes whose layers are differentiable functions of parameters and images.

The model, or the parts of a `ViT`, run under `DifferentiableForward`. One linearised backward pass per target is recorded by
autograd, so that gradients of the map reach parameters and images by ordinary differentiation.

Backward rules are made of two operations, both the identity in the forward pass. `hold(x)` is a constant of the linearised
backward pass, and `damp(x, factor)` multiplies its gradient there. A map is the result of one such pass, recorded by autograd.
In every later backward pass, that of a loss on the map, both are the identity again: what was held fixed is differentiated
as the function of parameters and images that it is.

`DifferentiableForward` is `LinearisedForward` with parameters in the graph. A tensor of parameters alone, or one that is held,
is marked as a constant, so that rules see the same tensors depend on the image as they do without a graph of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous.capture.backward_functions import Damp, Phase, ResidualSum
from vitreous.capture.forward import BlockStates, HeadOutput, run_block, run_head
from vitreous.capture.fused import presence_grad
from vitreous.capture.layer import Gradients, Layer, interleave_targets, or_zeros, slope_in_presence
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.network_probe import LayerPass, NetworkProbe
from vitreous.capture.operation_registry import CONSTANT, Call, Rule, depends, find_rule, name_of
from vitreous.capture.operations import LinearisedForward
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, SpecError
from vitreous.models.eval_mode import evaluating
from vitreous.models.model import BlackBox, Network
from vitreous.models.tensor_types import Tokens
from vitreous.models.vit import AttentionPool, LinearPool, ViT


def mark_constant(value: Any) -> None:
    """Mark tensors with a graph of parameters alone."""
    for part in value if isinstance(value, list | tuple) else (value,):
        if isinstance(part, Tensor) and part.requires_grad:
            setattr(part, CONSTANT, True)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def changes_in_place(function: Callable[..., Any]) -> bool:
    name = name_of(function)
    in_place_operators = name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
    return name == "__setitem__" or in_place_operators or (name.endswith("_") and not name.endswith("__"))


def propagate(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function; what it makes of constants alone is a constant."""
    dependent = any(depends(x) for x in tensors_in((*args, *kwargs.values())))
    output = function(*args, **kwargs)
    if not dependent:
        mark_constant(output)
    elif changes_in_place(function) and hasattr(args[0], CONSTANT):
        delattr(args[0], CONSTANT)
    return output


class PropagateConstants(TorchFunctionMode):
    """Passes on which tensors are constants, while a rule computes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return propagate(func, args, kwargs or {})


class DifferentiableForward(LinearisedForward):
    """Runs torch functions with backward rules of a linearisation that can be differentiated.

    Parameters
    ----------
    linearisation
        Which rules apply.
    copy_recorded
        As for `LinearisedForward`.
    active
        Whether rules apply from the first operation on; otherwise from the first block on (`Trace` sets it).

    Raises
    ------
    SpecError
        If the linearisation has a rule for skip connections.
    """

    differentiable = True

    def __init__(self, linearisation: Linearisation, *, copy_recorded: bool = False, active: bool = True) -> None:
        super().__init__(linearisation, copy_recorded=copy_recorded)
        self.phase = Phase()
        self.active = active

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        kwargs = kwargs or {}
        if not self.active:  # before the first block, everything is a constant of the linearised pass
            output = func(*args, **kwargs)
            mark_constant(output)
            return output
        try:
            rule = self.rules[func]
        except KeyError:
            rule = self.rules[func] = self.rule_of(func)
        if rule is None or not any(depends(x) for x in tensors_in((*args, *kwargs.values()))):
            return propagate(func, args, kwargs)
        with PropagateConstants():
            return rule(Call(func, args, kwargs, self))

    def rule_of(self, function: Callable[..., Any]) -> Rule | None:
        rule = find_rule(function)
        if rule is not None and not getattr(rule, "differentiable", False):
            raise ModelError(
                f"the rule {getattr(rule, '__name__', rule)!r} of the operation {name_of(function)!r} is not known to be "
                "differentiable; write it with call.hold and call.damp, and register it by "
                "operation_rule(…, differentiable=True)"
            )
        return rule

    def hold(self, x: Tensor) -> Tensor:
        return self.damp(x, 0)

    def damp(self, x: Tensor, factor: float | int) -> Tensor:
        if factor == 1 or not depends(x):
            return x
        (constant,) = Damp.apply(factor, self.phase, x)
        if factor == 0:
            mark_constant(constant)
        return constant

    def gradients(
        self, source: Tensor, inputs: Sequence[Tensor], upstream: Tensor | None = None
    ) -> Sequence[Tensor | None]:
        """As in `LinearisedForward`, with a graph."""
        self.phase.linearised = True
        try:
            return torch.autograd.grad(source, inputs, upstream, create_graph=True, allow_unused=True)
        except RuntimeError as problem:
            raise ModelError(
                f"the backward pass cannot be recorded, and differentiable=True needs that: {str(problem).splitlines()[0]}"
            ) from None
        finally:
            self.phase.linearised = False

    @contextmanager
    def marking(self, module: nn.Module) -> Iterator[None]:
        """Mark the parameters of a module as constants."""
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for parameter in parameters:
            setattr(parameter, CONSTANT, True)
        try:
            yield
        finally:
            for parameter in parameters:
                if hasattr(parameter, CONSTANT):
                    delattr(parameter, CONSTANT)


# ── probes ───────────────────────────────────────────────────────────────────────────────────────


def keeps_graph(scores: Tensor | None) -> bool:
    """Whether scores have a graph to parameters or images."""
    return scores is not None and scores.requires_grad


def differentiable_probe(model: BlackBox, images: Tensor, *arguments: Any) -> Probe | NetworkProbe:
    """The probe whose layers keep a graph; a `ModelError` for a black box, whose layers are not known."""
    if not isinstance(model, Network):
        raise ModelError(
            f"{model.name!r} is a black box, and differentiable=True records the backward pass through its blocks; a network or "
            "a ViT would work"
        )
    if isinstance(model, ViT):
        return DifferentiableProbe(model, images, *arguments)
    return DifferentiableNetworkProbe(model, images, *arguments)


class DifferentiableNetworkProbe(NetworkProbe):
    """A probe of a network whose layers are differentiable functions of its parameters and of the images.

    Parameters as for `NetworkProbe`.

    Raises
    ------
    ModelError
        If neither a parameter nor the images require gradients.
    """

    keeps_graph = True
    accounts_biases = False

    def __init__(self, model: Network, images: Tensor, *arguments: Any) -> None:
        super().__init__(model, images, *arguments)
        self.images = images.to(model.device, model.dtype)  # with the graph of the images
        if not images.requires_grad and not any(parameter.requires_grad for parameter in model.module.parameters()):
            raise ModelError(
                f"no parameter of {model.name!r} and no image requires gradients; requires_grad_() on what a loss should "
                "change would work"
            )

    def _mode(self, layer_pass: LayerPass) -> DifferentiableForward:
        refuse_biases(layer_pass.biases)
        return DifferentiableForward(layer_pass.lin, copy_recorded=self.model.copy, active=False)


def refuse_biases(biases: bool) -> None:
    if biases:
        raise SpecError(
            "shares of biases are not differentiable here; a method of tokens alone, such as 'decompx', would work"
        )


@dataclass(frozen=True, slots=True)
class HeldResidual(Linearisation):
    """Only the rule for skip connections; operations have the others."""

    phase: Phase | None = None

    def add(self, stream: Tensor, update: Tensor) -> Tensor:
        if self.residual == 0:
            return stream + update
        return ResidualSum.apply(stream, update, self.residual, self.phase)

    def add_and_normalise(self, norm: Any, stream: Tensor, update: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total = stream if update is None else self.add(stream, update)
        return total, norm(total)


@dataclass(frozen=True, slots=True, eq=False)
class TrackedForward:
    """States of the blocks and of the head, with their graph.

    Attributes
    ----------
    mode
        The rules of the linearised backward pass.
    steps
        States of the blocks at the end of the model, to which the rules apply.
    head_output
        Output of the head.
    pooling
        Attention of the pooling, or for a linear pooling zeros, the logarithms of the weights of tokens in it.
    """

    mode: DifferentiableForward
    steps: list[BlockStates]
    head_output: HeadOutput
    pooling: Tensor


class DifferentiableProbe(DifferentiableNetworkProbe, Probe):
    """A probe of a `ViT` whose layers are differentiable functions of the model's parameters and of the images.

    It takes one forward pass and one recorded backward pass per target, and holds the whole graph. Parameters as for
    `Probe`.

    Raises
    ------
    ModelError
        If neither a parameter nor the images require gradients.
    """

    @property
    def states(self) -> list[Tokens]:
        steps = self._plain_forward.steps
        return [step.hidden for step in steps] + [steps[-1].output]

    @property
    def head_output(self) -> HeadOutput:
        return self._plain_forward.head_output

    @cached_property
    def _plain_forward(self) -> TrackedForward:
        return self._track(PLAIN, 0)

    def _track(self, lin: Linearisation, first: int) -> TrackedForward:
        """Run the model by its parts; rules apply from block `first` on."""
        vit, mode = self.vit, DifferentiableForward(replace(lin, residual=0))
        skip_rule = HeldResidual(residual=lin.residual, phase=mode.phase)
        steps: list[BlockStates] = []
        with torch.enable_grad(), evaluating(vit.module), mode.marking(vit.module):
            x = vit.embed(self.images)
            for block in vit.blocks[:first]:
                x = run_block(block, x, self.place, attention=True).output
            for block in vit.blocks[first:]:
                entered = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
                with mode:
                    steps.append(run_block(block, entered, self.place, skip_rule, attention=True))
                x = steps[-1].output
            presence = torch.zeros_like(x[..., 0]).requires_grad_() if isinstance(vit.pool, LinearPool) else None
            head_output = run_head(vit, x, skip_rule, presence=presence, mode=mode)
        pooling = presence if head_output.attention is None else head_output.attention
        assert pooling is not None
        return TrackedForward(mode, steps, head_output, pooling)

    def _iterate_layers(self, layer_pass: LayerPass, down_to: int) -> Iterator[Layer]:
        refuse_biases(layer_pass.biases)
        is_plain = layer_pass.lin == PLAIN and down_to == 0
        forward = self._plain_forward if is_plain else self._track(layer_pass.lin, down_to)
        readout = forward.head_output.readout.repeat_interleave(self.targets_per_image, 0)
        gradients = self._gradients(forward, layer_pass.presence) if layer_pass.gradients else []
        for index in reversed(range(down_to, self.vit.depth)):
            own = gradients.pop() if gradients else Gradients()
            yield self._layer_of_states(index, forward.steps[index - down_to], readout, own)

    @torch.enable_grad()
    def _gradients(self, forward: TrackedForward, presence: bool) -> list[Gradients]:
        """Gradients of every block, rows ordered as in `Layer`."""
        kinds = ("hidden", "output", "attention", "normed")
        inputs = [*(getattr(step, kind) for step in forward.steps for kind in kinds), forward.pooling]
        totals = [score.sum() for score in self.target_scores(forward.head_output.logits)]
        columns = [map(or_zeros, forward.mode.gradients(total, inputs), inputs) for total in totals]
        *at_blocks, at_pooling = (interleave_targets(list(rows)) for rows in zip(*columns, strict=True))
        in_order = iter(at_blocks)
        gradients = [Gradients(**{kind: next(in_order) for kind in kinds}) for _ in forward.steps]
        if not presence:
            return gradients
        slopes = [slope_in_presence(*of_block) for of_block in zip(forward.steps, gradients, strict=True)]
        if isinstance(self.vit.pool, AttentionPool):
            attention = forward.pooling.repeat_interleave(self.targets_per_image, 0)
            at_pooling = F.pad(presence_grad(attention, at_pooling), (self.vit.pool.skip, 0))
        slopes[-1] = slopes[-1] + at_pooling
        return [replace(own, presence=slope) for own, slope in zip(gradients, slopes, strict=True)]
