"""Does torch.compile pay? `python benchmarks/compiled.py [--device cuda] [--dtype bfloat16] [--size b] [--batch 32] [--rounds 9]`

The encoder on subsets of tokens, plain and compiled: once for all lengths, and with a CUDA graph for each. Lengths are three of a
deletion curve. Prints the seconds of the first call, which compiles, and the speed-up of later calls.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))  # `suite` is next to this file

from suite.bare import TENTHS
from suite.clock import measure_seconds
from suite.workload import Workload, make_workload

from vitreous.capture.forward import run
from vitreous.capture.probe import Probe
from vitreous.models.vit import TokenPositions

WAYS = {
    "as it is": lambda ask: ask,
    "compiled, any length": lambda ask: torch.compile(ask, dynamic=True),
    "compiled, a CUDA graph per length": lambda ask: torch.compile(ask, mode="reduce-overhead", dynamic=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="b")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    arguments = parser.parse_args()
    workload = make_workload(arguments.size, arguments.device, arguments.batch, getattr(torch, arguments.dtype))
    calls = {way: make_curve_call(workload, make) for way, make in WAYS.items()}
    first = {way: measure_seconds(call, workload.device) for way, call in calls.items()}
    rounds = [
        {way: measure_seconds(call, workload.device) for way, call in calls.items()} for _ in range(arguments.rounds)
    ]
    for way in WAYS:
        gain = median(durations["as it is"] / durations[way] for durations in rounds)
        print(f"{arguments.dtype}, {way}: {gain:.2f} × as fast, first call {first[way]:.1f} s", flush=True)


def make_curve_call(workload: Workload, make: Callable) -> Callable[[], None]:
    """Function that runs the encoder on the subsets of a deletion curve."""
    layout, tokens = workload.vit.layout(workload.vit.size), Probe(workload.vit, workload.images).tokens
    ask = make(lambda tokens, index: run(workload.vit, tokens, TokenPositions(layout, index)))
    inputs = [
        shorten_tokens(tokens, layout.prefix + layout.patches - int(ratio * layout.patches)) for ratio in TENTHS[::4]
    ]

    @torch.no_grad()
    def call() -> None:
        for tokens, index in inputs:
            ask(tokens, index)

    return call


def shorten_tokens(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    return tokens[:, :length].contiguous(), torch.arange(length, device=tokens.device).expand(len(tokens), -1)


if __name__ == "__main__":
    main()
