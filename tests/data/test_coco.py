"""COCO: polygons and run lengths become masks; images with one or two named classes are chosen."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from PIL import ImageDraw

from tests.data.making import noise, save, turned, write
from vitreous.core.errors import DataError, SpecError
from vitreous.data import batches, open_dataset
from vitreous.data.coco import decompress_counts, fill_polygon
from vitreous.models.image_input import Preprocess

CATEGORIES = [{"id": 24, "name": "zebra"}, {"id": 1, "name": "person"}, {"id": 22, "name": "elephant"}]
WIDTH, HEIGHT = 12, 8


def box_polygon(x0: int, y0: int, x1: int, y1: int) -> list[list[float]]:
    return [[x0, y0, x1, y0, x1, y1, x0, y1]]


def annotation(number: int, image: int, category: int, x0: int, y0: int, x1: int, y1: int, **changes) -> dict:
    whole = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0), "iscrowd": 0}
    whole |= {"segmentation": box_polygon(x0, y0, x1, y1), "id": number, "image_id": image, "category_id": category}
    return whole | changes


def runs_of(mask: np.ndarray) -> list[int]:
    """Alternating run lengths of 0 and 1, in column order."""
    flat, runs, value = mask.T.flatten().tolist(), [], 0
    while flat:
        length = next((i for i, pixel in enumerate(flat) if pixel != value), len(flat))
        runs, flat, value = [*runs, length], flat[length:], 1 - value
    return runs


def compressed(runs: list[int]) -> str:
    """COCO's text of run lengths."""
    text = ""
    for index, run in enumerate(runs):
        value, more = run - (runs[index - 2] if index > 2 else 0), True
        while more:
            bits, value = value & 0x1F, value >> 5
            more = value != (-1 if bits & 0x10 else 0)
            text += chr(48 + bits + (0x20 if more else 0))
    return text


@pytest.fixture
def two(tmp_path):
    """A frame with a zebra, an elephant and a crowd of zebras, one with a zebra alone, one with nothing."""
    crowd = np.zeros((HEIGHT, WIDTH), dtype=int)
    crowd[:, 9:] = 1
    annotations = [
        annotation(1, 7, 24, 0, 0, 4, 6),
        annotation(2, 7, 22, 4, 1, 9, 7),
        annotation(3, 7, 24, 9, 0, 12, 8, iscrowd=1, segmentation={"size": [HEIGHT, WIDTH], "counts": runs_of(crowd)}),
        annotation(4, 7, 24, 10, 6, 12, 8),
        annotation(
            5, 3, 24, 2, 2, 4, 4, segmentation={"size": [HEIGHT, WIDTH], "counts": compressed([18, 2, 6, 2, 68])}
        ),
        annotation(6, 3, 1, 5, 0, 12, 8),
    ]
    images = [{"id": i, "file_name": f"{i:012}.jpg", "height": HEIGHT, "width": WIDTH} for i in (7, 3, 5)]
    content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
    write(tmp_path / "annotations" / "instances_val2017.json", json.dumps(content))
    for image in images:
        save(noise(WIDTH, HEIGHT), tmp_path / "val2017" / image["file_name"])
    return tmp_path


def rectangle(x0: int, y0: int, x1: int, y1: int) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), dtype=np.int8)
    mask[y0:y1, x0:x1] = 1
    return mask


def test_two_named_classes_share_the_frame(two):
    dataset = open_dataset(f"coco:{two}?classes=elephant,zebra")

    assert dataset.keys == ["val2017/000000000007"]
    assert dataset.classes == ("person", "elephant", "zebra")  # in the order of ids
    sample = dataset[0]
    assert (sample.label, list(sample.rivals)) == (1, [2])
    assert np.array_equal(sample.mask, rectangle(4, 1, 9, 7))
    assert sample.boxes.tolist() == [[4, 1, 9, 7]]
    zebras = rectangle(0, 0, 4, 6)
    zebras[:, 9:] = -1  # a crowd is ignored, but for the zebra that is annotated in it
    zebras[6:, 10:] = 1
    assert np.array_equal(sample.rivals[2], zebras)


def test_crowds_count_by_option_and_their_boxes_never(two):
    sample = open_dataset(f"coco:{two}?classes=zebra&crowd=object&cover=0.2")[0]

    assert sample.boxes.tolist() == [[0, 0, 4, 6], [10, 6, 12, 8]]
    assert (sample.mask == 1).sum() == 4 * 6 + 3 * 8
    assert open_dataset(f"coco:{two}?classes=zebra").keys == ["val2017/000000000003", "val2017/000000000007"]


def test_compressed_run_lengths_are_read(two):
    sample = open_dataset(f"coco:{two}?classes=zebra")[0]

    assert np.array_equal(sample.mask, rectangle(2, 2, 4, 4))
    assert not sample.rivals


def test_labels_can_be_those_of_imagenet(two):
    sample = open_dataset(f"coco:{two}?classes=zebra,elephant&labels=imagenet")[0]

    assert (sample.label, list(sample.rivals)) == (340, [386])  # zebra and African elephant
    with pytest.raises(SpecError, match="no class 'person' here; known: elephant, zebra"):
        open_dataset(f"coco:{two}?classes=person&labels=imagenet")


def test_without_names_the_largest_class_is_explained(two):
    dataset = open_dataset(two)  # recognised by its layout
    preprocess = Preprocess(size=(8, 12), resize=(8, 12))
    (batch,) = batches(dataset, preprocess, batch_size=3)

    assert len(dataset) == 3
    assert batch.labels.tolist() == [0, 1]  # person in image 3, elephant in image 7
    assert [key for key, _ in batch.skipped] == ["val2017/000000000005"]


