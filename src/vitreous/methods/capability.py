"""What a method needs of a model, and its form for a given model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitreous.core.errors import SpecError
from vitreous.core.registry import Registry
from vitreous.methods.recipe import LayerSignal
from vitreous.models.model import BlackBox, Network
from vitreous.models.vit import ViT

if TYPE_CHECKING:
    from vitreous.methods.method import Method

    Methods = Registry[Method]


def needed_capability(method: Method) -> type[BlackBox]:
    """The least that a model must be; see `Method.capability`."""
    if method.black_box is not None:
        return BlackBox
    return Network if works_on_networks(method) else ViT


def works_on_networks(method: Method) -> bool:
    """Whether states and gradients at blocks are enough; see `Method.works_on_networks`."""
    recipe = method.recipe
    if not isinstance(recipe, LayerSignal) or recipe.mixing or recipe.needs.only_in_vits:
        return False
    if recipe.linearisation.residual or recipe.changes_pass(method.options):
        return False
    return method.settings.get("of", "input") in ("input", "output")


def form_for_model(method: Method, vit: BlackBox, methods: Methods) -> Method:
    """The form of the method for this model; see `Method.for_model`. `methods` are named in refusals."""
    reads_pixels = isinstance(vit, Network) and vit.clip is not None and method.settings.get("space") == "pixels"
    if isinstance(vit, ViT) or (isinstance(vit, Network) and works_on_networks(method) and not reads_pixels):
        return method
    if isinstance(vit, Network) and vit.clip is not None:
        raise SpecError(
            f"{method.spec!r} reads more than states and gradients at blocks, and {vit.name!r} takes clips; of clips ask "
            f"one of: {', '.join(name for name in methods if works_on_networks(methods[name]))}"
        )
    if isinstance(vit, Network) and method.black_box is None:
        reason = f" ({vit.reason})" if vit.reason else ""
        raise SpecError(
            f"{method.spec!r} needs the parts of a ViT (attention matrices, norms, token removal), and {vit.name!r} is a "
            f"network without an adapter{reason}; of a network ask one of: {network_methods(methods)}"
        )
    return method.for_black_box()


def network_methods(methods: Methods) -> str:
    """Names of the methods that need states and gradients only, or work for any classifier, separated by commas."""
    return ", ".join(
        name for name in methods if works_on_networks(methods[name]) or methods[name].black_box is not None
    )


def black_box_methods(methods: Methods) -> str:
    """Names of the methods that work for any classifier, separated by commas."""
    return ", ".join(name for name in methods if methods[name].black_box is not None)
