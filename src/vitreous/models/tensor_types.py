"""Tensor types with their shapes. Axis names are the same in all modules:

b images · r rows (one per image and target) · n tokens · p patches · h heads · e channels of a head ·
d channels · s subsets of patches · c classes · q pooled vectors that the head reads (class token, distillation token,
mean, …)
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

Images = Float[Tensor, "b channels *frames H W"]  # frames: of clips, before or after the channels
Tokens = Float[Tensor, "b n d"]
Hidden = Float[Tensor, "b n hidden"]
PerHead = Float[Tensor, "b h n e"]
Mixing = Float[Tensor, "b h n n"]  # mixing weights per head: row = receiving token, column = source token
Pooled = Float[Tensor, "b q d"]
Logits = Float[Tensor, "b c"]
TokenScores = Float[Tensor, "r n"]
PatchScores = Float[Tensor, "r p"]
PixelScores = Float[Tensor, "r H W"]
TokenMatrix = Float[Tensor, "r n n"]  # token-to-token scores: row = receiving token, column = source token
Keep = Bool[Tensor, "b s p"]
TokenIndex = Int[Tensor, "b n"]
