"""Images are opened upright, preprocessed as by the model's own library, and maps return to their place."""

from __future__ import annotations

import io
import math
import struct
import zlib
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image

from tests.cases import each
from vitreous.core.errors import DataError, ModelError, ShapeError, SpecError
from vitreous.models.image_input import Preprocess, open_image

timm_data = pytest.importorskip("timm.data")
SIZES = [(97, 64), (64, 97), (300, 200), (31, 33), (5, 120), (1, 1), (64, 64)]  # width, height
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def smooth(width: int, height: int) -> Image.Image:
    return noise(8, 8).resize((width, height), Image.Resampling.BICUBIC)


# ── opening ──────────────────────────────────────────────────────────────────────────────────────


def test_paths_bytes_and_images_give_the_same_pixels(tmp_path):
    noise(6, 4).save(tmp_path / "a.png")

    from_path = open_image(tmp_path / "a.png")

    assert from_path.mode == "RGB"
    assert from_path.size == (6, 4)
    for source in (str(tmp_path / "a.png"), (tmp_path / "a.png").read_bytes(), noise(6, 4)):
        assert open_image(source).tobytes() == from_path.tobytes()


@pytest.mark.parametrize(
    ("orientation", "corner"),
    [(1, (0, 0)), (2, (5, 0)), (3, (5, 3)), (4, (0, 3)), (5, (0, 0)), (6, (3, 0)), (8, (0, 5))],
)
def test_exif_rotation_is_applied(tmp_path, orientation, corner):
    picture = Image.new("RGB", (6, 4))
    picture.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture.save(tmp_path / "turned.png", exif=exif)

    opened = open_image(tmp_path / "turned.png")

    assert opened.size == ((4, 6) if orientation >= 5 else (6, 4))
    assert opened.getpixel(corner) == (255, 255, 255)


def test_an_image_with_broken_exif_is_opened():
    data = io.BytesIO()
    noise(8, 8).save(data, "jpeg", exif=b"Exif\0\0nonsense")

    assert open_image(data.getvalue()).size == (8, 8)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "RGBa"])
def test_transparent_pixels_become_white(mode):
    clear = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    clear.putpixel((1, 0), (0, 0, 0, 255))
    clear = clear.convert(mode)

    opened = open_image(clear)

    assert [opened.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (0, 0, 0)]


@pytest.mark.parametrize("mode", ["P", "RGB", "L", "1"])
def test_a_transparent_colour_becomes_white(tmp_path, mode):
    picture = Image.new("RGB", (2, 1), (255, 255, 255)).convert(mode)
    picture.putpixel((0, 0), (0, 0, 0) if mode == "RGB" else 0)
    key = (0, 0, 0) if mode == "RGB" else picture.getpixel((0, 0))
    picture.save(tmp_path / "keyed.png", transparency=key)

    opened = open_image(tmp_path / "keyed.png")

    assert opened.getpixel((0, 0)) == (255, 255, 255)


def test_palette_colours_survive(tmp_path):
    palette = noise(9, 7).quantize(64)
    palette.save(tmp_path / "palette.gif")

    assert open_image(tmp_path / "palette.gif").tobytes() == palette.convert("RGB").tobytes()


def test_cmyk_is_shown_in_its_colours(tmp_path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "ink.jpg", quality=100)

    red, green, blue = open_image(tmp_path / "ink.jpg").getpixel((4, 4))

    assert red > 240
    assert green < 15
    assert blue < 15


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 32896, 65535]], np.uint16), [0, 128, 255]),
        (np.array([[0, 100, 255]], np.uint16), [0, 0, 1]),
        (np.array([[0, 32896, 65535]], np.int32), [0, 128, 255]),
        (np.array([[0, 128, 255]], np.int32), [0, 128, 255]),
        (np.array([[-100, 0, 100]], np.int32), [0, 128, 255]),
        (np.array([[-7, -7, -7]], np.int32), [0, 0, 0]),
        (np.array([[0, 0.5, 1]], np.float32), [0, 128, 255]),
        (np.array([[0, 128, 255]], np.float32), [0, 128, 255]),
        (np.array([[-1, 0, 1]], np.float32), [0, 128, 255]),
        (np.array([[math.nan, 0, 1]], np.float32), [0, 0, 255]),
    ],
)
def test_sixteen_bit_greyscale_is_converted_to_eight_bits(tmp_path, values, expected):
    Image.fromarray(values).save(tmp_path / "deep.tiff")

    opened = open_image(tmp_path / "deep.tiff")

    assert [opened.getpixel((x, 0)) for x in range(3)] == [(value,) * 3 for value in expected]


