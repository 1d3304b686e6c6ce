"""Which calls of submodules the image has to pass on its way to the outputs.

The module runs once with gradients recorded, and every observed call gets copies of its tensors. A path from the outputs to
the image in autograd's graph enters a call if it contains the node of such a copy. A call *separates* the image from the
outputs if every path enters it: then the score is a function of the tensors of that call alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.call_inputs import entering_tensors, replace_tensors
from vitreous.capture.completeness import random_score
from vitreous.capture.linearise import PLAIN
from vitreous.capture.operations import LinearisedForward
from vitreous.core.errors import ModelError
from vitreous.models.eval_mode import evaluating, hooking
from vitreous.models.tensor_types import Images

MOST_TRUNKS = 16
IMAGE = -1  # root of the tree of calls


@dataclass(slots=True, eq=False)
class FlowCall:
    """A call of a submodule.

    Attributes
    ----------
    name, module
        Of the submodule.
    repeat
        Number of calls of the same submodule before it.
    entered
        Tensors that it was called with, without graph.
    parts
        Those through which the outputs depend on the image.
    """

    name: str
    module: nn.Module
    repeat: int
    entered: list[Tensor]
    parts: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class ImageFlow:
    """The graph of one forward from the outputs down to the image; nodes are numbers.

    Attributes
    ----------
    calls
        Observed calls in the order of the forward.
    outside
        As for `record_flow`.
    inputs
        Nodes that every node is computed from.
    call_of
        Call that a node enters, for the nodes that do.
    nodes_of
        The reverse of it.
    image
        Node of the image; None if it is not reached.
    """

    calls: list[FlowCall]
    outside: bool = False
    inputs: list[list[int]] = field(default_factory=list)
    call_of: dict[int, int] = field(default_factory=dict)
    nodes_of: dict[int, list[int]] = field(default_factory=dict)
    image: int | None = None

    def visit(self, merged: Collection[int], removed: Collection[int]) -> Iterable[tuple[int, list[int]]]:
        """Nodes from the image to the score (0), each with its inputs; none for those that enter calls in `removed`.

        The nodes that enter a call in `merged` have their inputs in common.
        """
        inputs: dict[int, list[int]] = {}

        def inputs_of(node: int) -> list[int]:
            call = self.call_of.get(node)
            if call in removed:
                return []
            if call is not None and call in merged:
                return [other for entering in self.nodes_of[call] for other in self.inputs[entering]]
            return self.inputs[node]

        stack = [(0, False)] if self.inputs else []
        while stack:
            node, is_left = stack.pop()
            if is_left:
                yield node, inputs[node]
            elif node not in inputs:
                inputs[node] = inputs_of(node)
                stack.append((node, True))
                stack += [(other, False) for other in inputs[node] if other not in inputs]

    def passes(self, removed: Collection[int]) -> bool:
        """Whether a path leads from the image to the score that enters none of these calls."""
        return any(node == self.image for node, _ in self.visit((), removed))

    def path_beside(self, removed: Collection[int]) -> list[str]:
        """Names of the innermost submodules on a path from the image to the score that enters none of these calls."""
        way: dict[int, int] = {}
        waiting = [0]
        for node in waiting:  # grows
            for other in self.inputs[node]:
                if other not in way and self.call_of.get(other) not in removed:
                    way[other] = node
                    waiting.append(other)
        names: list[str] = []
        node = self.image
        while node:  # up to the score
            node = way[node]
            if node in self.call_of:
                names.append(self.calls[self.call_of[node]].name)
        return [name for name in dict.fromkeys(names) if not any(other.startswith(f"{name}.") for other in names)]

    def after(self, calls: Collection[int]) -> set[int]:
        """These calls and those whose tensors depend on them."""
        reached: set[int] = set()
        for node, inputs in self.visit((), ()):
            if self.call_of.get(node) in calls or any(other in reached for other in inputs):
                reached.add(node)
        return {self.call_of[node] for node in reached if node in self.call_of}

    def tree(self, calls: Collection[int], removed: Collection[int] = ()) -> CallTree:
        """For every call the last one before it that all of the image passes, and likewise for the score.

        Paths that enter calls in `removed` are left out.
        """
        tree, below = CallTree([call.name for call in self.calls]), dict[int, int]()
        for node, inputs in self.visit(calls, removed):
            call = self.call_of.get(node)
            if node == self.image:
                below[node] = IMAGE
            elif call in tree.depth:
                below[node] = call
            else:
                parents = {below[other] for other in inputs if other in below}
                if not parents:
                    continue  # does not depend on the image
                parent = parents.pop()
                for other in parents:
                    parent = tree.common(parent, other)
                if call is not None and call in calls:
                    tree.add(call, parent)
                below[node] = call if call is not None and call in calls else parent
        tree.score = below.get(0, IMAGE)
        return tree


@dataclass(slots=True, eq=False)
class CallTree:
    """Calls by the last call before each that all of the image passes (its immediate dominator).

    Attributes
    ----------
    names
        Names of the submodules of all calls.
    parent
        The last call before each.
    depth
        Number of calls on the path from the image.
    outer
        The call itself, or the one before it whose submodule holds its own.
    length
        Number of calls on the path from the image that are not inside others on it, and of all.
    score
        The last call that all of the image passes before the score.
    """

    names: list[str]
    parent: dict[int, int] = field(default_factory=dict)
    depth: dict[int, int] = field(default_factory=lambda: {IMAGE: 0})
    outer: dict[int, int] = field(default_factory=dict)
    length: dict[int, tuple[int, int]] = field(default_factory=lambda: {IMAGE: (0, 0)})
    score: int = IMAGE

    def add(self, call: int, parent: int) -> None:
        before = self.outer.get(parent)
        is_inside = before is not None and self.names[call].startswith(f"{self.names[before]}.")
        self.outer[call] = before if is_inside and before is not None else call
        outermost, count = self.length[parent]
        self.length[call] = outermost + (not is_inside), count + 1
        self.parent[call], self.depth[call] = parent, self.depth[parent] + 1

    def common(self, first: int, second: int) -> int:
        """The last call that both pass."""
        while first != second:
            if self.depth[first] >= self.depth[second]:
                first = self.parent[first]
            else:
                second = self.parent[second]
        return first

    def path(self, call: int) -> list[int]:
        """Calls from the image to this one, each of which all of the image passes that reaches the next."""
        calls: list[int] = []
        while call != IMAGE:
            calls.append(call)
            call = self.parent[call]
        return calls[::-1]

    def longest_path(self) -> list[int]:
        """The longest path; of several, the one that ends first.

        What is inside other calls of a path counts last: branches inside a stage can be longer than the way on from it.
        """
        return self.path(max(sorted(self.length), key=lambda call: self.length[call]))


def record_flow(
    module: nn.Module,
    forward: Callable[[Images], Any],
    images: Images,
    observed: Mapping[str, nn.Module],
    outside: bool = False,
) -> ImageFlow:
    """The flow of the image through the calls of some submodules.

    Parameters
    ----------
    module
        The model.
    forward
        Runs the model on images.
    images
        One image [1 c H W] or clip.
    observed
        Submodules by name.
    outside
        Whether a tensor counts as entering a call also where it is used after the call has begun, but not in it, such as
        x in `x = x + block(x)`.
    """
    calls: list[FlowCall] = []
    entries: dict[Edge, list[Entry]] = {}
    names = {part: name for name, part in observed.items()}
    repeats = dict.fromkeys(names, 0)
    clock = torch.zeros((), requires_grad=True)

    def enter(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors, copies = entering_tensors(args, kwargs), dict[int, Tensor]()
        with torch._C.DisableTorchFunction(), torch.enable_grad():
            if not outside:
                copies = {id(tensor): tensor.clone() for tensor in tensors if tensor.requires_grad}
            ticked = clock.clone()
            if ticked.grad_fn is None:
                raise NotImplementedError(
                    f"{names[part]!r} is called in a transform of torch.func, which no rule reaches"
                )
            now = sequence_number(ticked.grad_fn)
        for place, tensor in enumerate(tensors):
            tensor = copies.get(id(tensor), tensor)
            if tensor.grad_fn is not None:
                entries.setdefault((tensor.grad_fn, tensor.output_nr), []).append(Entry(now, len(calls), place))
        calls.append(FlowCall(names[part], part, repeats[part], [tensor.detach() for tensor in tensors]))
        repeats[part] += 1
        return replace_tensors(args, copies), replace_tensors(kwargs, copies)

    mode = LinearisedForward(PLAIN)
    mode.active = False  # the module's own operations; parameters are detached
    leaf = images.detach().requires_grad_()
    with hooking(names, enter, lambda *_: None), evaluating(module), torch.enable_grad():
        entering_image = leaf.clone()
        with mode:
            output = forward(entering_image)
        score = random_score(output)
    flow = ImageFlow(calls, outside)
    if score is not None:
        number_nodes(flow, (score.grad_fn, 0), (entering_image.grad_fn, 0), entries)
    return flow


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor enters a call: when, which call, and at which place among its tensors."""

    time: int
    call: int
    place: int


