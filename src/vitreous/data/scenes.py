"""Scenes as a dataset: generated images in which the evidence for the class is known for every pixel."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
from PIL import Image

from vitreous.core.errors import SpecError
from vitreous.data.reader import reader
from vitreous.data.sample import Album, Sample, make_album
from vitreous.scenes import CLASSES, Scenes


@reader("scenes")
def scenes(
    kind: str,
    count: int = 64,
    seed: int = 0,
    mask: Literal["object", "evidence"] = "object",
    label: int | str | None = None,
    mark: str | None = None,
) -> Album:
    """Generated scenes, whose evidence is known; no files.

    ```text
    scenes:single
    scenes:pair?count=20&seed=1&mask=evidence
    ```

    Parameters
    ----------
    kind
        Kind of scene; "single" if empty.
    count
        Number of scenes.
    seed
        Seed of the generator.
    mask
        Mask of the whole object ("object"), or only of the pixels that determine its class ("evidence").
    label
        Class of the target in every scene, by name or index; random by default.
    mark
        Stamp of a "shortcut": it encodes the class ("aligned", the default) or another class ("moved"), or is "absent".

    Raises
    ------
    SpecError
        If `count` is not a positive integer, or an option is unknown.
    """
    if not isinstance(count, int) or count < 1:
        raise SpecError(f"count={count!r}; a whole number from 1 on would work")
    options: dict[str, Any] = {key: value for key, value in {"label": label, "mark": mark}.items() if value is not None}
    album = Scenes(kind or "single", count, seed, **options)
    entries = [(f"{album.kind}/{seed}/{index:06d}", index) for index in range(count)]
    facts = {"kind": album.kind, "seed": seed, "mask": mask, **options}
    return make_album("scenes", entries, partial(read, album, mask), CLASSES, facts)


def read(album: Scenes, part: str, key: str, index: int) -> Sample:
    scene = album[index]
    own, *rival_objects = scene.objects
    masks = [
        (scene_object.evidence if part == "evidence" else scene_object.mask).astype(np.int8)
        for scene_object in scene.objects
    ]
    rivals = {scene_object.label: mask for scene_object, mask in zip(rival_objects, masks[1:], strict=True)}
    box = np.asarray([own.box], dtype=np.float64)
    return Sample(key, Image.fromarray(scene.image), own.label, masks[0], box, rivals)
