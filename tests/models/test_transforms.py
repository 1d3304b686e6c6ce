"""Transforms of users become a `Preprocess` with the same tensors, or one with a caveat about unknown geometry."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.models import ViT_B_16_Weights
from torchvision.transforms import InterpolationMode, v2

import vitreous
from vitreous.core.errors import Caveat, ModelError, ShapeError
from vitreous.models.image_input import Preprocess
from vitreous.models.transforms import OpaquePreprocess, TransformPreprocess, as_preprocess
from vitreous.testing import tiny_vits

SIZES = [(97, 64), (64, 97), (300, 200), (31, 33), (5, 120), (1, 1), (64, 64), (400, 50)]  # width, height
NORMAL = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
FLOAT = torch.float32
CUBIC = InterpolationMode.BICUBIC


def noise(width: int, height: int, seed: int = 1) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def _convert_image_to_rgb(image):
    """As CLIP's own transform has it."""
    return image.convert("RGB")


EXACT = {
    "v1": v1.Compose([v1.Resize(37), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize(*NORMAL)]),
    "v1 cubic stretch": v1.Compose([v1.Resize((32, 48), CUBIC), v1.ToTensor(), v1.Normalize(*NORMAL)]),
    "v1 integers": v1.Compose(
        [v1.Resize([37]), v1.CenterCrop((32, 24)), v1.PILToTensor(), v1.ConvertImageDtype(FLOAT), v1.Normalize(*NORMAL)]
    ),
    "v1 crop alone": v1.Compose([v1.CenterCrop(40), v1.ToTensor()]),
    "v1 without a crop": v1.Compose([v1.Resize(32), v1.ToTensor(), v1.Normalize(*NORMAL)]),
    "v1 as it is": v1.Compose([v1.ToTensor(), v1.Normalize(*NORMAL)]),
    "v1 nested": v1.Compose([v1.Compose([v1.Resize(37), v1.CenterCrop(32)]), v1.PILToTensor(), nn.Sequential(v1.ConvertImageDtype(FLOAT))]),
    "clip": v1.Compose(
        [v1.Resize(32, CUBIC), v1.CenterCrop(32), _convert_image_to_rgb, v1.ToTensor(), v1.Normalize(*NORMAL)]
    ),
    "v2": v2.Compose(
        [
            v2.ToImage(),
            v2.ToDtype(torch.uint8, scale=True),
            v2.Resize(37, antialias=True),
            v2.CenterCrop(32),
            v2.ToDtype(FLOAT, scale=True),
            v2.Normalize(*NORMAL),
        ]
    ),
    "v2 levels": v2.Compose(
        [
            v2.RGB(),
            v2.Resize((32, 40), CUBIC),
            v2.PILToTensor(),
            v2.ToDtype(FLOAT),
            v2.Normalize([123.0, 116.0, 103.0], [58.0] * 3),
            v2.ToPureTensor(),
        ]
    ),
    "weights": ViT_B_16_Weights.IMAGENET1K_V1,
    "preset": ViT_B_16_Weights.IMAGENET1K_SWAG_LINEAR_V1.transforms(),
    "timm": timm.data.create_transform(32, crop_pct=0.9, interpolation="bicubic"),
    "timm oblong": timm.data.create_transform((3, 32, 48), crop_pct=0.9),
    "timm squash": timm.data.create_transform(32, crop_mode="squash", crop_pct=0.875),
    "timm border": timm.data.create_transform(32, crop_mode="border", crop_pct=1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_understood_transforms_become_a_preprocess_with_the_same_tensors(name):
    given = EXACT[name]

    preprocess = as_preprocess(given)

    assert type(preprocess) is Preprocess
    transform = given.transforms() if name == "weights" else given
    # timm's own resize to a thin border fails where an edge would be zero pixels long
    for size in SIZES[:4] if name in ("timm border", "weights", "preset") else SIZES:
        own = torch.as_tensor(transform(noise(*size))).as_subclass(torch.Tensor)
        torch.testing.assert_close(preprocess(noise(*size)), own, atol=1e-5, rtol=1e-5)


ROUNDED = {
    "v1 floats": v1.Compose([v1.ToTensor(), v1.Resize(37), v1.CenterCrop(32), v1.Normalize(*NORMAL)]),
    "v1 integer tensor": v1.Compose(
        [v1.PILToTensor(), v1.Resize((32, 40), CUBIC), v1.ConvertImageDtype(FLOAT), v1.Normalize(*NORMAL)]
    ),
    "v2 floats": v2.Compose(
        [v2.ToImage(), v2.ToDtype(FLOAT, scale=True), v2.Resize((32, 40), CUBIC), v2.Normalize(*NORMAL)]
    ),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_transforms_that_resize_floats_keep_their_own_tensors_and_a_known_geometry(name):
    given = ROUNDED[name]

    preprocess = as_preprocess(given)

    assert type(preprocess) is TransformPreprocess
    for size in SIZES:
        assert torch.equal(preprocess(noise(*size)), given(noise(*size)).as_subclass(torch.Tensor))
        assert preprocess.restore(torch.ones(4, 4), (size[1], size[0])).shape == (size[1], size[0])


@pytest.mark.parametrize("backend", ["", "Pil"])
@pytest.mark.parametrize("family", ["ViT", "CLIP", "DeiT", "Siglip"])
def test_hugging_face_processors_become_a_preprocess(family, backend):
    transformers = pytest.importorskip("transformers")
    processor = getattr(transformers, f"{family}ImageProcessor{backend}")()

    preprocess = as_preprocess(processor)

    assert type(preprocess) is Preprocess
    for size in [(97, 64), (64, 97), (300, 200)]:
        own = processor(noise(*size), return_tensors="pt")["pixel_values"][0]
        torch.testing.assert_close(preprocess(noise(*size)), own, atol=1e-5, rtol=1e-5)


def test_maps_cover_the_whole_image_without_a_crop():
    preprocess = as_preprocess(EXACT["v1 without a crop"])

    assert preprocess.window((64, 200)) == (0, 0, 200, 64)
    assert not preprocess.restore(torch.ones(4, 12), (64, 200)).isnan().any()
    assert preprocess.masks(np.ones((64, 200), np.uint8)).shape == (32, 100)
    with pytest.raises(ShapeError, match=r"several sizes, 32x32, 32x64; explain them one by one"):
        preprocess.batch([noise(40, 40), noise(80, 40)])


# ── unknown transforms ────────────────────────────────────────────────────────────────────────────


def own_callable(image: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(image.resize((32, 32)).rotate(90))).permute(2, 0, 1)
    return pixels / 127.5 - 1


class Resize(v1.Resize):
    """A subclass may do anything."""


OPAQUE = {
    "callable": own_callable,
    "step of unknown effect": v1.Compose([v1.Resize((32, 32)), v1.Lambda(lambda image: image.rotate(90)), v1.ToTensor()]),
    "subclass": v1.Compose([Resize((32, 32)), v1.ToTensor()]),
    "padding": v1.Compose([v1.Resize((28, 28)), v1.Pad(2), v1.ToTensor()]),
    "array": lambda image: np.asarray(image.resize((32, 32)), np.float32).transpose(2, 0, 1)[None] / 255,
}  # fmt: skip


@pytest.mark.parametrize("name", OPAQUE)
def test_a_transform_of_unknown_geometry_is_used_with_a_caveat(name):
    with pytest.warns(Caveat, match="geometry of preprocess=.* not known: maps are drawn on what the model saw"):
        preprocess = as_preprocess(OPAQUE[name])

    assert type(preprocess) is OpaquePreprocess
    assert preprocess.size == (32, 32)
    own = torch.as_tensor(OPAQUE[name](noise(50, 40))).reshape(3, 32, 32)
    assert torch.equal(preprocess(noise(50, 40)), own)
    shown = preprocess.denormalise(preprocess.batch([noise(50, 40), noise(40, 50)]))
    assert shown.flatten(1).min(1).values.tolist() == [0, 0]
    assert shown.flatten(1).max(1).values.tolist() == [255, 255]
    with pytest.raises(ModelError, match=r"geometry of preprocess=.* give a vitreous\.Preprocess"):
        preprocess.window((40, 50))


def test_a_processor_of_another_family_is_used_unchanged():
    transformers = pytest.importorskip("transformers")
    processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=0.9)

    with pytest.warns(Caveat, match="ConvNextImageProcessor"):
        preprocess = as_preprocess(processor)

    own = processor(noise(50, 40), return_tensors="pt")["pixel_values"][0]
    assert torch.equal(preprocess(noise(50, 40)), own)


def jitter(image: Image.Image) -> torch.Tensor:
    return torch.rand(3, 8, 8)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (v1.Compose([v1.Resize(40), v1.RandomCrop(32), v1.ToTensor()]), r"chooses at random \(RandomCrop\); give"),
        (v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(p=0.01)]), r"\(RandomHorizontalFlip\)"),
        (v1.Compose([v1.Compose([v1.ColorJitter(0.1)]), v1.ToTensor()]), r"\(ColorJitter\)"),
        (v1.RandomApply([v1.Grayscale(3)]), r"\(RandomApply\)"),
        (timm.data.create_transform(32, is_training=True), r"\(Random\w+\)"),
        (timm.data.create_transform(32, is_training=True, train_crop_mode="rkrc"), r"\((ResizeKeepRatio|Random\w+)\)"),
        (jitter, "jitter gives another tensor every time"),
        (v1.Resize(32), "Resize returned 'Image'; it is called with one RGB PIL image and returns a float tensor"),
        (v1.PILToTensor(), r"PILToTensor returned uint8 \[3, 47, 61\]"),
        (lambda image: torch.zeros(0, 8, 8), r"returned float32 \[0, 8, 8\]"),
        (lambda image: image["image"], "failed on an image of 61x47"),
        (3, "not 'int'"),
        ("vit", "not 'str'"),
    ],
)
def test_invalid_transforms_are_refused_with_a_message(given, sentence):
    with pytest.raises(ModelError, match=sentence) as caught:
        as_preprocess(given)

    assert "\n" not in str(caught.value)