def test_sixteen_bit_png_opens(tmp_path):
    Image.fromarray(np.array([[0, 65535]], np.uint16)).save(tmp_path / "deep.png")

    assert open_image(tmp_path / "deep.png").getpixel((1, 0)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["1", "L", "YCbCr", "HSV"])
def test_other_colour_modes_open(mode):
    opened = open_image(Image.new("RGB", (3, 2), "white").convert(mode))

    assert opened.mode == "RGB"
    assert min(opened.getpixel((1, 1))) > 250


def test_files_that_are_no_images_are_refused_with_a_message(tmp_path):
    whole = io.BytesIO()
    noise(64, 64).save(whole, "png")
    (tmp_path / "short.png").write_bytes(whole.getvalue()[:-2000])
    noise(64, 64).save(tmp_path / "short.jpg")
    (tmp_path / "short.jpg").write_bytes((tmp_path / "short.jpg").read_bytes()[:600])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "header.png").write_bytes(whole.getvalue()[:20])

    for name, words in {
        "short.png": "cut short",
        "short.jpg": "cut short",
        "empty.png": "is empty",
        "text.png": "not an image",
        "header.png": "header.png",
        "missing.png": "no image at",
        "": "cannot be opened",
    }.items():
        with pytest.raises(DataError, match=words) as caught:
            open_image(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
    with pytest.raises(DataError, match="not an image"):
        open_image(b"nonsense")
    with pytest.raises(DataError, match="no pixels"):
        open_image(Image.new("RGB", (0, 3)))
    with pytest.raises(DataError, match="'La'"):
        open_image(Image.new("La", (3, 3)))


def test_large_images_open_and_bombs_do_not(tmp_path, monkeypatch):
    noise(20, 10).save(tmp_path / "large.png")

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)
    assert open_image(tmp_path / "large.png").size == (20, 10)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 99)
    with pytest.raises(DataError, match=r"large.png' has more than 198 pixels .* scale it down"):
        open_image(tmp_path / "large.png")


# ── preprocessing ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [(32, 32), (24, 48), (45, 31)])
@pytest.mark.parametrize("crop_pct", [1.0, 0.9, 0.875])
@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_timm_preprocessing_is_bit_identical_to_timm(size, crop_pct, crop_mode, interpolation):
    config = {
        "input_size": (3, *size), "interpolation": interpolation, "crop_pct": crop_pct, "crop_mode": crop_mode, **IMAGENET
    }  # fmt: skip
    preprocess = Preprocess.from_timm(config)
    own = timm_data.create_transform(**config, is_training=False)

    for width, height in SIZES if crop_mode != "border" else SIZES[:4]:
        assert torch.equal(preprocess(noise(width, height)), own(noise(width, height)))


def test_invalid_timm_configs_are_refused():
    config = {"input_size": (3, 32, 32), "interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center", **IMAGENET}

    for change, words in [
        ({"crop_mode": "corner"}, "crop_mode 'corner'"),
        ({"input_size": (1, 32, 32)}, "1 number, not 3"),
        ({"interpolation": "random"}, "interpolation 'random'"),
        ({"crop_border_pixels": 4}, "crop_border_pixels"),
        ({"mean": (0.5, 0.5)}, "3 numbers"),
    ]:
        with pytest.raises(ModelError, match=words):
            Preprocess.from_timm({**config, **change})


