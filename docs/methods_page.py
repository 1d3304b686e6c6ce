"""Writes docs/methods.md and docs/composes.md from the registry, with an image of every method from scenes.

    python docs/methods_page.py            # explains three images with every method, counts passes, writes pages
    python docs/methods_page.py --missing  # the same for new methods only
    python docs/methods_page.py --check    # tests whether the pages agree with the registry; writes nothing

Counted passes are stored in docs/images/methods/costs.json, so that the pages depend on the registry and that file only.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from methods_page_text import FEWER, composes_page, methods_page
from PIL import Image

import vitreous
from vitreous import scenes
from vitreous.core.errors import Caveat
from vitreous.draw.captions import RAISED
from vitreous.draw.figure_layout import FAINT, FigureBoard
from vitreous.draw.overlay import overlay_image
from vitreous.draw.scale import OPACITY, scale_of
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import Method
from vitreous.testing import Counter

HERE = Path(__file__).parent
IMAGES = HERE / "images" / "methods"
COSTS = IMAGES / "costs.json"
LARGEST = 25_000  # bytes of an image


@dataclass(frozen=True)
class SceneTarget:
    """A scene, and the object in it that is explained."""

    kind: str
    index: int
    object_index: int
    why: str
    seed: int = 1

    @property
    def scene(self) -> scenes.Scene:
        return scenes.draw(self.kind, self.seed, self.index)

    @property
    def image(self) -> Image.Image:
        return Image.fromarray(self.scene.image)


TARGETS = (
    SceneTarget("single", 1, 0, "one object"),
    SceneTarget("pair", 4, 0, "two objects, one of them explained"),
    SceneTarget("part", 0, 0, "one of two paired classes, which differ in the pip only"),
)


def built_in() -> list[str]:
    return sorted(method["name"] for method in vitreous.list_methods() if method["origin"] == "vitreous")


def shown_method(name: str) -> Method:
    """A method with the number of samples of the page."""
    return vitreous.resolve(name, **FEWER.get(name, {}))


# ── images and costs ───────────────────────────────────────────────────────────────────────────


def explain_targets(vit: Any, name: str) -> tuple[Attribution, list[float]]:
    """The three maps, and the passes that they took, per image."""
    counter, images = Counter(), [target.image for target in TARGETS]
    targets = [target.scene.objects[target.object_index].label for target in TARGETS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        with counter.watching(vit) as watched:
            attribution = vitreous.explain(watched, images, targets, shown_method(name))
    whole = len(images) * vit.depth
    return attribution, [round(counter.forwards / whole, 2), round(counter.backwards / whole, 2)]


def strip(attribution: Attribution | None = None) -> Image.Image:
    """The images with the evidence outlined in green; with maps over them, each with its own scale."""
    wide, gap, top = 1.42, 0.12, 0.2
    board = FigureBoard(3 * wide + 4 * gap)
    for column, target in enumerate(TARGETS):
        x, name = gap + column * (wide + gap), target.scene.objects[target.object_index].name
        board.write(x + wide / 2, 0.04, [name], 8, ha="center")
        if attribution is None:
            board.place_image(x, top, wide, outlined(target.image.resize((480, 480)), target))
            continue
        scale = scale_of(attribution[column])
        over = outlined(overlay_image(attribution, column, scale=scale, longest=480), target)
        board.place_image(x, top, wide, over)
        board.bar(x + 0.14, top + wide + 0.06, wide - 0.28, scale, OPACITY)
        unit = f"× 10{str(scale.exponent).translate(RAISED)}" if scale.exponent else ""
        board.write(x + wide / 2, top + wide + 0.31, [unit], 6.5, ha="center", color=FAINT)
    stream = BytesIO()
    board.closed(top + wide + (0.06 if attribution is None else 0.47)).savefig(stream, format="png", dpi=110)
    return Image.open(stream).convert("RGB")


def save_small(image: Image.Image, name: str) -> None:
    """Save the image with as many colours as fit into a small file."""
    for colours in (80, 56, 40, 24):
        few = image.quantize(colours, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE)
        few.save(IMAGES / f"{name}.png", optimize=True)
        if (IMAGES / f"{name}.png").stat().st_size <= LARGEST:
            return


def outlined(image: Image.Image, target: SceneTarget) -> Image.Image:
    mask = Image.fromarray(target.scene.objects[target.object_index].evidence).resize(
        image.size, Image.Resampling.NEAREST
    )
    inside = np.pad(np.asarray(mask), 2)
    near = np.lib.stride_tricks.sliding_window_view(inside, (5, 5))
    return Image.fromarray(
        np.where((near.any((2, 3)) & ~near.all((2, 3)))[..., None], (0, 170, 60), image).astype("u1")
    )


def make(only: Sequence[str]) -> None:
    """Explain with every method, or with those of `only`, and write images and costs."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    vit, costs = vitreous.load("scenes"), json.loads(COSTS.read_text()) if only else {}
    save_small(strip(), "images")
    for name in only or built_in():
        attribution, costs[name] = explain_targets(vit, name)
        save_small(strip(attribution), name)
        print(f"{name:17} {costs[name]}", flush=True)
    lines = (f' "{name}": {json.dumps(costs[name])}' for name in sorted(costs))
    COSTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


# ── pages ────────────────────────────────────────────────────────────────────────────────────────


def methods_text() -> str:
    described_targets = "; ".join(
        f"{target.scene.objects[target.object_index].name} ({target.why})" for target in TARGETS
    )
    return methods_page(json.loads(COSTS.read_text()), described_targets)


PAGES = {HERE / "methods.md": methods_text, HERE / "composes.md": composes_page}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments.add_argument("--text", action="store_true", help="write the pages alone, with the costs counted before")
    arguments.add_argument("--missing", action="store_true", help="explain with the methods that have no costs yet")
    arguments.add_argument(
        "--only", action="append", metavar="NAME", help="explain with this method alone, or with several"
    )
    options = arguments.parse_args()
    uncounted = [name for name in built_in() if name not in json.loads(COSTS.read_text())]
    if options.check and uncounted:
        print(f"no image and costs of {', '.join(uncounted)}; run python docs/methods_page.py --missing")
        return 1
    if options.check:
        stale = [path.name for path, page in PAGES.items() if not path.exists() or path.read_text() != page()]
        print(f"out of date: {', '.join(stale)}; run python docs/methods_page.py" if stale else "up to date")
        return 1 if stale else 0
    if not options.text and (uncounted or not options.missing):
        make((uncounted if options.missing else options.only) or [])
    for path, page in PAGES.items():
        path.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
