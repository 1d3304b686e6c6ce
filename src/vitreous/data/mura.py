"""MURA 1.1: radiographs of limbs, each study labelled normal or abnormal."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from vitreous.core.errors import DataError
from vitreous.data.files import list_images
from vitreous.data.reader import check_choice, contains, reader, require_folder
from vitreous.data.sample import Album, Sample, make_album
from vitreous.models.image_decoding import open_image

LAYOUT = "MURA-v1.1/{train,valid}/XR_<BODY>/patient<n>/study<k>_{positive,negative}/image<m>.png, listed in <split>_image_paths.csv"
CLASSES = ("negative", "positive")  # positive: abnormal
STUDY = re.compile(r"study\d+_(positive|negative)")


@reader(
    "mura",
    recognises=contains("MURA-v1.1", "valid_image_paths.csv", "train_image_paths.csv", "valid/XR_*", "train/XR_*"),
)
def mura(place: str | Path, split: Literal["valid", "train"] = "valid", body: str | None = None) -> Album:
    """MURA 1.1, in the order of its image list; class 1 is abnormal.

    Without the list of paths, the folders are read.

    ```text
    mura:/data/mura?split=train
    mura:/data/mura?split=train&body=wrist
    ```

    ```text
    /data/mura/MURA-v1.1/train_image_paths.csv
    /data/mura/MURA-v1.1/train/XR_WRIST/patient00000/study1_positive/image1.png
    ```

    Parameters
    ----------
    place
        Folder that contains MURA-v1.1/, or that folder itself.
    split
        "valid" or "train".
    body
        Only images of this part of the body, such as "wrist"; None for all.
    """
    root = require_folder(place, LAYOUT, inside="MURA-v1.1")
    names = list_names(root, split)
    bodies = sorted({PurePosixPath(name).parts[1] for name in names})
    if body is not None:
        body_folder = f"XR_{body.upper().removeprefix('XR_')}"
        check_choice("body", body_folder, bodies)
        names = [name for name in names if PurePosixPath(name).parts[1] == body_folder]
    entries = [(name, CLASSES.index(find_study(name, root))) for name in names]
    return make_album("mura", entries, partial(read, root), CLASSES, {"split": split, "body": body})


def list_names(root: Path, split: str) -> list[str]:
    """Paths relative to the root, from the image list, or from the folders if there is no list."""
    path = root / f"{split}_image_paths.csv"
    if path.is_file():
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if odd := next((line for line in lines if f"/{split}/" not in line), None):
            raise DataError(
                f"'{path}' has the line {odd!r}; expected paths such as MURA-v1.1/{split}/XR_WRIST/…/image1.png"
            )
        names = [f"{split}/{line.split(f'/{split}/', 1)[1]}" for line in lines]
    else:
        names = [f"{split}/{name}" for name in list_images(require_folder(root / split, LAYOUT))]
    if not names:
        raise DataError(f"'{root}' has no image of {split}; expected {LAYOUT}")
    return names


def find_study(name: str, root: Path) -> str:
    match = STUDY.fullmatch(PurePosixPath(name).parent.name)
    if match is None or len(PurePosixPath(name).parts) != 5:
        raise DataError(f"'{root / name}' is not in the folder of a study; expected {LAYOUT}")
    return match[1]


def read(root: Path, name: str, label: int) -> Sample:
    return Sample(name, open_image(root / name), label)
