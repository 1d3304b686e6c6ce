"""Run the embedding, one block or the head from the adapter's parts, exact or linearised.

Attention is fused unless its matrix is requested.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitreous.capture.backward_functions import attention_at, softmax_at
from vitreous.capture.fused import FusedAttention
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.precision import full_precision, half_products, in_blocks
from vitreous.models.eval_mode import evaluating
from vitreous.models.tensor_types import Images, Logits, Mixing, PerHead, Pooled, Tokens
from vitreous.models.vit import AttentionBranch, AttentionPool, Block, LinearPool, MlpBranch, TokenPositions, ViT

BiasTerms = tuple[tuple[Tensor, Tensor], ...]  # outputs of operations that add a bias, and the biases


class BiasRecorder(TorchFunctionMode):
    """A linearisation that records the output and the bias of every operation that adds a bias.

    Calls of `F.linear` are intercepted while it is entered, and norms are recorded as they are applied; the model is not
    modified.
    """

    def __init__(self, lin: Linearisation) -> None:
        super().__init__()
        self.lin = lin
        self.outputs: list[tuple[Tensor, Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        """Factors and operations without a bias are those of the linearisation."""
        return getattr(self.lin, name)

    def normalise(self, norm: Any, x: Tensor) -> Tensor:
        return self.record(self.lin.normalise(norm, x), getattr(norm, "bias", None))

    def add_and_normalise(self, norm: Any, stream: Tensor, update: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total, normed = self.lin.add_and_normalise(norm, stream, update)
        return total, self.record(normed, getattr(norm, "bias", None))

    def record(self, output: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None and output.requires_grad:
            self.outputs.append((output, bias.detach()))
        return output

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is F.linear:
            self.record(output, args[2] if len(args) > 2 else (kwargs or {}).get("bias"))
        return output


BlockRules: TypeAlias = Linearisation | BiasRecorder


def recording_biases(lin: Linearisation, active: bool) -> AbstractContextManager[BlockRules]:
    """Context with the rules of a pass, which record biases if that is wanted."""
    return BiasRecorder(lin) if active else nullcontext(lin)


def recorded_biases(rules: BlockRules) -> BiasTerms | None:
    return tuple(rules.outputs) if isinstance(rules, BiasRecorder) else None


@dataclass(frozen=True, slots=True)
class BlockStates:
    """Intermediate tensors of one block's forward pass."""

    hidden: Tokens  # input of the block
    normed: Tokens | None  # output of the first norm; None if it is not needed later
    value: PerHead
    attention: Mixing | None
    mid: Tokens  # after the attention branch was added
    output: Tokens
    bias_terms: BiasTerms | None = None  # None if they were not recorded
    fused: FusedAttention | None = None  # instead of the attention matrix


def run_block(
    block: Block,
    x: Tokens,
    place: TokenPositions,
    lin: Linearisation = PLAIN,
    attention: bool = False,
    biases: bool = False,
    fused: bool = False,
) -> BlockStates:
    """Run one block and return its intermediate tensors.

    Parameters
    ----------
    block
        Parts of the block.
    x
        Input tokens.
    place
        Positions of the tokens.
    lin
        Which factors the backward pass treats as constants.
    attention
        Whether the attention matrix is computed; otherwise fused attention is used.
    biases
        Whether biases and the outputs they are added to are recorded (`BlockStates.bias_terms`).
    fused
        Whether the attention matrix, if it is needed, may be given as `BlockStates.fused` instead.
    """
    attention_part = block.attention
    with in_blocks(x.device), recording_biases(lin, biases) as rules:
        stream, normed = rules.add_and_normalise(attention_part.norm, x)
        q, k, value = attention_heads(attention_part, normed, place, rules)
        q, k, v = lin.attention(q, k, value)
        bias, scale = attention_part.bias(place), attention_part.scale
        weights = inputs = None
        if not attention:
            mixed = attention_at(lin.softmax, q, k, v, bias, scale)
        elif fused and bias is None:
            inputs = fuse_attention(q, k, v, scale, lin.softmax)
            mixed = inputs.mixed
        else:
            weights = attention_matrix(q, k, bias, scale, lin.softmax)
            mixed = weights @ v
        mixed = rules.normalise(attention_part.inner_norm, mixed.transpose(1, 2).flatten(2))
        mid, fed = rules.add_and_normalise(block.mlp.norm, stream, attention_part.project(mixed))
        output = lin.add(mid, run_mlp(block.mlp, fed, rules))
    return BlockStates(x, normed, value, weights, mid, output, recorded_biases(rules), inputs)