Edge = tuple[Any, int]  # node of autograd's graph, and the number of its output


def sequence_number(node: Any) -> int:
    """Number of a node of autograd's graph among those that were made before it."""
    return node._sequence_nr()


def number_nodes(flow: ImageFlow, score: Edge, image: Edge, entries: Mapping[Edge, list[Entry]]) -> None:
    """Number the nodes of a graph from the score down to the image.

    A tensor that enters calls has one node more for every call, which what is computed of it later depends on.
    """

    def node_at(edge: Edge, time: int | float) -> tuple[Edge, int]:
        return edge, sum(entry.time <= time for entry in entries.get(edge, ()))

    first = node_at(score, math.inf)
    numbers, waiting = {first: 0}, [first]
    for edge, entered in waiting:  # grows
        number = numbers[edge, entered]
        if entered:
            entry = entries[edge][entered - 1]
            flow.call_of[number] = entry.call
            flow.nodes_of.setdefault(entry.call, []).append(number)
            flow.calls[entry.call].parts = tuple(sorted({*flow.calls[entry.call].parts, entry.place}))
            inputs = [(edge, entered - 1)]
        elif edge == image:
            flow.image, inputs = number, []
        else:
            below = [other for other in edge[0].next_functions if other[0] is not None]
            inputs = [node_at(other, sequence_number(edge[0])) for other in below] if below else []
        for other in inputs:
            if other not in numbers:
                numbers[other] = len(numbers)
                waiting.append(other)
        flow.inputs.append([numbers[other] for other in inputs])


