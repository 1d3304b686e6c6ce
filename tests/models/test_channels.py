"""Images with one channel or more than three from files: decoding, preprocessing, maps and figures."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

import vitreous
from tests.cases import each
from vitreous.cli.main import main
from vitreous.core.errors import DataError, ModelError, ShapeError
from vitreous.draw.overlay import overlay_image
from vitreous.models.image_bands import bands_of, kept_bands, shown_at_full_contrast
from vitreous.models.image_input import Preprocess, open_image
from vitreous.models.transforms import OpaquePreprocess, as_preprocess

RADIOGRAPH = np.random.default_rng(0).integers(0, 4096, (50, 40)).astype(np.uint16)  # 12 of 16 bits
BANDS = np.random.default_rng(1).integers(0, 256, (50, 40, 5)).astype(np.uint8)
GREY = Preprocess(size=(32, 32), resize=(32, 32), fit="shortest", mean=(0.1,), std=(0.5,))


def tiny(channels: int, **options) -> nn.Module:
    torch.manual_seed(0)
    options = {"img_size": 32, "depth": 2, "num_classes": 3, "in_chans": channels, **options}
    return timm.create_model("vit_tiny_patch16_224", pretrained=False, **options).eval()


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────


@each("suffix", ["png", "tif", "npy"])
def test_sixteen_bits_reach_a_model_of_one_channel_as_they_are(suffix, tmp_path):
    path = tmp_path / f"radiograph.{suffix}"
    np.save(path, RADIOGRAPH) if suffix == "npy" else Image.fromarray(RADIOGRAPH).save(path)
    whole = Preprocess(size=(50, 40), mean=(0.0,), std=(1.0,))
    expected = torch.from_numpy(RADIOGRAPH / 65535).float()[None]

    for source in (path, open_image(path), open_image(open_image(path)), pickle.loads(pickle.dumps(open_image(path)))):
        torch.testing.assert_close(whole(source), expected, rtol=1e-5, atol=1e-7)
    assert open_image(path).mode == "RGB"
    assert np.asarray(open_image(path)).max() == 16  # 4095 of 65535
    assert np.asarray(shown_at_full_contrast(open_image(path))).max() == 255


def test_stored_values_are_not_used_for_an_image_that_was_changed():
    image = open_image(RADIOGRAPH)
    turned = image.transpose(Image.Transpose.ROTATE_180)

    assert kept_bands(image) is not None
    assert kept_bands(turned) is None
    assert bands_of(turned, 1)[0].mode == "L"
    assert bands_of(image, 1)[0].mode == "F"


@each("shape", [(50, 40, 5), (5, 50, 40), (50, 40, 2), (50, 40, 13)])
def test_arrays_with_any_number_of_bands_are_prepared(shape, tmp_path):
    array = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    channels = min(shape)
    expected = torch.from_numpy(np.moveaxis(array, shape.index(channels), 0)).float() / 255
    preprocess = Preprocess(size=(50, 40), mean=(0.0,) * channels, std=(1.0,) * channels)
    np.save(tmp_path / "bands.npy", array)

    for source in (array, torch.from_numpy(array), tmp_path / "bands.npy", str(tmp_path / "bands.npy")):
        torch.testing.assert_close(preprocess(source), expected)
    deep = preprocess(array.astype(np.uint16) * 257)
    torch.testing.assert_close(deep, expected, rtol=1e-5, atol=1e-6)


def test_four_bands_of_a_tiff_file_are_those_of_a_model_with_four_channels(tmp_path):
    pixels = BANDS[..., :4].copy()
    Image.fromarray(pixels).save(tmp_path / "satellite.tif")
    preprocess = Preprocess(size=(50, 40), mean=(0.0,) * 4, std=(1.0,) * 4)

    assert torch.equal(preprocess(tmp_path / "satellite.tif"), torch.from_numpy(pixels).permute(2, 0, 1).float() / 255)
    assert open_image(tmp_path / "satellite.tif").getpixel((0, 0)) == open_image(pixels).getpixel((0, 0))


def test_images_without_the_channels_of_the_model_are_refused(tmp_path):
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY and no more")

    for image, count, sentence in [
        (BANDS, 3, "has 5 channels, and the model takes 3; a uint8 or uint16 array"),
        (BANDS, 1, "has 5 channels, and the model takes 1"),
        (np.zeros((8, 9, 3), np.uint8), 5, "has 3 channels, and the model takes 5"),
    ]:
        with pytest.raises(ShapeError, match=sentence):
            Preprocess.plain(32, channels=count)(image)
    with pytest.raises(DataError, match=r"broken.npy' is not an array that numpy can read"):
        open_image(tmp_path / "broken.npy")


# ── preprocessing ────────────────────────────────────────────────────────────────────────────────


def test_a_plain_preprocess_has_any_number_of_channels():
    assert Preprocess.plain(32, channels=1).mean == (0.5,)
    assert Preprocess.plain(32, (0.1, 0.2, 0.3, 0.4), 0.5).std == (0.5,) * 4
    assert Preprocess.plain(32).channels == 3
    with pytest.raises(ModelError, match="has 3 numbers, not 2"):
        Preprocess.plain(32, (0.1, 0.2, 0.3), (0.1, 0.2))
    with pytest.raises(ModelError, match="mean has 1 and std 3 channels"):
        Preprocess((32, 32), mean=(0.5,))


@each(
    "transform",
    [
        v1.Compose([v1.Grayscale(), v1.Resize(37), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize([0.4], [0.2])]),
        v1.Compose([v1.Grayscale(1), v1.Resize((32, 48)), v1.ToTensor()]),
        v2.Compose(
            [v2.Grayscale(), v2.Resize(37), v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        ),
    ],
)
def test_transforms_to_grey_become_a_preprocess_with_the_same_tensors(transform):
    preprocess = as_preprocess(transform)
    image = Image.fromarray(BANDS[..., :3].copy())

    assert (type(preprocess), preprocess.channels) == (Preprocess, 1)
    torch.testing.assert_close(preprocess(image), transform(image).as_subclass(torch.Tensor))


def test_another_transform_to_grey_is_used_as_it_is():
    def to_red(image):
        return torch.from_numpy(np.array(image.resize((32, 32))))[..., :1].permute(2, 0, 1) / 255

    with pytest.warns(vitreous.Caveat, match="to_red"):
        preprocess = as_preprocess(to_red)

    assert (type(preprocess), preprocess.channels) == (OpaquePreprocess, 1)
    assert preprocess.denormalise(torch.randn(1, 32, 32)).shape == (1, 32, 32)


def test_a_preprocess_has_the_channels_of_the_model():
    with pytest.raises(
        ModelError, match=r"preprocess gives images of 3 channels, and 'VisionTransformer' takes 1; .*channels=1\)"
    ):
        vitreous.wrap(tiny(1), preprocess=Preprocess.plain(32))
    box = vitreous.wrap(nn.Sequential(nn.Flatten(), nn.Linear(1024, 2)), black_box=True, preprocess=GREY)

    assert box.channels == 1
    assert vitreous.explain(box, RADIOGRAPH, method="rise(masks=4)").pixels().shape == (1, 32, 32)


# ── maps and figures ─────────────────────────────────────────────────────────────────────────────


def test_a_radiograph_is_explained_and_drawn_on_the_original(tmp_path):
    Image.fromarray(RADIOGRAPH).save(tmp_path / "radiograph.png")
    vit = vitreous.wrap(tiny(1), preprocess=GREY)

    found = vitreous.explain(vit, tmp_path / "radiograph.png", 1, "ixg")
    drawn = np.asarray(overlay_image(found))

    assert found.images.shape == (1, 1, 32, 32)
    assert found.pixels("original").shape == (1, 50, 40)
    assert drawn.shape[0] / drawn.shape[1] == pytest.approx(50 / 40, rel=0.02)
    below = np.asarray(vitreous.draw.overlay.backdrop(found)[0])
    assert np.ptp(below) > 200  # full contrast, and not the 16 darkest levels
    assert (below[..., 0] == below[..., 2]).all()


@each(
    "channels, note",
    [(1, "its channel in grey"), (2, "the mean of 2 channels in grey"), (5, "the first 3 of 5 channels")],
)
def test_tensors_of_other_channels_are_drawn_at_full_contrast(channels, note):
    vit = vitreous.wrap(tiny(channels), preprocess=Preprocess.plain(32, 0.25, 0.5, channels=channels))
    inputs = torch.linspace(0, 0.1, 32).expand(1, channels, 32, 32)

    found = vitreous.explain(vit, inputs, 1, "ixg")

    assert np.ptp(np.asarray(vitreous.draw.overlay.backdrop(found)[0])) == 255
    assert note in vitreous.draw.captions.remarks(found)


def test_bands_are_explained_and_drawn_on_the_original():
    vit = vitreous.wrap(tiny(5), preprocess=Preprocess.plain(32, channels=5))
    found = vitreous.explain(vit, [BANDS, BANDS], 1, "ixg")

    assert found.pixels("original").shape == (2, 50, 40)
    assert np.array_equal(np.asarray(found.originals[0]), BANDS[..., :3])


@pytest.mark.slow
def test_a_radiograph_is_explained_on_the_command_line(tmp_path, capsys):
    Image.fromarray(RADIOGRAPH).save(tmp_path / "radiograph.png")
    names = ["in_chans=1", "img_size=32", "depth=2", "num_classes=2"]
    words = [
        "explain",
        str(tmp_path / "radiograph.png"),
        "-m",
        "timm:vit_tiny_patch16_224",
        "--no-pretrained",
        "-x",
        "ixg",
    ]
    words += [word for name in names for word in ("--model-arg", name)] + ["-o", str(tmp_path / "out"), "--json"]

    assert main(words) == 2
    assert "does not say how images are prepared (it takes 1 channel); give --mean and --std" in capsys.readouterr().err
    assert main([*words, "--mean", "0.03,0.5", "--std", "0.02"]) == 2
    assert "--mean has 2 numbers, and 'timm:vit_tiny_patch16_224' takes images of 1 channel" in capsys.readouterr().err
    assert main([*words, "--mean", "0.03", "--std", "0.02"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["images"]
    with Image.open(record["sheet"]) as sheet:
        assert sheet.size > (100, 100)
