"""Shared tools of the contract tests: their exception, tiny models, a pass counter and a module fingerprint."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn

from vitreous.capture.packed import run_packed
from vitreous.core.errors import Caveat
from vitreous.front import load
from vitreous.models.vit import Block, Layout, ViT

TOLERANCE = {torch.float64: (1e-7, 1e-9), torch.float32: (2e-3, 1e-5)}  # (relative to the largest score, absolute)
SHAPE: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 7}


class ContractError(AssertionError):
    """A contract test of a method, metric or model has failed.

    Examples
    --------
    >>> from vitreous.testing import ContractError, require
    >>> try:
    ...     require(False, "scores are not finite")
    ... except ContractError as problem:
    ...     print(problem)
    scores are not finite
    """


def require(holds: bool, sentence: str) -> None:
    """Raise `ContractError` with the message `sentence` unless `holds`.

    Parameters
    ----------
    holds
        The condition.
    sentence
        Message of the error.

    Examples
    --------
    >>> from vitreous.testing import require
    >>> require(2 > 1, "two is more than one")
    """
    if not holds:
        raise ContractError(sentence)


class Contract:
    """The contract tests of a method, a metric or a model: methods whose names begin with `test_`.

    A test raises `ContractError`; its docstring says what is promised.
    """

    def check(self, tested: str, dtype: torch.dtype) -> dict[str, str]:
        """Run the tests, those of base classes first, with warnings about the limits of maps ignored.

        Parameters
        ----------
        tested, dtype
            What is tested, and its precision, for the message of a failure.

        Returns
        -------
        dict of str to str
            Name and description of every test that passed.
        """
        checked: dict[str, str] = {}
        names = (name for cls in reversed(type(self).__mro__) for name in vars(cls) if name.startswith("test_"))
        for name in dict.fromkeys(names):
            contract_test = getattr(self, name)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", Caveat)
                    contract_test()
            except ContractError as broken:
                raise ContractError(f"{tested} ({name_of(dtype)}): {broken}") from None
            checked[name.removeprefix("test_")] = (contract_test.__doc__ or "").strip()
        return checked


def name_of(dtype: torch.dtype) -> str:
    """Name of a data type without "torch."."""
    return str(dtype).removeprefix("torch.")


def tiny_vits(dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, ViT]:
    """Two tiny ViTs with random parameters, none of them zero, uniform or symmetric.

    Parameters
    ----------
    dtype
        Precision of the models.
    seed
        Seed of the parameters.

    Returns
    -------
    dict of str to ViT
        One model with a class token, and one with mean pooling, registers and LayerScale.

    Examples
    --------
    >>> from vitreous.testing import tiny_vits
    >>> sorted(tiny_vits())
    ['class token', 'mean pool, registers, LayerScale']
    """
    name = "timm:vit_tiny_patch16_224"
    vits = {
        "class token": load(name, pretrained=False, **SHAPE),
        "mean pool, registers, LayerScale": load(
            name, pretrained=False, **SHAPE, global_pool="avg", reg_tokens=2, init_values=0.3
        ),
    }
    for vit in vits.values():
        randomise(vit.module, seed)
        vit.module.to(dtype)
    return cast("dict[str, ViT]", vits)


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Draw every parameter at random in place, so that biases, gains and prefix tokens affect the output.

    Values are 0.25 times standard normal, plus 1 for vectors whose mean was above 0.5 (gains).

    Parameters
    ----------
    module
        Module that is changed in place.
    seed
        Seed of the values.

    Examples
    --------
    >>> import torch
    >>> from vitreous.testing import randomise
    >>> layer = torch.nn.Linear(2, 2)
    >>> randomise(layer)
    >>> bool((layer.bias != 0).all())
    True
    """
    draw = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=draw).to(parameter)
        parameter.data = 0.25 * noise + (1.0 if parameter.ndim == 1 and parameter.data.mean() > 0.5 else 0.0)


class Counter:
    """Counts forward and backward passes through blocks, one per image and block.

    Examples
    --------
    >>> import torch
    >>> from vitreous import Probe
    >>> from vitreous.testing import Counter, tiny_vits
    >>> vit = next(iter(tiny_vits().values()))
    >>> counter = Counter()
    >>> with counter.watching(vit) as counted:
    ...     layers = list(Probe(counted, torch.zeros(1, 3, *vit.size)).layers())
    >>> counter.forwards == counter.backwards == vit.depth
    True
    """

    def __init__(self) -> None:
        self.forwards = self.backwards = 0

    @contextmanager
    def watching(self, vit: ViT) -> Iterator[ViT]:
        """Context manager that yields a copy of the model whose block passes are counted.

        Parameters
        ----------
        vit
            The model.

        Returns
        -------
        context manager
            Of the copy.
        """

        def packed(vit: ViT, tokens: Tensor, layout: Layout, indices: Sequence[Tensor]) -> Tensor:
            together = len(indices) > 1  # rows of several lengths are packed into one row
            self.forwards += vit.depth * (sum(len(index) for index in indices) - 1) if together else 0
            return run_packed(vit, tokens, layout, indices)

        with patch("vitreous.capture.packed.run_packed", packed):
            yield replace(vit, blocks=tuple(self._watched(block) for block in vit.blocks))

    def _watched(self, block: Block) -> Block:
        def contract(hidden: Tensor) -> Tensor:
            out = block.mlp.contract(hidden)
            self.forwards += len(out)
            if out.requires_grad:
                out.register_hook(self._came_back)
            return out

        return replace(block, mlp=replace(block.mlp, contract=contract))

    def _came_back(self, upstream: Tensor) -> None:
        self.backwards += len(upstream)


def fingerprint(module: nn.Module) -> tuple[Any, ...]:
    """Hashable state of a module that an explanation must not change.

    Parameters and buffers (values, versions, gradient flags), training flags, numbers of hooks and `fused_attn`.

    Parameters
    ----------
    module
        The module.

    Returns
    -------
    tuple
        Equal for equal states.

    Examples
    --------
    >>> import torch
    >>> from vitreous.testing import fingerprint
    >>> layer = torch.nn.Linear(2, 2)
    >>> before = fingerprint(layer)
    >>> _ = layer(torch.zeros(1, 2))
    >>> fingerprint(layer) == before
    True
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    values = tuple((name, t.requires_grad, t.grad is None, t._version, hash_tensor(t)) for name, t in tensors)
    flags = tuple(
        (part.training, *(len(getattr(part, hooks)) for hooks in HOOKS), getattr(part, "fused_attn", None))
        for part in module.modules()
    )
    return values, flags


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hash_tensor(tensor: Tensor) -> int:
    return hash(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()) if tensor.numel() else 0
