"""Replay of a computation on a GPU: recorded once as a CUDA graph, then run for further batches of the same shape.

A pass through a model is some thousand kernels. In bfloat16, for small batches, or with a Python function per operation, the
host launches them more slowly than the GPU runs them. A recorded graph is launched as a whole.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitreous.capture.precision import Flags
from vitreous.models.eval_mode import parts
from vitreous.models.model import BlackBox

Result = TypeVar("Result")  # a dataclass, some of whose fields are tensors

CALLS_BEFORE_RECORDING = 2  # recording and checking take as long as four calls


@runtime_checkable
class Replayable(Protocol):
    """What a `torch.cuda.CUDAGraph` is used for."""

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Recording(Generic[Result]):
    """A computation as a CUDA graph, with the memory of its inputs and of its result."""

    graph: Replayable
    inputs: tuple[Tensor, ...]
    result: Result
    checked: bool = False

    def replay(self, inputs: Sequence[Tensor]) -> Result:
        """Run the graph on other inputs and return a copy of the result."""
        for buffer, tensor in zip(self.inputs, inputs, strict=True):
            buffer.copy_(tensor, non_blocking=True)
        self.graph.replay()
        return replace(self.result, **{name: tensor.clone() for name, tensor in tensor_fields(self.result).items()})  # type: ignore[type-var]


class GraphCache:
    """Recordings of computations by key; only the most recent ones are kept, since each holds the memory of its pass.

    Parameters
    ----------
    size
        Number of recordings to keep.
    """

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.calls: Counter[Hashable] = Counter()
        self.recordings: OrderedDict[Hashable, Recording[Any] | None] = OrderedDict()  # None: it cannot be recorded

    def run(
        self, key: Hashable, function: Callable[..., Result], inputs: Sequence[Tensor], tolerance: float = 1e-4
    ) -> Result:
        """Return `function(*inputs)`, by a replay if it was called several times with the same key and shapes.

        The third call records the function, and the fourth compares a replay with it. A function that waits for the GPU
        or copies from the CPU cannot be recorded; it is called every time, as is one whose replay does not agree.

        Parameters
        ----------
        key
            What the function computes, apart from the inputs: equal keys mean the same computation.
        function
            Function of the inputs that returns a dataclass.
        inputs
            Tensors on a GPU.
        tolerance
            How far replay and function may differ, relative to the largest value: sums in another order.
        """
        key = (key, Flags.read(), *((tensor.shape, tensor.dtype, tensor.device) for tensor in inputs))
        with self.lock:
            recording = self.recordings.get(key)
            if recording is not None and recording.checked:
                self.recordings.move_to_end(key)
                return recording.replay(inputs)
            result = function(*inputs)
            self.calls[key] += 1
            if recording is not None:
                right = agree(recording.replay(inputs), result, tolerance)
                self.recordings[key] = replace(recording, checked=True) if right else None
            elif key not in self.recordings and self.calls[key] > CALLS_BEFORE_RECORDING:
                self.keep(key, try_to_record(function, inputs))
        return result

    def keep(self, key: Hashable, recording: Recording[Any] | None) -> None:
        """Add a recording; the least recently used one is dropped if there are more than `size`."""
        self.recordings[key] = recording
        recorded = [other for other, other_recording in self.recordings.items() if other_recording is not None]
        for other in recorded[: -self.size]:
            del self.recordings[other], self.calls[other]


CACHES: WeakKeyDictionary[BlackBox, GraphCache] = WeakKeyDictionary()


def cache_of(model: BlackBox) -> GraphCache:
    """Recordings that are kept as long as the model."""
    return CACHES.setdefault(model, GraphCache())


def try_to_record(function: Callable[..., Result], inputs: Sequence[Tensor]) -> Recording[Result] | None:
    """Record a computation; None if it cannot be recorded or does not fit into memory."""
    try:
        return record(function, inputs)
    except torch.OutOfMemoryError as problem:
        problem.__traceback__ = None  # its frames keep references to the tensors to be freed
        torch.cuda.empty_cache()
        return None


def record(function: Callable[..., Result], inputs: Sequence[Tensor]) -> Recording[Result] | None:
    """Record a computation; None if it waits for the GPU or copies from the CPU, which a graph cannot contain."""
    device = inputs[0].device
    own = tuple(tensor.detach().clone() for tensor in inputs)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.cuda.stream(side), HostAccess() as access:
        function(*own)
    torch.cuda.current_stream(device).wait_stream(side)
    if access.operations:
        return None
    graph = torch.cuda.CUDAGraph()
    # weights that autocast has converted before would be read by the graph, but freed when autocast ends
    torch.clear_autocast_cache()
    with torch.cuda.device(device), torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        result = function(*own)
    torch.clear_autocast_cache()
    return Recording(graph, own, result)


class HostAccess(TorchDispatchMode):
    """Collects operations that a graph must not contain: the host waits for their values, or they copy between devices.

    Parameters
    ----------
    device_type
        Type of the device whose values the host must not read.
    """

    WAITING = frozenset(
        {
            "_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
            "equal", "is_nonzero", "bincount", "repeat_interleave",
        }
    )  # fmt: skip

    def __init__(self, device_type: str = "cuda") -> None:
        super().__init__()
        self.device_type = device_type
        self.operations: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = [value for value in tree_leaves((args, kwargs, output)) if isinstance(value, Tensor)]
        copies = name in (
            "_to_copy",
            "copy_",
            "_local_scalar_dense",
        )  # numbers in tensors without axes are arguments elsewhere
        devices = {tensor.device.type for tensor in tensors if tensor.ndim or copies}
        masks = name in ("index", "index_put", "index_put_") and any(
            tensor.dtype in (torch.bool, torch.uint8) for tensor in tree_leaves(args[1]) if isinstance(tensor, Tensor)
        )
        if len(devices) > 1 or masks or (name in self.WAITING and self.device_type in devices):
            self.operations.add(name)
        return output


def tensor_fields(result: Any) -> dict[str, Tensor]:
    """Fields of a dataclass that are tensors, by name."""
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def agree(result: Any, expected: Any, tolerance: float) -> bool:
    """Whether the tensors of two results are equal up to `tolerance`, relative to the largest value of each."""
    tensors, expected_tensors = tensor_fields(result), tensor_fields(expected)
    return tensors.keys() == expected_tensors.keys() and all(
        agree_within(tensors[name], tensor, tolerance) for name, tensor in expected_tensors.items()
    )


def agree_within(tensor: Tensor, expected: Tensor, tolerance: float) -> bool:
    if not expected.is_floating_point() or not expected.numel():
        return torch.equal(tensor, expected)
    largest = float(expected.abs().nan_to_num(0, 0, 0).max())
    return torch.allclose(tensor, expected, rtol=0, atol=tolerance * largest, equal_nan=True)


def module_state(module: nn.Module) -> Hashable:
    """Where the parameters and buffers of a module lie, and which hooks it has: what a recording depends on.

    Values may change, since a replay reads them; Python attributes of the module are not included.
    """
    return frozenset(
        (
            id(part), part.training, len(part._forward_hooks), len(part._forward_pre_hooks),
            *((tensor.data_ptr(), tensor.dtype) for tensor in (*part._parameters.values(), *part._buffers.values()) if tensor is not None),
        )
        for part in parts(module)
    )  # fmt: skip
