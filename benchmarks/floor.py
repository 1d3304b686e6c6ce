"""How far is a method from the work that its mathematics needs? Ratios measured in one run, the two sides taking turns.

    python benchmarks/floor.py                        # ViT-B/16, batch 8, float32, this machine's CPU
    python benchmarks/floor.py --device cuda --batch 32 --method genatt --method tokentm

The floor is one plain forward and one backward of the class logit to the pixels, with frozen parameters.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import timm
import torch

import vitreous

DEFAULT = ("decompx+skipplus", "decompx", "ixg", "gradcam", "fullgrad", "genatt", "tokentm")


def timed(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def floor_of(model: torch.nn.Module, images: torch.Tensor) -> None:
    leaf = images.detach().requires_grad_()
    logits = model(leaf)
    torch.autograd.grad(logits.amax(-1).sum(), leaf)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", default="vit_base_patch16_224")
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=None)
    arguments.add_argument("--method", action="append")
    arguments.add_argument(
        "--stream", action="store_true", help="recompute block by block instead of holding the graph"
    )
    given = arguments.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    model = timm.create_model(given.model, pretrained=False).eval().requires_grad_(False).to(given.device)
    vit = vitreous.wrap(model)
    images = torch.randn(given.batch, 3, *vit.size, device=given.device)
    methods = given.method or DEFAULT
    hold = False if given.stream else None
    work = {"floor": lambda: floor_of(model, images)}
    for spec in methods:
        work[spec] = lambda spec=spec: vitreous.explain(vit, images, method=spec, hold=hold, batch_size=given.batch)
    for run in work.values():
        run()  # warm up
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(given.rounds):
        for name, run in work.items():
            seconds[name].append(timed(run, given.device))
    threads = torch.get_num_threads() if given.device == "cpu" else "-"
    print(f"{given.model}, batch {given.batch}, float32, {given.device}, {threads} threads, {given.rounds} rounds")
    print(
        f"| method | seconds (median) | ratio to forward + backward |\n|---|---|---|\n| floor | {statistics.median(seconds['floor']):.3f} | 1 |"
    )
    for spec in methods:
        ratio = statistics.median(m / f for m, f in zip(seconds[spec], seconds["floor"], strict=True))
        print(f"| {spec} | {statistics.median(seconds[spec]):.3f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