@pytest.mark.parametrize("options", [{"crop_size": 32, "resize_size": 37}, {"crop_size": 33, "resize_size": 33}])
def test_torchvision_preprocessing_is_bit_identical_to_torchvision(options):
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms._presets import ImageClassification, ObjectDetection

    for interpolation in (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC):
        own = ImageClassification(**options, interpolation=interpolation)
        preprocess = Preprocess.from_torchvision(own)
        for width, height in SIZES:
            assert torch.equal(preprocess(noise(width, height)), own(noise(width, height)))
    with pytest.raises(ModelError, match="ObjectDetection"):
        Preprocess.from_torchvision(ObjectDetection())


HF = {
    "ViT": {"size": {"height": 32, "width": 48}},
    "DeiT": {"size": {"height": 37, "width": 37}, "crop_size": {"height": 32, "width": 32}},
    "Beit": {"size": {"height": 32, "width": 32}, "do_center_crop": False},
    "Bit": {"size": {"shortest_edge": 37}, "crop_size": {"height": 28, "width": 28}},
    "Siglip": {"size": {"height": 32, "width": 32}},
    "CLIP": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
}


@pytest.mark.parametrize("family", HF)
@pytest.mark.parametrize("backend", ["", "Pil"])
@pytest.mark.parametrize("change", [{}, {"resample": 2, "rescale_factor": 1 / 127.5}, {"do_normalize": False}])
def test_hugging_face_preprocessing_agrees_up_to_rounding(family, backend, change):
    transformers = pytest.importorskip("transformers")
    processor = getattr(transformers, f"{family}ImageProcessor{backend}")(**HF[family], **change)
    preprocess = Preprocess.from_hf(processor)

    for width, height in SIZES:
        own = processor(noise(width, height), return_tensors="pt")["pixel_values"][0]
        torch.testing.assert_close(preprocess(noise(width, height)), own, atol=2e-6, rtol=0)


def test_images_smaller_than_the_crop_are_padded_as_hugging_face_pads_them():
    transformers = pytest.importorskip("transformers")
    for backend in ("", "Pil"):
        processor = getattr(transformers, f"BitImageProcessor{backend}")(
            do_resize=False, crop_size={"height": 9, "width": 8}
        )
        for size in [(5, 4), (5, 20), (20, 4), (9, 8), (12, 13)]:
            own = processor(noise(*size), return_tensors="pt")["pixel_values"][0]
            torch.testing.assert_close(Preprocess.from_hf(processor)(noise(*size)), own, atol=1e-5, rtol=0)


def test_hugging_face_processors_that_are_not_understood_are_refused():
    transformers = pytest.importorskip("transformers")

    for processor, words in [
        (transformers.ConvNextImageProcessor(), "ConvNextImageProcessor"),
        (transformers.BitImageProcessor(do_center_crop=False), "one size for all"),
        (transformers.ViTImageProcessor(do_pad=True), "do_pad"),
        (transformers.CLIPImageProcessor(size={"shortest_edge": 32, "longest_edge": 64}), "longest_edge"),
    ]:
        with pytest.raises(ModelError, match=words):
            Preprocess.from_hf(processor)


def test_a_batch_equals_its_single_images():
    preprocess = Preprocess.plain((16, 24))
    pictures = [noise(40, 20), noise(7, 90)]

    batch = preprocess.batch(pictures)

    assert batch.shape == (2, 3, 16, 24)
    assert batch.dtype == torch.float32
    assert torch.equal(batch[1], preprocess(pictures[1]))
    with pytest.raises(ShapeError, match="at least one"):
        preprocess.batch([])


def test_only_the_cropped_part_of_a_long_image_is_resized(monkeypatch):
    picture, preprocess = smooth(3, 9000), Preprocess.plain(64)
    whole = preprocess(picture)

    monkeypatch.setattr("vitreous.models.image_input.LARGE", 1000)
    torch.testing.assert_close(preprocess(picture), whole, atol=2.1 / 255 * 2, rtol=0)
    wide = Preprocess((64, 64), (16, 400), "stretch")
    part = wide(smooth(50, 50))
    monkeypatch.undo()
    torch.testing.assert_close(part, wide(smooth(50, 50)), atol=2.1 / 255 * 2, rtol=0)


