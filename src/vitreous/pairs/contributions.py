"""Contribution vectors: what every token adds to an embedding.

A pair of inputs with embeddings a and b has the similarity a · b. With a vector C[i] per token, Σ C[i] + rest = a, the
similarity is a sum over pairs of tokens, C_a[i] · C_b[j]. The functions here compute these vectors in different ways; each
costs one pass per coordinate of the embedding or per subset of tokens, and never holds more than a batch of passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, get_type_hints

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from vitreous.capture.path_gradients import token_gradients
from vitreous.capture.probe import Probe, probe_of
from vitreous.capture.progress import Tally
from vitreous.capture.score_function import resolve_score_function
from vitreous.capture.targets import ClassTarget
from vitreous.core.errors import ModelError, SpecError
from vitreous.explanation import explain_batch
from vitreous.methods.folds import at
from vitreous.methods.method import Method
from vitreous.methods.options import Count, Option, Options, Range, Seed, Steps, fit_options
from vitreous.methods.spec import resolve
from vitreous.models.model import BlackBox, Network
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


@dataclass(frozen=True, slots=True)
class Linearised:
    """Token × gradient of every coordinate under a linearisation (BiLRP), or any other method with one map per output.

    Attributes
    ----------
    method
        A method with signed maps, such as "decompx", "ixg@libra" or "attnlrp+at(layer=6)".
    """

    method: Method

    def vectors(self, tower: Tower, unit: bool, batch_size: int) -> Contributions:
        """Contribution vectors of a tower; `unit` allows those of the embedding of unit length, where only its direction counts."""
        model = tower.coordinates
        method = self.method.for_model(model)
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


@dataclass(frozen=True, slots=True)
class Integrated:
    """Gradients averaged on the way from the tokens of a reference image to those of the image (exCLIP).

    Attributes
    ----------
    steps
        Number of points on the way: 1, 1 − 1/steps, …, 1/steps.
    start
        Block at whose input the tokens are taken; negative counts from the last block.
    """

    steps: Steps = 10
    start: int = -1

    def vectors(self, tower: Tower, unit: bool, batch_size: int) -> Contributions:
        model = tower.coordinates
        if not isinstance(model, ViT):
            raise ModelError(
                f"'exclip' runs {model.name!r} from inner tokens on, which needs a ViT; 'decompx' would work"
            )
        if not -model.depth <= self.start < model.depth:
            raise SpecError(f"'exclip' cannot take start={self.start}; layers 0 to {model.depth - 1} would work")
        start = self.start % model.depth
        question = resolve_score_function("logit")
        states = [
            Probe(model, image, torch.zeros(1, 1, dtype=torch.long), question).states[start]
            for image in (tower.entry, torch.zeros_like(tower.entry))
        ]
        change = states[0] - states[1]
        fractions = 1 - torch.arange(self.steps, device=change.device, dtype=change.dtype) / self.steps
        points = states[1] + fractions[:, None, None] * change
        parts = []
        for coordinates in batches(model.outputs, max(1, batch_size // self.steps)):
            entries = tower.entry.expand(len(coordinates), -1, -1, -1)
            probe = probe_of(model, entries, coordinates[:, None], question)
            gradients = token_gradients(probe, points.expand(len(coordinates), -1, -1, -1), start)
            parts.append((gradients.mean(1) * change).sum(-1))
        tokens = torch.cat(parts).mT
        return Contributions(tokens, tower.vectors[0] - tokens.sum(0), model.layout(model.size).prefix)


@dataclass(frozen=True, slots=True)
class SubsetMethod:
    """Vectors from the embeddings of images of which only subsets of the patches are shown.

    A removed patch has its pixels set to 0 (after normalisation).
    """

    def draw(self, patches: int) -> Bool[Tensor, "s p"]:
        """The subsets, one row each."""
        raise NotImplementedError

    def vectors_of_subsets(
        self, present: Bool[Tensor, "s p"], embeddings: Float[Tensor, "s D"]
    ) -> Float[Tensor, "p D"]:
        """Contribution vectors of the patches, from the embeddings of the subsets."""
        raise NotImplementedError

    def vectors(self, tower: Tower, unit: bool, batch_size: int) -> Contributions:
        if tower.words is not None:
            raise ModelError("patches can be removed from an image only; 'decompx' would work for a text")
        layout = tower.layout
        present = self.draw(layout.patches)
        visible = present.view(-1, 1, *layout.grid)
        for axis, size in enumerate(layout.patch):
            visible = visible.repeat_interleave(size, axis + 2)
        embeddings, whole = torch.cat(list(embedded(tower.model, tower.entry, visible, batch_size))), tower.vectors
        if unit:
            embeddings, whole = normalize(embeddings, dim=-1), normalize(whole, dim=-1)
        tokens = self.vectors_of_subsets(present, embeddings)
        return Contributions(tokens, whole[0] - tokens.sum(0), 0)


@dataclass(frozen=True, slots=True)
class Coalitions(SubsetMethod):
    """Change of the embedding with the presence of a token, over random subsets (the cross terms of FIxLIP).

    Attributes
    ----------
    samples
        Number of subsets.
    p
        Probability that a patch is present.
    seed
        Seed of the subsets.
    """

    samples: Count = 1024
    p: Annotated[float, Range(0, 1, above=True, below=True)] = 0.5
    seed: Seed = 0

    def draw(self, patches: int) -> Bool[Tensor, "s p"]:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.rand(self.samples, patches, generator=generator) < self.p

    def vectors_of_subsets(
        self, present: Bool[Tensor, "s p"], embeddings: Float[Tensor, "s D"]
    ) -> Float[Tensor, "p D"]:
        """E[e(S) (1[i ∈ S] − p)] / (p (1 − p)), the mean over the given subsets."""
        centred = present.to(embeddings) - self.p
        return centred.mT @ embeddings / (len(present) * self.p * (1 - self.p))


@dataclass(frozen=True, slots=True)
class Occlusion(SubsetMethod):
    """Change of the embedding when one patch is removed."""

    def draw(self, patches: int) -> Bool[Tensor, "s p"]:
        return torch.cat([torch.ones(1, patches, dtype=torch.bool), ~torch.eye(patches, dtype=torch.bool)])

    def vectors_of_subsets(
        self, present: Bool[Tensor, "s p"], embeddings: Float[Tensor, "s D"]
    ) -> Float[Tensor, "p D"]:
        return embeddings[0] - embeddings[1:]


def embedded(model: BlackBox, image: Tensor, visible: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Embeddings of the image with only the visible pixels, batch by batch."""
    tally = Tally(len(visible))
    for rows in visible.split(batch_size):
        with torch.no_grad():
            yield model.forward(image * rows.to(image))
        tally.add(len(rows))


