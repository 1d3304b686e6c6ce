"""Eval mode and hooks for the time of a forward, while other threads use the same module."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import timm
import torch
from torch import nn

import vitreous
from vitreous.capture.blocks import observe_calls
from vitreous.models.eval_mode import evaluating


class WatchedEntries(OrderedDict[int, bool]):
    """Which hooks take keywords, as torch keeps it; calls a function just before an entry is made and after it is gone."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self.call = call

    def __setitem__(self, key: int, value: bool) -> None:
        self.call()
        super().__setitem__(key, value)

    def __delitem__(self, key: int) -> None:
        super().__delitem__(key)
        self.call()


def test_another_thread_may_run_a_module_while_hooks_are_registered_and_removed(monkeypatch):
    torch.manual_seed(0)
    module = timm.create_model("resnet18", num_classes=3).eval()
    network, image = vitreous.see_through(module, size=(32, 32)), torch.randn(1, 3, 32, 32)
    expected = vitreous.explain(network, image, method="ixg").patches
    block, outputs = network.blocks[0].module, []
    state = torch.randn(1, 64, 8, 8)

    with ThreadPoolExecutor(1) as other_thread:

        def call_block() -> None:
            outputs.append(other_thread.submit(block, state).result())

        monkeypatch.setattr(block, "_forward_pre_hooks_with_kwargs", WatchedEntries(call_block))
        maps = vitreous.explain(network, image, method="ixg").patches

    assert len(outputs) == 2
    assert all(torch.equal(output, block(state)) for output in outputs)
    assert torch.equal(maps, expected)


def test_calls_by_other_threads_are_not_observed():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def forward() -> Any:
        with ThreadPoolExecutor(1) as other_thread:
            other_thread.submit(module, torch.ones(1, 2)).result()
        return module(torch.zeros(1, 2))

    calls = observe_calls(module, forward, dict(module.named_children()))

    assert [call.name for call in calls] == ["0", "1"]
    assert torch.equal(calls[0].state, torch.zeros(1, 2))


def test_the_last_of_overlapping_scopes_restores_the_training_mode():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    module[0].eval()  # a flag that differs
    first, second = evaluating(module), evaluating(module[1])  # as two threads open and close them

    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not module[1].training
    second.__exit__(None, None, None)

    assert [part.training for part in module.modules()] == [True, False, True]
