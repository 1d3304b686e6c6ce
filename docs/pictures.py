"""Makes the pictures that README and docs show, from scenes and the embedded model.

python docs/pictures.py
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

import vitreous
from vitreous import scenes
from vitreous.draw import sheet

HERE = Path(__file__).parent / "images"


def pair(index: int = 1, seed: int = 1) -> None:
    """One picture, two questions, five methods."""
    scene = scenes.draw("pair", seed, index)
    targets = [[thing.label for thing in scene.objects]]
    vit = vitreous.load("scenes")
    picture = Image.fromarray(scene.image)
    methods = ("decompx+skipplus", "genatt", "tokentm", "fullgrad@libra+plus", "rollout")
    found = [vitreous.explain(vit, picture, targets, method, "probability") for method in methods]
    sheet(found).savefig(HERE / "pair.png", dpi=90)


def inside(index: int = 1, seed: int = 1) -> None:
    """What PLUS adds up and what TokenTM measures, layer by layer."""
    scene = scenes.draw("pair", seed, index)
    vit, picture = vitreous.load("scenes"), Image.fromarray(scene.image)
    target = scene.objects[0].label
    vitreous.inside(vit, picture, target, "decompx+plus").plot().savefig(HERE / "inside-plus.png", dpi=80)
    measured = vitreous.inside(vit, picture, target, "tokentm")
    parts = ("attention", "length", "necc", "carried")
    measured.plot(parts=parts).savefig(HERE / "inside-tokentm.png", dpi=80)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    pair()
    inside()
