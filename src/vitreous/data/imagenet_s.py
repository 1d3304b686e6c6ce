"""ImageNet-S (50, 300, 919): a class for every pixel, stored in the colour channels of masks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int32

from vitreous.core.errors import DataError
from vitreous.data.files import StoredImage, list_images
from vitreous.data.imagenet import find_class_of_wnid
from vitreous.data.reader import check_share, contains, expand_path, reader, require_folder
from vitreous.data.sample import Album, Sample, digest, make_album, make_sample_of_largest
from vitreous.models.class_names import imagenet_classes, index_of_wnid

LAYOUT = "ImageNetS<n>/{validation,validation-segmentation}/<wnid>/<name> and ImageNetS_categories_im<n>.txt, n = 50, 300 or 919"
OTHER, IGNORED = 0, 1000
# Classes that ImageNet-S-919 merges: images of the first are stored and annotated as the second. An image that is still
# in the folder of the first keeps that class.
MERGED = {
    "n04356056": "n04355933",
    "n04493381": "n02808440",
    "n03642806": "n03832673",
    "n04008634": "n03773504",
    "n03887697": "n15075141",
}


@reader("imagenet-s", recognises=contains("validation-segmentation", "train-semi-segmentation"))
def imagenet_s(
    place: str | Path,
    split: Literal["validation", "train-semi"] = "validation",
    cover: float | int = 0.0,
    ignored: Literal["background", "exclude"] = "background",
    categories: str | Path | None = None,
) -> Album:
    """ImageNet-S: a class for every pixel; the label of an image is the class that covers most of the model input.

    The class of a pixel is R + 256·G of the mask.

    ```text
    imagenet-s:/data/imagenet-s
    imagenet-s:/data/imagenet-s?split=validation&cover=0.05&ignored=exclude
    ```

    ```text
    /data/imagenet-s/ImageNetS_categories_im919.txt
    /data/imagenet-s/validation/n01440764/ILSVRC2012_val_00000001.JPEG
    /data/imagenet-s/validation-segmentation/n01440764/ILSVRC2012_val_00000001.png
    ```

    Parameters
    ----------
    place
        The folder of ImageNet-S-50, -300 or -919.
    split
        "validation" or "train-semi".
    cover
        Images in which no class covers at least this share of the model input are skipped, as are images in whose
        model input there is no class at all.
    ignored
        Pixels marked as ignored count as background ("background", as published), or are left out ("exclude").
    categories
        List of the WordNet ids of classes 1, 2, …. None: looked for under its usual names.

    Raises
    ------
    DataError
        If there are no images, or the list of categories is missing or invalid.
    SpecError
        If `cover` is not a share.
    """
    check_share("cover", cover)
    root = require_folder(place, LAYOUT)
    base, painted = require_folder(root / split, LAYOUT), require_folder(root / f"{split}-segmentation", LAYOUT)
    names = [name for name in list_images(base) if name.count("/") == 1]
    if not names:
        raise DataError(f"there is no image in '{base}'; expected {LAYOUT}")
    wnids = read_categories(root, painted, categories)
    entries = [(f"{split}/{name.rsplit('.', 1)[0]}", name) for name in names]
    ignored_value = -1 if ignored == "exclude" else 0
    facts = {"split": split, "cover": float(cover), "ignored": ignored, "categories": digest(wnids)}
    read_image = partial(read, base, painted, wnids, float(cover), ignored_value)
    return make_album(f"imagenet-s-{len(wnids)}", entries, read_image, imagenet_classes(1000), facts)


def read_categories(root: Path, painted: Path, categories: str | Path | None) -> tuple[str, ...]:
    """WordNet ids of classes 1, 2, …: from the list, or from the folder names if there are 50, 300 or 919."""
    places = (
        [expand_path(categories)]
        if categories
        else [*root.glob("ImageNetS_categories_im*.txt"), *list_category_files(root)]
    )
    list_file = next((path for path in places if path.is_file()), None)
    if list_file is not None:
        listed = tuple(list_file.read_text(encoding="utf-8").split())
    else:
        listed = tuple(sorted(path.name for path in painted.iterdir() if path.is_dir()))
        if categories or len(listed) not in (50, 300, 919):
            raise DataError(
                f"there is no list of categories at '{places[0] if places else root}', "
                f"and {len(listed)} folders are not all of 50, 300 or 919; expected {LAYOUT}"
            )
    for wnid in listed:
        find_class_of_wnid(wnid, f"'{list_file or painted}'")
    return listed


def list_category_files(root: Path) -> list[Path]:
    """Possible paths of the list in the parent folder, if the folder name contains the number of classes."""
    count = root.name.lower().removeprefix("imagenets").removeprefix("-").removeprefix("s")
    name = f"ImageNetS_categories_im{count}.txt"
    return [root.parent / name, root.parent / "categories" / name]


def read(
    base: Path, painted: Path, wnids: tuple[str, ...], cover: float, ignored_value: int, key: str, name: str
) -> Sample:
    stored = StoredImage(base / name)
    path = painted / Path(name).with_suffix(".png")
    ids = decode_class_ids(stored.read_mask_values(path), path)
    present = [int(category) for category in np.unique(ids) if category not in (OTHER, IGNORED)]
    if present and present[-1] > len(wnids):
        raise DataError(f"'{path}' has the class {present[-1]}; {len(wnids)} are known")
    own = name.split("/", 1)[0]
    masks = {}
    for category in present:
        wnid = own if MERGED.get(own) == wnids[category - 1] else wnids[category - 1]
        masks[index_of_wnid()[wnid]] = np.where(ids == IGNORED, ignored_value, ids == category).astype(np.int8)
    return make_sample_of_largest(key, stored.image, masks, cover)


def decode_class_ids(colours: np.ndarray, path: Path) -> Int32[np.ndarray, "H W"]:
    """Class per pixel, R + 256·G, computed in int32 to avoid overflow."""
    if colours.ndim != 3 or colours.shape[-1] < 3:
        raise DataError(f"'{path}' is not in colour; a mask of ImageNet-S stores its class as R + 256·G")
    wide = colours.astype(np.int32)
    return wide[..., 0] + 256 * wide[..., 1]