def find_trunks(flow: ImageFlow, candidates: Collection[int]) -> list[list[int]]:
    """Chains of calls whose first calls together separate the image from the score; empty if there are none.

    Every chain is the longest of those beside the ones before; calls that depend on another chain are in none.
    """
    if not candidates or flow.passes(candidates):
        return []
    trunks: list[list[int]] = []
    while flow.passes(entries := {path[0] for path in trunks}):
        path = flow.tree(set(candidates) - flow.after(entries), entries).longest_path()
        if not path or len(trunks) == MOST_TRUNKS:
            single = flow.tree(candidates)
            return [path] if (path := single.path(single.score)) else []
        later = flow.after(path[:1])
        trunks = [*(trunk for trunk in trunks if trunk[0] not in later), path]
    return trunks


def no_path_to_images(name: str) -> ModelError:
    return ModelError(
        f"the outputs of {name!r} have no gradient path to the images; a model that is differentiable would work"
    )


def has_skips(flow: ImageFlow, trunks: list[list[int]]) -> bool:
    """Whether a part of the image reaches the score beside a later call of a chain."""
    return any(not is_passed(flow, trunks, call) for path in trunks for call in path[1:])


def is_passed(flow: ImageFlow, trunks: list[list[int]], call: int) -> bool:
    """Whether all of the image that enters a chain passes this call of it."""
    return not flow.passes({call, *(path[0] for path in trunks if call not in path)})
