"""`explain_pair`: why two inputs are similar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from vitreous.arguments import check_batch_size
from vitreous.capture.argument_types import ArrayInput, ImageInput, ModelInput
from vitreous.capture.precision import without_autocast
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.methods.method import Method
from vitreous.pairs.contributions import pair_method
from vitreous.pairs.pair_attribution import PairAttribution, TowerSide
from vitreous.pairs.text_tower import TextTower
from vitreous.pairs.towers import Embed, Tower, image_tower

Similarity = Literal["cosine", "dot", "maxsim"]
PairInput: TypeAlias = ImageInput | Sequence[int]  # an image; or a text or its token indices, for a `TextTower`


@without_autocast()
def explain_pair(
    model_a: ModelInput | TextTower,
    a: PairInput,
    model_b: ModelInput | TextTower,
    b: PairInput,
    method: str | Method = "decompx",
    *,
    similarity: Similarity = "cosine",
    start: int | None = None,
    reference: ArrayInput | None = None,
    components: int | None = None,
    embed_a: Embed | None = None,
    embed_b: Embed | None = None,
    batch_size: int = 32,
    **options: Any,
) -> PairAttribution:
    """Explain the similarity of two inputs: the share of every pair of patches, or of every patch and word.

    Every token gets a contribution vector in the space of the embedding; the share of a pair is the product of its two
    vectors. Under a complete linearisation the shares of all pairs, those of prefix tokens and biases included, add up to the
    similarity.

    Parameters
    ----------
    model_a, model_b
        For an image: a module, `ViT`, `Network` or name whose output is the embedding (timm: `num_classes=0`). For a text:
        a `TextTower`.
    a, b
        An image, as for `explain`; or a text or token indices.
    method
        An attribution method with signed maps ("decompx", "ixg@libra", "attnlrp": BiLRP under that linearisation);
        "exclip" (gradients averaged on the way from an empty image; options `steps`, `start`); "fixlip" (random subsets of
        patches; options `samples`, `p`, `seed`); or "occlusion" (one patch removed at a time).
    similarity
        "cosine"; "dot"; or "maxsim", late interaction as in ColPali: both models return one embedding per token, and every
        token of b is compared with the token of a that is most similar to it.
    start
        For an attribution method: the block at whose input tokens are read; by default the method's own fold. A sum over
        layers ("decompx+skipplus(start=4)") is divided by their number: the mean of explanations that are complete each.
    reference
        Embeddings [m, D] of other inputs (a gallery). What they have in common is left out of the comparison: both
        embeddings are projected on the directions orthogonal to the mean of the reference, and their cosine or dot product
        is what is explained.
    components
        With `reference`: only this many directions, those in which the reference embeddings vary most. The similarity is
        that along them, and costs one pass for each instead of one for each number of the embedding.
    embed_a, embed_b
        Function of whatever the module returns to the embedding [inputs, D] ([inputs, tokens, D] for "maxsim").
    batch_size
        Number of passes that run at once.
    **options
        Options of the method.

    Returns
    -------
    PairAttribution
        Interaction matrix, the map of each side, and drawing.

    Raises
    ------
    VitreousError
        If models, inputs and method do not fit together.

    Notes
    -----
    A gradient method takes one backward pass per coordinate of the embedding on each side, in batches; the matrix between
    all inputs of the two towers is never formed.

    Examples
    --------
    >>> import timm
    >>> import torch
    >>> import vitreous
    >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0, depth=2).eval()
    >>> image, other = torch.randn(2, 1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> pair = vitreous.explain_pair(vit, image, vit, other)
    >>> abs(pair.full.sum().item() - pair.similarity) < 1e-5
    True
    """
    if similarity not in ("cosine", "dot", "maxsim"):
        raise SpecError(f"similarity={similarity!r}; 'cosine', 'dot' or 'maxsim' would work")
    if components is not None and reference is None:
        raise SpecError(f"components={components} are directions of a reference; reference=embeddings gives it")
    check_batch_size(batch_size)
    chosen, late = pair_method(method, start, options), similarity == "maxsim"
    if late and chosen.removes_patches:
        raise SpecError("subsets of patches are not defined for 'maxsim'; a gradient method would work")
    with torch.inference_mode(False):
        towers = [tower_of(model_a, a, embed_a, late), tower_of(model_b, b, embed_b, late)]
        names, sizes = [tower.model.name for tower in towers], [tower.vectors.shape[-1] for tower in towers]
        if sizes[0] != sizes[1]:
            raise ModelError(
                f"the embeddings of {names[0]!r} and {names[1]!r} have {sizes[0]} and {sizes[1]} numbers; towers of one space "
                "would work"
            )
        about: dict[str, Any] = {"model_a": names[0], "model_b": names[1], "similarity": similarity}
        if reference is not None:
            directions = reference_directions(reference, sizes[0], components)
            about |= {"reference": len(reference), "components": len(directions)}
            towers = [tower.project(directions) for tower in towers]
        towers = match_tokens(*towers) if late else towers
        vectors = [chosen.vectors(tower, similarity == "cosine", batch_size) for tower in towers]
    widest = torch.promote_types(*(part.tokens.dtype for part in vectors))
    vectors = [part.to(vectors[0].tokens.device, widest) for part in vectors]
    embeddings = [part.embedding for part in vectors]
    scale = 1.0
    if similarity == "cosine":
        lengths = float(embeddings[0].norm() * embeddings[1].norm())
        if not lengths > 0:
            raise ShapeError("the cosine with an embedding of length 0 is undefined; similarity='dot' would work")
        scale = 1 / lengths
    sides = [
        TowerSide(
            tower.layout,
            part,
            words=tower.words,
            special=tower.special,
            entry=None if tower.words is not None else tower.entry,
            image=tower.image,
            preprocess=tower.model.preprocess,
            name=tower.model.name,
        )
        for tower, part in zip(towers, vectors, strict=True)
    ]
    return PairAttribution(
        *sides,
        similarity=scale * float(embeddings[0] @ embeddings[1]),
        scale=scale,
        method=chosen.name,
        provenance={**about, "method": chosen.name, "options": chosen.options},
    )


def tower_of(model: ModelInput | TextTower, entry: Any, embed: Embed | None, late: bool) -> Tower:
    """The tower of a text, for a `TextTower`, or of an image."""
    if isinstance(model, TextTower):
        return model.prepare(entry, late=late)
    return image_tower(model, entry, embed, late)


def match_tokens(a: Tower, b: Tower) -> list[Tower]:
    """Towers for late interaction: all output tokens of b, and for each the most similar output token of a, as one embedding."""
    partners = (b.vectors[0] @ a.vectors[0].mT.to(b.vectors)).argmax(1)
    return [
        a.transform(lambda vectors: vectors[:, partners].flatten(1)),
        b.transform(lambda vectors: vectors.flatten(1)),
    ]


@torch.no_grad()
def reference_directions(reference: ArrayInput, size: int, components: int | None) -> Float[Tensor, "k D"]:
    """Orthonormal directions of an embedding space without what reference embeddings have in common.

    Parameters
    ----------
    reference
        Embeddings [m, D]; only their directions count.
    size
        Number D of the embedding.
    components
        Number of directions, those in which the reference varies most; None for all that are orthogonal to its mean.

    Raises
    ------
    ShapeError
        If the reference is not [m, D], or not finite.
    SpecError
        If the reference does not vary in so many directions.
    """
    embeddings = torch.as_tensor(reference).double()
    if embeddings.ndim != 2 or not len(embeddings) or embeddings.shape[1] != size:
        raise ShapeError(f"reference embeddings are [inputs, {size}], not {list(embeddings.shape)}")
    if not embeddings.isfinite().all():
        raise ShapeError("reference embeddings hold NaN or infinite values; finite ones would work")
    unit = normalize(embeddings, dim=-1)
    common = normalize(unit.mean(0), dim=0)
    if components is None:
        return torch.linalg.svd(common[None])[2][1:]
    remainders = unit - unit.mean(0)
    _, lengths, directions = torch.linalg.svd(remainders - (remainders @ common)[:, None] * common, full_matrices=False)
    rank = int((lengths > 1e-6 * lengths.max()).sum())
    if not 1 <= components <= rank:
        raise SpecError(
            f"components={components}; {len(embeddings)} reference embeddings vary in {rank} directions, and 1 to {rank} would work"
        )
    return directions[:components]
