"""Name the operations of a network that no backward rule reaches, because they are not called as torch functions."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from vitreous.capture.operations import LinearisedForward
from vitreous.core.errors import ModelError, message_of
from vitreous.models.model import tensors_of

# nodes of cuts and copies, and of views that are changed in place
OWN_NODES = ("AccumulateGrad", "Alias", "AsStrided", "Clone", "CopySlices", "View")


class Unseen(NamedTuple):
    """What of a network no rule reaches, and what would work in its place."""

    what: str
    instead: str

    @property
    def sentence(self) -> str:
        return f"{self.what}, which no rule reaches; {self.instead} would work, and black_box=True needs no rules"


CHECKPOINT = Unseen(
    "torch.utils.checkpoint",
    "the model with gradient checkpointing switched off (set_grad_checkpointing(False) in timm, gradient_checkpointing_disable() "
    "in Hugging Face)",
)
NO_HOOKS = "vitreous: a forward with backward rules takes no hooks of saved tensors"


class SeenNodes(LinearisedForward):
    """Notes the nodes of the graph that torch functions add, and the transforms of torch.func that they are called in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: set[Any] = set()
        self.transforms: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        inputs = tensors_of((args, kwargs or {}))
        self.transforms.update(name for name in map(transform_of, inputs) if name)
        before = {tensor.grad_fn for tensor in inputs}
        output = super().__torch_function__(func, types, args, kwargs)
        if torch.is_grad_enabled():
            new = {tensor.grad_fn for tensor in (*tensors_of(output), *inputs)} - before
            self.seen.update(nodes_above(new, before | self.seen))
        return output


def transform_of(tensor: Tensor) -> str:
    """The transform that a tensor is a value of; empty if it is a plain one."""
    functorch = torch._C._functorch  # type: ignore[attr-defined]
    if functorch.is_batchedtensor(tensor):
        return "torch.vmap"
    return "torch.func" if functorch.is_functorch_wrapped_tensor(tensor) else ""


def nodes_above(nodes: set[Any], known: set[Any]) -> Iterator[Any]:
    """Nodes of a graph that these were computed from, and these, down to the nodes that are known."""
    visited, open_nodes = set(known), list(nodes)
    while open_nodes:
        node = open_nodes.pop()
        if node is not None and node not in visited:
            visited.add(node)
            yield node
            open_nodes.extend(above for above, _ in node.next_functions)


def operation_of(node: Any) -> str:
    """Name of the operation that a node of the graph is the backward pass of."""
    return re.sub(r"Backward\d*$", "", node.name().rpartition("::")[2])


def find_unseen(module: nn.Module, mode: SeenNodes, run: Callable[[], list[Tensor]]) -> Unseen | None:
    """What of a network no rule reaches; None if all of its operations are torch functions.

    `run` runs the network under the mode and returns outputs with a graph.
    """
    outputs: list[Tensor] = []
    with suppress(RuntimeError):  # such as a transform that refuses a rule
        outputs = run()
    nodes = set(nodes_above({tensor.grad_fn for tensor in outputs}, set()))
    unseen = nodes - mode.seen
    functions = sorted({operation_of(node) for node in unseen if isinstance(node, BackwardCFunction)})
    if "CheckpointFunction" in functions:
        return CHECKPOINT
    if "torch.vmap" in mode.transforms:
        return Unseen("torch.vmap", "the same computed on the whole batch by torch functions")
    if mode.transforms:
        return Unseen("torch.func", "the same computed by torch functions")
    if functions:
        return Unseen(
            f"the torch.autograd.Function {' or '.join(map(repr, functions[:3]))}",
            "the same computed by torch functions",
        )
    scripted = [path for path, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if scripted:
        return Unseen(f"the scripted module {scripted[0]!r} (torch.jit)", "the module it was made from")
    names = sorted({operation_of(node) for node in unseen}.difference(OWN_NODES))
    if names:
        return Unseen(
            f"operations that are not called from Python ({', '.join(names[:3])}), as in a function of torch.jit.script",
            "the same computed by torch functions",
        )
    return None


LOCK = threading.Lock()
FOLLOWING: list[Any] = []  # open scopes of `following_operations` in all threads; the first one holds the stance


@contextmanager
def following_operations(name: str) -> Iterator[Callable[[], None]]:
    """Context of a forward, in which compiled parts run uncompiled.

    Yields a function to call where the backward rules begin. From there on every operation has to run once, in the forward.

    Raises
    ------
    ModelError
        If an operation is to be run again in the backward pass, which has no rules then, or has no backward pass.
    """
    with uncompiled(), ExitStack() as stack:
        follows = has_saved_tensors_hooks()  # of the caller, who may keep tensors elsewhere: they cannot be told apart

        def follow() -> None:
            nonlocal follows
            if not follows:
                stack.enter_context(torch.autograd.graph.disable_saved_tensors_hooks(NO_HOOKS))
            follows = True

        try:
            yield follow
        except RuntimeError as problem:
            if NO_HOOKS in str(problem):
                raise ModelError(f"{name!r} cannot be linearised: it uses {CHECKPOINT.sentence}") from problem
            if isinstance(problem, NotImplementedError):
                raise without_graph(name, problem) from problem
            raise


def has_saved_tensors_hooks() -> bool:
    """Whether something changes how autograd keeps tensors for the backward pass."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(NO_HOOKS):
            return False
    except RuntimeError:
        return True


@contextmanager
def uncompiled() -> Iterator[None]:
    """Context in which functions of torch.compile run as they were written, in all threads."""
    if "torch._dynamo" not in sys.modules:  # imported with the first part that is compiled
        yield
        return
    with LOCK:
        FOLLOWING.append(None if FOLLOWING else torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with LOCK:
            if len(FOLLOWING) > 1:
                FOLLOWING.pop()  # scopes may end in another order: the stance belongs to the last one
            else:
                FOLLOWING.pop().__exit__(None, None, None)


def describe_runtime_error(problem: RuntimeError, outputs: Iterable[Tensor] = ()) -> str:
    """First sentence of an error of the model or of autograd, and the classes that its outputs were computed with."""
    sentence = message_of(problem).split(". ")[0].removesuffix(".")
    nodes = nodes_above({tensor.grad_fn for tensor in outputs}, set())
    names = {operation_of(node) for node in nodes if isinstance(node, BackwardCFunction) and not is_own(node)}
    return f"{sentence}: {' or '.join(map(repr, sorted(names)))}" if names else sentence


def is_own(node: Any) -> bool:
    """Whether a node of the graph is the backward pass of a rule."""
    return type(node)._forward_cls.__module__.startswith("vitreous.")


def without_graph(name: str, problem: RuntimeError, outputs: Iterable[Tensor] = ()) -> ModelError:
    reason = describe_runtime_error(problem, outputs)
    return ModelError(f"{name!r} cannot be linearised: {reason}; black_box=True needs no gradients")


@contextmanager
def refusing_graph_errors(name: str, outputs: Iterable[Tensor] = ()) -> Iterator[None]:
    """Context in which an error of a model that has run without a graph, and does not with one, refuses it.

    `outputs` are those that have a graph already.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as problem:
        raise without_graph(name, problem, outputs) from problem