# ── maps on the original image ────────────────────────────────────────────────────────────────────

EVERY_FIT = [
    Preprocess.plain(32),
    Preprocess((32, 32), (40, 40), "shortest"),
    Preprocess((24, 48), (24, 48), "stretch"),
    Preprocess((32, 32), (32, 32), "contain", fill=(255, 0, 0)),
    Preprocess((32, 48)),
    Preprocess((31, 31), (40, 40), "shortest", centre="truncate"),
]


@pytest.mark.parametrize("preprocess", EVERY_FIT)
@pytest.mark.parametrize("size", [(64, 40), (33, 90), (8, 8)])
def test_the_window_is_where_the_model_looks(preprocess, size):
    """The crop and the window of the original image agree when both are rescaled to 32 by 32."""
    picture = smooth(*size)
    left, top, right, bottom = preprocess.window(picture)

    seen = preprocess.cut(picture)
    padded = Image.new("RGB", (size[0] + 800, size[1] + 800), preprocess.fill)
    padded.paste(picture, (400, 400))
    again = padded.resize(seen.size, Image.Resampling.BICUBIC, box=(left + 400, top + 400, right + 400, bottom + 400))

    gap = np.abs(np.asarray(seen, float) - np.asarray(again, float))
    assert np.median(gap) < 3
    assert np.quantile(gap, 0.9) < 30
    assert preprocess.window((size[1], size[0])) == (left, top, right, bottom)


@pytest.mark.parametrize("preprocess", EVERY_FIT)
@pytest.mark.parametrize("size", [(64, 40), (40, 90), (8, 8)])
def test_a_map_returns_to_its_region_of_the_original_image(preprocess, size):
    """A map of column positions in the crop becomes a map of column positions in the image."""
    height, width = preprocess.size
    left, top, right, bottom = preprocess.window((size[1], size[0]))
    across = torch.arange(width, dtype=torch.float64).add(0.5).expand(2, height, width)

    restored = preprocess.restore(across, (size[1], size[0]))

    assert restored.shape == (2, size[1], size[0])
    assert restored.dtype == torch.float64
    x = torch.arange(size[0]).double() + 0.5
    y = torch.arange(size[1]).double() + 0.5
    outside = ((y < top) | (y > bottom))[:, None] | (x < left) | (x > right)
    assert torch.equal(restored[1].isnan(), outside)
    expected = ((x - left) / (right - left) * width).clamp(0.5, width - 0.5).expand(size[1], -1)
    torch.testing.assert_close(restored[0][~outside], expected[~outside])


def test_nearest_keeps_a_map_in_its_patches():
    preprocess = Preprocess((4, 4), (4, 4), "stretch")

    restored = preprocess.restore(torch.tensor([[1.0, 2.0]]), (2, 6), mode="nearest")

    assert restored.tolist() == [[1, 1, 1, 2, 2, 2]] * 2


def test_pixels_outside_of_the_crop_can_be_filled():
    preprocess = Preprocess((4, 4), (4, 4), "shortest")

    restored = preprocess.restore(torch.ones(2, 2), Image.new("RGB", (12, 4)), fill=0.0)

    assert restored.tolist() == [[0] * 4 + [1] * 4 + [0] * 4] * 4


def test_denormalising_gives_the_colours_back():
    preprocess = replace(Preprocess.plain(32), **IMAGENET)
    picture = noise(32, 32)

    colours = preprocess.denormalise(preprocess.batch([picture]).double())

    assert colours.dtype == torch.uint8
    assert np.array_equal(colours[0].permute(1, 2, 0).numpy(), np.asarray(picture))


# ── masks and boxes: the image's own way ───────────────────────────────────────────────────────

