"""Layer-wise relevance propagation through a transformer: the α=1, β=0 rules of Chefer et al. (2021), in closed form.

With `sd(a, b) = a / (b + 1e-9)`, 0 where b is 0, x⁺ = max(x, 0), x⁻ = min(x, 0):

    linear            S = sd(R, x⁺W⁺ᵀ + x⁻W⁻ᵀ),  R_x = x⁺ ⊙ S W⁺ + x⁻ ⊙ S W⁻      (biases get no relevance)
    matrix product    S = sd(R, a b),  R_a = a ⊙ S bᵀ / 2,  R_b = b ⊙ aᵀ S / 2
    sum a + b         S = sd(R, a + b),  R_a = a ⊙ S,  R_b = b ⊙ S
    fork              R = x ⊙ (sd(R₁, x) + sd(R₂, x))
    norm, activation, softmax      R passes unchanged

Rules "ours" are Chefer's own; they rescale the two parts of a sum to the sums of their absolute totals, computed per
image here (the published code sums over the batch). Rules "orig" do not rescale sums and use separate denominators for
x⁺W⁺ and x⁻W⁻, so that every linear layer doubles the relevance.

Extensions to parts that the published models do not have: LayerScale is part of the linear layer that it scales; a
head that reads several tokens distributes relevance among them by the rule for sums, and several heads (distillation)
are one linear layer on all their inputs; the relevance at the logits is the gradient of the score function, one-hot for
"logit". Registers are treated like other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.capture.layer import Layer, Relevance
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError
from vitreous.models.vit import LinearPool, keep_heads

Tokens = Float[Tensor, "r n d"]
Heads = Float[Tensor, "r h n e"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Variants of the rules for linear layers and sums."""

    joint: bool  # one denominator for the positive and the negative part of a linear layer
    rescale: bool  # rescale the two parts of a sum to the sums of their absolute totals


RULES = {"ours": Rules(joint=True, rescale=True), "orig": Rules(joint=False, rescale=False)}


# ── rules ────────────────────────────────────────────────────────────────────────────────────────


def sd(a: Tensor, b: Tensor) -> Tensor:
    """a / (b + 1e-9), and 0 where b is 0."""
    below = b + 1e-9
    return a / below.where(below != 0, 1e-9) * (b != 0)


def linear(R: Tensor, x: Tensor, weight: Float[Tensor, "o i"], rules: Rules) -> Tensor:
    """Relevance of the input x of a linear layer."""
    positive, negative, up, down = x.clamp(min=0), x.clamp(max=0), weight.clamp(min=0), weight.clamp(max=0)
    over, under = positive @ up.T, negative @ down.T
    if rules.joint:
        S = sd(R, over + under)
        return positive * (S @ up) + negative * (S @ down)
    return positive * (sd(R, over) @ up) + negative * (sd(R, under) @ down)


