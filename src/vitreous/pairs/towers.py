"""Towers: models that turn an image or a text into an embedding, with the tokens that the embedding is explained by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.capture.forward import adapter_logits
from vitreous.capture.see_through import check_completeness
from vitreous.core.errors import ModelError, ShapeError
from vitreous.front import as_images
from vitreous.models.eval_mode import evaluating
from vitreous.models.model import BlackBox, Inputs, Layout, Network, NetworkBlock, Outputs, TokenGrid, forward_of
from vitreous.models.tensor_types import Images, Logits, Pooled
from vitreous.models.text_towers import load_text_tower
from vitreous.models.vit import ViT
from vitreous.scores import EMBEDDINGS
from vitreous.scores import field as field_of
from vitreous.wrapping import as_model

Embed = Callable[[Any], Tensor]
TEXT_EMBEDDINGS = ("text_embeds", *EMBEDDINGS[1:])


@dataclass(frozen=True, slots=True, eq=False)
class Tower:
    """One side of a pair: a model on one input, whose outputs are the coordinates of an embedding.

    Attributes
    ----------
    model
        The model; its outputs are the coordinates. A text is a network over a grid of one row, a column per token.
    entry
        The input [1 c H W]; for a text, the token indices as floats [1 1 1 n].
    vectors
        The embedding [1 D], or one per output token [m D] for late interaction.
    words
        The tokens of a text; None for an image.
    special
        Whether each token of a text is a special token (start, end, padding).
    image
        The original image, for drawing.
    """

    model: BlackBox
    entry: Images
    vectors: Float[Tensor, "m D"]
    words: tuple[str, ...] | None = None
    special: tuple[bool, ...] = ()
    image: Any = None

    def coordinates(self, rows: Tensor | None = None) -> BlackBox:
        """The model with one output per coordinate of the embedding; of late interaction, of these output tokens."""
        count = self.vectors.shape[1] * (1 if rows is None else len(rows))
        if isinstance(self.model, ViT):
            return replace(self.model, output_type=Outputs("classes", count), classes=None, embedding="")
        read_vectors = self.model.read

        def read(output: Any) -> Tensor:
            vectors = read_vectors(output)
            return vectors if rows is None else vectors[:, rows].flatten(1)

        return replace(
            self.model,
            read=read,
            forward=forward_of(self.model.module, read, self.model.inputs),
            output_type=Outputs("classes", count),
            classes=None,
            embedding="",
        )

    @property
    def layout(self) -> Layout:
        return self.model.layout((self.entry.shape[-2], self.entry.shape[-1]))


def pooled_vector(names: Sequence[str], embed: Embed | None) -> Embed:
    """Read the embedding [b D] of what a model returns; of a sequence [b n D], the first token."""

    def read(output: Any) -> Tensor:
        vector = field_of(output, names) if embed is None else embed(output)
        vector = vector[:, 0] if embed is None and vector.ndim == 3 else vector
        if vector.ndim != 2:
            raise ShapeError(f"an embedding is [inputs, D], not {list(vector.shape)}; embed=… may say where it is")
        return vector

    return read


def token_vectors(names: Sequence[str], embed: Embed | None) -> Embed:
    """Read the embeddings [b m D] of the output tokens of what a model returns, for late interaction."""

    def read(output: Any) -> Tensor:
        vectors = field_of(output, names) if embed is None else embed(output)
        if vectors.ndim != 3:
            raise ShapeError(
                f"late interaction needs one embedding per output token [inputs, tokens, D], not {list(vectors.shape)}; "
                "similarity='cosine' takes one embedding per input"
            )
        return vectors

    return read


def without_classifier(vit: ViT) -> ViT:
    """The model whose output is the vector that its classifier reads; one that returns an embedding is left as it is."""
    if vit.embedding:
        return vit

    def classify(pooled: Pooled) -> Logits:
        return pooled.flatten(1)

    def forward(images: Images) -> Logits:
        return adapter_logits(headless, images)

    headless = replace(
        vit, classify=classify, forward=forward, affine=True, length=None, classes=None, embedding="no classifier"
    )
    with torch.no_grad():
        width = headless.forward(torch.zeros(1, 3, *vit.size, device=vit.device, dtype=vit.dtype)).shape[1]
    return replace(headless, output_type=Outputs("classes", width))


def image_tower(model: Any, image: Any, embed: Embed | None, late: bool) -> Tower:
    """The tower of an image.

    Parameters
    ----------
    model
        A `ViT`, a `Network`, a module or a name, whose output is the embedding.
    image
        One image, as for `vitreous.explain`.
    embed
        Function of whatever the module returns; None for the usual fields.
    late
        Whether the module returns one embedding per output token.
    """
    seen = as_model(model)
    if isinstance(seen, ViT) and (embed is not None or late):
        from vitreous.capture.see_through import see_through

        seen = see_through(seen.module, seen.name, size=seen.size, preprocess=seen.preprocess)
    if not isinstance(seen, Network):
        raise ModelError(
            f"{seen.name!r} is a black box, and a pair needs the model's blocks; a Network or a ViT would work"
        )
    originals, tensor = as_images(seen, image)
    if len(tensor) != 1:
        raise ShapeError(f"a pair has one image on each side, not {len(tensor)}")
    tensor = tensor.to(seen.device, seen.dtype)
    if not isinstance(seen, ViT):
        read = token_vectors(EMBEDDINGS[-1:], embed) if late else pooled_vector(EMBEDDINGS, embed)
        seen = replace(seen, read=read, forward=forward_of(seen.module, read, seen.inputs))
    with torch.no_grad():
        vectors = seen.forward(tensor)
    return Tower(seen, tensor, vectors[0] if late else vectors, image=None if originals is None else originals[0])


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
    """

    module: nn.Module
    tokenizer: Any = None
    blocks: Sequence[str] | None = None
    embed: Embed | None = None
    name: str = ""
    argument: str = "input_ids"
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_model(cls, model: nn.Module, tokenizer: Any = None) -> TextTower:
        """The text side of a model of images and texts.

        Parameters
        ----------
        model
            Hugging Face's `CLIPModel` or `SiglipModel`, or a model of open_clip.
        tokenizer
            The model's tokenizer.

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

        Raises
        ------
        ModelError
            If it cannot be loaded, or is not of these families.
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

        Raises
        ------
        ModelError
            If a text is given without tokenizer, no blocks are found, or the module loses a share of a score.
        """
        ids = self.token_indices(text)
        name = self.name or type(self.module).__name__
        blocks = self.blocks if self.blocks is not None else longest_list(self.module, name)
        read = token_vectors(TEXT_EMBEDDINGS[-1:], self.embed) if late else pooled_vector(TEXT_EMBEDDINGS, self.embed)
        tokens = TokenGrid("sequence", (1, len(ids)))
        inputs = TextInputs(self.argument, self.others)
        network = Network(
            name=name,
            module=self.module,
            forward=forward_of(self.module, read, inputs),
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

        with torch.no_grad():
            output = call(entry)
        copy, missing = check_completeness(network, entry, call, output)
        network = replace(network, copy=copy, missing=missing)
        with torch.no_grad():
            vectors = network.forward(entry)
        special_ids = frozenset(getattr(self.tokenizer, "all_special_ids", ()) or ())
        return Tower(
            network,
            entry,
            vectors[0] if late else vectors,
            words=self.token_names(ids),
            special=tuple(int(index) in special_ids for index in ids),
        )

    def token_indices(self, text: str | Tensor | Sequence[int]) -> Tensor:
        if isinstance(text, str):
            if self.tokenizer is None:
                raise ModelError(
                    "a text needs a tokenizer; TextTower(module, tokenizer=…), or token indices, would work"
                )
            encoded = self.tokenizer(text)
            text = encoded["input_ids"] if isinstance(encoded, Mapping) or hasattr(encoded, "keys") else encoded
        ids = torch.as_tensor(text).squeeze(0) if torch.as_tensor(text).ndim == 2 else torch.as_tensor(text)
        if ids.ndim != 1 or ids.is_floating_point() or not len(ids):
            raise ShapeError(
                f"token indices are whole numbers [tokens] of one text, not {list(ids.shape)} of {ids.dtype}"
            )
        return ids

    def token_names(self, ids: Tensor) -> tuple[str, ...]:
        if hasattr(self.tokenizer, "convert_ids_to_tokens"):
            return tuple(str(token).replace("</w>", "") for token in self.tokenizer.convert_ids_to_tokens(ids.tolist()))
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

    def forward(self, input_ids: Tensor) -> Any:
        encode: Any = getattr(self.model, "get_text_features", None) or self.model.encode_text
        return encode(input_ids)


class TextInputs(Inputs):
    """Arguments of a text encoder, from token indices as floats [b 1 1 n]."""

    def of(self, images: Images) -> dict[str, Any]:
        return {**super().of(images), self.image: images.flatten(1).round().long()}


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
