"""Text encoders and tokenizers of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from vitreous.core.errors import ModelError, describe_error
from vitreous.models.huggingface import import_transformers

TEXT_MODELS = {"clip": "CLIPTextModelWithProjection", "siglip": "SiglipTextModel", "siglip2": "Siglip2TextModel"}


def load_text_tower(name: str | Path) -> tuple[nn.Module, Any]:
    """Text encoder and tokenizer by a name on the hub or a folder; a `ModelError` if they cannot be loaded."""
    try:
        transformers = import_transformers()
        family = transformers.AutoConfig.from_pretrained(name).model_type.split("_")[0]
        if family not in TEXT_MODELS:
            raise ModelError(f"{str(name)!r} is a {family!r} model; text towers are known of: {', '.join(TEXT_MODELS)}")
        module = getattr(transformers, TEXT_MODELS[family]).from_pretrained(name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, ImportError) as problem:
        raise ModelError(f"the text tower of {str(name)!r} cannot be loaded ({describe_error(problem)})") from None
    return module.eval(), tokenizer


def padding_options(model: nn.Module) -> dict[str, Any]:
    """Arguments of the tokenizer that the model's texts need: SigLIP reads the last of a fixed number of tokens."""
    config: Any = getattr(model, "config", None)
    if not str(getattr(config, "model_type", "")).startswith("siglip"):
        return {}
    length = getattr(config, "text_config", config).max_position_embeddings
    return {"padding": "max_length", "max_length": length}


def saved_tokenizer(model: nn.Module) -> Any:
    """The tokenizer that was saved with a model, without downloading; a `ModelError` if there is none."""
    place = getattr(model, "name_or_path", "")
    try:
        if not place:
            raise OSError("the model was not loaded by from_pretrained")
        return import_transformers().AutoTokenizer.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError, ImportError) as problem:
        raise ModelError(
            f"the tokenizer of {type(model).__name__!r} is not at hand ({describe_error(problem)}); "
            "target=vitreous.prompt_target(model, prompts, tokenizer) takes one"
        ) from None
