"""COCO: images with an instances file; masks are polygons or run lengths, rasterised as pycocotools does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitreous.core.errors import DataError, SpecError
from vitreous.data.files import StoredImage
from vitreous.data.imagenet import imagenet_class_of
from vitreous.data.reader import check_share, contains, expand_path, reader, require_folder
from vitreous.data.sample import Album, Boxes, Mask, Sample, digest, make_album, make_sample_of_largest
from vitreous.models.class_names import imagenet_classes

LAYOUT = "COCO: annotations/instances_<split>.json and the images in <split>/"
SPLITS = ("val2017", "train2017", "val2014", "train2014")
CROWD = {"ignore": -1, "object": 1, "background": 0}


@dataclass(frozen=True, slots=True)
class Instances:
    """The parts of an instances file that are needed to read samples.

    Attributes
    ----------
    path
        The file.
    names
        Category names by category id, in the order of ids.
    images
        File name, height and width by image id.
    annotations
        Annotations by image id.
    """

    path: Path
    names: Mapping[int, str]
    images: Mapping[int, tuple[str, int, int]]
    annotations: Mapping[int, Sequence[Mapping[str, Any]]]

    def compute_least_share(self, image: int, named: Iterable[int]) -> float:
        """Smallest share of the image that a named class covers, by the annotated areas of its single objects."""
        areas = dict.fromkeys(named, 0.0)
        for annotation in self.annotations[image]:
            if annotation["category_id"] in areas and not annotation.get("iscrowd"):
                areas[annotation["category_id"]] += float(annotation.get("area", 0))
        _, height, width = self.images[image]
        return min(areas.values()) / (height * width)

    def collect_boxes(self, image: int, category: int) -> Boxes:
        """Boxes of the single objects of a category, from x, y, width, height."""
        boxes = [a["bbox"] for a in self.list_objects(image, category) if not a.get("iscrowd")]
        corners = np.array(boxes, dtype=float).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        return corners

    def draw_mask(self, image: int, category: int, crowd: int) -> Mask:
        """Union of a category's objects; crowds get the value `crowd` where there is no object."""
        _, height, width = self.images[image]
        mask = np.zeros((height, width), dtype=np.int8)
        objects = self.list_objects(image, category)
        for annotation in sorted(objects, key=lambda a: not a.get("iscrowd")):  # objects last, over the crowds
            where = f"annotation {annotation['id']} of '{self.path}'"
            value = crowd if annotation.get("iscrowd") else 1
            mask[fill_region(annotation["segmentation"], height, width, where)] = value
        return mask

    def list_objects(self, image: int, category: int) -> list[Mapping[str, Any]]:
        """Annotations of a category in an image."""
        return [a for a in self.annotations[image] if a["category_id"] == category]


