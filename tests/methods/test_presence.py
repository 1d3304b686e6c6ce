"""Presence: the derivative of the score in the presence of a token, compared with a model with partial tokens."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import vitreous
from tests.models.families import pictures, seen, tiny
from vitreous.capture.forward import run_head
from vitreous.capture.probe import Probe

TARGETS = [3, 1]


def fading(family: str, presence: Tensor) -> nn.Module:
    """A copy in which token i has the weight `presence[i]` in attention and means."""
    model = copy.deepcopy(tiny(family))

    def weigh(module: nn.Module, args: tuple[Tensor, ...], attention: Tensor) -> Tensor:
        shares = attention * presence
        return shares / shares.sum(-1, keepdim=True)

    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(weigh)
    if model.global_pool == "avg":
        patches = presence[model.num_prefix_tokens :]
        model.pool = lambda x, **_: (x[:, model.num_prefix_tokens :] * patches[:, None]).sum(1) / patches.sum()
    return model


@pytest.mark.parametrize("family", ["vit-even", "vit-mean", "deit-distilled"])
def test_presence_is_the_slope_of_the_answer_as_a_token_fades(family):
    found = vitreous.explain(seen(family), pictures(), TARGETS, "presence")
    ours = torch.cat([found.prefix, found.patches], 1)

    for image, target in enumerate(TARGETS):
        there = torch.ones(ours.shape[1], dtype=torch.float64, requires_grad=True)
        said = fading(family, there)(pictures()[image : image + 1]).softmax(-1)[0, target]
        (slope,) = torch.autograd.grad(said, there)

        prefix = found.prefix.shape[1]
        torch.testing.assert_close(ours[image, prefix:], slope[prefix:], rtol=0, atol=1e-9 * slope.abs().max().item())


@pytest.mark.parametrize("family", ["vit-even", "vit-mean", "deit-distilled"])
def test_a_token_with_presence_zero_equals_a_removed_token(family):
    probe = Probe(seen(family), pictures(), torch.tensor(TARGETS))
    keep = torch.rand(2, 1, 12, generator=torch.Generator().manual_seed(0)) < 0.5

    for image in range(2):
        there = torch.cat([torch.ones(probe.layout.prefix), keep[image, 0].double()]).double()
        faded = fading(family, there)(pictures()[image : image + 1])
        torch.testing.assert_close(probe.logits(keep)[image], faded.detach(), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "family", ["map-reads-prefix", "map-skips-prefix", "vit-mean", "vit-mean-of-everything", "vit-even"]
)
def test_the_head_reads_tokens_that_are_there_in_part(family):
    """Presence 1 is the original model; presence 0 is the model without the token."""
    vit, tokens = seen(family), Probe(seen(family), pictures()).states[-1]
    prefix, gone = vit.layout(tuple(pictures().shape[-2:])).prefix, torch.zeros(tokens.shape[:2], dtype=tokens.dtype)
    torch.testing.assert_close(run_head(vit, tokens, presence=gone).logits, run_head(vit, tokens).logits)

    gone[:, prefix + 3 :] = -torch.inf
    with torch.no_grad():
        left = run_head(vit, tokens[:, : prefix + 3]).logits
        torch.testing.assert_close(run_head(vit, tokens, presence=gone).logits, left, rtol=0, atol=1e-12)


def test_presence_of_a_pooler_is_a_slope_too():
    """SigLIP's attention pooler: its part of the slope, compared with a finite difference."""
    vit = seen("map-reads-prefix")
    probe = Probe(vit, pictures(), torch.tensor(TARGETS), "logit")
    (last, *_) = probe.layers(presence=True)
    step, tokens = last.states, probe.states[-1]
    from vitreous.capture.layer import presence_grad

    pooled = last.presence_grad - presence_grad(step.attention.detach(), last.attention_grad)
    small = 1e-6
    for token in range(tokens.shape[1]):
        there = torch.zeros(tokens.shape[:2], dtype=tokens.dtype)
        there[:, token] = small
        with torch.no_grad():
            up = run_head(vit, tokens, presence=there).logits
            down = run_head(vit, tokens, presence=-there).logits
        slope = ((up - down) / (2 * small))[torch.arange(2), torch.tensor(TARGETS)]
        torch.testing.assert_close(pooled[:, token], slope, rtol=1e-6, atol=1e-9)


def test_several_targets_share_the_forward():
    both = vitreous.explain(seen("vit-mean"), pictures(), [[3, 2], [1, 0]], "presence").patches
    first = vitreous.explain(seen("vit-mean"), pictures(), TARGETS, "presence").patches
    torch.testing.assert_close(both[[0, 2]], first)
