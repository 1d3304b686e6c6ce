"""Scores of a model whose attention to some tokens is suppressed, in every block and head."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.forward import run_head, run_mlp_branch
from vitreous.capture.linearise import PLAIN
from vitreous.capture.memory import rows_that_fit
from vitreous.capture.probe import Probe
from vitreous.capture.progress import run_in_pieces
from vitreous.models.tensor_types import Logits, Tokens
from vitreous.models.vit import Block, TokenPositions


@torch.no_grad()
def suppressed_score(probe: Probe, factors: Float[Tensor, "b s n"], shift: bool) -> Float[Tensor, "r s"]:
    """Return the scores when attention scores (before the softmax) are multiplied by a factor per key token.

    Parameters
    ----------
    probe
        Model, images, targets and score function.
    factors
        Factor of every token, s variants per image.
    shift
        Whether each row of attention scores is first shifted to a minimum of 0, so that a factor below 1 never
        increases a score.
    """
    flat, subsets = factors.flatten(0, 1), factors.shape[1]

    def run_piece(piece: slice) -> Logits:
        owner = torch.arange(piece.start, piece.stop, device=flat.device) // subsets
        tokens = probe.tokens[owner]
        for block in probe.vit.blocks:
            tokens = suppressed_block(block, tokens, probe.place, flat[piece], shift)
        return run_head(probe.vit, tokens).logits

    tokens = probe.tokens
    heads = probe.vit.blocks[0].attention.qkv(tokens[:1, :1])[0].shape[1]
    wide = tokens.shape[2] + heads * tokens.shape[1] // 8  # attention matrices count in addition to the residual stream
    chunk = rows_that_fit(tokens.shape[1], wide, tokens.element_size(), tokens.device)
    logits = run_in_pieces(run_piece, torch.arange(len(flat), device=flat.device), chunk)
    return probe.compute_variant_scores(logits.unflatten(0, factors.shape[:2]))


def suppressed_block(
    block: Block, x: Tokens, place: TokenPositions, factor: Float[Tensor, "b n"], shift: bool
) -> Tokens:
    """Run one block with attention scores multiplied by `factor`."""
    attention_part = block.attention
    q, k, value = attention_part.qkv(attention_part.norm(x))
    q, k = (
        attention_part.rotate(attention_part.q_norm(q), place),
        attention_part.rotate(attention_part.k_norm(k), place),
    )
    scores, bias = (q * attention_part.scale) @ k.mT, attention_part.bias(place)
    scores = scores if bias is None else scores + bias
    scores = scores - scores.amin(-1, keepdim=True) if shift else scores
    mixed = (scores * factor[:, None, None]).softmax(-1) @ value
    mid = x + attention_part.project(attention_part.inner_norm(mixed.transpose(1, 2).flatten(2)))
    return mid + run_mlp_branch(block.mlp, mid, PLAIN)
