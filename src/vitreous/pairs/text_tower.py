"""Text encoders as towers, for the text side of a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor, nn

from vitreous.capture.completeness import check_completeness
from vitreous.core.errors import ModelError, ShapeError, describe_error
from vitreous.models.eval_mode import evaluating
from vitreous.models.huggingface_texts import load_text_tower, padding_options
from vitreous.models.layout import NetworkBlock, TokenGrid
from vitreous.models.model import Inputs, Layout, ModuleForward, Network
from vitreous.models.tensor_types import Images
from vitreous.pairs.towers import Embed, Tower, embedding_reader
from vitreous.scores import EMBEDDINGS

Tokenizer: TypeAlias = Callable[..., Any]  # of texts, to token indices: that of Hugging Face or of open_clip
TEXT_EMBEDDINGS = ("text_embeds", *EMBEDDINGS[1:])


@dataclass(frozen=True, slots=True, eq=False)
class TextTower:
    """A text encoder, for the text side of `explain_pair`.

    Parameters
    ----------
    module
        A module that maps `input_ids` [b n] to an embedding, such as Hugging Face's `CLIPTextModelWithProjection`.
    tokenizer
        Callable that turns a text into token indices (a Hugging Face tokenizer); None if indices are given.
    blocks
        Names of the module's blocks; by default the longest list of modules in it.
    embed
        Function of whatever the module returns to [b D]; by default the usual fields (text_embeds, pooler_output).
    name
        Name in messages; by default the class of the module.
    argument
        Name of the module's argument that takes the token indices.
    others
        Further arguments of the module; tensors hold one entry [1 ...].

    Examples
    --------
    >>> import torch
    >>> import transformers
    >>> import vitreous
    >>> config = transformers.CLIPTextConfig(
    ...     vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    ...     projection_dim=8, max_position_embeddings=8, eos_token_id=2, bos_token_id=1,
    ... )
    >>> tower = vitreous.TextTower(transformers.CLIPTextModelWithProjection(config))
    >>> tower.prepare(torch.tensor([1, 7, 9, 2])).words
    ('1', '7', '9', '2')
    >>> tower.tokenize([1, 7, 9, 2])[0], tower.token_names(torch.tensor([7]))
    (tensor([1, 7, 9, 2]), ('7',))
    >>> vision = {"image_size": 16, "patch_size": 8, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = transformers.CLIPModel(transformers.CLIPConfig(text_config=config.to_dict(), vision_config=vision))
    >>> vitreous.TextTower.of_model(model).name
    'CLIPModel (text)'
    """

    module: nn.Module
    tokenizer: Tokenizer | None = None
    blocks: Sequence[str] | None = None
    embed: Embed | None = None
    name: str = ""
    argument: str = "input_ids"
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_model(cls, model: nn.Module, tokenizer: Tokenizer | None = None) -> TextTower:
        """The text side of a model of images and texts.

        Parameters
        ----------
        model
            Hugging Face's `CLIPModel` or `SiglipModel`, or a model of open_clip.
        tokenizer
            The model's tokenizer.

        Returns
        -------
        TextTower
            The text side.

        Raises
        ------
        ModelError
            If the model has no text tower.
        """
        features = TextFeatures(model)
        texts = [part for part in ("text_model", "text", "transformer") if hasattr(model, part)]
        if not texts:
            raise ModelError(f"no text tower was found in {type(model).__name__!r}; TextTower(module, …) takes one")
        name = f"{type(model).__name__} (text)"
        blocks = [f"model.{texts[0]}.{path}" for path in longest_list(model.get_submodule(texts[0]), name)]
        return cls(features, tokenizer, blocks, name=name)

    @classmethod
    def from_pretrained(cls, name: str | Path) -> TextTower:
        """The text tower and the tokenizer of a CLIP or SigLIP model of Hugging Face.

        Parameters
        ----------
        name
            A name on the hub, or a folder that `save_pretrained` wrote.

        Returns
        -------
        TextTower
            The text side.

        Raises
        ------
        ModelError
            If it cannot be loaded, or is not of these families.

        Examples
        --------
        >>> import vitreous
        >>> vitreous.TextTower.from_pretrained("openai/clip-vit-base-patch32")  # doctest: +SKIP
        """
        module, tokenizer = load_text_tower(name)
        return cls(module, tokenizer, name=str(name))

    def prepare(self, text: str | Tensor | Sequence[int], *, late: bool = False) -> Tower:
        """The tower of one text.

        Parameters
        ----------
        text
            A text, or its token indices.
        late
            Whether the embeddings of all output tokens are used (late interaction).

        Returns
        -------
        Tower
            Its words, their vectors, and how to run the rest of the encoder.

        Raises
        ------
        ModelError
            If a text is given without tokenizer, no blocks are found, or the module loses a share of a score.
        """
        ids, masks = self.tokenize(text)
        name = self.name or type(self.module).__name__
        blocks = self.blocks if self.blocks is not None else longest_list(self.module, name)
        read = embedding_reader(TEXT_EMBEDDINGS, self.embed, late)
        tokens = TokenGrid("sequence", (1, len(ids)))
        inputs = TextInputs(self.argument, {**self.others, **masks})
        network = Network(
            name=name,
            module=self.module,
            forward=ModuleForward(self.module, read, inputs),
            layout=lambda size: Layout((1, size[1]), (1, 1), 0),
            size=(1, len(ids)),
            read=read,
            inputs=inputs,
            blocks=tuple(NetworkBlock(path, self.module.get_submodule(path), tokens) for path in blocks),
        )
        exact = torch.promote_types(network.dtype, torch.float32)  # half precision does not hold large indices
        entry = ids.to(network.device, exact)[None, None, None]

        def call(entries: Images) -> Any:
            with evaluating(self.module):
                return network.call(entries)

        with torch.no_grad(), refuse_long_texts(name, len(ids)):
            output = call(entry)
        findings = check_completeness(network, entry, call, output)
        with torch.no_grad():
            vectors = read(output)
        special_ids = frozenset(getattr(self.tokenizer, "all_special_ids", ()) or ())
        return Tower(
            replace(network, copy=findings.copy, missing=findings.missing),
            entry,
            vectors,
            words=self.token_names(ids),
            special=tuple(int(index) in special_ids for index in ids),
        )

    def tokenize(self, text: str | Tensor | Sequence[int]) -> tuple[Int[Tensor, " n"], dict[str, Tensor]]:
        """Token indices of a text and, where the tokenizer padded it and masks the padding, the mask.

        Parameters
        ----------
        text
            A text, or its token indices.

        Returns
        -------
        tuple
            Token indices [n], and further arguments of the module by name.
        """
        encoded: Any = {"input_ids": text}
        if isinstance(text, str):
            if self.tokenizer is None:
                raise ModelError(
                    "a text needs a tokenizer; TextTower(module, tokenizer=…), or token indices, would work"
                )
            encoded = self.tokenizer(text, **self.padding)
            encoded = dict(encoded) if hasattr(encoded, "keys") else {"input_ids": encoded}
        try:
            ids, mask = (torch.as_tensor(encoded.get(key, [])) for key in ("input_ids", "attention_mask"))
        except (TypeError, ValueError):
            raise ShapeError(f"a pair has one text on each side, or its token indices, not {text!r}") from None
        ids = ids.squeeze(0) if ids.ndim == 2 else ids
        if ids.ndim != 1 or ids.is_floating_point() or not len(ids):
            raise ShapeError(
                f"token indices are whole numbers [tokens] of one text, not {list(ids.shape)} of {ids.dtype}"
            )
        return ids, {} if bool(mask.all()) else {"attention_mask": mask.view(1, -1)}

    @property
    def padding(self) -> dict[str, Any]:
        """Arguments of the tokenizer that the module's texts need."""
        return padding_options(self.module.model if isinstance(self.module, TextFeatures) else self.module)

    def token_names(self, ids: Tensor) -> tuple[str, ...]:
        """Names of tokens: of the tokenizer, or their indices.

        Parameters
        ----------
        ids
            Token indices [n].

        Returns
        -------
        tuple of str
        """
        words_of = getattr(self.tokenizer, "convert_ids_to_tokens", None)
        if words_of is not None:
            return tuple(str(token).replace("</w>", "") for token in words_of(ids.tolist()))
        return tuple(str(int(index)) for index in ids)


class TextFeatures(nn.Module):
    """A model of images and texts as a function of token indices."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if not any(hasattr(model, name) for name in ("get_text_features", "encode_text")):
            raise ModelError(
                f"{type(model).__name__!r} has no text tower (get_text_features or encode_text); TextTower(module, …) takes one"
            )
        self.model = model

    def forward(self, input_ids: Tensor, **masks: Tensor) -> Any:
        encode: Any = getattr(self.model, "get_text_features", None) or self.model.encode_text
        return encode(input_ids, **masks)


class TextInputs(Inputs):
    """Arguments of a text encoder, from token indices as floats [b 1 1 n]."""

    def of(self, images: Images) -> dict[str, Any]:
        return {**super().of(images), self.image: images.flatten(1).round().long()}


@contextmanager
def refuse_long_texts(name: str, count: int) -> Iterator[None]:
    """Raise a `ShapeError` with the number of tokens if a text encoder fails on its input."""
    try:
        yield
    except (IndexError, RuntimeError, ValueError) as problem:
        raise ShapeError(
            f"{name!r} cannot read a text of {count} tokens ({describe_error(problem)}); a shorter text, or one of the model's "
            "own tokenizer, would work"
        ) from problem


def longest_list(module: nn.Module, name: str) -> list[str]:
    """Paths of the modules in the longest `nn.ModuleList` or `nn.Sequential` whose modules are all of one type."""
    lists = [
        [f"{path}.{child}" for child, _ in part.named_children()]
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential) and path and len(set(map(type, part))) == 1
    ]
    if not lists:
        raise ModelError(f"no blocks were found in {name!r}; TextTower(module, blocks=[…]) may name them")
    return max(lists, key=len)
