"""The endpoints of the page of pairs: why two images, or an image and a text, are similar."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field

from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.web.await_job import ERRORS, Calling
from vitreous.web.budget import LIMIT_SHARE
from vitreous.web.responses import round_numbers, to_finite
from vitreous.web.schemas import ImageName, Pair, Schema, Score, Spec, Subject
from vitreous.web.service import Service, errors_of_spec, resolve_untrusted

if TYPE_CHECKING:
    from vitreous.models.vit import ViT
    from vitreous.pairs.pair_attribution import PairAttribution, Side
    from vitreous.pairs.text_tower import TextTower

METHODS = (
    "decompx",
    "decompx+skipplus",
    "attnlrp",
    "ixg@libra",
    "exclip",
    "occlusion",
    "fixlip",
)  # offered by the page
MAX_SHARES = 1 << 20  # numbers of an interaction matrix in a response
SAMPLES = 512  # random subsets of patches

pairs_api = APIRouter(prefix="/api/pairs", responses=ERRORS)


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────


class PairModel(Schema):
    name: str
    text: bool = Field(description="Whether the model compares images with texts too.")


class PairOffer(Schema):
    """What the page of pairs offers."""

    models: list[PairModel]
    methods: list[str]


class PairRequest(Subject):
    """Two images, or an image and a text."""

    model_config = ConfigDict(frozen=True)

    other: ImageName | None = None
    text: Annotated[str, Field(min_length=1, max_length=300)] | None = None
    method: Spec = "decompx"
    similarity: Literal["cosine", "dot"] = "cosine"


class PairSide(Schema):
    """One input: its patches or words, and the share of the similarity of each."""

    grid: Pair
    words: list[str] | None = Field(description="Tokens of a text; null for an image.")
    scores: list[Score] = Field(description="One per patch, row by row, or per word.")


class PairExplained(Schema):
    """The similarity of two inputs as a sum over pairs of their parts."""

    method: str
    kind: str = Field(description="cosine or dot.")
    similarity: Score
    first: PairSide
    second: PairSide
    matrix: list[list[Score]] = Field(
        description="Share of the similarity, by part of the first and part of the second."
    )
    seconds: float


# ── work, in the worker's thread ─────────────────────────────────────────────────────────────────


class PairWork:
    """Explains pairs with the models of a service.

    Parameters
    ----------
    service
        Models, images and limits.
    texts
        Text towers by the name of the model whose images they are compared with; those of `hf:` models are loaded from
        the same place.
    """

    def __init__(self, service: Service, texts: dict[str, TextTower] | None = None) -> None:
        self.service, self.texts = service, dict(texts or {})

    def has_text(self, model: str) -> bool:
        return model in self.texts or self.service.models.entry(model).load.startswith("hf:")

    def offer(self) -> PairOffer:
        names = self.service.models.entries
        return PairOffer(models=[PairModel(name=name, text=self.has_text(name)) for name in names], methods=[*METHODS])

    def explain(self, body: PairRequest) -> PairExplained:
        """Explain one pair."""
        from vitreous.pairs import explain_pair
        from vitreous.pairs.contributions import NAMED
        from vitreous.pairs.towers import without_classifier

        images = self.service.images
        vit = without_classifier(self.service.models.vit(body.model))
        method = body.method if body.method in NAMED else resolve_untrusted(body.method)
        self.refuse_too_long(body, vit)
        image = images.get(body.image)
        other, second = (vit, images.get(body.other)) if body.other else (self.text_tower(body.model), body.text)
        assert second is not None  # the route refuses a request with neither
        begun = time.monotonic()
        with errors_of_spec(body.method):
            pair = explain_pair(
                vit, image, other, second, method, similarity=body.similarity, **choose_options(body.method)
            )
        return describe_pair(pair, time.monotonic() - begun)

    def text_tower(self, model: str) -> TextTower:
        from vitreous.pairs.text_tower import TextTower

        if model not in self.texts:
            if not self.has_text(model):
                raise ModelError(f"{model!r} has no text tower; compare two images, or offer a CLIP or SigLIP model")
            self.texts[model] = TextTower.from_pretrained(self.service.models.entry(model).load.removeprefix("hf:"))
        return self.texts[model]

    def refuse_too_long(self, body: PairRequest, vit: ViT) -> None:
        """Raise `SpecError` if the passes of both sides would take longer than a request may."""
        from vitreous.bench.cost import read_model_sizes
        from vitreous.pairs.contributions import NAMED, count_pair_passes

        cost = self.service.cost(body.model, self.service.models.vit(body.model))
        sizes = {**read_model_sizes(vit), "outputs": vit.outputs}

        def estimate(method: str) -> float:
            passes = count_pair_passes(method, sizes, **choose_options(method))
            forwards, backwards = passes or (vit.outputs, vit.outputs)
            return 2 * (forwards * cost.forward + backwards * cost.backward)

        seconds, limit = estimate(body.method), LIMIT_SHARE * self.service.settings.seconds
        if seconds > limit:
            quick = min(NAMED, key=estimate)
            fits = f"{quick!r} would take about {estimate(quick):.0f} s; " if estimate(quick) <= limit else ""
            raise SpecError(
                f"{body.method!r} takes one pass per number of the embedding ({vit.outputs}), about {seconds:.0f} s here, more "
                f"than the {limit:.0f} s for a request; {fits}vitreous.explain_pair has no limit"
            )


def choose_options(method: str) -> dict[str, Any]:
    """Options of the page: fewer random subsets than the default."""
    from vitreous.pairs.contributions import NAMED

    return {"samples": SAMPLES} if method in NAMED and "samples" in NAMED[method].vectors.options else {}


def describe_pair(pair: PairAttribution, seconds: float) -> PairExplained:
    matrix = pair.matrix.cpu()
    if matrix.numel() > MAX_SHARES:
        raise ShapeError(
            f"{matrix.shape[0]} x {matrix.shape[1]} parts are more pairs than a page shows ({MAX_SHARES:,}); pair.save('pair.npz') "
            "in Python would work"
        )
    return PairExplained(
        method=pair.method,
        kind=str(pair.provenance["similarity"]),
        similarity=to_finite(pair.similarity),
        first=describe_side(pair, "a"),
        second=describe_side(pair, "b"),
        matrix=[round_numbers(row) for row in matrix],
        seconds=seconds,
    )


def describe_side(pair: PairAttribution, side: Side) -> PairSide:
    own = pair.side(side)
    return PairSide(
        grid=list(own.layout.grid),
        words=None if own.words is None else list(own.words),
        scores=round_numbers(pair.map(side).cpu()),
    )


# ── endpoints ────────────────────────────────────────────────────────────────────────────────────


@pairs_api.get("/about")
async def about_pairs(request: Request) -> PairOffer:
    """Models, whether each compares images with texts, and methods."""
    return request.app.state.pairs.offer()


@pairs_api.post("/explain")
async def explain_pairs(caller: Calling, body: PairRequest) -> PairExplained:
    """Share of every pair of patches, or of every patch and word, in the similarity of two inputs.

    The embedding of a classifier is the vector that its last layer reads. Give either `other` or `text`.
    """
    caller.service.models.entry(body.model)
    if (body.other is None) == (body.text is None):
        raise ShapeError("a pair has a second image or a text: give either other or text")
    return await caller.compute(caller.request.app.state.pairs.explain, body)
