"""Contract tests of model adapters: the parts of a `ViT` compute what the module itself computes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.adapter_check import TOLERANCE, check_adapter, compare_with_model
from vitreous.capture.forward import adapter_logits, run_blocks, run_head
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError
from vitreous.front import explain, wrap
from vitreous.models.eval_mode import evaluating
from vitreous.models.model_registry import adapt
from vitreous.models.vit import AttentionBranch, Block, TokenPositions, ViT
from vitreous.testing.contract import Contract, ContractError, fingerprint, name_of, require
from vitreous.testing.methods import check_method


def check_model(model: ViT | nn.Module, method: str | None = "decompx+skipplus") -> dict[str, str]:
    """Run the contract tests of a model adapter, and those of a method on the model.

    Parameters
    ----------
    model
        A module for which an adapter is registered, or a `ViT`. Precisions other than the model's own are tested for
        modules only, because a `ViT` refers to one module.
    method
        Spec of the method to test; None tests the adapter only.

    Returns
    -------
    dict of str to str
        Name and description of every contract test that passed; under "handshake" the largest difference from the
        model's own logits, relative to the largest logit.

    Raises
    ------
    ContractError
        If a test fails; the message names the model and the failure.
    ModelError
        If there is no adapter for the module, or its adapter refuses it.

    Examples
    --------
    >>> from vitreous.testing import check_model, tiny_vits
    >>> "removal_is_exact" in check_model(next(iter(tiny_vits().values())), method=None)
    True
    """
    vit = model if isinstance(model, ViT) else wrap(model)
    if not isinstance(vit, ViT):
        why = f" ({vit.reason})" if vit.reason else ""
        raise ModelError(f"{vit.name!r} has no adapter, so there is none to check{why}")
    vit = vit if vit.output_type is not None else check_adapter(vit)
    checked = {"handshake": f"{compare_with_model(vit).gap:.1e}"}
    with evaluating(vit.module):
        checked |= ModelContract(vit, None if isinstance(model, ViT) else model).check(vit.name, vit.dtype)
    if method is None or vit.embedding:
        return checked
    return {**checked, **check_method(method, {vit.name: vit})}


@dataclass(frozen=True, slots=True)
class ModelContract(Contract):
    """An adapted model, and the module that was adapted if it is known."""

    vit: ViT
    module: nn.Module | None

    @property
    def images(self) -> Tensor:
        draw = torch.randn(2, 3, *self.vit.size, generator=torch.Generator().manual_seed(2))
        return draw.to(self.vit.device, self.vit.dtype)

    def require_close(self, a: Tensor, b: Tensor, failure: str, slack: float = 1) -> None:
        """Raise `ContractError` if `a` and `b` differ by more than the precision allows, relative to the largest value."""
        require(a.shape == b.shape, f"{failure}: shape {list(a.shape)}, not {list(b.shape)}")
        gap = relative_gap(a, b)
        require(gap <= slack * TOLERANCE.get(self.vit.dtype, 1e-3), f"{failure}: off by {gap:.2g} of the largest value")

    @torch.no_grad()
    def test_layout_counts_the_tokens(self) -> None:
        """The layout covers the image, and has as many tokens as `embed` returns."""
        layout, tokens = self.vit.layout(self.vit.size), self.vit.embed(self.images).shape[1]
        require(layout.size == tuple(self.vit.size), f"its layout covers {layout.size} of an image of {self.vit.size}")
        require(layout.tokens == tokens, f"its layout has {layout.tokens} tokens, and `embed` returns {tokens}")

    @torch.no_grad()
    def test_parts_compute_the_models_logits(self) -> None:
        """The parts compute the logits of the module's own forward pass."""
        own = self.vit.forward(self.images)
        self.require_close(adapter_logits(self.vit, self.images), own, "the parts compute other logits than the model")

    @torch.no_grad()
    def test_batch_has_the_same_logits(self) -> None:
        """An image gets the same logits alone and in a batch."""
        together = adapter_logits(self.vit, self.images)
        alone = torch.cat([adapter_logits(self.vit, image[None]) for image in self.images])
        self.require_close(alone, together, "an image alone gets other logits than in a batch")

    @torch.no_grad()
    def test_removal_is_exact(self) -> None:
        """Removing patches gives the logits of a model in which no token attends to them."""
        probe = Probe(self.vit, self.images)
        patches = probe.layout.patches
        order = torch.rand(patches, generator=torch.Generator().manual_seed(3)).argsort().to(self.vit.device)
        subsets = torch.stack([order < max(1, round(patches * share)) for share in (1.0, 0.6, 0.25)])
        removed = probe.logits(subsets.expand(len(self.images), -1, -1))
        for index, keep in enumerate(subsets):
            expected = probe.class_logits(masked_logits(self.vit, self.images, keep))
            self.require_close(removed[:, index], expected, f"removing {int((~keep).sum())} patches gives wrong logits")

    def test_gradients_are_the_models_own(self) -> None:
        """Gradients of a logit with respect to the image are those of the module's own forward pass."""
        gradients = []
        for forward in (lambda images: adapter_logits(self.vit, images), self.vit.forward):
            images = self.images.requires_grad_()
            logits = forward(images)
            require(logits.requires_grad, "its logits have no gradient with respect to the image")
            gradients.append(torch.autograd.grad(logits[:, -1].sum(), images)[0])
        parts, own = gradients
        self.require_close(parts, own, "gradients of the parts differ from those of the model", slack=10)

    def test_shares_add_up(self) -> None:
        """With the linearisation of DecompX, contributions of tokens and biases add up to the logit (affine heads)."""
        if self.vit.embedding or not self.vit.affine:
            return
        attribution = explain(self.vit, self.images, 0, "decompx")
        score, residual = attribution.score, attribution.residual
        if score is not None and residual is not None:
            self.require_close(score - residual, score, "contributions do not add up to the score", slack=10)

    def test_precision_does_not_matter(self) -> None:
        """A copy of the module in another precision is adapted as well, and has the same logits within rounding."""
        if self.module is None:
            return
        other_dtype = torch.float32 if self.vit.dtype == torch.float64 else torch.float64
        copy: Any = deepcopy(self.module).to(other_dtype)
        vit = adapt(copy)
        try:
            compare_with_model(vit)
        except ModelError as problem:
            raise ContractError(f"in {name_of(other_dtype)}, {problem}") from None
        with torch.no_grad(), evaluating(copy):
            logits = adapter_logits(vit, self.images.to(other_dtype))
            expected = adapter_logits(self.vit, self.images)
        gap = relative_gap(logits, expected)
        allowed = max(TOLERANCE.get(self.vit.dtype, 1e-3), TOLERANCE[other_dtype])
        require(gap <= allowed, f"in {name_of(other_dtype)}, logits differ by {gap:.2g} of the largest")

    def test_module_is_untouched(self) -> None:
        """Parameters, buffers, hooks and flags are bit-identical after adapting and running the module."""
        before = fingerprint(self.vit.module)
        if self.module is not None:
            adapt(self.module)
        with torch.no_grad():
            adapter_logits(self.vit, self.images)
        require(fingerprint(self.vit.module) == before, "adapting or running it changes the module")


def relative_gap(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest value of `b`."""
    return float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-6))


def masked_logits(vit: ViT, images: Tensor, keep: Tensor) -> Tensor:
    """Logits when the patches outside `keep` stay in the sequence but no token attends to them: a slow reference."""
    layout = vit.layout((images.shape[-2], images.shape[-1]))
    stays = torch.cat([keep.new_ones(layout.prefix), keep])
    hidden = torch.zeros(len(stays), device=images.device, dtype=images.dtype).masked_fill(~stays, -torch.inf)
    masked = replace(vit, blocks=tuple(hide_patches(block, hidden) for block in vit.blocks))
    tokens = run_blocks(masked, vit.embed(images), TokenPositions(layout))
    return run_head(vit, tokens[:, stays]).logits


def hide_patches(block: Block, hidden: Tensor) -> Block:
    """The block with `hidden` [n] added to the attention scores of every key."""
    attention_part: AttentionBranch = block.attention

    def bias(place: TokenPositions) -> Tensor:
        own, mask = attention_part.bias(place), hidden.expand(1, 1, len(hidden), -1)
        return mask if own is None else own + mask

    return replace(block, attention=replace(attention_part, bias=bias))
