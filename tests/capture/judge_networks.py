"""Whether a random network is explained rightly, with a caution, or refused: a command and what the tests use.

python -m tests.capture.judge_networks --draws 2000
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import timm
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from torch import Tensor, nn

import vitreous
from tests.capture.random_blocks import SIDE
from tests.capture.random_modules import build
from tests.capture.random_networks import Description, descriptions
from vitreous.core.errors import VitreousError
from vitreous.models.layout import NetworkBlock, TokenGrid
from vitreous.models.model import Network

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from architecture_oracle import expect, gradient_norm, watch

EXACT = 1e-9
OWN = 0.02  # share of a token's largest reaction with which it must react to the cell that it is said to lie in
CELLS = 8  # rows of cells that are perturbed
DRAWS = 4  # of the change of a cell
TARGET = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """ "right", "cautioned", "refused" or "wrong", and why."""

    kind: str
    why: str = ""


def images() -> dict[str, Tensor]:
    """One image like those that networks are examined on, and a bright one, on which control flow may differ."""
    draw = torch.randn(2, 1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(5)).double()
    return {"image": draw[0], "bright image": 2.5 * draw[1]}


def judge(description: Description) -> Verdict:
    """Explain the network of a description and compare it with plain autograd on the untouched module."""
    module = build(description)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vitreous.Caveat)
        try:
            network = vitreous.wrap(module, size=(SIDE, SIDE))
        except VitreousError as problem:
            return Verdict("refused", str(problem))
        verdicts = [judge_image(module, network, name, image) for name, image in images().items()]
        verdicts.append(judge_batch(module, network))
    for kind in ("wrong", "refused", "cautioned"):
        for verdict in verdicts:
            if verdict.kind == kind:
                return verdict
    return Verdict("right")


def judge_image(module: nn.Module, network: Network, name: str, image: Tensor) -> Verdict:
    """What is wrong with the maps of one image, if anything."""
    try:
        first = vitreous.explain(network, image, TARGET, "ixg+first")
        complete = vitreous.explain(network, image, TARGET, "decompx+first")
    except VitreousError as problem:
        return Verdict("refused", f"{name}: {problem}")
    problems = list(faults(module, network, image, first, complete))
    cautions = [caution for attribution in (first, complete) for caution in cautions_of(attribution)]
    if not problems:
        return Verdict("right")
    if all(any(excuses(caution, problem) for caution in cautions) for problem in problems):
        return Verdict("cautioned", cautions[0])
    return Verdict("wrong", f"{name}: {'; '.join(problems)}")


def cautions_of(attribution: vitreous.Attribution) -> list[str]:
    caution = str(attribution.provenance.get("caveat", ""))
    return [part for part in caution.split("; ") if part]


def excuses(caution: str, problem: str) -> bool:
    """Whether a caution states a problem: some are about the size of a map, or about shares only."""
    if "adds up to less than" in caution:
        return False
    return "head is not affine" not in caution or "shares" in problem


def faults(
    module: nn.Module,
    network: Network,
    image: Tensor,
    first: vitreous.Attribution,
    complete: vitreous.Attribution,
) -> Iterator[str]:
    """Everything in which the maps differ from what holds."""

    def score(logits: Tensor) -> Tensor:
        return logits[:, TARGET]

    own = score(module(image)).detach()
    if not close(first.score, own):
        yield f"the score is {first.score.item():.3g} in place of {own.item():.3g}"
    cut = as_seen(module, network)
    expected = expect(cut, image, lambda part, x: part(x), score)
    if expected.bypass > EXACT:
        yield f"{expected.bypass:.2g} of the image's gradient passes by the first blocks"
    if not close(first.maps()[0], expected.tokens):
        difference = (first.maps()[0] - expected.tokens).abs().max() / expected.tokens.abs().max()
        yield f"ixg differs by {difference:.2g} from tokens × gradient"
    total = sum(part.sum() for part in (complete.patches, complete.prefix, complete.bias) if part is not None)
    if abs(total - own).item() > EXACT * max(float(complete.patches.abs().sum()), abs(own.item())):
        yield f"shares of {float(total):.3g} for a score of {own.item():.3g}"
    for name, count in misplaced_tokens(module, cut, image):
        yield f"{count} tokens of {name} lie elsewhere"


def as_seen(module: nn.Module, model: Network) -> Any:
    """A model as a network of block calls: those of the transformer that a `ViT` describes."""
    if not isinstance(model, vitreous.ViT):
        return model
    path = model.origin.inner_vit or ""
    layout = model.layout((SIDE, SIDE))
    places = TokenGrid("sequence", layout.grid, None, layout.prefix)
    blocks = [
        NetworkBlock(name, part, places)
        for name, part in module.get_submodule(path).named_modules(prefix=path)
        if type(part) is timm.models.vision_transformer.Block
    ]
    return SimpleNamespace(blocks=blocks, module=module, clip=None)


def close(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and bool((ours - theirs).abs().max() <= EXACT * theirs.abs().max())


def misplaced_tokens(module: nn.Module, network: Any, image: Tensor) -> Iterator[tuple[str, int]]:
    """Block calls with the number of their tokens that do not react to a change of their own cell."""
    cell = SIDE // CELLS
    noise = 1e-4 * torch.randn(DRAWS, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(7)).double()
    changed = image.repeat(CELLS**2 * DRAWS, 1, 1, 1)
    for number in range(CELLS**2):
        rows, columns = (slice(cell * k, cell * k + cell) for k in divmod(number, CELLS))
        changed[DRAWS * number : DRAWS * (number + 1), :, rows, columns] += noise[..., rows, columns]
    states: dict[tuple[nn.Module, int], list[Tensor]] = {}

    def enter(call: tuple[nn.Module, int], tensors: list[Tensor]) -> None:
        states[call] = [tensor.clone() for tensor in tensors]

    calls = [(block.module, block.repeat) for block in network.blocks]
    with torch.no_grad():
        watch(calls, lambda: module(torch.cat([image, changed])), enter)
    for block, call in zip(network.blocks, calls, strict=True):
        misplaced = sum(
            count_elsewhere(states[call][place], grid) for place, grid in zip(block.inputs, block.grids, strict=True)
        )
        if misplaced:
            yield f"{block.name} (call {block.repeat})", misplaced


def count_elsewhere(state: Tensor, places: TokenGrid) -> int:
    """Tokens that react to a change of another cell, given states of an image and of its changes."""
    tokens = places.tokens(state)[:, places.others :]
    reaction = (tokens[1:] - tokens[:1]).square().sum(-1).view(CELLS, CELLS, DRAWS, -1).sum(2)
    reaction = by_cell(by_cell(reaction, 0, places.grid[0]), 1, places.grid[1]).flatten(0, 1)
    own = reaction.diagonal()
    return int(((own < OWN * reaction.amax(0)) | (reaction.amax(0) == 0)).sum())


def by_cell(reaction: Tensor, axis: int, cells: int) -> Tensor:
    """Reactions to the cells of a coarser grid, summed, or of a finer one, each that of the cell around it."""
    if cells >= reaction.shape[axis]:
        return reaction.repeat_interleave(-(-cells // reaction.shape[axis]), axis).narrow(axis, 0, cells)
    return reaction.unflatten(axis, (cells, -1)).sum(axis + 1)


def judge_batch(module: nn.Module, network: Network) -> Verdict:
    """Whether the images of a batch are explained as one by one, if the module treats them so."""
    each = list(images().values())
    batch = torch.cat(each)
    with torch.no_grad():
        if not close(module(batch), torch.cat([module(image) for image in each])):
            return Verdict("right")
    for spec in ("ixg+first", "decompx+first"):
        try:
            together = vitreous.explain(network, batch, TARGET, spec)
            alone = [vitreous.explain(network, image, TARGET, spec) for image in each]
        except VitreousError as problem:
            return Verdict("refused", f"a batch: {problem}")
        for part in ("patches", "bias"):
            ours, theirs = getattr(together, part), [getattr(a, part) for a in alone]
            if ours is not None and not all(close(ours[i], theirs[i][0]) for i in range(len(each))):
                return Verdict("wrong", f"{spec}: the {part} of images differ in a batch")
    return Verdict("right")


def depends_on_pixels(description: Description) -> bool:
    image = images()["image"].requires_grad_()
    return gradient_norm(build(description)(image)[:, TARGET].sum(), image) > 0


# ── command ──────────────────────────────────────────────────────────────────────────────────────


def survey(draws: int, number: int) -> dict[str, list[tuple[Description, str]]]:
    """Verdicts of many draws by kind."""
    verdicts: dict[str, list[tuple[Description, str]]] = {}

    @seed(number)
    @settings(
        max_examples=draws,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(descriptions())
    def run(description: Description) -> None:
        try:
            verdict = judge(description)
        except Exception as problem:  # noqa: BLE001 - whatever is raised is a fault of the library
            verdict = Verdict("wrong", f"{type(problem).__name__}: {problem}")
        verdicts.setdefault(verdict.kind, []).append((description, verdict.why))

    run()
    return verdicts


def short_reason(why: str) -> str:
    """The beginning of a reason without the numbers of one network."""
    return re.sub(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", "#", why.rsplit("as a network of any kind: ", maxsplit=1)[-1])[:150]


def main() -> None:
    """Draw networks, print how many were explained in which way, and fail if a map was wrong."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=5, help="examples of wrong maps that are printed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    verdicts = survey(options.draws, options.seed)
    print(", ".join(f"{len(found)} {kind}" for kind, found in sorted(verdicts.items())), end="")
    print(f" in {time.perf_counter() - start:.0f} s")
    for kind in ("refused", "cautioned", "wrong"):
        reasons = Counter(short_reason(why) for _, why in verdicts.get(kind, []))
        for reason, count in reasons.most_common(20 if kind != "wrong" else 1000):
            print(f"  {kind} {count} ×: {reason}")
    for description, why in sorted(verdicts.get("wrong", []), key=lambda pair: len(str(pair)))[: options.show]:
        print(f"{description}\n    {why}")
    sys.exit(bool(verdicts.get("wrong")))


if __name__ == "__main__":
    main()