@reader("coco", recognises=contains("annotations/instances_*.json"))
def coco(
    place: str | Path,
    split: str | None = None,
    classes: str | None = None,
    labels: Literal["coco", "imagenet"] = "coco",
    crowd: Literal["ignore", "object", "background"] = "ignore",
    cover: float | int = 0.0,
    annotations: str | Path | None = None,
) -> Album:
    """COCO with boxes and masks; with one or two named classes, the images in which all of them are.

    Masks are polygons or run lengths.

    ```text
    coco:/data/coco
    coco:/data/coco?split=val2017&classes=zebra,elephant&labels=imagenet
    ```

    ```text
    /data/coco/annotations/instances_val2017.json
    /data/coco/val2017/000000000001.jpg
    ```

    Parameters
    ----------
    place
        Folder with `annotations/` and the folder of the images.
    split
        Folder of the images, as in `annotations/instances_<split>.json`. None: the first of val2017, train2017, val2014
        and train2014 that is there.
    classes
        Names of one or two categories, separated by a comma: "zebra,elephant". The first is the label of every sample,
        the second its rival. None: all images; the label is the class that covers most of the model input, all other
        classes are rivals.
    labels
        Class indices: of the file's categories in the order of their ids ("coco"), or of ImageNet ("imagenet"), for the
        categories that are one class there.
    crowd
        What a region that is annotated as a crowd counts as. Its box is never used.
    cover
        With named classes: least share of the image that every one of them covers by its annotated area. Otherwise:
        images in whose model input no class covers this share are skipped.
    annotations
        The instances file, if it is elsewhere.

    Raises
    ------
    DataError
        If a file is missing or not an instances file, or no image has the named classes.
    SpecError
        If `cover` is not a share, or a class is not known.
    """
    check_share("cover", cover)
    root = require_folder(place, LAYOUT)
    split = split or next((name for name in SPLITS if (root / name).is_dir()), SPLITS[0])
    folder = require_folder(root / split, LAYOUT)
    instances = read_instances(
        expand_path(annotations) if annotations else root / "annotations" / f"instances_{split}.json"
    )
    indices = index_classes(instances, labels)
    named = find_named_categories(instances, indices, classes)
    chosen = sorted(instances.images)
    if named:
        shares = {image: instances.compute_least_share(image, named) for image in chosen}
        chosen = [image for image, share in shares.items() if share > 0 and share >= cover]
    if not chosen:
        class_list = " and ".join(instances.names[category] for category in named) or "no class"
        raise DataError(
            f"no image of '{instances.path}' has {class_list} on {cover:.0%} of it or more; name other classes"
        )
    entries = [(f"{split}/{Path(instances.images[image][0]).stem}", image) for image in chosen]
    class_names = imagenet_classes(1000) if labels == "imagenet" else tuple(instances.names.values())
    facts = {
        "split": split,
        "classes": ",".join(instances.names[category] for category in named),
        "labels": labels,
        "crowd": crowd,
        "cover": float(cover),
        "annotations": digest(str(a["id"]) for image in chosen for a in instances.annotations[image]),
    }
    read = partial(read_sample, instances, folder, indices, named, CROWD[crowd], float(cover))
    return make_album("coco", entries, read, class_names, facts)


