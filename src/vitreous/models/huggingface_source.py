"""Source of Hugging Face models: image classifiers and towers, from the hub or a local folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitreous.core.errors import ModelError, VitreousError
from vitreous.models.checkpoint import read_checkpoint, refuse_mismatch
from vitreous.models.huggingface import TOWERS, classes_of, preprocess_of
from vitreous.models.model import ModelOrigin
from vitreous.models.model_registry import NamedModule, source


@source(
    "hf",
    families=[
        ("Hugging Face", "hf:google/vit-base-patch16-224", "ViT, DeiT, BEiT, DINOv2, SigLIP, CLIP classifiers"),
    ],
)
def create_huggingface(
    name: str, *, checkpoint: str | Path | None = None, pretrained: bool = True, **kwargs: Any
) -> NamedModule:
    """Load a classifier from the hub or a local folder. Code from the hub is never executed.

    Parameters
    ----------
    name
        Name on the hub, or a local folder with config.json and model.safetensors.
    checkpoint
        A local file with other weights.
    pretrained
        Whether to load weights if there is no checkpoint; False gives random weights.
    **kwargs
        Settings of the model's config.

    Raises
    ------
    ModelError
        If the model cannot be loaded, a setting is unknown, or the weights do not fit.
    """
    if kwargs.pop("trust_remote_code", False):
        raise ModelError("code from the hub is never run; trust_remote_code cannot be set")
    try:
        model, loading_info = fetch(name, checkpoint, pretrained, kwargs)
    except VitreousError:
        raise
    except (OSError, ValueError) as error:
        why = str(error).strip().splitlines()[0].rstrip(".")
        raise ModelError(
            f"{name!r} could not be loaded: {why}; without the hub, give a local folder with config.json and "
            "model.safetensors as the name, and other weights as checkpoint=…"
        ) from None
    # Unexpected weights are allowed: they belong to poolers and text towers, which these classifiers do not have.
    misfits = ("mis-shaped", "mismatched_keys"), ("missing", "missing_keys")
    refuse_mismatch(name, {word: loading_info[key] for word, key in misfits} if loading_info else {})
    weights = str(checkpoint or ("pretrained" if pretrained else "random"))
    classes = None if type(model).__name__ in TOWERS else classes_of(model.config)
    return NamedModule(model, preprocess_of(name), classes, ModelOrigin(source=name, weights=weights))


def fetch(name: str, checkpoint: str | Path | None, pretrained: bool, changes: dict[str, Any]) -> tuple[Any, dict]:
    """The module, and transformers' loading info (missing, unexpected and mismatched keys; empty without weights)."""
    try:
        import transformers
        from transformers import AutoConfig, AutoModelForImageClassification
    except ImportError:
        raise ModelError("Hugging Face models need transformers: pip install 'vitreous[hf]'") from None
    loaded: Any = AutoConfig.from_pretrained(name, trust_remote_code=False, return_unused_kwargs=True, **changes)
    config, unused = loaded
    if odd := sorted(set(unused) & set(changes)):
        raise ModelError(
            f"{', '.join(odd)} is no setting of {type(config).__name__}; see its documentation for those it has"
        )
    architecture = (config.architectures or [""])[0]
    auto: Any = getattr(transformers, architecture) if architecture in TOWERS else AutoModelForImageClassification
    builder = auto._from_config if architecture in TOWERS else partial(auto.from_config, trust_remote_code=False)
    report = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # so that mismatches can be reported
    if checkpoint is not None:
        with torch.device("meta"):
            kind = type(builder(config))
        # `from_pretrained` also converts weight names of older versions of transformers.
        return kind.from_pretrained(None, config=config, state_dict=read_checkpoint(checkpoint), **report)
    if pretrained:
        return auto.from_pretrained(name, config=config, trust_remote_code=False, use_safetensors=True, **report)
    return builder(config), {}