def attention_heads(
    part: AttentionBranch, normed: Tokens, place: TokenPositions, rules: BlockRules = PLAIN
) -> tuple[PerHead, PerHead, PerHead]:
    """Queries and keys as attention compares them, and values."""
    q, k, value = part.qkv(normed)
    q, k = rules.normalise(part.q_norm, q), rules.normalise(part.k_norm, k)
    return part.rotate(q, place), part.rotate(k, place), value


def attention_scores(q: Tensor, k: PerHead, bias: Tensor | None, scale: float) -> Tensor:
    """Scores before the softmax."""
    scores = (q * scale) @ k.mT
    return scores if bias is None else scores + bias


def fuse_attention(q: PerHead, k: PerHead, v: PerHead, scale: float, temperature: float | int = 1.0) -> FusedAttention:
    """Run fused attention and keep what its matrix can be computed from; `temperature` as in `attention_matrix`."""
    if half_products():  # as autocast does, which leaves the tensors that are kept as they are
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    mixed = attention_at(temperature, q, k, v, None, scale)
    if torch.is_grad_enabled() and not mixed.requires_grad:
        mixed.requires_grad_()  # detached by the linearisation, but its gradient is still read
    return FusedAttention(q.detach(), k.detach(), v.detach(), scale, mixed)


def softmax(scores: Tensor) -> Tensor:
    """Softmax in the precision of the scores; autocast would write float32 matrices, which only products read."""
    if not half_products():
        return scores.softmax(-1)
    with full_precision(scores.device):
        return scores.softmax(-1)


def attention_matrix(
    q: Tensor, k: PerHead, bias: Tensor | None, scale: float, temperature: float | int
) -> Float[Tensor, "b h q n"]:
    """Attention matrix; `temperature` is that of the softmax in the backward pass."""
    weights = softmax_at(temperature, softmax, attention_scores(q, k, bias, scale))
    if torch.is_grad_enabled() and not weights.requires_grad:
        weights.requires_grad_()  # detached by the linearisation, but its gradient is still read
    return weights


def run_mlp_branch(part: MlpBranch, x: Tensor, rules: BlockRules) -> Tensor:
    """Run the MLP branch (plain or gated) with its norm, and return what it adds."""
    return run_mlp(part, rules.normalise(part.norm, x), rules)


def run_mlp(part: MlpBranch, normed: Tensor, rules: BlockRules) -> Tensor:
    """Run the MLP (plain or gated) on the output of its norm."""
    gate, *value = part.expand(normed)
    hidden = rules.activate(part.act, gate)
    hidden = rules.multiply(hidden, *value) if value else hidden
    return part.contract(rules.normalise(part.inner_norm, hidden))


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """Output of the head."""

    logits: Logits
    readout: Float[Tensor, "b n"]  # weight of every token in the head's pooling
    attention: Float[Tensor, "b h q pooled"] | None = None  # of attention pooling, to the tokens that it does not skip
    token_bias_terms: BiasTerms = ()  # biases added token by token
    pooled_bias_terms: BiasTerms = ()  # biases added after pooling


def run_head(
    vit: ViT,
    tokens: Tokens,
    lin: Linearisation = PLAIN,
    biases: bool = False,
    presence: Float[Tensor, "b n"] | None = None,
    mode: AbstractContextManager[Any] | None = None,
) -> HeadOutput:
    """Run final norm, pooling and classifier.

    Parameters
    ----------
    vit
        The adapted model.
    tokens
        Output of the last block.
    lin
        Which factors the backward pass treats as constants.
    biases
        Whether biases and the outputs they are added to are recorded.
    presence
        Logarithm of each token's weight in the pooling: 0 fully present, −∞ absent. None: all are present.
    mode
        Context of the model's own operations, such as `DifferentiableForward`; a linear pooling runs outside of it.
    """
    pool, mode = vit.pool, mode or nullcontext()
    query = key = value = tokens[:0]
    attention = None
    if isinstance(pool, AttentionPool):
        with mode:  # constant, so its biases belong to no token and are not recorded
            query = lin.normalise(pool.q_norm, pool.query())
    with recording_biases(lin, biases) as token_rules, mode:
        x = token_rules.normalise(vit.norm, tokens)
        if isinstance(pool, AttentionPool):
            key, value = pool.key_value(x[:, pool.skip :])
    with recording_biases(lin, biases) as rules:
        if isinstance(pool, LinearPool):
            rows = pooling_rows(pool, x)
            pooled, readout = scale_by_presence(rows, presence) @ x, rows.mean(0).expand(len(x), -1)
        else:
            key_presence = None if presence is None else presence[:, None, None, pool.skip :]
            with mode:
                pooled, attention = attention_pool(pool, query, key, value, rules, key_presence)
            readout = F.pad(attention.mean((1, 2)), (pool.skip, 0))
        with mode, evaluating(vit.module):  # the head may contain dropout in training mode
            logits = classify_pooled(vit, rules.normalise(vit.pooled_norm, pooled), lin)
    bias_terms = recorded_biases(token_rules) or (), recorded_biases(rules) or ()
    return HeadOutput(logits, readout.detach(), attention, *bias_terms)


