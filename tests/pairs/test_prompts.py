"""Prompts as targets: the model's own text tower, scale and probabilities."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vitreous
from vitreous.core.errors import ModelError, ShapeError

PROMPTS = ["a zebra", "an elephant"]


def tokens_of(texts: list[str]) -> torch.Tensor:
    return torch.tensor([[1, 3 + len(text) % 15, 4 + len(text) % 7, 2] for text in texts])


def tokenizer(texts: list[str], **_: object) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens_of(texts)}


@pytest.fixture(scope="module")
def image():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_contrast_between_prompts_is_the_models_own_probability(image):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"vocab_size": 30, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2, **small}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={"image_size": 32, "patch_size": 16, **small}, projection_dim=8
    )
    model = transformers.CLIPModel(config).eval()
    target = vitreous.prompt_target(model, PROMPTS, tokenizer, template="a photo of {}", against=["a horse"])
    attribution = vitreous.explain(model, image, target, "decompx+plus", "contrast")
    sentences = [f"a photo of {prompt}" for prompt in (*PROMPTS, "a horse")]
    with torch.no_grad():
        logits = model(input_ids=tokens_of(sentences), pixel_values=image).logits_per_image

    assert attribution.names == ("a zebra", "an elephant") * 2
    expected = logits.softmax(-1)[:, :2].flatten()
    torch.testing.assert_close(attribution.score, expected, rtol=1e-4, atol=1e-5)


def test_prompts_in_one_call_by_the_tokenizer_that_was_saved_with_the_model(image, tmp_path):
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"vocab_size": 30, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2, **small}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={"image_size": 32, "patch_size": 16, **small}, projection_dim=8
    )
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    words = Tokenizer(WordLevel({"[PAD]": 0, "a": 3, "an": 4, "zebra": 5, "elephant": 6}, unk_token="[PAD]"))
    words.pre_tokenizer = Whitespace()
    saved = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[PAD]", pad_token="[PAD]")
    saved.save_pretrained(tmp_path)
    model = transformers.CLIPModel.from_pretrained(tmp_path).eval()

    attribution = vitreous.explain(model, image, target=PROMPTS, method="decompx+plus", question="contrast")
    expected = vitreous.explain(model, image, vitreous.prompt_target(model, PROMPTS, saved), "decompx+plus", "contrast")

    assert attribution.names == ("a zebra", "an elephant") * 2
    torch.testing.assert_close(attribution.patches, expected.patches)
    with pytest.raises(ModelError, match="tokenizer of 'CLIPModel' is not at hand"):
        vitreous.explain(transformers.CLIPModel(config).eval(), image, target=PROMPTS)


class PaddingTokenizer:
    """Hugging Face's calling convention; a token per letter, 0 is padding."""

    all_special_ids = (0,)

    def __call__(self, texts, padding=False, max_length=None, return_tensors=None):
        lists = [[3 + ord(letter) % 20 for letter in text] for text in ([texts] if isinstance(texts, str) else texts)]
        size = max_length if padding == "max_length" else max(map(len, lists)) if padding else 0
        ids = [tokens + [0] * (size - len(tokens)) for tokens in lists]
        masks = [[1] * len(tokens) + [0] * (size - len(tokens)) for tokens in lists]
        encoded = {"input_ids": ids, "attention_mask": masks}
        if isinstance(texts, str):
            return {key: rows[0] for key, rows in encoded.items()}
        return {key: torch.tensor(rows) for key, rows in encoded.items()}


def test_prompts_of_siglip_are_padded_as_it_was_trained():
    """SigLIP reads the last of a fixed number of tokens: without padding, a prompt would depend on the other prompts."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.SiglipConfig(
        text_config={"vocab_size": 30, "max_position_embeddings": 8, **small},
        vision_config={"image_size": 32, "patch_size": 16, **small},
    )
    model = transformers.SiglipModel(config).double().eval()
    texts = PaddingTokenizer()
    alone = vitreous.prompt_target(model, "dog", texts).texts[0, 0]
    beside = vitreous.prompt_target(model, ["dog", "zebras"], texts).texts[0, 0]
    tower = vitreous.TextTower.of_model(model, texts).prepare("dog")
    encoded = texts(["dog"], padding="max_length", max_length=8)
    with torch.no_grad():
        expected = vitreous.scores.output_field(model.get_text_features(**encoded), ("text_embeds", "pooler_output"))[0]

    torch.testing.assert_close(alone, beside)
    torch.testing.assert_close(nn.functional.cosine_similarity(alone, expected, dim=0).item(), 1.0)
    torch.testing.assert_close(tower.vectors[0], expected)
    assert tower.special == (False,) * 3 + (True,) * 5
    with pytest.raises(ShapeError, match="cannot read a text of 9 tokens"):
        vitreous.prompt_target(model, "elephants", texts)


def test_words_of_whole_models_are_complete():
    """Hugging Face's CLIP and SigLIP, and open_clip, each as one model with random weights."""
    transformers = pytest.importorskip("transformers")
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = {"image_size": 32, "patch_size": 16, **small}
    text = {"vocab_size": 30, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2, **small}
    clip = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    siglip = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision))
    opened = open_clip.CLIP(
        embed_dim=8,
        vision_cfg={"image_size": 32, "layers": 3, "width": 16, "head_width": 8, "patch_size": 16},
        text_cfg={"context_length": 4, "vocab_size": 30, "width": 16, "heads": 2, "layers": 2},
    )
    ids = tokens_of(["zebra"])
    for model, encode in (
        (clip, lambda: clip.get_text_features(ids)),
        (siglip, lambda: siglip.get_text_features(ids)),
        (opened, lambda: opened.encode_text(ids)),
    ):
        model.double().eval()
        tower = vitreous.TextTower.of_model(model)
        with torch.no_grad():
            expected = vitreous.scores.output_field(encode(), ("text_embeds", "pooler_output"))
        prepared = tower.prepare(ids[0])
        torch.testing.assert_close(prepared.vectors, expected)
        assert len(prepared.model.blocks) == 2
        pair = vitreous.explain_pair(tower, ids[0], tower, ids[0], similarity="dot")
        assert pair.matrix.shape == (4, 4)
        assert pair.full.sum().item() == pytest.approx(pair.similarity, rel=1e-9)


def test_a_model_of_open_clip_and_its_image_tower(image):
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    model = open_clip.CLIP(
        embed_dim=8,
        vision_cfg={"image_size": 32, "layers": 2, "width": 16, "head_width": 8, "patch_size": 16},
        text_cfg={"context_length": 4, "vocab_size": 30, "width": 16, "heads": 2, "layers": 2},
    ).eval()
    target = vitreous.prompt_target(model, PROMPTS, tokens_of)
    attribution = vitreous.explain(model.visual, image, target, "decompx+plus", "contrast")
    with torch.no_grad():
        features = [
            nn.functional.normalize(part, dim=-1)
            for part in (model.encode_image(image), model.encode_text(tokens_of(PROMPTS)))
        ]
        expected = (model.logit_scale.exp() * features[0] @ features[1].mT).softmax(-1).flatten()

    assert attribution.patches.shape == (4, 4)
    torch.testing.assert_close(attribution.score, expected, rtol=1e-4, atol=1e-5)


def test_models_without_texts_and_prompts_that_are_no_texts_are_refused():
    with pytest.raises(ModelError, match="no text tower"):
        vitreous.prompt_target(nn.Linear(2, 2), "a zebra", tokenizer)
    with pytest.raises(ShapeError, match="one or several texts"):
        vitreous.prompt_target(nn.Linear(2, 2), [], tokenizer)
