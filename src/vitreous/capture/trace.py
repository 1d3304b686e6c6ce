"""One linearised forward of any module, cut at the inputs of its blocks, and the backward pass through the pieces.

`trace` runs the model's own forward under `LinearisedForward`. At the input of every block the graph is cut: the block gets a
leaf with the same values. The backward pass then runs block by block from the last to the first and stops wherever its
consumer stops. Hooks exist only while `trace` runs and act only in the context that registered them (`eval_mode.hooking`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.layer import or_zeros
from vitreous.capture.operations import Added, LinearisedForward, count_nodes
from vitreous.capture.unseen_operations import following_operations
from vitreous.core.errors import ModelError
from vitreous.models.eval_mode import evaluating, hooking


@dataclass(slots=True, eq=False)
class Segment:
    """One call of a block: where the graph was cut, and what the block returned."""

    index: int  # of the call, in the order of the forward
    entered: Tensor  # what the model passed to the block, with the graph of what came before
    leaf: Tensor  # the same values as the block was given them: a leaf if the graph is cut, else a view
    output: Tensor | None = None
    added: list[Added] = field(default_factory=list)  # constants added from this cut to the next one


@dataclass(slots=True, eq=False)
class Trace:
    """A forward in pieces: while it runs, its hooks cut the graph at the blocks' inputs.

    Attributes
    ----------
    mode
        The rules of the linearised backward pass.
    down_to
        The first block call that is part of the graph.
    cut
        Whether the graph is cut at every block call, or only at the first.
    output
        What the model returned, with the graph back to the last cuts.
    segments
        The block calls from `down_to` on, in the order of the forward.
    calls
        Number of block calls so far.
    open
        Block calls that have not returned yet.
    """

    mode: LinearisedForward
    down_to: int
    cut: bool
    output: Any = None
    segments: list[Segment] = field(default_factory=list)
    calls: int = 0
    open: list[Segment] = field(default_factory=list)

    @property
    def changed_in_place(self) -> bool:
        """Whether the model changed an output in place whose added constant was recorded."""
        return any(added.output._version != added.version for part in self.segments for added in part.added)

    def enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        index, self.calls = self.calls, self.calls + 1
        if index < self.down_to:
            return None
        torch.set_grad_enabled(True)
        self.mode.active = True
        with torch._C.DisableTorchFunction():  # these operations are ours, not the model's
            key, x = first_tensor(args, kwargs)
            # neither the state nor its history changes with x if it is a copy
            entered = x.clone() if self.mode.copy_recorded else x
            leaf = entered.view_as(entered) if not self.cut and x.requires_grad else entered.detach().requires_grad_()
            entering = leaf.clone() if self.mode.copy_recorded else leaf
        self.mode.nodes = count_nodes()
        segment = Segment(index, entered, leaf)
        self.mode.added = segment.added  # constants that are recorded from here on
        self.segments.append(segment)
        self.open.append(segment)
        if isinstance(key, int):
            return (*args[:key], entering, *args[key + 1 :]), kwargs
        return args, {**kwargs, key: entering}

    def leave(self, block: nn.Module, args: Any, output: Any) -> None:
        if not self.open:
            return
        segment = self.open.pop()
        segment.output = output if isinstance(output, Tensor) else first_tensor(tuple(output), {})[1]


def first_tensor(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int | str, Tensor]:
    for key, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, Tensor) and value.is_floating_point():
            return key, value
    raise ModelError("a block was called without a tensor of floating-point numbers; name other blocks with blocks=…")


def trace(
    module: nn.Module,
    forward: Callable[[], Any],
    blocks: Sequence[nn.Module],
    mode: LinearisedForward,
    *,
    down_to: int = 0,
    cut: bool = True,
) -> Trace:
    """Run a forward with the backward rules of a linearisation, cut at the inputs of blocks.

    Parameters
    ----------
    module
        The model; it runs in eval mode and gets its own flags back.
    forward
        Calls the model and returns what the model returns.
    blocks
        Modules at whose inputs the graph is cut.
    mode
        The backward rules. If it copies what it records, for models that change tensors in place, blocks are given
        copies too.
    down_to
        The first block call that is part of the graph; what comes before runs without one.
    cut
        Whether the graph is cut at every block call, which shows what gets lost at each; otherwise only at the first, and
        one backward pass reaches them all. A model that changes tensors in place has to be cut.

    Returns
    -------
    Trace
    """
    traced = Trace(mode, down_to, cut or (mode.copy_recorded and not mode.differentiable))
    # the gradient flag is the caller's again afterwards; `enter` switches it on
    with (
        hooking(blocks, traced.enter, traced.leave),
        evaluating(module),
        mode.marking(module),
        following_operations(type(module).__name__),
        torch.set_grad_enabled(mode.differentiable),
        mode,
    ):
        traced.output = forward()
    return traced


@dataclass(slots=True, eq=False)
class Backward:
    """Gradients of a score at one block call, added up over the ways on which the call is reached.

    Attributes
    ----------
    segment
        The block call.
    input_gradient, output_gradient
        At the block's input and output; None where nothing arrived.
    added
        Constants of this segment with the gradients at their outputs.
    missing
        Share of the score that entered the cut above and did not come out here; 0 if not measured.
    """

    segment: Segment
    input_gradient: Tensor | None = None
    output_gradient: Tensor | None = None
    added: list[tuple[Added, Tensor]] = field(default_factory=list)
    missing: float = 0.0

    @property
    def gradient(self) -> Tensor:
        """The gradient at the block's input."""
        return or_zeros(self.input_gradient, self.segment.leaf)

    def tensors(self, outputs: bool) -> Iterator[tuple[Tensor, str | Added]]:
        """Tensors whose gradients are computed, and what each is: "input", "output" or an added constant."""
        yield self.segment.leaf, "input"
        if outputs and self.segment.output is not None and self.segment.output.requires_grad:
            yield self.segment.output, "output"
        yield from ((added.output, added) for added in self.segment.added)

    def add(self, kind: str | Added, gradient: Tensor) -> None:
        if kind == "input":
            self.input_gradient = gradient if self.input_gradient is None else self.input_gradient + gradient
        elif kind == "output":
            self.output_gradient = gradient if self.output_gradient is None else self.output_gradient + gradient
        elif isinstance(kind, Added):
            self.added.append((kind, gradient))


