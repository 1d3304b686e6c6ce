"""Contribution vectors: what every token adds to an embedding.

A pair of inputs with embeddings a and b has the similarity a · b. With a vector C[i] per token, Σ C[i] + rest = a, the
similarity is a sum over pairs of tokens, C_a[i] · C_b[j]. The functions here compute these vectors in different ways; each
costs one pass per coordinate of the embedding or per subset of tokens, and never holds more than a batch of passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from vitreous.capture.path_gradients import gradients_at
from vitreous.capture.probe import Probe, probe_of
from vitreous.capture.progress import Tally
from vitreous.capture.score_function import resolve_score_function
from vitreous.capture.targets import ClassTarget
from vitreous.core.errors import ModelError, SpecError
from vitreous.explanation import explain_batch
from vitreous.methods.folds import at
from vitreous.methods.method import Method
from vitreous.methods.options import Count, OptionFunction, Range, Seed, Steps, defaults, fit_options
from vitreous.methods.pass_counts import ModelSizes, evaluate_both, evaluate_passes
from vitreous.methods.spec import resolve
from vitreous.models.model import BlackBox, Network
from vitreous.models.random_draws import uniform_numbers
from vitreous.models.vit import ViT
from vitreous.pairs.towers import Tower


@dataclass(frozen=True, slots=True, eq=False)
class Contributions:
    """Contribution vectors of the tokens of one input.

    Attributes
    ----------
    tokens
        One vector per token; tokens that belong to no patch come first.
    rest
        Embedding minus the sum of the vectors: the shares of biases and, where a method is not complete, what it misses.
    prefix
        Number of tokens that belong to no patch or word.
    """

    tokens: Float[Tensor, "n D"]
    rest: Float[Tensor, " D"]
    prefix: int

    @property
    def embedding(self) -> Float[Tensor, " D"]:
        return self.tokens.sum(0) + self.rest

    def to(self, device: torch.device, dtype: torch.dtype) -> Contributions:
        return replace(self, tokens=self.tokens.to(device, dtype), rest=self.rest.to(device, dtype))


def linearised_vectors(tower: Tower, unit: bool, batch_size: int, method: Method) -> Contributions:
    """Token × gradient of every coordinate under a linearisation (BiLRP), or any other method with one map per output.

    Parameters
    ----------
    tower
        The input.
    unit
        Not used: the vectors are those of the embedding as it is.
    batch_size
        Number of passes that run at once.
    method
        A method with signed maps, such as "decompx", "ixg@libra" or "attnlrp+at(layer=6)".
    """
    model = tower.coordinates
    method = method.for_model(model)
    if not method.class_specific or not method.signed:
        raise SpecError(
            f"{method.spec!r} is not signed and class-specific, so its maps are no shares of an embedding; 'decompx', "
            "'attnlrp' or 'ixg' would work"
        )
    parts, prefix = [], 0
    score_function = resolve_score_function("logit")
    # several targets of one image share its forward pass; a GPU is busy only with several images at once
    shares_forward = model.device.type == "cpu"
    for coordinates in batches(model.outputs, batch_size):
        entries = tower.entry if shares_forward else tower.entry.expand(len(coordinates), -1, -1, -1)
        classes = coordinates[None] if shares_forward else coordinates[:, None]
        target = ClassTarget(classes).fit(model, len(entries))
        attribution = explain_batch(model, entries, target, method, score_function)
        if attribution.patches is None:
            raise SpecError(f"{method.spec!r} has no scores of tokens; 'decompx', 'attnlrp' or 'ixg' would work")
        scores = attribution.patches
        if attribution.prefix is not None:
            scores = torch.cat([attribution.prefix, scores], 1)
            prefix = attribution.prefix.shape[1]
        parts.append(scores)
    tokens = torch.cat(parts).mT / layers_added(method, model)
    return Contributions(tokens, tower.vectors[0] - tokens.sum(0), prefix)


def integrated_vectors(tower: Tower, unit: bool, batch_size: int, steps: Steps = 10, start: int = -1) -> Contributions:
    """Gradients averaged on the way from the tokens of a reference image to those of the image (exCLIP).

    Parameters
    ----------
    tower, unit, batch_size
        As for `linearised_vectors`.
    steps
        Number of points on the way: 1, 1 − 1/steps, …, 1/steps.
    start
        Block at whose input the tokens are taken; negative counts from the last block.
    """
    model = tower.coordinates
    if not isinstance(model, ViT):
        raise ModelError(f"'exclip' runs {model.name!r} from inner tokens on, which needs a ViT; 'decompx' would work")
    if not -model.depth <= start < model.depth:
        raise SpecError(f"'exclip' cannot take start={start}; layers 0 to {model.depth - 1} would work")
    layer, question = start % model.depth, resolve_score_function("logit")
    states, empty = (
        Probe(model, image, torch.zeros(1, 1, dtype=torch.long), question).states[layer]
        for image in (tower.entry, torch.zeros_like(tower.entry))
    )
    change = states - empty
    fractions = 1 - torch.arange(steps, device=change.device, dtype=change.dtype) / steps
    points = empty + fractions[:, None, None] * change
    parts = []
    for coordinates in batches(model.outputs, max(1, batch_size // steps)):
        entries = tower.entry.expand(len(coordinates), -1, -1, -1)
        probe = probe_of(model, entries, coordinates[:, None], question)
        gradients = gradients_at(probe, points.expand(len(coordinates), -1, -1, -1), layer)
        parts.append((gradients.mean(1) * change).sum(-1))
    tokens = torch.cat(parts).mT
    return Contributions(tokens, tower.vectors[0] - tokens.sum(0), model.layout(model.size).prefix)


def coalition_vectors(
    tower: Tower,
    unit: bool,
    batch_size: int,
    samples: Count = 1024,
    p: Annotated[float, Range(0, 1, above=True, below=True)] = 0.5,
    seed: Seed = 0,
) -> Contributions:
    """Change of the embedding with the presence of a patch, over random subsets (the cross terms of FIxLIP).

    Parameters
    ----------
    tower, unit, batch_size
        As for `embed_subsets`.
    samples
        Number of subsets.
    p
        Probability that a patch is present.
    seed
        Seed of the subsets.
    """
    generator = torch.Generator().manual_seed(seed)
    present = uniform_numbers(generator, (samples, tower.layout.patches)) < p
    embeddings, whole = embed_subsets(tower, unit, batch_size, present)
    tokens = regress_on_presence(present, embeddings, p)
    return Contributions(tokens, whole - tokens.sum(0), 0)


def regress_on_presence(
    present: Bool[Tensor, "s p"], embeddings: Float[Tensor, "s D"], p: float
) -> Float[Tensor, "p D"]:
    """E[e(S) (1[i ∈ S] − p)] / (p (1 − p)) of every patch i, the mean over the given subsets."""
    centred = present.to(embeddings) - p
    return centred.mT @ embeddings / (len(present) * p * (1 - p))


def occlusion_vectors(tower: Tower, unit: bool, batch_size: int) -> Contributions:
    """Change of the embedding when one patch is removed; parameters as for `embed_subsets`."""
    patches = tower.layout.patches
    present = torch.cat([torch.ones(1, patches, dtype=torch.bool), ~torch.eye(patches, dtype=torch.bool)])
    embeddings, whole = embed_subsets(tower, unit, batch_size, present)
    tokens = embeddings[0] - embeddings[1:]
    return Contributions(tokens, whole - tokens.sum(0), 0)


def embed_subsets(
    tower: Tower, unit: bool, batch_size: int, present: Bool[Tensor, "s p"]
) -> tuple[Float[Tensor, "s D"], Float[Tensor, " D"]]:
    """Embeddings of the image with only subsets of its patches, and that of the whole image.

    The pixels of a removed patch are set to 0 (after normalisation).

    Parameters
    ----------
    tower
        An image.
    unit
        Whether embeddings are scaled to unit length.
    batch_size
        Number of images that run at once.
    present
        The patches of every subset.
    """
    if tower.words is not None:
        raise ModelError("patches can be removed from an image only; 'decompx' would work for a text")
    visible = present.view(-1, 1, *tower.layout.grid)
    for axis, size in enumerate(tower.layout.patch):
        visible = visible.repeat_interleave(size, axis + 2)
    with torch.no_grad():
        embeddings = torch.cat(
            [
                tower.model.forward(tower.entry * visible[rows].to(tower.entry))
                for rows in batches(len(visible), batch_size)
            ]
        )
    whole = tower.vectors[0]
    return (normalize(embeddings, dim=-1), normalize(whole, dim=-1)) if unit else (embeddings, whole)


def batches(count: int, size: int) -> Iterator[Tensor]:
    """Indices 0 … count − 1 in batches, with progress."""
    tally = Tally(count)
    for indices in torch.arange(count).split(size):
        yield indices
        tally.add(len(indices))


def layers_added(method: Method, model: BlackBox) -> int:
    """Number of layers whose maps the method adds up."""
    if method.fold is None or method.fold.accumulates != "sum" or not isinstance(model, Network):
        return 1
    return model.depth - method.fold.first_layer(model.depth)


@dataclass(frozen=True, slots=True, eq=False)
class ContributionFunction:
    """Computes contribution vectors in another way than by an attribution method.

    Attributes
    ----------
    vectors
        `(tower, unit, batch_size, **options)` → `Contributions`.
    forwards, backwards
        Number of passes for one input, as formulas of options and sizes of the model.
    removes_patches
        Whether it runs the model on subsets of the patches.
    """

    vectors: OptionFunction
    forwards: str
    backwards: int | str = 0
    removes_patches: bool = True


OF_LAST_BLOCK = "steps outputs / depth"
NAMED = {
    "exclip": ContributionFunction(OptionFunction.of(integrated_vectors), OF_LAST_BLOCK, OF_LAST_BLOCK, False),
    "fixlip": ContributionFunction(OptionFunction.of(coalition_vectors), "samples"),
    "occlusion": ContributionFunction(OptionFunction.of(occlusion_vectors), "1 + patches"),
}


def count_pair_passes(method: str, sizes: ModelSizes, **options: Any) -> tuple[float, float] | None:
    """Forward and backward passes for one input of a pair: of an attribution method, for every number of the embedding."""
    if method in NAMED:
        function = NAMED[method]
        names = {**sizes, **defaults(function.vectors.options), **options}
        return evaluate_both(function.forwards, function.backwards, names)
    passes = evaluate_passes(resolve(method), sizes)
    return passes and (sizes["outputs"] * passes[0], sizes["outputs"] * passes[1])


class PairMethod(NamedTuple):
    """Computes the contribution vectors of a tower, for embeddings of unit length or as they are, with a batch size."""

    name: str
    options: dict[str, Any]
    vectors: Callable[[Tower, bool, int], Contributions]
    removes_patches: bool = False


def pair_method(method: str | Method, start: int | None, options: dict[str, Any]) -> PairMethod:
    """The method of a pair by its name and options; a `SpecError` if it or an option does not exist or fit."""
    if not isinstance(method, str) or method not in NAMED:
        resolved = resolve(method, **options)
        resolved = resolved if start is None else resolved.with_fold(at.with_options(layer=start))
        return PairMethod(resolved.spec, {}, partial(linearised_vectors, method=resolved))
    function, removes_patches = NAMED[method].vectors, NAMED[method].removes_patches
    options = options if start is None else {**options, "start": start}
    settings = {**defaults(function.options), **fit_options(f"{method!r} of a pair", options, function.options)}
    return PairMethod(method, settings, partial(function, **settings), removes_patches)
