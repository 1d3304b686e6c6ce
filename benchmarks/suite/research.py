"""Straightforward implementations of the papers' formulas: one image at a time, all vectors explicit.

They give the same numbers as the library (`tests/benchmarks/test_standins.py`) with more computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.methods.random_control import generators


@dataclass
class Activations:
    """Activations of an image in a timm VisionTransformer: for each block its input [n d], attention [h n n], and the state before the MLP."""

    inputs: list[Tensor]
    attention: list[Tensor]
    middles: list[Tensor]
    end: Tensor


def split_heads(block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [h n e] of tokens [n d]."""
    packed = block.attn.qkv(block.norm1(x))
    q, k, v = packed.unflatten(-1, (3, block.attn.num_heads, -1)).permute(1, 2, 0, 3)
    return q, k, v


@torch.no_grad()
def record_activations(model: Any, image: Tensor) -> Activations:
    x = model.norm_pre(model._pos_embed(model.patch_embed(image[None])))[0]
    activations = Activations([], [], [], x)
    for block in model.blocks:
        q, k, v = split_heads(block, x)
        attention = (q @ k.mT * block.attn.scale).softmax(-1)
        mixed = (attention @ v).transpose(0, 1).flatten(1)
        middle = x + block.ls1(block.attn.proj(mixed))
        activations.inputs.append(x)
        activations.attention.append(attention)
        activations.middles.append(middle)
        x = middle + block.ls2(block.mlp(block.norm2(middle)))
    activations.end = x
    return activations


def get_layer_scale(part: Any) -> Tensor | float:
    return getattr(part, "gamma", 1.0)


# ── DecompX ──────────────────────────────────────────────────────────────────────────────────────


def propagate_norm(norm: Any, x: Tensor, parts: Tensor) -> Tensor:
    """Parts [n s d] of tokens x [n d] through a LayerNorm whose spread is that of x."""
    if isinstance(norm, torch.nn.Identity):
        return parts
    spread = (x.var(-1, unbiased=False) + norm.eps).sqrt()
    return (parts - parts.mean(-1, keepdim=True)) / spread[:, None, None] * norm.weight


def propagate_block(block: Any, activations: Activations, layer: int, parts: Tensor) -> Tensor:
    """Parts of a block's output from those of its input, with attention and the ratio of the activation fixed."""
    attention = activations.attention[layer]
    value = block.attn.qkv.weight.chunk(3)[2]
    heads = (propagate_norm(block.norm1, activations.inputs[layer], parts) @ value.T).unflatten(
        -1, (len(attention), -1)
    )
    mixed = torch.einsum("hij,jshe->ishe", attention, heads).flatten(2)
    parts = parts + mixed @ block.attn.proj.weight.T * get_layer_scale(block.ls1)
    middle = activations.middles[layer]
    before = block.mlp.fc1(block.norm2(middle))
    ratio = block.mlp.act(before) / before
    hidden = (propagate_norm(block.norm2, middle, parts) @ block.mlp.fc1.weight.T) * ratio[:, None]
    return parts + hidden @ block.mlp.fc2.weight.T * get_layer_scale(block.ls2)


def split_by_source(x: Tensor, sources: Tensor) -> Tensor:
    """Tokens [n d] as parts [n s d]: each token is a part of its own source only."""
    parts = x.new_zeros(len(x), len(sources), x.shape[1])
    parts[sources, torch.arange(len(sources), device=x.device)] = x[sources]
    return parts


def compute_logit_shares(model: Any, activations: Activations, parts: Tensor, target: int) -> Tensor:
    """Share of every source in the logit, [s]."""
    parts, tokens = propagate_norm(model.norm, activations.end, parts), model.norm(activations.end)
    first = model.num_prefix_tokens
    if model.global_pool == "token":
        pooled_parts, pooled = parts[0], tokens[0]
    else:
        pooled_parts, pooled = parts[first:].mean(0), tokens[first:].mean(0)
    return propagate_norm(model.fc_norm, pooled[None], pooled_parts[None])[0] @ model.head.weight[target]


