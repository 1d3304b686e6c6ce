"""Chapters of the demo: which scenes are explained, and how well each method finds the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from vitreous import scenes
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.front import explain, load
from vitreous.methods.attribution import Attribution
from vitreous.metrics.localisation import ap, pointing_game
from vitreous.models.model import Network
from vitreous.scenes import Scene

METHODS = (DEFAULT_METHOD, "decompx+skipplus", "genatt", "tokentm", "rollout", "ixg", "tis(masks=128)")
QUESTION = "probability"  # classes compete for it, so evidence for one object is evidence against the other


@dataclass(frozen=True, slots=True)
class Chapter:
    """One kind of scene, and which of its classes are explained."""

    title: str
    words: str
    model: str
    kind: str
    mark: str | None = None
    every_object: bool = False  # explain the class of each object in turn
    spurious: bool = False  # the evidence is the stamp, not the object


CHAPTERS = (
    Chapter(
        "One object",
        "The pixels that determine the class are known: the outline. A good map lies inside it.",
        "scenes",
        "single",
    ),
    Chapter(
        "Two objects, two classes",
        "The same image, explained for one object and then for the other. A map that explains a class must change with the "
        "class; attention rollout cannot.",
        "scenes",
        "pair",
        every_object=True,
    ),
    Chapter(
        "One mark determines the class",
        "Two classes that differ in one mark only: a smile or a frown, two spots or six. The mark alone is the evidence.",
        "scenes",
        "part",
    ),
    Chapter(
        "A shortcut, exposed",
        "A second model was trained where a small domino in a corner determines the class. Here the domino is that of another "
        "class: the prediction follows it, and a faithful map shows that the model uses the domino and not the object.",
        "scenes-biased",
        "shortcut",
        mark="moved",
        spurious=True,
    ),
)


@dataclass(frozen=True, slots=True)
class ExplainedClass:
    """One class of one scene, explained by every method; mappings are by method."""

    scene: Scene
    target: int
    evidence: Tensor  # [H W]
    attributions: Mapping[str, Attribution]
    pointing: Mapping[str, float]
    precision: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MethodScore:
    """Mean scores of a method over all explained classes of a chapter."""

    method: str
    pointing: float
    precision: float


@dataclass(frozen=True, slots=True)
class ChapterResult:
    """A chapter with the explained classes that are shown, and scores over all of them."""

    chapter: Chapter
    explained: tuple[ExplainedClass, ...]
    scores: tuple[MethodScore, ...]
    accuracy: float
    count: int


def list_targets(chapter: Chapter, scene: Scene) -> Iterator[tuple[int, Tensor]]:
    """Class and evidence mask of everything that is explained in a scene."""
    if chapter.spurious:
        assert scene.mark is not None
        yield scene.mark, torch.from_numpy(scene.spurious)
        return
    for scene_object in scene.objects if chapter.every_object else scene.objects[:1]:
        yield scene_object.label, torch.from_numpy(scene_object.evidence)


def run_chapter(
    chapter: Chapter, model: Network, count: int, shown: int, seed: int, step: Callable[[], None]
) -> ChapterResult:
    """Draw scenes, explain them with every method, and score the maps."""
    options = {} if chapter.mark is None else {"mark": chapter.mark}
    drawn = [scenes.draw(chapter.kind, seed, index, **options) for index in range(count)]
    rows = [(scene, target, mask) for scene in drawn for target, mask in list_targets(chapter, scene)]
    evidence = torch.stack([mask for *_, mask in rows])
    targets = [[target for target, _ in list_targets(chapter, scene)] for scene in drawn]
    images = [Image.fromarray(scene.image) for scene in drawn]
    attributions: dict[str, Attribution] = {}
    for method in METHODS:
        attributions[method] = explain(model, images, targets, method, QUESTION)
        step()
    smooth = ap.with_options(interpolation="bilinear")
    pointing = {method: pointing_game(a, objects=evidence).scores for method, a in attributions.items()}
    precision = {method: smooth(a, objects=evidence).scores for method, a in attributions.items()}
    explained = tuple(
        ExplainedClass(
            scene,
            target,
            mask,
            {method: a[row] for method, a in attributions.items()},
            {method: scores[row].item() for method, scores in pointing.items()},
            {method: scores[row].item() for method, scores in precision.items()},
        )
        for row, (scene, target, mask) in enumerate(rows[: shown * (len(rows) // len(drawn))])
    )
    scores = tuple(MethodScore(m, pointing[m].nanmean().item(), precision[m].nanmean().item()) for m in METHODS)
    logits = next(iter(attributions.values())).logits
    assert logits is not None  # `explain` sets them
    predictions = logits.argmax(-1).tolist()
    correct = [
        prediction in {scene_object.label for scene_object in scene.objects}
        for prediction, (scene, *_) in zip(predictions, rows, strict=True)
    ]
    return ChapterResult(chapter, explained, scores, sum(correct) / len(correct), len(drawn))


def run(
    count: int = 8, shown: int = 2, seed: int = 2026, step: Callable[[], None] = lambda: None
) -> list[ChapterResult]:
    """Run every chapter.

    Parameters
    ----------
    count
        Scenes that are scored in each chapter.
    shown
        Scenes of each chapter that are kept for the page.
    seed
        Seed of the scenes.
    step
        Called after each method of each chapter.

    Returns
    -------
    list of ChapterResult
        In the order of `CHAPTERS`.
    """
    models = {name: load(name) for name in {chapter.model for chapter in CHAPTERS}}
    return [run_chapter(chapter, models[chapter.model], count, shown, seed, step) for chapter in CHAPTERS]
