"""The parts of a `ViT`, run one after the other in the simplest way, as the reference of adapters."""

from __future__ import annotations

import torch

from vitreous.models.vit import AttentionPool, TokenPositions


def branch(feed, x):
    gate, *value = feed.expand(feed.norm(x))
    hidden = feed.act(gate) * value[0] if value else feed.act(gate)
    return feed.contract(feed.inner_norm(hidden))


def run_parts(vit, images, index=None, hidden_keys=None):
    """Logits; of the tokens in `index` [b n] only, or with the keys `hidden_keys` [n] masked."""
    place, x = TokenPositions(vit.layout(tuple(images.shape[-2:])), index), vit.embed(images)
    if index is not None:
        x = torch.stack([tokens[kept] for tokens, kept in zip(x, index, strict=True)])
    for block in vit.blocks:
        part = block.attention
        q, k, v = part.qkv(part.norm(x))
        scores = part.rotate(part.q_norm(q), place) @ part.rotate(part.k_norm(k), place).mT * part.scale
        if (bias := part.bias(place)) is not None:
            scores = scores + bias
        if hidden_keys is not None:
            scores[..., hidden_keys] = -torch.inf
        x = x + part.project(part.inner_norm((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
        x = x + branch(block.mlp, x)
    assert not isinstance(vit.pool, AttentionPool)
    x = vit.norm(x)
    rows = vit.pool.rows(x.shape[1] if hidden_keys is None else int((~hidden_keys).sum())).to(x)
    return vit.classify(vit.pooled_norm(rows @ (x if hidden_keys is None else x[:, ~hidden_keys])))
