"""Activation patching: runs of one image in which the activations of single patches come from another image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.forward import run_block, run_head
from vitreous.capture.probe import Probe
from vitreous.capture.progress import Tally, pieces
from vitreous.models.eval_mode import evaluating
from vitreous.models.tensor_types import Tokens


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