def read_instances(path: Path) -> Instances:
    """Read an instances file; a DataError if it is missing or lacks a field."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no instances file at '{path}'; expected {LAYOUT}") from None
    except (OSError, UnicodeDecodeError, ValueError):
        raise DataError(f"'{path}' is not JSON; expected COCO's instances file") from None
    try:
        names = {int(c["id"]): str(c["name"]) for c in sorted(content["categories"], key=lambda c: c["id"])}
        images = {int(i["id"]): (str(i["file_name"]), int(i["height"]), int(i["width"])) for i in content["images"]}
        annotations: dict[int, list[Mapping[str, Any]]] = {image: [] for image in images}
        for annotation in content["annotations"]:
            if annotation["category_id"] not in names or annotation["image_id"] not in images:
                raise DataError(
                    f"annotation {annotation['id']} of '{path}' has an image or a category that is not listed"
                )
            annotations[annotation["image_id"]].append(annotation)
    except (KeyError, TypeError, ValueError) as problem:
        raise DataError(
            f"'{path}' is no instances file ({problem!r} is missing or wrong); expected COCO's images, annotations and categories"
        ) from None
    return Instances(path, names, images, annotations)


def index_classes(instances: Instances, labels: str) -> dict[int, int]:
    """Class index by category id, for the categories that have one."""
    if labels == "coco":
        return {category: index for index, category in enumerate(instances.names)}
    class_by_name = imagenet_class_of("coco")
    return {category: class_by_name[name] for category, name in instances.names.items() if name in class_by_name}


def find_named_categories(instances: Instances, indices: Mapping[int, int], classes: str | None) -> tuple[int, ...]:
    """Ids of the categories that `classes` names."""
    if classes is None:
        return ()
    names = [name.strip().lower() for name in classes.split(",")]
    if len(names) not in (1, 2) or len(set(names)) < len(names):
        raise SpecError(f"classes={classes!r}; one name, or two different ones separated by a comma, would work")
    category_by_name = {instances.names[category].lower(): category for category in indices}
    for name in names:
        if name not in category_by_name:
            raise SpecError(f"classes={classes!r}: no class {name!r} here; known: {', '.join(category_by_name)}")
    return tuple(category_by_name[name] for name in names)


def read_sample(
    instances: Instances,
    folder: Path,
    indices: Mapping[int, int],
    named: tuple[int, ...],
    crowd: int,
    cover: float,
    key: str,
    image_id: int,
) -> Sample:
    """Read the image, mask and boxes of the label, and masks of the rivals."""
    stored = StoredImage(folder / instances.images[image_id][0])
    present = named or tuple(category for category in indices if instances.list_objects(image_id, category))
    masks = {indices[category]: stored.turn(instances.draw_mask(image_id, category, crowd)) for category in present}
    if not named:  # without boxes, which belong to one class: the label may change with the crop
        return make_sample_of_largest(key, stored.image, masks, cover)
    label = indices[named[0]]
    boxes = stored.turn_boxes(instances.collect_boxes(image_id, named[0]))
    return Sample(key, stored.image, label, masks.pop(label), boxes, masks)


# ── rasterisation ────────────────────────────────────────────────────────────────────────────────


def fill_region(segmentation: Any, height: int, width: int, where: str) -> np.ndarray:
    """Pixels [H W] of a segmentation: a list of polygons, or run lengths."""
    if isinstance(segmentation, Mapping):
        if list(segmentation.get("size", ())) != [height, width]:
            raise DataError(f"{where} has a mask of size {segmentation.get('size')}; its image is {[height, width]}")
        return decode_runs(segmentation.get("counts"), height, width, where)
    pixels = np.zeros((height, width), dtype=bool)
    for polygon in segmentation:
        if len(polygon) < 6 or len(polygon) % 2:
            raise DataError(
                f"{where} has a polygon of {len(polygon)} numbers; x and y of three points or more would work"
            )
        pixels |= fill_polygon(np.array(polygon, dtype=float).reshape(-1, 2), height, width)
    return pixels


def decode_runs(counts: Any, height: int, width: int, where: str) -> np.ndarray:
    """Pixels of run lengths of 0 and 1 in turn, column by column; `counts` is a list or COCO's compressed text."""
    runs = decompress_counts(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or min(runs, default=0) < 0 or sum(runs) != height * width:
        raise DataError(f"{where} has run lengths that do not add up to its {height}×{width} pixels")
    values = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return values.reshape(width, height).T


def decompress_counts(text: str) -> list[int]:
    """Run lengths from COCO's text: five bits per character, from 48 on; from the third run on, differences."""
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    return runs


def fill_polygon(points: np.ndarray, height: int, width: int, scale: int = 5) -> np.ndarray:
    """Pixels inside a polygon, by the rule of pycocotools.

    The outline is drawn on a grid five times as fine; where it crosses the middle of a column of pixels, all pixels
    from the crossing on change between inside and outside, down the columns from left to right.
    """
    corners = (scale * points + 0.5).astype(int)
    u, v = (np.concatenate(axis) for axis in zip(*map(draw_line, corners, np.roll(corners, -1, 0)), strict=True))
    crossing = np.flatnonzero(u[1:] != u[:-1]) + 1
    x = (np.where(u[crossing] < u[crossing - 1], u[crossing], u[crossing] - 1) + 0.5) / scale - 0.5
    y = (np.minimum(v[crossing], v[crossing - 1]) + 0.5) / scale - 0.5
    middle = (np.floor(x) == x) & (x >= 0) & (x <= width - 1)
    start = x[middle].astype(int) * height + np.ceil(y[middle].clip(0, height)).astype(int)
    changes = np.bincount(start, minlength=height * width + 1)[: height * width]
    return (changes.cumsum() % 2 == 1).reshape(width, height).T


def draw_line(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Grid points from `start` to `end`, both included, one per step along the longer axis."""
    distance = np.abs(end - start)
    along = 0 if distance[0] >= distance[1] else 1
    flipped = start[along] > end[along]
    low, high = (end, start) if flipped else (start, end)
    steps = np.arange(distance[along] + 1)
    slope = (high[1 - along] - low[1 - along]) / max(distance[along], 1)
    across = (low[1 - along] + slope * steps + 0.5).astype(int)
    grid = (low[along] + steps, across) if along == 0 else (across, low[along] + steps)
    return (grid[0][::-1], grid[1][::-1]) if flipped else grid