def product(R: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance of a and b in the matrix product a @ b."""
    S = sd(R, a @ b)
    return a * (S @ b.mT) / 2, b * (a.mT @ S) / 2


def add(R: Tokens, a: Tokens, b: Tokens, rules: Rules) -> tuple[Tokens, Tokens]:
    """Relevance of a and b in the sum a + b."""
    S = sd(R, a + b)
    R_a, R_b = a * S, b * S
    if not rules.rescale:
        return R_a, R_b
    total, of_a, of_b = (t.sum((1, 2), keepdim=True) for t in (R, R_a, R_b))
    size = of_a.abs() + of_b.abs()
    return R_a * sd(sd(of_a.abs(), size) * total, of_a), R_b * sd(sd(of_b.abs(), size) * total, of_b)


def fork(x: Tokens, first: Tokens, second: Tokens) -> Tokens:
    """Relevance of x from those of its two uses."""
    return x * (sd(first, x) + sd(second, x))


# ── blocks and head ──────────────────────────────────────────────────────────────────────────────


def propagate_relevance(probe: Probe, layers: Iterable[Layer], rules: Rules) -> Iterator[Layer]:
    """Yield every layer with the relevance of its input and of its attention.

    Parameters
    ----------
    probe
        Model, images, targets and score function.
    layers
        Layers with attention, from the last to the first.
    rules
        Variant of the rules.

    Yields
    ------
    Layer
        With `relevance`.

    Raises
    ------
    ModelError
        If the rules do not cover a part of the model.
    """
    R = None
    for layer in layers:
        R = propagate_head(probe, rules) if R is None else R
        R, attention = propagate_block(layer, R, rules)
        yield replace(layer, relevance=Relevance(R, attention))


@torch.no_grad()
def propagate_block(layer: Layer, R: Tokens, rules: Rules) -> tuple[Tokens, Float[Tensor, "r h n n"]]:
    """Relevance of a block's input and of its attention, given the relevance R of its output."""
    attention_part, mlp = layer.block.attention, layer.block.mlp
    refuse(layer)
    x, mid, attention, value = layer.hidden, layer.mid, layer.attention, layer.value

    normed = mlp.norm(mid)
    (raw,) = mlp.expand(normed)
    hidden = mlp.act(raw)
    contract, shift = affine(mlp.contract, hidden)
    R_skip, R = add(R, mid, hidden @ contract.T + shift, rules)
    R = linear(R, hidden, contract, rules)
    R = linear(R, normed, affine(lambda t: mlp.expand(t)[0], normed)[0], rules)
    R = fork(mid, R_skip, R)

    mixed = concatenate_heads(attention @ value)
    project, shift = affine(attention_part.project, mixed)
    R_skip, R = add(R, x, mixed @ project.T + shift, rules)
    R = linear(R, mixed, project, rules).unflatten(-1, (value.shape[1], -1)).transpose(1, 2)
    R_attention, R_v = product(R, attention, value)
    q, k, _ = attention_part.qkv(layer.normed)
    R_q, R_k = product(R_attention, q, k.mT)
    R = concatenate_heads(torch.cat([R_q, R_k.mT, R_v], 1))
    R = linear(R, layer.normed, affine(lambda t: concatenate_heads(torch.cat(attention_part.qkv(t), 1)), x)[0], rules)
    return fork(x, R_skip, R), R_attention


@torch.no_grad()
def propagate_head(probe: Probe, rules: Rules) -> Tokens:
    """Relevance of the encoder's output."""
    vit, k = probe.vit, probe.targets_per_image
    if not isinstance(vit.pool, LinearPool):
        raise ModelError(f"relevance has no rule for attention pooling, as {vit.name!r} has it")
    tokens = vit.norm(probe.states[-1]).repeat_interleave(k, 0)
    rows = vit.pool.rows(tokens.shape[1]).to(tokens)
    pooled = rows @ tokens
    read = vit.pooled_norm(pooled)
    weight, _ = affine(lambda t: vit.classify(t[0].unflatten(-1, read.shape[1:]))[None], read.flatten(1)[:, None])
    R = linear(logit_gradient(probe), read.flatten(1), weight, rules).view_as(read)
    return tokens * (rows.T @ sd(R, pooled))


def logit_gradient(probe: Probe) -> Float[Tensor, "r c"]:
    """Gradient of the score function in the logits: one-hot for "logit"."""
    logits = probe.head_output.logits.repeat_interleave(probe.targets_per_image, 0).detach().requires_grad_()
    with torch.enable_grad():
        score = probe.compute_scores(logits, probe.targets).sum()
    return torch.autograd.grad(score, logits)[0]


def affine(function: Callable[[Tensor], Tensor], like: Float[Tensor, "r n i"]) -> tuple[Float[Tensor, "o i"], Tensor]:
    """Weight and bias of an affine function applied to every token; `like` gives input width, device and dtype."""
    eye = torch.eye(like.shape[-1], device=like.device, dtype=like.dtype)
    values = function(F.pad(eye, (0, 0, 1, 0))[None])[0]  # values at 0, then at every unit vector
    return (values[1:] - values[0]).T, values[0]


def concatenate_heads(heads: Heads) -> Tokens:
    """Concatenate heads: [r h n e] → [r n h·e]."""
    return heads.transpose(1, 2).flatten(2)


def refuse(layer: Layer) -> None:
    """Raise a `ModelError` that names a part of the block which the rules do not cover."""
    attention_part, mlp = layer.block.attention, layer.block.mlp
    unknown = {
        "a gated MLP": len(mlp.expand(layer.normed[:1, :1])) > 1,
        "a norm inside attention or MLP": any(is_present(n) for n in (attention_part.inner_norm, mlp.inner_norm)),
        "a norm of queries and keys": any(is_present(n) for n in (attention_part.q_norm, attention_part.k_norm)),
        "rotary positions": attention_part.rotate is not keep_heads,
        "relative positions": attention_part.bias(layer.place) is not None,
    }
    for part, present in unknown.items():
        if present:
            raise ModelError(f"relevance has no rule for {part}, which this model has")


def is_present(norm: nn.Module) -> bool:
    """Whether a norm is present."""
    return not isinstance(norm, nn.Identity)


# ── pixels ───────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def propagate_to_pixels(probe: Probe, R: Tokens, rules: Rules) -> Float[Tensor, "r colours H W"]:
    """Relevance of pixels, given the relevance R of the first block's input.

    Position embeddings keep their share. The patch embedding uses the z^B rule, with the smallest and the largest value
    of each image as bounds.
    """
    k, prefix, size = probe.targets_per_image, probe.layout.prefix, probe.layout.patch
    conv = patch_convolution(probe)
    images, tokens = probe.images.repeat_interleave(k, 0), probe.tokens.repeat_interleave(k, 0)
    patches = conv(images).flatten(2).transpose(1, 2)
    if rules.rescale:
        content = torch.cat([prefix_tokens(probe).expand(len(patches), -1, -1), patches], 1)
        R = add(R, content, tokens - content, rules)[0][:, prefix:]
    else:
        R = patches * sd(R[:, prefix:], tokens[:, prefix:])
    R = R.transpose(1, 2).unflatten(-1, probe.layout.grid)
    low, high = (images.flatten(1).aminmax(dim=1)[i].view(-1, 1, 1, 1) for i in (0, 1))
    parts = (
        (images, conv.weight),
        (-low * torch.ones_like(images), conv.weight.clamp(min=0)),
        (-high * torch.ones_like(images), conv.weight.clamp(max=0)),
    )
    Z = torch.stack([F.conv2d(x, weight, stride=size) for x, weight in parts]).sum(0)
    S = R / (Z + 1e-9)
    return torch.stack([x * F.conv_transpose2d(S, weight, stride=size) for x, weight in parts]).sum(0)


def patch_convolution(probe: Probe) -> nn.Conv2d:
    """Return the patch embedding, checked to be a convolution followed only by the addition of positions."""
    vit, images, prefix = probe.vit, probe.images, probe.layout.prefix
    candidates = [m for m in vit.module.modules() if isinstance(m, nn.Conv2d) and m.in_channels == images.shape[1]]
    empty = torch.zeros_like(images[:1])
    eps = torch.finfo(images.dtype).eps  # half-precision tokens are rounded sums
    for conv in candidates:
        embedded = (conv(images) - conv(empty)).flatten(2).transpose(1, 2)
        expected = (probe.tokens - vit.embed(empty))[:, prefix:]
        near = max(1e-4, 2 * eps) * float(expected.abs().max())
        if embedded.shape == expected.shape and torch.allclose(embedded, expected, rtol=max(1e-3, 4 * eps), atol=near):
            return conv
    raise ModelError(
        f"relevance reaches pixels through one convolution with positions added; the tokens of {vit.name!r} are made otherwise "
        "(a norm in front of the first block, for one). A fold stays at the tokens: 'lrp+first'"
    )


PREFIX = (
    ("cls_token", "class_token", "class_embedding"),
    ("dist_token", "distillation_token"),
    ("reg_token", "register_tokens"),
)


def prefix_tokens(probe: Probe) -> Float[Tensor, "prefix d"]:
    """Learned prefix tokens (class, distillation, registers) without their position embeddings."""
    width, prefix = probe.tokens.shape[-1], probe.layout.prefix
    own = {name.rsplit(".", 1)[-1]: p for name, p in probe.vit.module.named_parameters()}
    parameters = [own[name].reshape(-1, width) for names in PREFIX for name in names if name in own]
    joined = torch.cat([*parameters, probe.tokens.new_zeros(0, width)])
    if len(joined) != prefix:
        raise ModelError(f"the {prefix} prefix tokens of {probe.vit.name!r} were not found; rules='orig' needs none")
    return joined
