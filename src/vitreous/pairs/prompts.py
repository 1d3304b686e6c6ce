"""Zero-shot classes from prompts, encoded by the model's own text tower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitreous.capture.targets import TextTarget, text_target
from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.eval_mode import evaluating
from vitreous.models.huggingface_texts import padding_options
from vitreous.pairs.text_tower import TextFeatures, Tokenizer, refuse_long_texts
from vitreous.scores import output_field


def prompt_target(
    model: nn.Module,
    prompts: str | Sequence[str],
    tokenizer: Tokenizer,
    *,
    template: str = "{}",
    against: Sequence[str] = (),
) -> TextTarget:
    """Prompts as targets of `explain`, with the texts' embeddings and the scale of the model itself.

    Parameters
    ----------
    model
        A model of images and texts: Hugging Face's `CLIPModel` or `SiglipModel`, or one of open_clip.
    prompts
        One or several texts; every image gets a map for each. `question="contrast"` compares them.
    tokenizer
        The model's tokenizer: that of Hugging Face, or open_clip's, which returns token indices.
    template
        Sentence in which "{}" stands for the prompt, such as "a photo of {}".
    against
        Further prompts that are only compared with.

    Returns
    -------
    TextTarget

    Raises
    ------
    ModelError
        If the model has no text tower.
    ShapeError
        If there are no prompts, or one is longer than the model can read.

    Examples
    --------
    >>> import torch
    >>> import transformers
    >>> import vitreous
    >>> small = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    >>> config = transformers.CLIPConfig(
    ...     text_config=dict(vocab_size=20, max_position_embeddings=8, bos_token_id=1, eos_token_id=2, **small),
    ...     vision_config=dict(image_size=32, patch_size=16, **small), projection_dim=8,
    ... )
    >>> model = transformers.CLIPModel(config).eval()
    >>> words = lambda texts, **_: {"input_ids": torch.tensor([[1, 3 + len(text), 2] for text in texts])}
    >>> target = vitreous.prompt_target(model, ["a zebra", "an elephant"], words)
    >>> vitreous.explain(model, torch.zeros(1, 3, 32, 32), target, "decompx+plus", "contrast").names
    ('a zebra', 'an elephant')
    """
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    if not texts or not all(isinstance(prompt, str) for prompt in (*texts, *against)):
        raise ShapeError(f"prompts are one or several texts, not {prompts!r}")
    sentences = [template.replace("{}", prompt) for prompt in (*texts, *against)]
    with torch.no_grad(), evaluating(model):
        embeddings = encode_texts(model, sentences, tokenizer)
        scale = getattr(model, "logit_scale", None)
        factor = float(scale.exp()) if isinstance(scale, Tensor) else 1.0
    others = embeddings[len(texts) :] if against else None
    target = text_target(embeddings[None, : len(texts)], factor, names=texts, against=others)
    return replace(target, images=None)  # the same prompts for every image


def encode_texts(model: nn.Module, sentences: list[str], tokenizer: Tokenizer) -> Tensor:
    """Embeddings [texts, d] of the model's text tower."""
    if hasattr(model, "get_text_features"):
        tokens = dict(tokenizer(sentences, **{"padding": True, "return_tensors": "pt"} | padding_options(model)))
    elif hasattr(model, "encode_text"):
        tokens = {"input_ids": tokenizer(sentences)}
    else:
        raise ModelError(
            f"{type(model).__name__!r} has no text tower (get_text_features or encode_text); text_target(embedding) takes a text's "
            "embedding from elsewhere"
        )
    device = next(model.parameters()).device
    arguments = {key: value.to(device) for key, value in tokens.items()}
    with refuse_long_texts(type(model).__name__, arguments["input_ids"].shape[1]):
        return output_field(TextFeatures(model)(**arguments), ("text_embeds", "pooler_output"))
