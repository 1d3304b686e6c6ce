"""Methods as captum `Attribution` classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitreous.bridges.pixel_maps import spread_evenly
from vitreous.core.errors import ShapeError
from vitreous.front import explain
from vitreous.methods.spec import resolve


def attribution(spec: str, **options: Any) -> type:
    """A captum `Attribution` class of a method.

    Parameters
    ----------
    spec
        Method spec, such as "temper" or "decompx+plus".
    **options
        Options of the method, and of `vitreous.explain` (`question`, `batch_size`).

    Returns
    -------
    type
        Subclass of `captum.attr.Attribution`. Made with a module, its `attribute(inputs, target=None)` returns a tensor of
        the shape of the inputs: each patch's score is divided evenly among its pixels and channels, so that sums are those
        of the map.

    Raises
    ------
    SpecError
        If the method does not exist.

    Examples
    --------
    >>> import timm
    >>> import torch
    >>> from vitreous.bridges.captum import attribution
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3, depth=2).eval()
    >>> attribution("temper")(model).attribute(torch.zeros(2, 3, 32, 32), target=1).shape
    torch.Size([2, 3, 32, 32])
    """
    from captum.attr import Attribution as CaptumAttribution

    explain_options = {key: options.pop(key) for key in ("question", "batch_size", "precision") if key in options}
    method = resolve(spec, **options)

    class MethodAttribution(CaptumAttribution):
        """Attribution by a method of Vitreous."""

        def __init__(self, forward_func: nn.Module) -> None:
            if not isinstance(forward_func, nn.Module):
                raise ShapeError(
                    f"{method.spec!r} explains an nn.Module, not a {type(forward_func).__name__}; pass the module itself"
                )
            super().__init__(forward_func)

        def attribute(self, inputs: Tensor | tuple[Tensor, ...], target: Any = None, **_: Any) -> Any:
            images = inputs[0] if isinstance(inputs, tuple) else inputs
            if isinstance(inputs, tuple) and len(inputs) != 1:
                raise ShapeError(f"one tensor of images is explained, not {len(inputs)}")
            targets = target.tolist() if isinstance(target, Tensor) else target
            if isinstance(targets, tuple) or (isinstance(targets, list) and any(isinstance(t, tuple) for t in targets)):
                raise ShapeError("target is a class or one class per image; tuples are for outputs of more dimensions")
            module: Any = self.forward_func  # `__init__` has checked that it is a module
            result = explain(module, images, targets, method, **explain_options)
            maps = spread_evenly(result).to(images.device)
            spread = (
                (maps[:, None] / images.shape[1]).expand_as(images).to(torch.promote_types(images.dtype, maps.dtype))
            )
            return (spread,) if isinstance(inputs, tuple) else spread

    MethodAttribution.__name__ = MethodAttribution.__qualname__ = f"Vitreous[{method.spec}]"
    return MethodAttribution
