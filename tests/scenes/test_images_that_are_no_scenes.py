"""Images that the embedded models cannot know get a caveat; scenes, however they were stored, do not."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from tests.cases import each
from vitreous import Caveat, scenes
from vitreous.models.scenes import are_scenes

IMAGES = [Image.fromarray(scenes.draw(kind, 5, index).image) for kind in scenes.KINDS for index in range(3)]


def as_jpeg(image: Image.Image, quality: int) -> Image.Image:
    stream = BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


def to_colours(images: list[Image.Image]) -> torch.Tensor:
    preprocess = vitreous.Preprocess.plain((scenes.SIZE, scenes.SIZE), 0.5, 0.5)
    return torch.stack([preprocess.colours(image) for image in images]).float() / 255


@each("store", [lambda i: i, lambda i: as_jpeg(i, 60), lambda i: as_jpeg(i.resize((500, 500)), 85)])
def test_stored_scenes_are_recognised(store):
    assert are_scenes(to_colours([store(image) for image in IMAGES])).all()


@pytest.mark.slow
def test_photographs_are_not_taken_for_scenes():
    data = pytest.importorskip("skimage.data")
    names = ("astronaut", "camera", "cat", "coffee", "rocket", "coins", "page", "text", "brick", "grass", "gravel")
    photographs = [Image.fromarray(getattr(data, name)()).convert("RGB") for name in names]

    recognised = are_scenes(to_colours(photographs))

    assert not recognised.any(), [name for name, scene in zip(names, recognised, strict=True) if scene]
    blank, noise = torch.full((1, 3, 112, 112), 0.5), torch.rand(1, 3, 112, 112, generator=torch.Generator())
    assert not are_scenes(torch.cat([blank, noise])).any()


@each("name", scenes.MODELS)
def test_an_image_that_is_no_scene_gets_a_caveat(name):
    model = vitreous.load(name)
    gradient = np.tile(np.linspace(0, 255, 200).astype(np.uint8)[:, None, None], (1, 150, 3))
    for images, said in ((gradient, "the image does not look like"), ([IMAGES[0], gradient], "1 of 2 images do not")):
        with pytest.warns(Caveat, match=rf"{said} .* 20 things .* --model timm:vit_base_patch16_224"):
            caveat = vitreous.explain(model, images, method="ixg+plus").provenance["caveat"]
        assert said in caveat
    assert "caveat" not in vitreous.explain(model, IMAGES[0], method="ixg+plus").provenance


def test_other_weights_get_no_caveat(tmp_path):
    from safetensors.torch import save_file

    weights = scenes.load_model("scenes").state_dict()
    save_file(weights, tmp_path / "mine.safetensors")
    model = vitreous.load("scenes", checkpoint=tmp_path / "mine.safetensors")

    attribution = vitreous.explain(model, np.zeros((50, 50, 3), np.uint8), method="random")

    assert "caveat" not in attribution.provenance
