"""LXT's rules in a copy of a timm model."""

from __future__ import annotations

import sys
from functools import partial
from importlib.machinery import PathFinder
from types import MethodType, ModuleType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def patch_with_lxt(model: nn.Module) -> nn.Module:
    """Put LXT's AttnLRP rules into every norm, activation and attention of this model only; LXT itself patches classes."""
    skip_models_of_lxt()
    from lxt.efficient.patches import layer_norm_forward
    from lxt.efficient.rules import divide_gradient, identity_rule_implicit

    def attend(self: Any, x: Tensor, **_: Any) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = divide_gradient(q, 4), divide_gradient(k, 4), divide_gradient(v, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    for part in list(model.modules()):
        if isinstance(part, nn.LayerNorm):
            part.forward = MethodType(layer_norm_forward, part)
        elif isinstance(part, nn.GELU):
            part.forward = partial(identity_rule_implicit, part.forward)
        elif hasattr(part, "qkv"):
            part.forward = MethodType(attend, part)
    return model


def skip_models_of_lxt() -> None:
    """Let `lxt.efficient` be imported without its language models, which need parts that transformers 5 no longer has."""
    import lxt

    if "lxt.efficient" not in sys.modules:
        spec = PathFinder.find_spec("lxt.efficient", lxt.__path__)
        package = ModuleType("lxt.efficient")
        package.__path__ = [] if spec is None else list(spec.submodule_search_locations or [])
        sys.modules["lxt.efficient"] = package
