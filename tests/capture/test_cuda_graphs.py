"""CUDA graphs: the conditions of recording and replaying. Graphs themselves need a GPU (`benchmarks/precision.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import vitreous
from vitreous.capture import cuda_graphs
from vitreous.capture.cuda_graphs import GraphCache, HostAccess, Recording, agree, module_state
from vitreous.capture.probe import Probe


@dataclass(frozen=True)
class Doubled:
    values: Tensor
    name: str = "doubled"


class FakeGraph:
    """Stands for a CUDA graph: computes the result in the memory of the recording, and counts its replays."""

    def __init__(self, x: Tensor, result: Doubled, replays: list[int], error: float) -> None:
        self.x, self.result, self.replays, self.error = x, result, replays, error

    def replay(self) -> None:
        self.replays.append(1)
        self.result.values.copy_(self.x * 2 + self.error)


def fake_recording(inputs: list[Tensor], replays: list[int], error: float = 0.0) -> Recording[Doubled]:
    own = inputs[0].clone()
    result = Doubled(torch.zeros_like(own))
    return Recording(FakeGraph(own, result, replays, error), (own,), result)


class Counted:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Doubled:
        self.calls += 1
        return Doubled(x * 2)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []
    monkeypatch.setattr(cuda_graphs, "record", lambda function, inputs: fake_recording(inputs, counts))
    return counts


def test_the_third_call_records_and_the_fifth_replays(replays: list[int]) -> None:
    function, graphs = Counted(), GraphCache()
    for number in range(7):
        x = torch.full((3,), float(number))
        assert torch.equal(graphs.run("key", function, [x]).values, x * 2)
    assert function.calls == 4  # two, the one that records, and the one that is compared with a replay
    assert len(replays) == 4  # the compared one, and three that were not computed


def test_a_replay_that_differs_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "record", lambda function, inputs: fake_recording(inputs, [], error=0.1))
    function, graphs, x = Counted(), GraphCache(), torch.ones(3)
    for _ in range(7):
        assert torch.equal(graphs.run("key", function, [x]).values, x * 2)
    assert function.calls == 7


@pytest.mark.parametrize("reason", ["host access", "memory"])
def test_methods_that_cannot_be_recorded_are_computed_every_time(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    attempts: list[str] = []

    def record(function: object, inputs: object) -> None:
        attempts.append(reason)
        if reason == "memory":
            raise torch.OutOfMemoryError("too large")

    monkeypatch.setattr(cuda_graphs, "record", record)
    function, graphs, x = Counted(), GraphCache(), torch.ones(3)
    for _ in range(6):
        graphs.run("key", function, [x])
    assert function.calls == 6
    assert attempts == [reason]  # tried once


def test_other_shapes_dtypes_and_keys_have_separate_recordings(replays: list[int]) -> None:
    function, graphs = Counted(), GraphCache(size=8)
    inputs = [("a", torch.ones(3)), ("a", torch.ones(4)), ("a", torch.ones(3).double()), ("b", torch.ones(3))]
    for key, x in inputs * 5:
        assert torch.equal(graphs.run(key, function, [x]).values, x * 2)
    assert function.calls == 4 * len(inputs)
    assert len(graphs.recordings) == len(inputs)


def test_the_least_recently_used_recording_is_dropped(replays: list[int]) -> None:
    function, graphs, x = Counted(), GraphCache(size=2), torch.ones(3)
    for key in ("a", "b", "a", "c"):
        for _ in range(5):
            graphs.run(key, function, [x])
    assert [key[0] for key in graphs.recordings] == ["a", "c"]


def test_results_agree_up_to_rounding_and_undefined_values_are_equal() -> None:
    values = torch.tensor([1.0, -200.0, torch.nan])
    result = Doubled(values)
    assert agree(replace(result, values=values + 1e-3), result, 1e-4)
    assert not agree(replace(result, values=values + 0.1), result, 1e-4)
    assert not agree(replace(result, values=values.nan_to_num(0)), result, 1e-4)
    assert not agree(Doubled(torch.tensor([1, 2])), Doubled(torch.tensor([1, 3])), 1.0)


def test_host_access_is_found() -> None:
    x = torch.arange(4.0)

    def names(function: Callable[[Tensor], object]) -> set[str]:
        with HostAccess("cpu") as access:
            function(x)
        return access.operations

    assert names(lambda x: x.sum().item()) == {"_local_scalar_dense"}
    assert names(lambda x: x[x > 1]) >= {"index"}
    assert names(torch.nonzero) == {"nonzero"}
    assert names(lambda x: x.to("meta")) == {"_to_copy"}
    assert names(lambda x: (x * torch.tensor(2.0)).softmax(0)[:2].sum()) == set()


def test_host_access_is_found_in_the_backward_pass() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, *upstreams: Tensor) -> Tensor:
            return upstreams[0] * upstreams[0].sum().item()

    x = torch.ones(3, requires_grad=True)
    with HostAccess("cpu") as access:
        torch.autograd.grad(Reads.apply(x).sum(), x)
    assert access.operations == {"_local_scalar_dense"}


@pytest.mark.parametrize(
    "spec", ["temper", "decompx+skipplus", "decompx(bias='equal')", "fullgrad@libra+plus", "gradcam", "fuse", "genatt", "tokentm"]
)  # fmt: skip
def test_main_methods_do_not_wait_for_the_device(spec: str) -> None:
    vit = vitreous.load("scenes")
    images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    method = vitreous.resolve(spec)
    method(Probe(vit, images, None, "probability", hold=True))  # slopes of activations are computed once
    with HostAccess("cpu") as access:
        method(Probe(vit, images, None, "probability", hold=True))
    assert access.operations == set()


def test_the_state_of_a_module_is_the_addresses_of_its_tensors() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    state = module_state(module)
    with torch.no_grad():
        module[0].weight.mul_(2)
    assert module_state(module) == state  # a replay reads the new values
    handle = module[0].register_forward_hook(lambda *_: None)
    assert module_state(module) != state
    handle.remove()
    assert module_state(module) == state
    module[0].weight = nn.Parameter(torch.ones(2, 2))
    assert module_state(module) != state


def test_without_a_gpu_nothing_is_recorded() -> None:
    vit = vitreous.load("scenes")
    images = torch.stack([vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=i)) for i in range(6)])
    plain = vitreous.explain(vit, images, method="decompx+skipplus", batch_size=1, cuda_graph=False)
    for choice in (True, None):
        attribution = vitreous.explain(vit, images, method="decompx+skipplus", batch_size=1, cuda_graph=choice)
        assert torch.equal(attribution.patches, plain.patches)
    assert vit.device.type == "cuda" or not cuda_graphs.cache_of(vit).recordings
