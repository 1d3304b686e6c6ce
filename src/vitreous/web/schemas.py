"""Request and response types, from which the OpenAPI document is generated."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from vitreous.web.image_store import NAME

ModelName = Annotated[str, Field(min_length=1, max_length=200, description="One of the models on offer.")]
ImageName = Annotated[str, Field(pattern=NAME, max_length=64, description="A bundled scene, or an upload's SHA-256.")]
Spec = Annotated[str, Field(min_length=1, max_length=160, description="A method, such as decompx+skipplus.")]
Target = Annotated[int, Field(ge=0, le=100_000, description="A class by its index.")]
Targets = Annotated[list[Target], Field(min_length=1, max_length=2)]
Removed = Annotated[list[Annotated[int, Field(ge=0, lt=65_536)]], Field(max_length=16_384)]  # patches
Question = Literal["probability", "logit", "margin"]
Score = float | None  # None: undefined
Pair = Annotated[list[int], Field(min_length=2, max_length=2)]  # rows and columns


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Error(Schema):
    """What went wrong, in one sentence."""

    error: str


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


class Subject(Schema):
    """A model and an image."""

    model_config = ConfigDict(strict=True)  # "1" and true are not class indices

    model: ModelName
    image: ImageName


class PredictRequest(Subject):
    """Patches to remove before the prediction."""

    removed: Removed = []


class MapRequest(Subject):
    """The score function to explain."""

    question: Question = "probability"


class ExplainRequest(MapRequest):
    """A method and one or two classes."""

    method: Spec
    targets: Targets


class SingleRequest(MapRequest):
    """A method and one class."""

    method: Spec
    target: Target


class ScreenRequest(MapRequest):
    """Everything that is on the page."""

    methods: Annotated[list[Spec], Field(min_length=1, max_length=6)]
    targets: Targets
    removed: Removed = []


# ── responses ────────────────────────────────────────────────────────────────────────────────────


class ModelOffer(Schema):
    name: str
    note: str


class MethodFacts(Schema):
    name: str
    title: str
    class_specific: bool
    signed: bool
    composes: bool = Field(description="Takes a fold, so that its layers can be shown.")
    forwards: int | str
    backwards: int | str


class Colours(Schema):
    """The library's colour scales, 256 steps of red, green and blue each, and how images are toned under them."""

    signed: list[list[int]]
    unsigned: list[list[int]]
    opacity: float
    quantile: float


class About(Schema):
    version: str
    models: list[ModelOffer]
    methods: list[MethodFacts]
    default: str = Field(description="The method that `vitreous.explain` uses by default.")
    colours: Colours
    seconds: float
    upload: int
    pixels: int
    demo: bool


class NamedImage(Schema):
    image: str


class Thumbnail(NamedImage):
    words: str


class Uploaded(NamedImage):
    width: int
    height: int


class Crop(Schema):
    """The part of an image that the model sees; shares are of the image's width, height or area."""

    box: Annotated[list[float], Field(min_length=4, max_length=4, description="left, top, right, bottom in pixels")]
    seen: float = Field(description="Share of the image's area that the model sees.")
    left: float
    top: float
    right: float
    bottom: float
    padded: bool
    sentence: str = Field(description="What is cut off, in words; empty if the model sees the whole image.")


class ImageFacts(NamedImage):
    words: str
    known: list[Target] = Field(description="Classes whose evidence in the image is known.")
    size: Pair
    crop: Crop
    caution: str = Field(description="Why the model's prediction means nothing for this image; usually empty.")


class ModelFacts(Schema):
    model: str
    depth: int
    grid: Pair
    classes: list[str]


class ClassName(Schema):
    index: int
    name: str


class ClassProbability(ClassName):
    probability: Score


class Prediction(Schema):
    """The most probable classes, and every probability."""

    top: list[ClassProbability]
    probabilities: list[Score]
    kept: int
    patches: int


class SampleCount(Schema):
    """How many samples of a method are computed."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    option: str = Field(default="", description="The option that counts samples; empty if there is none.")
    used: int = 0
    asked: int = 0
    seconds: float | None = Field(
        default=None, description="Estimated seconds for all requested samples on this machine."
    )

    @property
    def share(self) -> float:
        """Used samples as a fraction of the requested ones; 1 for a method without samples."""
        return self.used / self.asked if self.asked else 1.0


class SamplingPlan(SampleCount):
    """How a method is computed here within the time limit: with fewer samples where all of them would take too long."""

    method: str = Field(description="The method that was requested, in canonical spelling.")
    spec: str = Field(description="What `/api/explain` computes for it.")
    previews: tuple[str, ...] = Field(
        default=(), description="The same with fewer samples, to show while the last one is computed."
    )


class Samples(SampleCount):
    """How many samples a map is made of."""

    sentence: str = Field(description="Says that fewer samples were used than requested; empty if all were.")


class Pixels(Schema):
    """A map of pixels, row by row, as base64 of little-endian float32."""

    size: Pair
    data: str


class EvidenceMatch(Schema):
    """Whether the map's highest pixel lies on the known evidence, and its average precision."""

    peak: bool
    precision: Score


class Map(Schema):
    target: int
    name: str
    scores: list[Score] = Field(description="One per patch, row by row.")
    pixels: Pixels | None
    evidence: EvidenceMatch | None


class Explained(Schema):
    method: str = Field(description="The spec that was computed.")
    grid: Pair
    signed: bool
    class_specific: bool
    maps: list[Map]
    caveat: str
    seconds: float
    samples: Samples | None = None


class CurvePoint(Schema):
    """The prediction with `count` of the highest patches removed, or with them alone; `top` is the first class."""

    count: int
    probability: Score
    top: list[ClassProbability]


class Curve(Schema):
    method: str
    target: int
    order: list[int] = Field(description="Patches from the highest score to the lowest; ties as in vitreous.metrics.")
    deletion: list[CurvePoint]
    insertion: list[CurvePoint]
    deletion_area: Score = Field(description="Normalised area under the deletion curve.")
    insertion_area: Score = Field(description="Normalised area under the insertion curve.")


class LayerMap(Schema):
    """What one layer adds to the map, and the sum from this layer on."""

    layer: int
    scores: list[Score]
    start: str
    total: list[Score]


class Layers(Schema):
    method: str
    target: int
    grid: Pair
    signed: bool
    frames: list[LayerMap]


class PythonCode(Schema):
    code: str


class QueueState(Schema):
    working: bool
    waiting: int
    done: int
    total: int
