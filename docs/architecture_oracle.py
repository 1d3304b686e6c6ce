"""What the first blocks of a network must give, by plain autograd on the untouched module.

Only the choice of blocks is read from the `Network`: names, modules and where their tokens lie. The forward is the module's own, and
the hooks and sums below share no code with the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.layout import Clip, NetworkBlock
from vitreous.models.model import Network

DRAWS = 3  # random functions of a token whose gradients show what it depends on
TOKENS = 5  # tokens per block whose places are checked

own_batch_norm = F.batch_norm


@dataclass(frozen=True, slots=True)
class Expected:
    """What holds at the first blocks of a network for one image and score.

    Attributes
    ----------
    bypass
        Norm of the image's gradient with the blocks' input tokens held, relative to that of the untouched module.
    tokens
        Tokens × gradient, summed over channels, spread evenly over the finest grid and added over blocks: [*cells].
    misplaced
        Number of examined tokens that depend most on pixels that are not next to the cell that they are said to lie in.
    """

    bypass: float
    tokens: Tensor
    misplaced: int


def expect(
    network: Network, image: Tensor, call: Callable[[nn.Module, Tensor], Any], score: Callable[[Any], Tensor]
) -> Expected:
    """The bypass, the map of `ixg` and the places of tokens at the first blocks of a network.

    Parameters
    ----------
    network
        Says which blocks are the first ones.
    image
        One image [1 c H W] or clip.
    call
        Runs the untouched module on images.
    score
        One number per image from what the module returns.
    """
    cut = first_blocks(network)
    cells = max((block.tokens.grid for block, _ in cut), key=math.prod)
    if any(block.tokens.grid != cells for block in network.blocks):
        cells = max((block.tokens.grid for block in network.blocks), key=math.prod)

    def run(treat: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        leaf = image.clone().requires_grad_()
        return leaf, run_with_cut(cut, lambda: score(call(network.module, leaf)).sum(), treat)

    leaf, total = run(lambda number, state: state)
    whole = gradient_norm(total, leaf)
    leaf, held = run(lambda number, state: state.detach())
    bypass = gradient_norm(held, leaf) / whole

    states: dict[int, Tensor] = {}
    entered: dict[int, Tensor] = {}

    def record(number: int, state: Tensor) -> Tensor:
        entered[number] = state
        states[number] = state.detach().clone().requires_grad_()
        return states[number].clone()  # the module may change it in place

    leaf, total = run(record)
    gradients = torch.autograd.grad(total, list(states.values()), allow_unused=True)
    tokens, misplaced = image.new_zeros(cells), 0
    for (number, state), gradient in zip(states.items(), gradients, strict=True):
        places = cut[number][0].tokens
        if gradient is not None:
            product = places.tokens(state.detach() * gradient).sum((0, -1))[places.others :]
            tokens = tokens + spread_evenly(product.view(places.grid), cells)
        misplaced += count_misplaced(
            places.tokens(entered[number])[0, places.others :], leaf, places.grid, network.clip
        )
    return Expected(bypass, tokens, misplaced)


def first_blocks(network: Network) -> list[tuple[NetworkBlock, int]]:
    """The block calls that receive the image first, each with the number of calls of its module before it."""
    return [(network.blocks[0], 0)]


def run_with_cut(
    cut: Sequence[tuple[NetworkBlock, int]], forward: Callable[[], Tensor], treat: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """Run a forward in which the first tensor of some calls of submodules is replaced by `treat(number of the call, tensor)`."""
    wanted = {(block.module, repeat): number for number, (block, repeat) in enumerate(cut)}
    calls = dict.fromkeys((block.module for block, _ in cut), 0)

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number = wanted.get((module, calls[module]))
        calls[module] += 1
        if number is None:
            return None
        for index, value in enumerate(args):
            if isinstance(value, Tensor) and value.is_floating_point():
                return (*args[:index], treat(number, value), *args[index + 1 :]), kwargs
        for key, value in kwargs.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                return args, {**kwargs, key: treat(number, value)}
        raise AssertionError(f"a call of {type(module).__name__} without a tensor")

    handles = [module.register_forward_pre_hook(enter, with_kwargs=True) for module in calls]
    try:
        with torch.enable_grad(), patch.object(F, "batch_norm", batch_norm):
            total = forward()
    finally:
        for handle in handles:
            handle.remove()
    assert all((module, count - 1) in wanted or count for module, count in calls.items()), "a block was not called"
    return total


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm in eval mode by its definition: the backward pass of torch's own is wrong for some memory formats."""
    if training or running_mean is None or running_var is None:  # of weights that a model standardises
        return own_batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    shape = (-1, *[1] * (x.ndim - 2))
    y = (x - running_mean.view(shape)) * (running_var + eps).rsqrt().view(shape)
    y = y if weight is None else y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


def gradient_norm(total: Tensor, leaf: Tensor) -> float:
    if not total.requires_grad:
        return 0.0
    (gradient,) = torch.autograd.grad(total, leaf, allow_unused=True)
    return 0.0 if gradient is None else float(gradient.norm())


def spread_evenly(values: Tensor, cells: tuple[int, ...]) -> Tensor:
    """Values of coarse cells divided evenly among the fine cells that each covers; the last one may cover fewer."""
    for axis, many in enumerate(cells):
        owner = torch.arange(many) // -(-many // values.shape[axis])
        share = 1 / owner.bincount(minlength=values.shape[axis])[owner].to(values)
        values = values.index_select(axis, owner) * share.view(-1, *[1] * (values.ndim - axis - 1))
    return values


def count_misplaced(tokens: Tensor, leaf: Tensor, grid: tuple[int, ...], clip: Clip | None) -> int:
    """How many of a few tokens [n d] depend most on pixels that are not next to their cell of a grid."""
    misplaced = 0
    generator = torch.Generator().manual_seed(3)
    for token in torch.linspace(0, len(tokens) - 1, min(TOKENS, len(tokens))).long().tolist():
        energy = torch.zeros(())
        for _ in range(DRAWS):
            direction = torch.randn(tokens.shape[-1], generator=generator).to(tokens)
            (gradient,) = torch.autograd.grad(tokens[token] @ direction, leaf, retain_graph=True, allow_unused=True)
            if gradient is None:
                return len(tokens)
            energy = energy + gradient.square()
        over_colours = energy.sum(1)[0] if clip is None else clip.frames_first(energy).sum(2)[0]
        place = torch.stack(torch.unravel_index(cell_means(over_colours, grid).argmax(), grid))
        claimed = torch.stack(torch.unravel_index(torch.tensor(token), grid))
        misplaced += bool((place - claimed).abs().max() > 1)
    return misplaced


def cell_means(pixels: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Means over the pixels of every cell."""
    for axis, cells in enumerate(grid):
        owner = torch.arange(pixels.shape[axis]) // -(-pixels.shape[axis] // cells)
        sums = pixels.new_zeros(*pixels.shape[:axis], cells, *pixels.shape[axis + 1 :]).index_add(axis, owner, pixels)
        pixels = sums / owner.bincount(minlength=cells).clamp(min=1).to(pixels).view(-1, *[1] * (sums.ndim - axis - 1))
    return pixels
