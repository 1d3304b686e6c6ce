"""Methods as `explain_func` of Quantus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vitreous.bridges.pixel_maps import spread_evenly
from vitreous.front import explain
from vitreous.methods.spec import resolve


def explain_func(spec: str, **options: Any) -> Callable[..., np.ndarray]:
    """A function that Quantus metrics call for maps.

    Parameters
    ----------
    spec
        Method spec.
    **options
        Options of the method, and `question`.

    Returns
    -------
    Callable
        `function(model, inputs, targets, **kwargs)` with a module, an array [images, channels, height, width] and classes
        [images]; returns maps [images, 1, height, width]. `device` is honoured, other keywords are ignored.

    Examples
    --------
    >>> import numpy as np
    >>> import timm
    >>> from vitreous.bridges.quantus import explain_func
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3, depth=2).eval()
    >>> explain_func("temper")(model, np.zeros((2, 3, 32, 32), np.float32), np.array([0, 1])).shape
    (2, 1, 32, 32)
    """
    question = options.pop("question", None)
    method = resolve(spec, **options)

    def function(model: torch.nn.Module, inputs: Any, targets: Any, **kwargs: Any) -> np.ndarray:
        device = kwargs.get("device") or next(model.parameters()).device
        images = torch.as_tensor(np.asarray(inputs), dtype=next(model.parameters()).dtype, device=device)
        result = explain(model, images, np.asarray(targets).tolist(), method, question)
        return spread_evenly(result)[:, None].cpu().numpy()

    return function
