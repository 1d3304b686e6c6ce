"""Names of weights in checkpoints of timm, DeiT and MAE models and of training code around them, as timm's models have them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitreous.core.errors import ModelError

ANCHOR = "patch_embed.proj.weight"  # every transformer of timm has it, as have MAE and DeiT
HEADS = ("classifier", "fc", "head.fc", "heads.head", "linear", "mlp_head", "head.head")  # of training code


def timm_keys(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Rename weights to timm's names.

    The prefix of the backbone (such as "model.backbone.") is removed, also where the classifier is outside of it and
    has another name.

    Parameters
    ----------
    state
        Weights by name.
    name
        Name of the model, for error messages.

    Raises
    ------
    ModelError
        If there are several backbones, or several weights could be the classifier.
    """
    prefixes = sorted(key.removesuffix(ANCHOR) for key in state if key.endswith(ANCHOR))
    if len(prefixes) > 1:
        raise ModelError(
            f"the weights for {name!r} have {len(prefixes)} backbones ({', '.join(repr(p) for p in prefixes)}); "
            "save the weights of one of them"
        )
    if not prefixes:
        return state
    prefix = prefixes[0]
    inside = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    outside = {key: value for key, value in state.items() if not key.startswith(prefix)}
    if clash := sorted(inside.keys() & outside.keys()):
        raise ModelError(
            f"the weights for {name!r} have {clash[0]!r} inside and outside of {prefix!r}; save one of them"
        )
    renamed = inside | outside
    return renamed if "head.weight" in renamed else with_head(renamed, name)


def with_head(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Rename the classifier to "head"; unchanged if none is found."""
    heads = {}
    for key, value in state.items():
        owner = key.removesuffix(".weight")
        if key.endswith(".weight") and value.ndim == 2 and any(owner == h or owner.endswith(f".{h}") for h in HEADS):
            heads[owner] = value
    heads = {owner: value for owner, value in heads.items() if not owner.startswith("blocks.")}
    if len(heads) > 1:
        raise ModelError(
            f"the weights for {name!r} have several classifiers ({', '.join(sorted(heads))}); save one of them, named 'head'"
        )
    owner = next(iter(heads), "head")
    return {
        f"head.{key.removeprefix(f'{owner}.')}" if key.startswith(f"{owner}.") else key: state[key] for key in state
    }


def timm_arguments(state: dict[str, Tensor], arguments: dict[str, Any], name: str) -> dict[str, Any]:
    """Arguments of `timm.create_model` that the weights imply, unless they are given.

    The classifier gives the number of classes. A norm behind the pooling in place of the one before it (MAE's fine-tuned
    models) means that the mean of the patches is pooled.

    Raises
    ------
    ModelError
        If the weights are those of a masked autoencoder, which has no classifier.
    """
    if "head.weight" not in state and any(key.startswith("decoder_") for key in state):
        raise ModelError(
            f"the weights for {name!r} are those of a masked autoencoder, which has no classifier; fine-tune it first "
            "(training/finetune.py --init), or give fine-tuned weights"
        )
    implied: dict[str, Any] = {}
    if "head.weight" in state:
        implied["num_classes"] = state["head.weight"].shape[0]
    if "fc_norm.weight" in state and "norm.weight" not in state:
        implied["global_pool"] = "avg"
    return {**implied, **arguments}