def test_an_orientation_turns_masks_and_boxes(two):
    file = two / "val2017" / "000000000007.jpg"
    save(noise(WIDTH, HEIGHT), file, exif=turned(3))  # by 180°
    sample = open_dataset(f"coco:{two}?classes=elephant")[0]

    assert np.array_equal(sample.mask, rectangle(4, 1, 9, 7)[::-1, ::-1])
    assert sample.boxes.tolist() == [[3, 1, 8, 7]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("classes=okapi", "no class 'okapi' here; known: person, elephant, zebra"),
        ("classes=zebra,zebra", "two different ones"),
        ("classes=zebra,person,elephant", "one name, or two"),
        ("cover=2", "a share from 0 to 1"),
        ("crowd=hide", "known: 'ignore'"),
    ],
)
def test_options_that_cannot_be_are_refused(two, options, words):
    with pytest.raises(SpecError, match=words):
        open_dataset(f"coco:{two}?{options}")


def test_broken_files_are_named(two, tmp_path):
    file = two / "annotations" / "instances_val2017.json"
    content = json.loads(file.read_text())
    with pytest.raises(DataError, match=r"no image of .* has zebra and elephant on 90% of it"):
        open_dataset(f"coco:{two}?classes=zebra,elephant&cover=0.9")
    for change, words in (
        ({"segmentation": [[1, 2, 3]]}, "annotation 1 .* polygon of 3 numbers"),
        ({"segmentation": {"size": [2, 2], "counts": [4]}}, r"mask of size \[2, 2\]; its image is \[8, 12\]"),
        ({"segmentation": {"size": [8, 12], "counts": [4]}}, "do not add up to its 8×12 pixels"),
    ):
        content["annotations"][0] |= change
        file.write_text(json.dumps(content))
        with pytest.raises(DataError, match=words):
            open_dataset(f"coco:{two}?classes=zebra,elephant")[0]
    file.write_text('{"images": []}')
    with pytest.raises(DataError, match=r"'categories'.* is missing"):
        open_dataset(f"coco:{two}")
    file.write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        open_dataset(f"coco:{two}")
    file.unlink()
    with pytest.raises(DataError, match=r"no instances file at .*instances_<split>\.json"):
        open_dataset(f"coco:{two}")


def test_a_rectangle_has_its_pixels():
    corners = np.array([[2, 1], [7, 1], [7, 5], [2, 5]], dtype=float)

    for points in (corners, corners[::-1], np.repeat(corners, 2, 0)):
        assert np.array_equal(fill_polygon(points, HEIGHT, WIDTH), rectangle(2, 1, 7, 5) == 1)


def slow_polygon(points: list[tuple[float, float]], height: int, width: int) -> np.ndarray:
    """The rule of pycocotools, point by point."""
    scale, outline = 5, []
    corners = [(int(scale * x + 0.5), int(scale * y + 0.5)) for x, y in points]
    for (xs, ys), (xe, ye) in zip(corners, [*corners[1:], corners[0]], strict=True):
        dx, dy = abs(xe - xs), abs(ye - ys)
        flip = (dx >= dy and xs > xe) or (dx < dy and ys > ye)
        if flip:
            xs, ys, xe, ye = xe, ye, xs, ys
        slope = 0 if dx == dy == 0 else (ye - ys) / dx if dx >= dy else (xe - xs) / dy
        for d in range(max(dx, dy) + 1):
            t = max(dx, dy) - d if flip else d
            outline.append((t + xs, int(ys + slope * t + 0.5)) if dx >= dy else (int(xs + slope * t + 0.5), t + ys))
    starts = []
    for (u0, v0), (u1, v1) in itertools.pairwise(outline):
        x = ((u1 if u1 < u0 else u1 - 1) + 0.5) / scale - 0.5
        if u0 == u1 or math.floor(x) != x or not 0 <= x <= width - 1:
            continue
        y = min(max((min(v0, v1) + 0.5) / scale - 0.5, 0), height)
        starts.append(int(x) * height + math.ceil(y))
    inside, columns = False, []
    for pixel in range(height * width):
        inside ^= starts.count(pixel) % 2 == 1
        columns.append(inside)
    return np.array(columns).reshape(width, height).T


@pytest.mark.parametrize("seed", range(12))
def test_polygons_are_rasterised_as_published(seed):
    draw = np.random.default_rng(seed)
    angles = np.sort(draw.uniform(0, 2 * np.pi, draw.integers(3, 12)))
    radii = draw.uniform(4, 22, len(angles))
    points = np.stack([20 + radii * np.cos(angles), 15 + radii * np.sin(angles)], 1)  # some outside of the image
    pixels = fill_polygon(points, 30, 40)

    assert np.array_equal(pixels, slow_polygon([tuple(p) for p in points.tolist()], 30, 40))
    canvas = noise(400, 300).convert("L").point(lambda _: 0)
    ImageDraw.Draw(canvas).polygon([tuple(p) for p in (points * 10).tolist()], fill=255)
    fine = np.asarray(canvas).reshape(30, 10, 40, 10).mean((1, 3)) / 255
    assert (pixels[fine > 0.95] == 1).all()
    assert (pixels[fine < 0.05] == 0).all()


def test_run_lengths_survive_their_text():
    draw = np.random.default_rng(0)
    for size in (3, 40, 5000):
        runs = draw.integers(0, size, 21).tolist()
        assert decompress_counts(compressed(runs)) == runs
