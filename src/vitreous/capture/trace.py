"""One linearised forward of any module, cut at the inputs of its blocks, and the backward pass through the pieces.

`trace` runs the model's own forward under `LinearisedForward`. At the input of every block the graph is cut: the block gets a
leaf with the same values. The backward pass then runs block by block from the last to the first and stops wherever its
consumer stops. Hooks exist only while `trace` runs and act only in the context that registered them (`eval_mode.hooking`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from vitreous.capture.call_inputs import entering_tensors, floating_tensors, replace_tensors
from vitreous.capture.layer import or_zeros
from vitreous.capture.operation_registry import CONSTANT
from vitreous.capture.operations import Added, LinearisedForward, count_nodes
from vitreous.capture.unseen_operations import following_operations
from vitreous.core.errors import ModelError
from vitreous.models.eval_mode import evaluating, hooking
from vitreous.models.layout import NetworkBlock, TokenGrid


@dataclass(slots=True, eq=False)
class Segment:
    """One input of a call of a block: where the graph was cut, and what the block returned.

    Attributes
    ----------
    block
        The block.
    part
        Number of the input among `block.inputs`; the first one stands for the call.
    level
        Number of the block in its trunk.
    is_entry
        Whether what came before is not part of the graph.
    entered
        What the model passed to the block, with the graph of what came before.
    leaf
        The same values as the block was given them: a leaf if the graph is cut, else a view.
    edge
        Where the gradient at the tensor itself is read, with that of what the module computes of it outside of the block.
    output
        What the block returned.
    added
        Constants added from this cut to the next one.
    """

    block: NetworkBlock
    part: int
    level: int
    is_entry: bool
    entered: Tensor
    leaf: Tensor
    edge: GradientEdge | None = None
    output: Tensor | None = None
    added: list[Added] = field(default_factory=list)

    @property
    def tokens(self) -> TokenGrid:
        return self.block.grids[self.part]


@dataclass(slots=True, eq=False)
class Trace:
    """A forward in pieces: while it runs, its hooks cut the graph at the blocks' inputs.

    Attributes
    ----------
    mode
        The rules of the linearised backward pass.
    levels
        Every block by its module and the number of the call, with its number in its trunk.
    down_to
        The first block of every trunk that is part of the graph.
    cut
        Whether the graph is cut at every block call, or only at the first.
    outside
        Whether inputs of blocks are the tensors themselves, which the module may use outside of the blocks too. The graph
        is not cut then.
    watched
        Images whose gradient beside the blocks is measured; None if it is not.
    output
        What the model returned, with the graph back to the last cuts.
    segments
        The block calls from `down_to` on, in the order of the forward.
    calls
        Number of calls so far of every module.
    open
        Block calls that have not returned yet; None for other calls of the same modules.
    entered
        Number of block calls so far.
    follow
        Called where the backward rules begin.
    bypass
        Gradient at the watched images, once a score was followed back; None if it does not reach them.
    """

    mode: LinearisedForward
    levels: dict[tuple[nn.Module, int], tuple[NetworkBlock, int]]
    down_to: Sequence[int]
    cut: bool
    outside: bool = False
    watched: Tensor | None = None
    output: Any = None
    segments: list[Segment] = field(default_factory=list)
    calls: dict[nn.Module, int] = field(default_factory=dict)
    open: list[Segment | None] = field(default_factory=list)
    bypass: Tensor | None = None
    entered: int = 0
    follow: Callable[[], None] = field(default=lambda: None)

    @property
    def changed_in_place(self) -> bool:
        """Whether the model changed an output in place whose added constant was recorded."""
        return any(added.output._version != added.version for part in self.segments for added in part.added)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch._C.DisableTorchFunction():  # these operations are ours, not the model's
            return self._enter(module, args, kwargs)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        repeat = self.calls[module] = self.calls.get(module, -1) + 1
        block, level = self.levels.get((module, repeat), (None, 0))
        self.entered += block is not None
        if block is None or level < self.down_to[block.trunk]:
            self.open.append(None)
            return None
        self.follow()
        self.mode.active = True
        entering: dict[int, Tensor] = {}
        torch.set_grad_enabled(True)
        for part, x in enumerate(block_inputs(block, args, kwargs)):
            segment = self.read_at(block, part, level, x) if self.outside else self.cut_at(block, part, level, x)
            # neither the state nor its history changes with x if it is a copy
            entering[id(x)] = segment.leaf.clone() if self.mode.copy_recorded and not self.outside else segment.leaf
            self.segments.append(segment)
        self.mode.nodes = count_nodes()
        call = self.segments[-len(block.inputs)]
        self.mode.added = call.added  # constants that are recorded from here on
        self.open.append(call)
        return replace_tensors(args, entering), replace_tensors(kwargs, entering)

    def cut_at(self, block: NetworkBlock, part: int, level: int, x: Tensor) -> Segment:
        is_entry = level == self.down_to[block.trunk]
        entered = x.clone() if self.mode.copy_recorded else x
        keeps_graph = x.requires_grad and (self.mode.differentiable or not (self.cut or is_entry))
        leaf = entered.view_as(entered) if keeps_graph else entered.detach().requires_grad_()
        if keeps_graph and self.cut and not is_entry:
            leaf = self.mode.hold(leaf)  # cut in the linearised backward pass only
            unmark_constant(leaf)
        return Segment(block, part, level, is_entry, leaf if is_entry else entered, leaf)

    def read_at(self, block: NetworkBlock, part: int, level: int, x: Tensor) -> Segment:
        unmark_constant(x)
        state = x.clone()  # the module may change x in place
        edge = get_gradient_edge(x) if x.requires_grad else None
        is_entry = level == self.down_to[block.trunk]
        if is_entry and edge is not None and any(segment.added for segment in self.segments):
            earlier = nodes_below(edge.node)  # constants before this trunk, recorded since another one began
            for segment in self.segments:
                segment.added[:] = [added for added in segment.added if added.output.grad_fn not in earlier]
        return Segment(block, part, level, is_entry, state, state, edge)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        segment = self.open.pop() if self.open else None
        if segment is not None and len(segment.block.inputs) == 1:  # else its output is not all that goes on
            with torch._C.DisableTorchFunction():
                segment.output = next(floating_tensors(output), None)


def unmark_constant(x: Tensor) -> None:
    if hasattr(x, CONSTANT):
        delattr(x, CONSTANT)


def nodes_below(node: Any) -> set[Any]:
    """A node of autograd's graph and those that it is computed from."""
    visited, waiting = {node}, [node]
    for current in waiting:  # grows
        inputs = {other for other, _ in current.next_functions if other is not None} - visited
        visited |= inputs
        waiting += inputs
    return visited