def pooling_rows(pool: LinearPool, x: Tokens) -> Float[Tensor, "q n"]:
    """Pooling weights for the tokens `x`, on their device and in their precision."""
    return cached_rows(pool.rows, x.shape[1], x.dtype, x.device)


@lru_cache(maxsize=64)
def cached_rows(
    rows: Callable[[int], Float[Tensor, "q n"]], tokens: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "q n"]:
    """Pooling weights on a device: copied once, since every copy from the CPU makes the host wait."""
    with torch.inference_mode(False):
        return rows(tokens).to(device, dtype)


def classify_pooled(vit: ViT, read: Pooled, lin: Linearisation = PLAIN) -> Logits:
    """Logits of pooled tokens, divided by `vit.length` if the model has one (cosines with texts)."""
    logits = vit.classify(read)
    return logits if vit.length is None else logits / lin.length(vit.length, read)


def scale_by_presence(rows: Float[Tensor, "q n"], presence: Float[Tensor, "b n"] | None) -> Tensor:
    """Pooling weights scaled by exp(presence), renormalised to their original sum."""
    if presence is None:
        return rows
    shares = rows * presence.exp()[:, None]
    return shares * (rows.sum(-1) / shares.sum(-1))[..., None]


def attention_pool(
    pool: AttentionPool, query: Tensor, k: PerHead, v: PerHead, rules: BlockRules, presence: Tensor | None = None
) -> tuple[Tensor, Float[Tensor, "b h q n"]]:
    """Return the pooled tokens, and the pooler's attention to the tokens that it does not skip.

    `query` is the normalised query, and `presence` [b 1 1 n] is added to the scores.
    """
    q, k, v = rules.attention(query.expand(len(k), -1, -1, -1), rules.normalise(pool.k_norm, k), v)
    weights = attention_matrix(q, k, presence, pool.scale, rules.softmax)
    pooled = pool.project((weights @ v).transpose(1, 2).flatten(2))
    pooled = pooled if pool.mlp is None else pooled + run_mlp_branch(pool.mlp, pooled, rules)
    return pooled, weights


# ── embedding and the whole model ────────────────────────────────────────────────────────────────


class AsProducts(TorchFunctionMode):
    """Run convolutions with non-overlapping windows as matrix products; results are equal up to rounding.

    On a CPU, the backward pass of torch's convolution takes four times as long.
    """

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is F.conv2d and len(args) == 7 and not kwargs and side_by_side(*args):
            return patch_product(*args[:3])
        return func(*args, **(kwargs or {}))


def side_by_side(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> bool:
    """Whether the windows of a convolution cover the input without overlap, padding or remainder."""
    window = tuple(weight.shape[2:])
    if x.ndim != 4 or not isinstance(stride, tuple) or not isinstance(dilation, tuple):
        return False
    whole = all(length % side == 0 for length, side in zip(x.shape[-2:], window, strict=True))
    return whole and stride == window and padding in ((0, 0), "valid") and dilation == (1, 1) and groups == 1


def patch_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolution with non-overlapping windows, as a matrix product."""
    height, width = weight.shape[2:]
    patches = x.unflatten(3, (-1, width)).unflatten(2, (-1, height))  # [b c rows height columns width]
    return F.linear(patches.permute(0, 2, 4, 1, 3, 5).flatten(3), weight.flatten(1), bias).movedim(-1, 1)


def embed(vit: ViT, images: Images) -> Tokens:
    """Embed images; uses matrix products if gradients in the pixels are needed on a CPU (slower on a GPU)."""
    walked = torch.is_grad_enabled() and images.requires_grad and images.device.type == "cpu"
    with AsProducts() if walked else nullcontext():
        return vit.embed(images)


def run_blocks(vit: ViT, tokens: Tokens, place: TokenPositions) -> Tokens:
    """Return the output of the last block for these tokens; intermediate tensors are not kept."""
    if tokens.shape[1]:
        for block in vit.blocks:
            tokens = run_block(block, tokens, place).output
    return tokens


def run(vit: ViT, tokens: Tokens, place: TokenPositions) -> Logits:
    """Return the model's logits for these tokens; intermediate tensors are not kept."""
    return run_head(vit, run_blocks(vit, tokens, place)).logits


def adapter_logits(vit: ViT, images: Images) -> Logits:
    """Return the logits for images, computed from the adapter's parts."""
    return run(vit, vit.embed(images), TokenPositions(vit.layout((images.shape[-2], images.shape[-1]))))