def batches(count: int, size: int) -> Iterator[Tensor]:
    """Indices 0 … count − 1 in batches, with progress."""
    tally = Tally(count)
    for indices in torch.arange(count).split(size):
        yield indices
        tally.add(len(indices))


def layers_added(method: Method, model: BlackBox) -> int:
    """Number of layers whose maps the method adds up."""
    if method.fold is None or method.fold.name not in ("plus", "skipplus") or not isinstance(model, Network):
        return 1
    return model.depth - method.fold.first_layer(model.depth)


PairMethod = Linearised | Integrated | SubsetMethod
NAMED: dict[str, type[Integrated | Coalitions | Occlusion]] = {
    "exclip": Integrated,
    "fixlip": Coalitions,
    "occlusion": Occlusion,
}


def pair_method(method: str | Method, start: int | None, options: dict[str, Any]) -> PairMethod:
    """The method of a pair by its name and options; a `SpecError` if it or an option does not exist or fit."""
    if not isinstance(method, str) or method not in NAMED:
        resolved = resolve(method, **options)
        return Linearised(resolved if start is None else resolved.with_fold(at.with_options(layer=start)))
    named = NAMED[method]
    annotations = get_type_hints(named, include_extras=True)
    typed_options: Options = {
        field.name: Option(field.name, field.default, annotations[field.name]) for field in fields(named)
    }
    settings = options if start is None else {**options, "start": start}
    return named(**fit_options(f"{method!r} of a pair", settings, typed_options))
