"""Runs of a model with changed activations: patches from another image, or suppressed attention to some tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.forward import attention_heads, attention_scores, run_block, run_head, run_mlp_branch
from vitreous.capture.linearise import PLAIN
from vitreous.capture.memory import rows_that_fit
from vitreous.capture.probe import Probe
from vitreous.capture.progress import pieces, run_in_pieces
from vitreous.core.progress import Tally
from vitreous.models.eval_mode import evaluating
from vitreous.models.tensor_types import Logits, Tokens
from vitreous.models.vit import Block, TokenPositions


@torch.no_grad()
def patched_logits(probe: Probe, into: Sequence[Tokens], start: int, stop: int) -> Float[Tensor, "b p c"]:
    """Return the logits of one run per patch.

    Parameters
    ----------
    probe
        The images whose activations are inserted.
    into
        States of the images that receive them: the input of every block, as `Probe.states`.
    start, stop
        Blocks whose input gets the patch's activations, from `start` up to but without `stop`. The run starts there.
    """
    vit, prefix, patches = probe.vit, probe.layout.prefix, probe.layout.patches
    tokens = probe.tokens
    tally, scores_of_images = Tally(len(probe.images) * patches), []
    for image in range(len(probe.images)):

        def run_patches(piece: slice, image: int = image) -> Tensor:
            token = torch.arange(piece.start, piece.stop, device=tokens.device) + prefix
            row = torch.arange(len(token), device=tokens.device)
            x = into[start][image].repeat(len(token), 1, 1)
            for layer in range(start, vit.depth):
                if layer < stop:
                    x[row, token] = probe.states[layer][image, token]
                x = run_block(vit.blocks[layer], x, probe.place).output
            return run_head(vit, x).logits

        with evaluating(vit.module):
            scores_of_images.append(
                torch.cat([part for _, part in pieces(run_patches, patches, probe.images_that_fit, tally)])
            )
    return torch.stack(scores_of_images)


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
    q, k, value = attention_heads(attention_part, attention_part.norm(x), place)
    scores = attention_scores(q, k, attention_part.bias(place), attention_part.scale)
    scores = scores - scores.amin(-1, keepdim=True) if shift else scores
    mixed = (scores * factor[:, None, None]).softmax(-1) @ value
    mid = x + attention_part.project(attention_part.inner_norm(mixed.transpose(1, 2).flatten(2)))
    return mid + run_mlp_branch(block.mlp, mid, PLAIN)
