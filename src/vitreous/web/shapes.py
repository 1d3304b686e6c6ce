"""What is asked and what is answered, as OpenAPI has it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from vitreous.web.pictures import NAME

ModelName = Annotated[str, Field(min_length=1, max_length=200, description="One of the models on offer.")]
PictureName = Annotated[str, Field(pattern=NAME, max_length=64, description="A bundled scene, or an upload's SHA-256.")]
Spec = Annotated[str, Field(min_length=1, max_length=160, description="A method, such as decompx+skipplus.")]
Target = Annotated[int, Field(ge=0, le=100_000, description="A class by its index.")]
Question = Literal["probability", "logit", "margin"]
Score = float | None  # None: undefined
Pair = Annotated[list[int], Field(min_length=2, max_length=2)]  # rows and columns


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Error(Shape):
    """Why not, in one sentence."""

    error: str


# ── asked ────────────────────────────────────────────────────────────────────────────────────────


class Subject(Shape):
    """A picture in front of a model."""

    model_config = ConfigDict(strict=True)  # "1" and true are no class

    model: ModelName
    picture: PictureName


class Saying(Subject):
    """What does the model say when these patches leave?"""

    removed: Annotated[list[Annotated[int, Field(ge=0, lt=65_536)]], Field(max_length=16_384)] = []


class Explaining(Subject):
    """Which patches made the model say so?"""

    method: Spec
    targets: Annotated[list[Target], Field(min_length=1, max_length=2)]
    question: Question = "probability"


class Single(Subject):
    """The same of one class."""

    method: Spec
    target: Target
    question: Question = "probability"


class Screen(Subject):
    """All that is on the screen."""

    methods: Annotated[list[Spec], Field(min_length=1, max_length=6)]
    targets: Annotated[list[Target], Field(min_length=1, max_length=2)]
    question: Question = "probability"
    removed: Annotated[list[Annotated[int, Field(ge=0, lt=65_536)]], Field(max_length=16_384)] = []


# ── answered ─────────────────────────────────────────────────────────────────────────────────────


class ModelOffer(Shape):
    name: str
    note: str


class MethodFacts(Shape):
    name: str
    title: str
    class_specific: bool
    signed: bool
    composes: bool  # takes a fold, so that layers can be looked at
    forwards: int | str
    backwards: int | str


class Colours(Shape):
    """The colour scales of the library, 256 steps of red, green and blue each, and how photographs are toned under them."""

    signed: list[list[int]]
    unsigned: list[list[int]]
    opacity: float
    quantile: float


class About(Shape):
    version: str
    models: list[ModelOffer]
    methods: list[MethodFacts]
    colours: Colours
    seconds: float
    upload: int
    pixels: int
    demo: bool


class Thumbnail(Shape):
    picture: str
    words: str


class Uploaded(Shape):
    picture: str
    width: int
    height: int


class PictureFacts(Shape):
    picture: str
    words: str
    known: list[Target]  # classes whose evidence in the picture is known


class ModelFacts(Shape):
    model: str
    depth: int
    grid: Pair
    classes: list[str]


class ClassProbability(Shape):
    index: int
    name: str
    probability: Score


class Said(Shape):
    """The most probable classes, and every probability."""

    top: list[ClassProbability]
    probabilities: list[Score]
    kept: int
    patches: int


class Pixels(Shape):
    """A map of pixels, row by row, as base64 of little-endian float32."""

    size: Pair
    data: str


class Found(Shape):
    """Does the map lie where the evidence is known to be?"""

    peak: bool
    precision: Score


class Map(Shape):
    target: int
    name: str
    scores: list[Score]  # of patches, row by row
    pixels: Pixels | None
    evidence: Found | None


class Explained(Shape):
    method: str
    grid: Pair
    signed: bool
    class_specific: bool
    maps: list[Map]
    caveat: str
    seconds: float


class Step(Shape):
    """What the model says with so many of the highest patches gone, or with them alone."""

    count: int
    probability: Score
    top: list[ClassProbability]


class Curve(Shape):
    method: str
    target: int
    order: list[int]  # patches from the highest score to the lowest
    deletion: list[Step]
    insertion: list[Step]


class Frame(Shape):
    """One layer's own map, and the sum from this layer on."""

    layer: int
    scores: list[Score]
    start: str
    total: list[Score]


class Film(Shape):
    method: str
    target: int
    grid: Pair
    signed: bool
    frames: list[Frame]


class Python(Shape):
    code: str


class Queue(Shape):
    working: bool
    waiting: int
    done: int
    total: int