# ── wrap and load ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def module():
    return tiny_vits(torch.float32)["class token"].module


def test_wrap_accepts_a_transform_and_maps_return_to_the_image(module):
    transform = v1.Compose([v1.Resize(32), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.5] * 3)])
    image = noise(60, 40)

    attribution = vitreous.explain(vitreous.wrap(module, preprocess=transform), image, 1, "ixg")

    assert torch.equal(attribution.images[0], transform(image))
    assert attribution.pixels("original").shape == (1, 40, 60)
    assert "not known" not in page_of(attribution)


def test_a_map_of_unknown_geometry_is_drawn_on_the_model_input(module):
    with pytest.warns(Caveat, match="own_callable"):
        vit = vitreous.wrap(module, preprocess=own_callable)

    attribution = vitreous.explain(vit, noise(60, 40), 1, "ixg")

    with pytest.raises(ModelError, match="geometry of preprocess=own_callable is not known"):
        attribution.pixels("original")
    overlay = vitreous.draw.overlay_image(attribution)
    assert overlay.width == overlay.height  # as the model saw it, not 60x40
    assert "geometry and normalisation of its preprocessing are not known" in page_of(attribution)
    with pytest.raises(ModelError, match="no mean and std"):
        vitreous.evaluate(vit, None, attribution, "insertion(space='pixels', baseline='black')")


def page_of(attribution: vitreous.Attribution) -> str:
    return " ".join(text.get_text() for text in attribution.plot().texts)


def test_a_module_from_a_folder_uses_the_processor_in_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=16
    )
    model = transformers.ViTForImageClassification(config).eval()
    assert vitreous.wrap(model).preprocess is None
    model.save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3])
    processor.save_pretrained(tmp_path)

    loaded = transformers.ViTForImageClassification.from_pretrained(tmp_path).eval()

    for vit in (vitreous.wrap(loaded), vitreous.wrap(loaded, black_box=True)):
        assert vit.preprocess == Preprocess.from_hf(processor)
    assert vitreous.explain(loaded, noise(60, 40), method="decompx").pixels("original").shape == (1, 40, 60)


def test_load_takes_a_transform_in_place_of_the_models_own():
    vit = vitreous.load("scenes", preprocess=v1.Compose([v1.Resize((112, 112)), v1.ToTensor()]))

    assert vit.preprocess == Preprocess((112, 112), (112, 112), "stretch", "bilinear", (0.0,) * 3, (1.0,) * 3)


def test_a_preprocess_is_returned_unchanged():
    preprocess = Preprocess.plain(32)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_preprocess(preprocess) is preprocess