WAYS = {
    "stretch": Preprocess((24, 24), (24, 24), "stretch", "bilinear"),
    "stretch and cut": Preprocess((24, 24), (28, 28), "stretch", "bilinear"),
    "shortest": Preprocess((24, 24), (27, 27), "shortest"),
    "cover": Preprocess((24, 32), (24, 32), "cover"),
    "contain": Preprocess((24, 24), (24, 24), "contain"),
    "untouched": Preprocess((24, 24)),
    "floor": Preprocess((24, 24), (27, 27), "shortest", centre="floor"),
}


def by_hand(values: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """For every pixel, in exact fractions: the pixel of the image that contains its centre."""
    height, width = values.shape
    (top, left), (rows, columns) = preprocess.place((height, width))
    seen = np.full(preprocess.size, -1)
    for y, x in np.ndindex(*preprocess.size):
        if 0 <= y + top < rows and 0 <= x + left < columns:
            down = math.floor(Fraction(2 * (y + top) + 1, 2) * Fraction(height, rows))
            across = math.floor(Fraction(2 * (x + left) + 1, 2) * Fraction(width, columns))
            seen[y, x] = values[down, across]
    return seen


@pytest.mark.parametrize("size", [(97, 64), (31, 33), (5, 120), (24, 24), (1, 1), (72, 48)])
@pytest.mark.parametrize("way", WAYS)
def test_a_mask_takes_the_nearest_pixel_and_padding_does_not_count(way, size):
    values = np.random.default_rng(0).integers(0, 900, (size[1], size[0]))

    seen = WAYS[way].masks(values)

    assert seen.dtype == torch.int64
    assert np.array_equal(seen.numpy(), by_hand(values, WAYS[way]))


@pytest.mark.parametrize(
    ("given", "kept"), [("bool", "int8"), ("uint8", "int16"), ("int8", "int8"), ("int32", "int32")]
)
def test_masks_keep_their_numbers_and_come_in_batches(given, kept):
    values = np.random.default_rng(0).integers(0, 2, (2, 3, 10, 12)).astype(given)

    seen = WAYS["contain"].masks(values)

    assert seen.dtype == getattr(torch, kept)
    assert seen.shape == (2, 3, 24, 24)
    for i, j in np.ndindex(2, 3):
        assert torch.equal(seen[i, j], WAYS["contain"].masks(torch.from_numpy(values[i, j])))
    assert (seen == -1).any()
    assert (WAYS["contain"].masks(values, fill=0) >= 0).all()


def test_a_mask_is_torchvisions_nearest_exact_and_pillows_nearest_but_for_ties():
    """Pillow adds steps up and torch rounds to float32, so a centre that falls between two pixels may go either way there."""
    transforms = pytest.importorskip("torchvision.transforms.v2")
    functional = transforms.functional
    sizes = np.random.default_rng(1).integers(20, 200, (60, 2)).tolist()
    compared = 0
    for width, height in sizes:
        values = np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)
        preprocess = Preprocess((64, 64), (72, 72), "shortest")
        (top, left), (rows, columns) = preprocess.place((height, width))
        ties = [
            torch.tensor([(2 * (i + start) + 1) * length % (2 * resized) == 0 for i in range(64)])
            for start, length, resized in ((top, height, rows), (left, width, columns))
        ]
        clear = ~(ties[0][:, None] | ties[1])
        exact = functional.resize(
            torch.from_numpy(values)[None], [rows, columns], transforms.InterpolationMode.NEAREST_EXACT
        )
        pillow = torch.from_numpy(np.array(Image.fromarray(values).resize((columns, rows), Image.Resampling.NEAREST)))

        seen = preprocess.masks(values)

        compared += int(clear.sum())
        for other in (exact, pillow[None]):
            assert torch.equal(seen[clear], functional.center_crop(other, [64, 64])[0][clear].to(seen))
    assert compared > 0.8 * len(sizes) * 64 * 64


