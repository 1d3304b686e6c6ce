"""Open a dataset by name or path."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from vitreous.core.errors import Caveat, DataError, SpecError
from vitreous.core.registry import import_submodules
from vitreous.data.imagenet import UnlabelledImagesError
from vitreous.data.reader import READERS, check_options, expand_path, split_spec
from vitreous.data.sample import Dataset


def open_dataset(spec: str | Path, **options: Any) -> Dataset:
    """Open the dataset that a spec names.

    Parameters
    ----------
    spec
        `kind:where?option=value`, or a bare path whose kind is recognised from its content. A bare path to unlabelled
        images that are named like ImageNet's is read as a plain folder, with a `Caveat`; `imagenet-val:path` raises an
        error instead.
    **options
        Options of the reader; they take precedence over those in the spec.

    Returns
    -------
    Dataset
        The dataset; images are read when they are accessed.

    Raises
    ------
    SpecError
        If no dataset is named, or an option is unknown or of the wrong type.
    DataError
        If there is no dataset at the path, or it does not have the expected layout.

    Examples
    --------
    >>> from vitreous.data import open_dataset
    >>> dataset = open_dataset("scenes:part?count=3", seed=1)
    >>> len(dataset), dataset[0].image.size
    (3, (112, 112))
    """
    import_submodules("vitreous.data")
    kind, place, spec_options = split_spec(str(spec))
    if not kind and not place:
        raise SpecError(f"no dataset is named; give a path, or one of {list_kinds()} with where it lies")
    if kind == "assets":
        kind, place = "", str(expand_path(f"assets:{place}"))
    name = kind or recognise(expand_path(place))
    read = READERS[name].read
    reader_options = check_options(name, read, spec_options, options)
    try:
        return read(place, **reader_options)
    except UnlabelledImagesError as problem:
        if kind or reader_options:
            raise
        warnings.warn(
            f"'{place}' has files named as ImageNet's and no label file, so it is read as a plain folder of images; "
            f"to read it as ImageNet's validation set, add a label file and write imagenet-val:{place} "
            f"(--data imagenet-val:{place} in `vitreous bench`)",
            Caveat,
            stacklevel=2,
        )
        return READERS["folder"].read(problem.folder)


def recognise(path: Path) -> str:
    """Kind of the dataset at a path, from its name and content; "folder" if no other kind fits."""
    import_submodules("vitreous.data")
    for kind in sorted(READERS, key=lambda kind: (READERS.owner(kind).startswith("vitreous."), kind)):
        recognises = READERS[kind].recognises
        if recognises is not None and recognises(path):
            return kind
    if not path.exists():
        raise DataError(f"there is no dataset at '{path}'; give an existing path, or a kind before it: {list_kinds()}")
    if not path.is_dir():
        raise DataError(f"'{path}' is no dataset of a known layout; put its kind before it: {list_kinds()}")
    return "folder"


def list_kinds() -> str:
    """Known kinds, for error messages."""
    return ", ".join(f"{kind}:" for kind in sorted(READERS))
