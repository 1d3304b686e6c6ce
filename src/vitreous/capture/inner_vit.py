"""A vision transformer inside a module that computes more: the rest of that module becomes its head.

The rest is run by a copy of the module tree that shares all parameters and buffers, in which the transformer (or its blocks) is
replaced; the module itself is not modified. Whether the result computes what the module computes is checked by `adapter_check`.
A transformer that is given another geometry (flipped, cropped or resized inside the module) is left to `see_through`, which
measures where tokens lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.adapter_check import TOLERANCE, compare_with_model, with_agreement
from vitreous.capture.blocks import ModuleCall, observe_calls
from vitreous.capture.forward import run_blocks
from vitreous.core.errors import ModelError, NotAdaptedError
from vitreous.models.eval_mode import StopForward, evaluating
from vitreous.models.model import ModuleForward, call_module, logits_of
from vitreous.models.model_registry import adapt
from vitreous.models.outputs import Chain
from vitreous.models.random_draws import normal_numbers
from vitreous.models.tensor_types import Images, Logits, Tokens
from vitreous.models.vit import LinearPool, TokenPositions, ViT, mean_rows, token_and_mean_rows, token_rows

ELSEWHERE = 0.01  # squared change of pixels where the image is the same, relative to that where it is not


def find_inner_vit(module: nn.Module, name: str | None = None) -> ViT | None:
    """Describe a module by a ViT inside it, if the rest of the module is a head of that ViT; else None.

    Raises
    ------
    ModelError
        If the module returns probabilities or values that are not finite.
    """
    for vit in inner_vits(module, name or type(module).__name__):
        with suppress(NotAdaptedError):
            return with_agreement(vit, compare_with_model(vit))
    return None


def inner_vits(module: nn.Module, name: str) -> Iterator[ViT]:
    """Descriptions of `module` by a transformer inside it, to be compared with the module's own logits.

    Yields
    ------
    ViT
        First with the transformer's own output as what the rest receives, then with each pooling that the rest may use.
    """
    for path, part in module.named_modules():
        if not path:
            continue
        try:
            vit = adapt(part, name)
        except ModelError:
            continue
        if vit.module is part:
            yield from descriptions(module, path, vit, name)
            return


def descriptions(module: nn.Module, path: str, vit: ViT, name: str) -> Iterator[ViT]:
    generator = torch.Generator().manual_seed(0)
    images = normal_numbers(generator, (2, vit.channels, *vit.size)).to(vit.device, vit.dtype)
    submodules = dict(module.named_modules())
    del submodules[""]  # the module itself
    try:
        with torch.no_grad():
            calls = observe_calls(module, lambda: call_module(module, None, images), submodules)
    except Exception:  # noqa: BLE001 - the module may raise anything on images of the size of the ViT in it
        return
    whole = replace(
        vit,
        name=name,
        module=module,
        forward=ModuleForward(module, logits_of),
        classes=None,
        embedding="",
        origin=replace(vit.origin, inner_vit=path),
    )
    inside = set(vit.module.modules())
    first = next((call for call in calls if call.module in inside), None)
    if first is None or first.state.shape != images.shape:
        return
    if not torch.equal(first.state, images):  # changed inside the module, such as normalised
        if not keeps_places(module, first, images):
            return  # its patches are not those of the module's images
        whole = replace(whole, embed=partial(embed_inside, module, first.name, vit.embed))
    own = [call.output for call in calls if call.module is vit.module]
    if len(own) == 1 and isinstance(own[0], Tensor) and own[0].ndim == 2:
        yield replace(whole, classify=Chain(vit.classify, partial(run_rest, whole, path)))  # after its own head
    yield from pooled_descriptions(whole, path, images, calls)


def keeps_places(module: nn.Module, call: ModuleCall, images: Images) -> bool:
    """Whether every pixel of what enters a call depends on the pixel of the images at its place, and hardly on others.

    So it is after a normalisation, also by mean and deviation of the image, and not after a flip or a crop.
    """
    generator = torch.Generator().manual_seed(1)
    replaced = torch.rand(len(images), 1, *images.shape[2:], generator=generator) < 0.5
    noise = torch.randn(images.shape, generator=generator).to(images)
    with torch.no_grad():
        changed = torch.where(replaced.to(images.device), noise, images)
        entered = observe_calls(module, lambda: call_module(module, None, changed), {call.name: call.module}, most=1)[
            0
        ].state
    change = (entered - call.state).double().square().sum(1, keepdim=True).cpu()
    return bool(change[~replaced].mean() <= ELSEWHERE * change[replaced].mean())


def pooled_descriptions(whole: ViT, path: str, images: Images, calls: list[ModuleCall]) -> Iterator[ViT]:
    """Descriptions of a module that pools the tokens of the transformer at `path` itself."""
    layout = whole.layout(whole.size)
    with torch.no_grad(), evaluating(whole.module):
        tokens = run_blocks(whole, whole.embed(images), TokenPositions(layout))
    normed = [
        call
        for call in calls
        if is_norm(call.module) and close(call.state, tokens) and getattr(call.output, "shape", None) == tokens.shape
    ]
    norm: nn.Module = normed[-1].module if normed else nn.Identity()
    read: Tokens = normed[-1].output if normed else tokens
    blocks = block_list(whole.module.get_submodule(path), whole.depth)
    if blocks is None:
        return
    for rows in poolings(layout.prefix):
        pooled = rows(read.shape[1]).to(read) @ read
        readers = [call for call in calls if close(call.state, pooled.flatten(1))]
        if not readers or sum(call.module is readers[-1].module for call in calls) > 1:
            continue
        # the last module that still receives what was pooled, after dropout and the like
        name, reader = readers[-1].name, readers[-1].module
        after = is_norm(reader)
        yield replace(
            whole,
            norm=norm,
            pool=LinearPool(rows),
            pooled_norm=reader if after and pooled.shape[1] == 1 else nn.Identity(),
            classify=partial(run_rest, whole, name, skipped=f"{path}.{blocks}", applied=None if after else reader),
        )


def poolings(prefix: int) -> list[Callable[[int], Tensor]]:
    """Ways to pool tokens: the class token, means with and without the prefix, and class token and mean together."""
    if not prefix:
        return [mean_rows(0)]
    return [token_rows(0), mean_rows(prefix), mean_rows(0), token_and_mean_rows(prefix)]


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm) or "rmsnorm" in type(module).__name__.lower()


def close(tensor: Tensor, expected: Tensor) -> bool:
    """Whether a tensor is the expected one, within the tolerance of `adapter_check`."""
    if tensor.shape != expected.shape:
        return False
    tolerance = TOLERANCE.get(expected.dtype, 1e-3)
    return bool((tensor - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1e-6))


# ── the rest of the module ───────────────────────────────────────────────────────────────────────


def run_rest(whole: ViT, path: str, pooled: Tensor, skipped: str = "", applied: nn.Module | None = None) -> Logits:
    """What a module computes after one of its submodules; blank images are passed, on which the result does not depend.

    Parameters
    ----------
    whole
        Description of the module.
    path
        Name of the submodule whose result is given.
    pooled
        What the submodule gives (or receives): [b d], or pooled vectors [b q d].
    skipped
        Name of a list of blocks to leave out, since their result is not needed.
    applied
        Apply this module to what is given, in place of returning it.
    """
    pooled = pooled.flatten(1)
    copy = with_replaced(whole.module, path, StandIn(lambda *_, **__: pooled if applied is None else applied(pooled)))
    if skipped:
        copy = with_replaced(copy, skipped, type(copy.get_submodule(skipped))())
    return logits_of(call_module(copy, None, pooled.new_zeros(len(pooled), whole.channels, *whole.size)))


def embed_inside(module: nn.Module, path: str, embed: Callable[[Images], Tokens], images: Images) -> Tokens:
    """The embedding of a transformer inside a module that changes images before it passes them on."""
    entered: list[Tensor] = []

    def take(tensor: Tensor, *_: Any, **__: Any) -> Any:
        entered.append(tensor)
        raise StopForward

    with evaluating(module), suppress(StopForward):
        call_module(with_replaced(module, path, StandIn(take)), None, images)
    return embed(entered[0])


class StandIn(nn.Module):
    """Stands in the place of a module whose result is known."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def with_replaced(module: nn.Module, path: str, new: nn.Module) -> nn.Module:
    """A copy of a module tree with one submodule replaced; all others, with their parameters and buffers, are shared."""
    if not path:
        return new
    name, _, rest = path.partition(".")
    copy = module.__new__(type(module))
    vars(copy).update({**vars(module), "_modules": dict(module._modules)})
    child = module._modules[name]
    assert child is not None
    copy._modules[name] = with_replaced(child, rest, new)
    return copy


def block_list(module: nn.Module, depth: int) -> str | None:
    """Name of the list of a transformer's blocks: the first of this length, or None."""
    lists = ((path, part) for path, part in module.named_modules() if isinstance(part, nn.ModuleList | nn.Sequential))
    return next((path for path, part in lists if len(part) == depth), None)