def block_inputs(block: NetworkBlock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The inputs of a block among the arguments of a call."""
    tensors = entering_tensors(args, kwargs)
    if max(block.inputs) >= len(tensors):
        raise ModelError(
            f"block {block.name!r} was called without a tensor of floating-point numbers that it had when it was examined; name "
            "other blocks with blocks=…"
        )
    return [tensors[place] for place in block.inputs]


def trace(
    module: nn.Module,
    forward: Callable[[], Any],
    blocks: Sequence[NetworkBlock],
    mode: LinearisedForward,
    *,
    down_to: Sequence[int] | None = None,
    cut: bool = True,
    outside: bool = False,
    watched: Tensor | None = None,
) -> Trace:
    """Run a forward with the backward rules of a linearisation, cut at the inputs of blocks.

    Parameters
    ----------
    module
        The model; it runs in eval mode and gets its own flags back.
    forward
        Calls the model and returns what the model returns.
    blocks
        Calls of blocks at whose inputs the graph is cut.
    mode
        The backward rules. If it copies what it records, for models that change tensors in place, blocks are given
        copies too.
    down_to
        The first block of every trunk that is part of the graph; what comes before runs without one. By default all are.
    cut
        Whether the graph is cut at every block call, which shows what gets lost at each; otherwise only at the first, and
        one backward pass reaches them all. A model that changes tensors in place has to be cut.
    outside
        Whether the module uses inputs of blocks outside of them too; images have to require gradients.
    watched
        Images that the forward is given, with gradients: what comes before the blocks is recorded too, so that the
        gradient is found that reaches them beside the blocks.

    Returns
    -------
    Trace
    """
    levels: dict[tuple[nn.Module, int], tuple[NetworkBlock, int]] = {}
    depths: Counter[int] = Counter()
    for block in blocks:
        levels[block.module, block.repeat] = block, depths[block.trunk]
        depths[block.trunk] += 1
    down_to = [0] * len(depths) if down_to is None else down_to
    cut = (cut or (mode.copy_recorded and not mode.differentiable)) and not outside
    traced = Trace(mode, levels, down_to, cut, outside, watched)
    mode.active = False  # until the first block
    # the gradient flag is the caller's again afterwards; `enter` switches it on
    with (
        hooking((block.module for block in blocks), traced.enter, traced.leave),
        evaluating(module),
        mode.marking(module),
        following_operations(type(module).__name__) as traced.follow,
        torch.set_grad_enabled(mode.differentiable or outside or watched is not None),
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
        The block call, at its first input.
    input_gradient, output_gradient
        At the block's input and output; None where nothing arrived.
    added
        Constants of this segment with the gradients at their outputs.
    added_beside
        Constants on ways that lead past this block, with the tokens of the block after which they are added.
    beside
        What the score depends on besides this input, if the block is held: other inputs of the same call, and inputs of
        earlier blocks of its trunk from which ways lead past it, with the gradients on those ways. Ways past a block
        are told apart only where the graph is cut.
    missing
        Share of the score that entered the cut above and did not come out here; 0 if not measured.
    """

    segment: Segment
    input_gradient: Tensor | None = None
    output_gradient: Tensor | None = None
    added: list[tuple[Added, Tensor]] = field(default_factory=list)
    added_beside: list[tuple[TokenGrid, Added, Tensor]] = field(default_factory=list)
    beside: dict[Segment, Tensor] = field(default_factory=dict)
    missing: float = 0.0

    @property
    def gradient(self) -> Tensor:
        """The gradient at the block's input."""
        return or_zeros(self.input_gradient, self.segment.leaf)

    def tensors(self, outputs: bool) -> Iterator[tuple[Tensor | GradientEdge, str | Added]]:
        """Tensors whose gradients are computed, and what each is: "input", "output" or an added constant."""
        yield self.segment.edge or self.segment.leaf, "input"
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
    watched = [] if trace.watched is None else [trace.watched]

    def spread(source: Tensor, upstream: Tensor | None, below: list[Backward]) -> float:
        """Send the gradient of `source` to all cuts below it; return what got lost of source · upstream."""
        if not below or not source.requires_grad:
            return 0.0
        inputs = [(step, tensor, kind) for step in below for tensor, kind in step.tensors(outputs)]
        tensors: list[Any] = [*(tensor for _, tensor, _ in inputs), *watched]
        gradients = trace.mode.gradients(source, tensors, upstream)
        if watched and gradients[-1] is not None:
            trace.bypass = gradients[-1] if trace.bypass is None else trace.bypass + gradients[-1]
        shares: list[Tensor] = []
        for (step, _, kind), gradient in zip(inputs, gradients, strict=False):
            if gradient is None:
                continue
            step.add(kind, gradient)
            if measure and kind != "output":
                value = kind.constant if isinstance(kind, Added) else step.segment.leaf.detach()
                shares.append(share(value, gradient).sum(dtype=torch.float64))
        if not measure:
            return 0.0
        total = (source.detach() if upstream is None else source.detach() * upstream).sum(dtype=torch.float64)
        return (total - sum(shares)).item()

    def next_below(trunk: int, level: int) -> list[Backward]:
        """Inputs of the next lower block of a trunk."""
        return [step for step in steps if (step.segment.block.trunk, step.segment.level) == (trunk, level - 1)]

    by_level = trace.outside and measure  # all that reaches a block passes the one before
    depths = {step.segment.block.trunk: step.segment.level + 1 for step in steps}
    last = [step for trunk, depth in depths.items() for step in next_below(trunk, depth)]
    missing = spread(score, None, last if by_level else steps)
    end = len(steps)
    while end:
        start = end - len(steps[end - 1].segment.block.inputs)
        step, below = steps[start], steps[:start]
        step.missing = missing
        step.beside = {other.segment: other.gradient for other in steps[start + 1 : end]}
        if trace.cut:
            past = [other for other in below if other.segment.block.trunk == step.segment.block.trunk]
            step.beside |= {other.segment: other.gradient for other in past if other.input_gradient is not None}
            for other in past:
                step.added_beside += [(other.segment.tokens, *added) for added in other.added]
                other.added = []
        yield step
        if trace.cut or by_level:  # otherwise the first pass has reached all of them
            inner = [other for other in steps[start:end] if not other.segment.is_entry]
            if by_level and inner:
                below = next_below(step.segment.block.trunk, step.segment.level)
            missing = sum(spread(other.segment.entered, other.gradient, below) for other in inner)
        end = start


def share(constant: Tensor, gradient: Tensor) -> Tensor:
    """constant · gradient, and 0 where the gradient is 0: masks add −inf where nothing passes."""
    return torch.where(gradient == 0, torch.zeros_like(gradient), constant * gradient)
