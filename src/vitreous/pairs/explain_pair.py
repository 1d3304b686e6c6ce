"""`explain_pair`: why two inputs are similar."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.arguments import check_batch_size
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.methods.method import Method
from vitreous.methods.spec import resolve
from vitreous.pairs.contributions import (
    NAMED,
    Coalitions,
    Contributions,
    Linearised,
    Occlusion,
    PairMethod,
    at_layer,
    named_method,
    subset_contributions,
)
from vitreous.pairs.pair_attribution import PairAttribution, TowerSide
from vitreous.pairs.reference import reference_directions
from vitreous.pairs.text_tower import TextTower
from vitreous.pairs.towers import Embed, Tower, image_tower

Similarity = Literal["cosine", "dot", "maxsim"]


def explain_pair(
    model_a: Any,
    a: Any,
    model_b: Any,
    b: Any,
    method: str | Method = "decompx",
    *,
    similarity: Similarity = "cosine",
    start: int | None = None,
    reference: Any = None,
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
    chosen = pair_method(method, start, options)
    late = similarity == "maxsim"
    with torch.inference_mode(False):
        towers = [
            make_tower(model, entry, embed, late)
            for model, entry, embed in ((model_a, a, embed_a), (model_b, b, embed_b))
        ]
        sizes = [tower.vectors.shape[1] for tower in towers]
        if sizes[0] != sizes[1]:
            raise ModelError(
                f"the embeddings of {towers[0].model.name!r} and {towers[1].model.name!r} have {sizes[0]} and {sizes[1]} "
                "numbers; towers of one space would work"
            )
        if reference is not None:
            directions = reference_directions(reference, sizes[0], components)
            towers = [tower.project(directions) for tower in towers]
        rows = matched_rows(towers) if late else (None, None)
        vectors = [
            contributions(chosen, tower, part, similarity, batch_size) for tower, part in zip(towers, rows, strict=True)
        ]
    vectors = in_common_type(vectors)
    embeddings = [part.embedding for part in vectors]
    scale = 1 / product_of_lengths(embeddings) if similarity == "cosine" else 1.0
    total = scale * float(embeddings[0] @ embeddings[1])
    name = chosen.method.spec if isinstance(chosen, Linearised) else str(method)
    settings = {} if isinstance(chosen, Linearised) else asdict(chosen)
    about = {"model_a": towers[0].model.name, "model_b": towers[1].model.name, "similarity": similarity}
    if reference is not None:
        about |= {"reference": len(reference), "components": towers[0].vectors.shape[1]}
    return PairAttribution(
        *(make_side(tower, part) for tower, part in zip(towers, vectors, strict=True)),
        similarity=total,
        scale=scale,
        method=name,
        provenance={**about, "method": name, "options": settings},
    )


def pair_method(method: str | Method, start: int | None, options: dict[str, Any]) -> PairMethod:
    """The method of a pair by its name and options."""
    if isinstance(method, str) and method in NAMED:
        return named_method(method, options if start is None else {**options, "start": start})
    return Linearised(at_layer(resolve(method, **options), start))


def make_tower(model: Any, entry: Any, embed: Embed | None, late: bool) -> Tower:
    if isinstance(model, TextTower):
        return model.prepare(entry, late=late)
    return image_tower(model, entry, embed, late)


def contributions(
    method: PairMethod, tower: Tower, rows: Tensor | None, similarity: Similarity, batch_size: int
) -> Contributions:
    if isinstance(method, Coalitions | Occlusion):
        if rows is not None:
            raise SpecError("subsets of patches are not defined for 'maxsim'; a gradient method would work")
        return subset_contributions(method, tower, similarity == "cosine", batch_size)
    return method.vectors(tower, rows, batch_size)


def matched_rows(towers: list[Tower]) -> tuple[Tensor, Tensor]:
    """For late interaction: all output tokens of b, and for each the most similar output token of a."""
    products = towers[1].vectors @ towers[0].vectors.mT.to(towers[1].vectors)
    return products.argmax(1), torch.arange(len(products))


def in_common_type(vectors: list[Contributions]) -> list[Contributions]:
    """Both sides in the wider of their types, on the device of the first."""
    types = [part.tokens.dtype for part in vectors]
    like = torch.empty(0, dtype=torch.promote_types(*types), device=vectors[0].tokens.device)
    return [part.to(like) for part in vectors]


def product_of_lengths(embeddings: list[Tensor]) -> float:
    product = float(embeddings[0].norm() * embeddings[1].norm())
    if not product > 0:
        raise ShapeError("the cosine with an embedding of length 0 is undefined; similarity='dot' would work")
    return product


def make_side(tower: Tower, vectors: Contributions) -> TowerSide:
    return TowerSide(
        tower.layout,
        vectors,
        words=tower.words,
        special=tower.special,
        entry=None if tower.words is not None else tower.entry,
        image=tower.image,
        preprocess=tower.model.preprocess,
        name=tower.model.name,
    )