@pytest.mark.parametrize("size", [(97, 64), (64, 97), (40, 40), (30, 120)])
@pytest.mark.parametrize("way", WAYS)
def test_image_mask_and_box_are_transformed_alike(way, size):
    width, height = size
    x0, y0, x1, y1 = width // 5, height // 4, 4 * width // 5, 4 * height // 5
    mask = np.zeros((height, width), dtype=bool)
    mask[y0:y1, x0:x1] = True
    preprocess = replace(WAYS[way], mean=(0.0,) * 3, std=(1.0,) * 3)

    picture = preprocess(Image.fromarray(np.repeat(mask[..., None] * np.uint8(255), 3, 2)))[0]
    seen = preprocess.masks(mask)
    (box,) = preprocess.boxes(np.array([[x0, y0, x1, y1]]), (height, width)).tolist()

    clear = (picture < 0.1) | (picture > 0.9)
    assert clear.float().mean() > 0.8
    assert torch.equal((picture > 0.5)[clear], (seen == 1)[clear])
    rows, columns = (seen == 1).any(1).nonzero().flatten(), (seen == 1).any(0).nonzero().flatten()
    around = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    assert all(abs(float(a) - b) <= 0.5 + 1e-9 for a, b in zip(around, box, strict=True))


def test_boxes_are_clipped_and_removed_outside_of_the_crop():
    preprocess = Preprocess((10, 10), (10, 10), "shortest")  # sees x from 10 to 30 of an image of 40 × 20
    drawn = torch.tensor([[0.0, 0, 10, 20], [5, 5, 20, 10], [12, 4, 18, 8], [30, 0, 40, 20]])

    seen = preprocess.boxes(drawn, Image.new("RGB", (40, 20)))

    assert seen.tolist() == [[0, 2.5, 5, 5], [1, 2, 4, 4]]
    assert preprocess.boxes(torch.empty(0, 4), (20, 40)).shape == (0, 4)


# ── preprocessing of papers ───────────────────────────────────────────────────────────────────────


def test_preprocessing_of_papers_is_as_published():
    transforms = pytest.importorskip("torchvision.transforms")
    own = replace(Preprocess.plain(224), interpolation="bicubic")
    picture = smooth(300, 200)

    def as_published(*steps):
        return transforms.Compose([*steps, transforms.ToTensor()])(picture)

    normal = transforms.Normalize(IMAGENET["mean"], IMAGENET["std"])
    stretched = (as_published(transforms.Resize((224, 224))) - 0.5) / 0.5
    cut = normal(as_published(transforms.Resize((256, 256)), transforms.CenterCrop(224)))

    torch.testing.assert_close(Preprocess.published("chefer", own)(picture), stretched)
    torch.testing.assert_close(Preprocess.published("tokentm", own)(picture), stretched)
    torch.testing.assert_close(Preprocess.published("tis", own)(picture), cut)
    assert Preprocess.published("skipplus", own) is own
    assert Preprocess.published("tis", Preprocess.plain(384)).resize == (439, 439)
    with pytest.raises(SpecError, match="known: chefer, tokentm, tis, skipplus"):
        Preprocess.published("rise", own)


@each("interlaced", [False, True])
def test_a_png_whose_last_rows_are_missing_is_refused(interlaced, tmp_path):
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    def png(rows: bytes) -> bytes:
        header = struct.pack(">IIBBBBB", 9, 8, 8, 2, 0, 0, interlaced)
        packed = zlib.compress(rows)
        data = chunk(b"IDAT", packed[:10]) + chunk(b"IDAT", packed[10:])
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")

    columns = [(2, 1), (1, 1), (3, 1), (2, 2), (5, 2), (4, 4), (9, 4)] if interlaced else [(9, 8)]
    rows = b"".join((b"\0" + b"\x07" * 3 * width) * height for width, height in columns)
    black = bytes(len(rows))
    (tmp_path / "half.png").write_bytes(png(rows[: len(rows) // 2]))

    with pytest.raises(DataError, match=r"half.png' is (damaged or )?cut short.*; save it again in full"):
        open_image(tmp_path / "half.png")
    assert open_image(png(rows)).getpixel((8, 7)) == (7, 7, 7)
    assert open_image(png(black)).getpixel((8, 7)) == (0, 0, 0)
