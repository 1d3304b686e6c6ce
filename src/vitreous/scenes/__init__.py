"""Scenes: a synthetic image dataset, drawn by code, in which the pixels that determine the class are known.

from vitreous.scenes import draw
scene = draw("pair", seed=0, index=3)
scene.image, scene.objects[0].name, scene.objects[0].evidence
"""

from vitreous.scenes.model import MODELS, build_model, load_model
from vitreous.scenes.scene_plan import CLASSES, KINDS, Item, ScenePlan, paired_class, plan
from vitreous.scenes.scene_sets import MEAN, PATCH, STD, Scene, SceneObject, Scenes, draw, render, render_image, tensor
from vitreous.scenes.sprite import SIZE, Pose

__all__ = [
    "CLASSES",
    "KINDS",
    "MEAN",
    "MODELS",
    "PATCH",
    "SIZE",
    "STD",
    "Item",
    "Pose",
    "Scene",
    "SceneObject",
    "ScenePlan",
    "Scenes",
    "build_model",
    "draw",
    "load_model",
    "paired_class",
    "plan",
    "render",
    "render_image",
    "tensor",
]


def __dir__() -> list[str]:
    return sorted(__all__)