@torch.no_grad()
def compute_decompx(
    model: Any, image: Tensor, target: int, *, restart: bool = True, sources: Tensor | None = None, chunk: int = 0
) -> Tensor:
    """DecompX under SkipPLUS by propagating [n n d] vectors forward: scores of the sources (default: all).

    `restart`: DecompX of the sub-network from every layer on, as PLUS is defined; else all starts share one pass, which
    linearity allows. Sources are independent, so they may be processed `chunk` at a time.
    """
    activations, depth = record_activations(model, image), len(model.blocks)
    sources = torch.arange(len(activations.end), device=image.device) if sources is None else sources
    starts = range(-(-depth // 2), depth)
    scores = []
    for part_of_sources in sources.split(chunk or len(sources)):
        total = torch.zeros(len(part_of_sources)).to(image)
        parts = torch.zeros(()).to(image)
        for start in starts:
            parts = split_by_source(activations.inputs[start], part_of_sources) + (0 if restart else parts)
            for layer in range(start, depth) if restart else (start,):
                parts = propagate_block(model.blocks[layer], activations, layer, parts)
            total = total + compute_logit_shares(model, activations, parts, target) if restart else total
        scores.append(total if restart else compute_logit_shares(model, activations, parts, target))
    return torch.cat(scores)


# ── GlobEnc ──────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def compute_globenc(model: Any, image: Tensor) -> Tensor:
    """GlobEnc with explicit vectors [n n d] at every layer; the row that the head reads, [n]."""
    activations, row = record_activations(model, image), None
    for layer in reversed(range(len(model.blocks))):
        block, x = model.blocks[layer], activations.inputs[layer]
        weight = block.attn.qkv.weight.chunk(3)[2]
        value = (block.norm1(x) - block.norm1.bias) @ weight.T
        value = value.unflatten(-1, (block.attn.num_heads, -1)).transpose(0, 1)  # [h n e]
        out = block.attn.proj.weight.unflatten(1, (block.attn.num_heads, -1))  # [d h e]
        sent = torch.einsum("hne,dhe->hnd", value, out) * get_layer_scale(block.ls1)
        vectors = torch.einsum("hij,hjd->ijd", activations.attention[layer], sent)
        place = torch.arange(len(x), device=x.device)
        vectors[place, place] += x
        vectors = vectors + propagate_norm(block.norm2, activations.middles[layer], vectors) * get_layer_scale(
            block.ls2
        )
        lengths = vectors.norm(dim=-1)
        row = (make_readout(model, len(x), x) if row is None else row) @ lengths
    assert row is not None
    return row


def make_readout(model: Any, tokens: int, like: Tensor) -> Tensor:
    row, first = torch.zeros(tokens).to(like), model.num_prefix_tokens
    if model.global_pool == "token":
        row[0] = 1
    else:
        row[first:] = 1 / (tokens - first)
    return row


# ── TIS ──────────────────────────────────────────────────────────────────────────────────────────


def cluster_kmeans(samples: Tensor, centroids: Tensor, rounds: int = 100, tolerance: float = 1e-4) -> Tensor:
    """Lloyd's algorithm on samples [a p]; a centroid without samples is moved to the sample that is farthest from its centroid."""
    for _ in range(rounds):
        near, owner = torch.cdist(samples, centroids).min(-1)
        count = torch.bincount(owner, minlength=len(centroids))
        moved = torch.zeros_like(centroids).index_add_(0, owner, samples) / count.clamp(min=1)[:, None]
        empty = (count == 0).nonzero()[:, 0]
        moved[empty] = samples[near.argsort(descending=True)[: len(empty)]]
        shift = ((moved - centroids) ** 2).sum()
        centroids = moved
        if shift <= tolerance:
            break
    return centroids


@torch.no_grad()
def compute_tis(
    model: Any, image: Tensor, target: int, masks: int, share_kept: float = 0.5, at_once: int = 16
) -> Tensor:
    """Transformer Input Sampling of one image: k-means on the CPU, a few subsets at a time."""
    prefix = model.num_prefix_tokens
    tokens = model.norm_pre(model._pos_embed(model.patch_embed(image[None])))
    outputs, x = [], tokens
    for block in model.blocks:
        x = block(x)
        outputs.append(x[0, prefix:])
    samples = torch.cat(outputs, 1).T.cpu()
    first = torch.randperm(len(samples), generator=generators(image[None], 0)[0])[:masks]
    centroids = cluster_kmeans(samples, samples[first])
    patches = samples.shape[1]
    total, count = torch.zeros(patches).to(samples), torch.zeros(patches).to(samples)
    for subsets in centroids.topk(int(share_kept * patches), -1).indices.sort(-1).values.split(at_once):
        kept_tokens = tokens[0, prefix:][subsets.to(image.device)]
        front = tokens[:, :prefix].expand(len(subsets), -1, -1)
        logits = model.forward_head(model.norm(model.blocks(torch.cat([front, kept_tokens], 1))))
        for subset, probability in zip(subsets, logits.softmax(-1)[:, target].tolist(), strict=True):
            total[subset] += probability
            count[subset] += 1
    mean = total / count
    return torch.where(count > 0, mean, mean[count > 0].min()).to(image.device)
