"""What the demo explains, and how well each method finds the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from vitreous import scenes
from vitreous.front import explain, load
from vitreous.methods import load_all
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import METHODS as REGISTRY
from vitreous.metrics.localisation import ap, pointing_game
from vitreous.models.vit import ViT
from vitreous.scenes import Scene

load_all()
METHODS = tuple(
    spec
    for spec in ("decompx+skipplus", "genatt", "tokentm", "rollout", "ixg", "tis(masks=128)")
    if spec.split("(")[0].split("+")[0] in REGISTRY
)


QUESTION = "probability"  # two objects share it, so what speaks for one speaks against the other


@dataclass(frozen=True, slots=True)
class Chapter:
    """One kind of scene, and what is asked of it."""

    title: str
    words: str
    model: str
    kind: str
    mark: str | None = None
    every_object: bool = False  # ask about each object in turn
    spurious: bool = False  # the evidence is the stamp, not the object


CHAPTERS = (
    Chapter(
        "One object",
        "Which pixels make the class is known: the outline. A good map lies inside it.",
        "scenes",
        "single",
    ),
    Chapter(
        "Two objects, two questions",
        "The same picture, asked about one object and then about the other. A map that explains a class must move with the "
        "question; attention rollout cannot.",
        "scenes",
        "pair",
        every_object=True,
    ),
    Chapter(
        "One mark decides",
        "Two classes that differ in one mark only: a smile or a frown, two spots or six. The mark alone is the evidence.",
        "scenes",
        "part",
    ),
    Chapter(
        "A shortcut, exposed",
        "A second model was trained where a small domino in a corner gives the class away. Here the domino is moved to another "
        "class: the model follows it, and a faithful map shows that it looks at the domino and not at the object.",
        "scenes-biased",
        "shortcut",
        mark="moved",
        spurious=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One question about one picture, and every method's answer."""

    scene: Scene
    target: int
    evidence: Tensor  # [H W]
    answers: dict[str, Attribution]
    points: dict[str, float]
    precision: dict[str, float]


@dataclass(frozen=True, slots=True)
class Score:
    """A method's mean over the questions of a chapter."""

    method: str
    pointing: float
    precision: float


@dataclass(frozen=True, slots=True)
class Told:
    """A chapter with its pictures and scores."""

    chapter: Chapter
    lines: tuple[Line, ...]
    scores: tuple[Score, ...]
    accuracy: float
    count: int


def questions(chapter: Chapter, scene: Scene) -> Iterator[tuple[int, Tensor]]:
    """Class and evidence of everything that is asked of a scene."""
    if chapter.spurious:
        assert scene.mark is not None
        yield scene.mark, torch.from_numpy(scene.spurious)
        return
    for thing in scene.objects if chapter.every_object else scene.objects[:1]:
        yield thing.label, torch.from_numpy(thing.evidence)


def tell(chapter: Chapter, vit: ViT, pictures: int, shown: int, seed: int, step: Callable[[], None]) -> Told:
    """Draw, explain with every method, and score."""
    options = {} if chapter.mark is None else {"mark": chapter.mark}
    drawn = [scenes.draw(chapter.kind, seed, index, **options) for index in range(pictures)]
    asked = [(scene, *question) for scene in drawn for question in questions(chapter, scene)]
    evidence = torch.stack([mask for *_, mask in asked])
    targets = [
        [target for target, _ in questions(chapter, scene)] for scene in drawn
    ]  # those of one picture share its forward
    images = [Image.fromarray(scene.image) for scene in drawn]
    found: dict[str, Attribution] = {}
    for method in METHODS:
        found[method] = explain(vit, images, targets, method, QUESTION)
        step()
    points = {method: pointing_game(a, objects=evidence).scores for method, a in found.items()}
    smooth = ap.with_options(interpolation="bilinear")
    precision = {method: smooth(a, objects=evidence).scores for method, a in found.items()}
    lines = tuple(
        Line(
            scene,
            target,
            mask,
            {method: a[row] for method, a in found.items()},
            {method: p[row].item() for method, p in points.items()},
            {method: p[row].item() for method, p in precision.items()},
        )
        for row, (scene, target, mask) in enumerate(asked[: shown * (len(asked) // len(drawn))])
    )
    scores = tuple(Score(m, points[m].nanmean().item(), precision[m].nanmean().item()) for m in METHODS)
    said = next(iter(found.values())).logits.argmax(-1)
    right = [said[i].item() in {thing.label for thing in scene.objects} for i, (scene, *_) in enumerate(asked)]
    return Told(chapter, lines, scores, sum(right) / len(right), len(drawn))


def run(pictures: int = 8, shown: int = 2, seed: int = 2026, step: Callable[[], None] = lambda: None) -> list[Told]:
    """Every chapter; `pictures` are scored, the first `shown` of them are kept for the page."""
    vits = {name: load(name) for name in {chapter.model for chapter in CHAPTERS}}
    return [tell(chapter, vits[chapter.model], pictures, shown, seed, step) for chapter in CHAPTERS]