def backward(trace: Trace, score: Tensor, *, outputs: bool = False, measure: bool = False) -> Iterator[Backward]:
    """The gradient at every block's input, from the last block call to the first.

    A block may be reached on several ways (a decoder that reads several stages): contributions add up before the block is
    left. `score` is one number. With `outputs`, gradients at the blocks' outputs are returned too; with `measure`, what is
    missing at every cut.
    """
    steps = [Backward(segment) for segment in trace.segments]

    def spread(source: Tensor, upstream: Tensor | None, below: list[Backward]) -> float:
        """Send the gradient of `source` to all cuts below it; return what got lost of source · upstream."""
        if not below or not source.requires_grad:
            return 0.0
        inputs = [(step, tensor, kind) for step in below for tensor, kind in step.tensors(outputs)]
        gradients = trace.mode.gradients(source, [tensor for _, tensor, _ in inputs], upstream)
        shares: list[Tensor] = []
        for (step, tensor, kind), gradient in zip(inputs, gradients, strict=True):
            if gradient is None:
                continue
            step.add(kind, gradient)
            if measure and kind != "output":
                value = kind.constant if isinstance(kind, Added) else tensor.detach()
                shares.append(share(value, gradient).sum(dtype=torch.float64))
        if not measure:
            return 0.0
        total = (source.detach() if upstream is None else source.detach() * upstream).sum(dtype=torch.float64)
        return (total - sum(shares)).item()

    missing = spread(score, None, steps)
    for index, step in reversed(list(enumerate(steps))):
        step.missing = missing
        yield step
        if index and trace.cut:  # otherwise the first pass has reached all of them
            missing = spread(step.segment.entered, step.gradient, steps[:index])


def share(constant: Tensor, gradient: Tensor) -> Tensor:
    """constant · gradient, and 0 where the gradient is 0: masks add −inf where nothing passes."""
    return torch.where(gradient == 0, torch.zeros_like(gradient), constant * gradient)
