"""What does a metric cost beside its own forwards? Ratios measured in one run, the two sides taking turns.

    python benchmarks/metrics.py                                  # ViT-Tiny/16, batch 8, float32, this machine's CPU
    python benchmarks/metrics.py --device cuda --model vit_base_patch16_224 --batch 32 --steps 224

The bare side is timm's own module on inputs that are ready: as many sequences of the same lengths, or pictures, in batches of the
same size. Targets: 1.15 for token masking, 1.25 for pictures. ROAD also solves its linear systems and has no target.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import timm
import torch
from torch import Tensor

import vitreous
from vitreous.capture.memory import rows_that_fit
from vitreous.capture.probe import Probe
from vitreous.methods.attribution import Attribution
from vitreous.metrics.metric import resolve_metric

TENTHS = [tenth / 10 for tenth in range(1, 10)]


def timed(work: Callable[[], object], device: str) -> float:
    """Seconds on the clock; on a CPU, of its time, so that what else runs there does not count."""
    if device == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def bare_tokens(model: torch.nn.Module, tokens: Tensor, lengths: list[int]) -> None:
    """The encoder and head on the first `length` tokens of every sequence, and once on all of them."""
    for length in [*lengths, tokens.shape[1]]:
        chunk = rows_that_fit(length, tokens.shape[2], tokens.element_size(), tokens.device)
        for part in tokens[:, :length].split(chunk):
            model.forward_head(model.norm(model.blocks(part)))


@torch.no_grad()
def bare_pictures(model: torch.nn.Module, pictures: Tensor, count: int) -> None:
    """The model on `count` pictures, `pictures` of them at a time."""
    for start in range(0, count, len(pictures)):
        model(pictures[: count - start])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="vit_tiny_patch16_224")
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--steps", type=int, default=14)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--metric", action="append", help="only these of the list")
    given = arguments.parse_args()
    torch.manual_seed(0)
    model = timm.create_model(given.model, pretrained=False).eval().requires_grad_(False).to(given.device)
    vit = vitreous.wrap(model)
    images = torch.randn(given.batch, 3, *vit.size, device=given.device)
    labels = torch.zeros(given.batch, dtype=torch.long, device=given.device)
    first = Probe(vit, images, labels)
    layout, tokens = first.layout, first.tokens
    maps = Attribution(torch.randn(given.batch, layout.patches, device=given.device), layout, labels, "given")
    pictures = torch.randn(
        min(first.pictures_that_fit, given.batch * 2 * given.steps), 3, *vit.size, device=given.device
    )

    def tokens_left(verb: str) -> list[int]:
        counts = [int(ratio * layout.patches) for ratio in TENTHS]
        return [layout.prefix + (layout.patches - k if verb == "deletion" else k) for k in counts]

    def forwards(count: int) -> Callable[[], None]:
        # the clean picture is one more, in a batch of its own
        return lambda: (bare_pictures(model, pictures, given.batch * count), bare_pictures(model, images, given.batch))[
            0
        ]

    bare: dict[str, Callable[[], None]] = {}
    for verb in ("deletion", "insertion"):
        for kind in ("accuracy", "aopc"):
            bare[f"{verb}_{kind}"] = lambda verb=verb: bare_tokens(model, tokens, tokens_left(verb))
    steps = f"steps={given.steps}"
    for baseline in ("blur", "black", "mean", "random"):
        bare[f"deletion({steps}, baseline={baseline!r})"] = forwards(given.steps)
    bare[f"insertion({steps})"] = forwards(given.steps - 1)  # the last step is the clean picture
    bare[f"insertion_minus_deletion({steps})"] = forwards(2 * given.steps - 1)
    bare |= {"positive_auc": forwards(9), "negative_auc": forwards(9), "aopc": forwards(20), "lodds": forwards(20)}
    bare |= {"idsds(cells=4)": forwards(16), "road(levels=(0.1, 0.5, 0.9))": forwards(3)}
    chosen = {spec: work for spec, work in bare.items() if not given.metric or spec.split("(")[0] in given.metric}

    def run(spec: str) -> None:
        resolve_metric(spec)(maps, probe=Probe(vit, images, labels), labels=labels)

    threads = torch.get_num_threads() if given.device == "cpu" else "-"
    print(f"{given.model}, batch {given.batch}, float32, {given.device}, {threads} threads, median of {given.rounds}")
    print("| metric | seconds | its bare forwards | ratio |\n|---|---|---|---|")
    for spec, floor in chosen.items():
        run(spec), floor()  # warm up
        pairs = [(timed(lambda s=spec: run(s), given.device), timed(floor, given.device)) for _ in range(given.rounds)]
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"| {spec} | {ours:.3f} | {theirs:.3f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
