"""Draws the figures of README and docs from scenes and the embedded model.

python docs/draw_images.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

import vitreous
from vitreous import scenes
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.draw import sheet
from vitreous.draw.overlay import overlay_image

HERE = Path(__file__).parent / "images"


def pair(index: int = 1, seed: int = 1) -> None:
    """Save the README's first figure: one image, two classes, five methods, the default method first."""
    scene = scenes.draw("pair", seed, index)
    targets = [[item.label for item in scene.objects]]
    vit = vitreous.load("scenes")
    image = Image.fromarray(scene.image)
    methods = (DEFAULT_METHOD, "decompx+skipplus", "genatt", "tokentm", "rollout")
    attributions = [vitreous.explain(vit, image, targets, method, "probability") for method in methods]
    # the classes are about as likely, and the figure compares positions, not the strength of scores
    metadata = {"Description": " · ".join(attribution.method for attribution in attributions)}
    sheet(attributions, shared_scale=False).savefig(HERE / "pair.png", dpi=90, metadata=metadata)


def inside(index: int = 1, seed: int = 1) -> None:
    """Maps of every layer: the terms of PLUS, and the parts of TokenTM."""
    scene = scenes.draw("pair", seed, index)
    vit, image = vitreous.load("scenes"), Image.fromarray(scene.image)
    target = scene.objects[0].label
    vitreous.inside(vit, image, target, "decompx+plus").plot().savefig(HERE / "inside-plus.png", dpi=80)
    measured = vitreous.inside(vit, image, target, "tokentm")
    parts = ("attention", "length", "necc", "carried")
    measured.plot(parts=parts).savefig(HERE / "inside-tokentm.png", dpi=80)


def why() -> None:
    """The figure of README's five lines."""
    scene = scenes.draw("pair", seed=1, index=1)
    attribution = vitreous.explain(vitreous.load("scenes"), Image.fromarray(scene.image), target=["gear"])
    attribution.plot().savefig(HERE / "why.png", dpi=80)


def hierarchical(count: int = 3, seed: int = 101) -> None:
    """The known evidence, and maps of the ViT and of the Swin transformer."""
    import matplotlib.pyplot as plt

    models = {"ViT": vitreous.load("scenes"), "Swin": vitreous.load("scenes-swin")}
    methods = ("temper", "decompx+plus")
    figure, grid = plt.subplots(count, 5, figsize=(8.6, 1.85 * count), layout="constrained")
    for row, index in zip(grid, range(count), strict=True):
        scene = scenes.draw("single", seed, index)
        image, target = Image.fromarray(scene.image), scene.target
        row[0].imshow(scene.image)
        row[0].contour(scene.objects[0].evidence, levels=[0.5], colors="white", linewidths=1.4)
        row[0].set_title(f"{scene.objects[0].name}: its evidence", fontsize=8)
        attributions = [
            (f"{name}, {method}", vitreous.explain(model, image, target, method))
            for method in methods
            for name, model in models.items()
        ]
        for axes, (title, attribution) in zip(row[1:], attributions, strict=True):
            axes.imshow(overlay_image(attribution))
            axes.set_title(title, fontsize=8)
        for axes in row:
            axes.set_axis_off()
    figure.savefig(HERE / "swin.jpg", dpi=90, pil_kwargs={"quality": 85})
    plt.close(figure)


def questions(index: int = 1, seed: int = 1) -> None:
    """Both score functions for one class of one image, with the default method."""
    import matplotlib.pyplot as plt

    scene = scenes.draw("pair", seed, index)
    vit, image = vitreous.load("scenes"), Image.fromarray(scene.image)
    words = {
        "contrast": 'Why this class rather than another?\nquestion="contrast", the probability',
        "support": 'All evidence for the class\nquestion="support", the logit',
    }
    figure, axes = plt.subplots(1, 3, figsize=(8.4, 3.4))
    axes[0].imshow(image)
    axes[0].set_title("The image: a card and a gear.\nThe class: gear", fontsize=9.5)
    for axis, (question, title) in zip(axes[1:], words.items(), strict=True):
        attribution = vitreous.explain(vit, image, ["gear"], question=question)
        axis.imshow(overlay_image(attribution))
        axis.set_title(title, fontsize=9.5)
    for axis in axes:
        axis.set_axis_off()
    figure.tight_layout()
    figure.savefig(HERE / "questions.png", dpi=90, bbox_inches="tight")


def error_bars() -> None:
    """A map of `bayes` with thin lines over patches that are not significantly different from zero."""
    scene = scenes.draw("single", seed=0, index=0)
    attribution = vitreous.explain(vitreous.load("scenes"), Image.fromarray(scene.image), method="bayes(samples=512)")
    attribution.plot(uncertainty=True).savefig(HERE / "error-bars.png", dpi=80)


class FrameByFrame(nn.Module):
    """An image model on every frame of clips [b c t H W], averaged over time."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, clips: Tensor) -> Tensor:
        return self.model(clips.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(clips), -1)).mean(1)


def film(seed: int = 3, index: int = 4, frames: int = 8) -> None:
    """A moving object, explained with the embedded model applied to every frame."""
    drawn = scenes.plan("single", seed, index)
    (item,) = drawn.things
    path = [replace(item.pose, x=26 + 60 * step / (frames - 1)) for step in range(frames)]
    images = [scenes.render(replace(drawn, things=(replace(item, pose=pose),))) for pose in path]
    clip = torch.stack([scenes.tensor(image) for image in images], dim=1)[None]
    network = vitreous.see_through(
        FrameByFrame(scenes.load_model("scenes")), "scenes, frame by frame", size=(frames, scenes.SIZE, scenes.SIZE)
    )
    attribution = vitreous.explain(network, clip, scenes.CLASSES.index(item.name), method="temper")
    replace(attribution, names=(item.name,)).plot().savefig(HERE / "film-strip.png", dpi=80)


def playground() -> None:
    """The page as it opens, in a browser of this machine (Chromium, through Playwright)."""
    import shutil
    import subprocess
    import sys

    from playwright.sync_api import sync_playwright

    served = [sys.executable, "-m", "vitreous", "serve", "--port", "8733"]
    server = subprocess.Popen(served, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()  # it prints its address when it is ready
        with sync_playwright() as browsers:
            browser = browsers.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": 1280, "height": 940})
            page.goto("http://127.0.0.1:8733/")
            page.get_by_text("The prediction depends on").wait_for(timeout=120_000)
            page.wait_for_timeout(3000)
            page.screenshot(path=HERE / "playground.jpg", type="jpeg", quality=82)
            browser.close()
    finally:
        server.terminate()


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    pair()
    inside()
    why()
    hierarchical()
    questions()
    error_bars()
    film()
    playground()
