"""Cost of intercepting a network's operations, relative to one plain forward and backward pass.

    python benchmarks/network_overhead.py                 on a CUDA device: Swin-B, batch 32, and ViT-B/16, batch 64, float32
    python benchmarks/network_overhead.py --device cpu    a Swin with tiny tensors: only the overhead of Python, per operation

Weights are random. Ratios are medians over rounds, in which all sides alternate. On a CPU, process time is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import timm
import torch
from suite.clock import measure_seconds
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

from vitreous.capture.cuda_graphs import CALLS_BEFORE_RECORDING, GraphCache
from vitreous.capture.linearise import LINEARISATIONS
from vitreous.capture.operations import LinearisedForward
from vitreous.capture.probe import probe_of
from vitreous.capture.score_function import resolve_score_function
from vitreous.capture.targets import ClassTarget
from vitreous.explanation import run_recorded
from vitreous.methods.spec import resolve
from vitreous.models.model import Network
from vitreous.wrapping import as_network

SPECS = ("temper", "decompx+plus", "decompx+skipplus")
TARGET = 1.10


class CountedForward(LinearisedForward):
    """Counts the operations of a forward."""

    operations = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return super().__torch_function__(func, types, args, kwargs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    if device.type == "cpu":
        torch.set_num_threads(1)
        tiny = SwinTransformer(
            img_size=32, patch_size=1, embed_dim=12, depths=(2, 2, 18, 2), num_heads=(1, 1, 1, 1), window_size=4
        )
        report_ratios("Swin, tiny tensors", tiny, (32, 32), 1, device, options.rounds)
        return
    swin = timm.create_model("swin_base_patch4_window7_224", pretrained=False)
    vit = timm.create_model("vit_base_patch16_224", pretrained=False)
    report_ratios("Swin-B, batch 32", swin, (224, 224), 32, device, options.rounds)
    report_ratios("ViT-B/16, batch 64", vit, (224, 224), 64, device, options.rounds)


def report_ratios(
    title: str, module: nn.Module, size: tuple[int, int], batch: int, device: torch.device, rounds: int
) -> None:
    """Print the ratio of every method to one plain forward and backward."""
    module = module.eval().requires_grad_(False).to(device)
    network = as_network(module, size=size)
    images = torch.randn(batch, 3, *size, device=device)
    sides = {
        "forward": lambda: run_forward(module, images),
        "followed": lambda: run_followed(module, images),
        "floor": lambda: run_floor(module, images),
        **{spec: make_explainer(network, images, spec) for spec in SPECS},
        **{f"{spec}, replayed": make_replayer(network, images, spec) for spec in SPECS if device.type == "cuda"},
    }
    for side in sides.values():  # warm up, and record graphs
        for _ in range(CALLS_BEFORE_RECORDING + 2):
            side()
    times_by_round = [{name: measure_seconds(side, device.type) for name, side in sides.items()} for _ in range(rounds)]
    operations = count_operations(module, images[:1])
    extra = median(row["followed"] - row["forward"] for row in times_by_round)
    print(
        f"{title}: baseline {1e3 * median(row['floor'] for row in times_by_round):.1f} ms, {operations} operations, ",
        end="",
    )
    print(f"{1e6 * extra / operations:.1f} µs each beyond a plain forward", flush=True)
    for spec in list(sides)[3:]:
        ratio = median(row[spec] / row["floor"] for row in times_by_round)
        verdict = "" if device.type == "cpu" else " (met)" if ratio <= TARGET else f" (target {TARGET})"
        print(f"  {spec:28} {ratio:.3f} of the baseline{verdict}", flush=True)


def run_forward(module: nn.Module, images: Tensor) -> Tensor:
    with torch.enable_grad():
        return module(images.clone().requires_grad_())


def run_followed(module: nn.Module, images: Tensor) -> Tensor:
    """A forward pass whose operations are intercepted, without cuts and without a backward pass."""
    mode = LinearisedForward(LINEARISATIONS["tempered"])
    mode.detaches_parameters = False
    with torch.enable_grad(), mode:
        return module(images.clone().requires_grad_())


def run_floor(module: nn.Module, images: Tensor) -> Tensor:
    leaf = images.clone().requires_grad_()
    with torch.enable_grad():
        score = module(leaf)[:, 0].sum()
    return torch.autograd.grad(score, leaf)[0]


def make_explainer(network: Network, images: Tensor, spec: str) -> Callable[[], Any]:
    method, targets = resolve(spec).for_model(network), torch.zeros(len(images), dtype=torch.long, device=images.device)
    return lambda: method(probe_of(network, images, targets, "logit"))


def make_replayer(network: Network, images: Tensor, spec: str) -> Callable[[], Any]:
    """The same as one CUDA graph, from the third call on."""
    method, graphs = resolve(spec).for_model(network), GraphCache()
    target = ClassTarget(torch.zeros(len(images), 1, dtype=torch.long, device=images.device))
    return lambda: run_recorded(graphs, network, images, target, method, resolve_score_function("logit"))


def count_operations(module: nn.Module, images: Tensor) -> int:
    mode = CountedForward(LINEARISATIONS["tempered"])
    with torch.enable_grad(), mode:
        module(images.clone().requires_grad_())
    return mode.operations


if __name__ == "__main__":
    main()
