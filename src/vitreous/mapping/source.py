"""What `vitreous map` reads: a dataset, tar files or Parquet files, local or behind URIs, as parts that are read in order.

A part lists its images one after the other (`items`) and decodes any of them (`load`), so that listing and decoding can
run in different processes. Nothing is kept of images that were listed before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vitreous.core.digests import digest
from vitreous.core.errors import DataError
from vitreous.data import Album, Dataset, Sample, open_dataset, subset
from vitreous.data.files import SUFFIXES, decode_image
from vitreous.data.parquet import ParquetImages, decode_record, list_parquet_files
from vitreous.data.reader import check_options, expand_path, recognise, split_spec
from vitreous.data.remote import is_uri, list_remote_files, open_filesystem, read_remote
from vitreous.data.shards import (
    decode_parts,
    expand_pattern,
    find_image_ending,
    iterate_samples,
    wds,
)


class SourceItem(NamedTuple):
    """An image before it is decoded: its key, and what `load` of its part needs to find it."""

    key: str
    place: Any


class SourcePart(Protocol):
    """A piece of a source that is listed in one go."""

    @property
    def images(self) -> int | None:
        """Number of images; None if it is not known before the part was listed."""
        ...

    def items(self, start: int) -> Iterator[SourceItem]:
        """The images from index `start` on, in order."""
        ...

    def load(self, item: SourceItem) -> Sample:
        """Read and decode an image; raises `DataError` if that is not possible."""
        ...

    def stamp(self, start: int, stop: int) -> str:
        """Fingerprint of the images from `start` to `stop`; it changes if they are replaced."""
        ...


@dataclass(frozen=True, eq=False)
class DatasetPart:
    """Images of a dataset whose keys are known, at some of its indices."""

    dataset: Dataset
    places: Sequence[int]

    @property
    def images(self) -> int:
        return len(self.places)

    def items(self, start: int) -> Iterator[SourceItem]:
        for index in range(start, len(self.places)):
            yield SourceItem(self.dataset.keys[self.places[index]], self.places[index])

    def load(self, item: SourceItem) -> Sample:
        return self.dataset[item.place]

    def stamp(self, start: int, stop: int) -> str:
        return digest(*(f"{key} {place}".encode() for key, place in islice(self.items(start), stop - start)), size=8)


@dataclass(frozen=True, eq=False)
class TarPart:
    """The images of one WebDataset shard, or the first `images` of them; behind a URI, it is read as a stream."""

    path: str
    uri: str
    stamped: str
    ignore: int | None = None
    images: int | None = None

    @property
    def stem(self) -> str:
        return self.path.rsplit("/", 1)[-1].removesuffix(".tar")

    def items(self, start: int) -> Iterator[SourceItem]:
        listed = ((key, parts) for key, parts in self.samples() if find_image_ending(parts))
        for key, parts in islice(listed, start, self.images):
            yield SourceItem(f"{self.stem}/{key}", parts)

    def samples(self) -> Iterator[tuple[str, Any]]:
        if not self.uri:
            with Path(self.path).open("rb") as file:
                yield from iterate_samples(file, self.path)
            return
        with open_filesystem(self.uri).open(self.path, "rb") as file:
            yield from iterate_samples(file, self.path, stream=True)

    def load(self, item: SourceItem) -> Sample:
        return decode_parts(item.key, item.place, self.ignore)

    def stamp(self, start: int, stop: int) -> str:
        return self.stamped


@dataclass(frozen=True, eq=False)
class ParquetPart:
    """The first `images` images of one Parquet file."""

    file: ParquetImages
    images: int

    def items(self, start: int) -> Iterator[SourceItem]:
        for key, record in islice(self.file.records(start), max(self.images - start, 0)):
            yield SourceItem(key, record)

    def load(self, item: SourceItem) -> Sample:
        return decode_record(item.key, *item.place)

    def stamp(self, start: int, stop: int) -> str:
        return f"{self.file.size} {self.file.rows}"


@dataclass(frozen=True, eq=False)
class ImageSource:
    """All parts that a spec names.

    Parameters
    ----------
    spec
        The spec.
    name
        Name of the dataset.
    parts
        Its parts, in order.
    classes
        Class names, or None if they are not known.
    """

    spec: str
    name: str
    parts: tuple[SourcePart, ...]
    classes: tuple[str, ...] | None = None

    @property
    def images(self) -> int | None:
        """Number of images; None if it is not known before they are read."""
        counts = [part.images for part in self.parts]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)


def open_source(spec: str, count: int | None = None) -> ImageSource:
    """Open what a spec names.

    Parameters
    ----------
    spec
        A dataset as for `open_dataset`; tar or Parquet files by path, folder or pattern; or a URI of tar files, Parquet
        files or a folder of images.
    count
        Number of images; None for all. Of a dataset, the same ones are chosen as in a benchmark; of tar and Parquet
        files the first ones, since they are read as a stream.

    Raises
    ------
    DataError
        If there is no dataset, or it is damaged.
    SpecError
        If the spec or the number of images is invalid.
    """
    kind, place, options = ("", spec, {}) if is_uri(spec) else split_spec(spec)
    if not is_uri(place):
        kind = kind or (recognise(expand_path(place)) if place else "")
    elif not kind:
        kind = find_kind_of_uri(place)
    if kind == "wds":
        parts = list_tar_parts(spec, place, **check_options("wds", wds, options, {}))
        return ImageSource(spec, "wds", keep_first_images(parts, count))
    if kind == "parquet":
        files = list_parquet_files(place, **{name: options.get(name) for name in ("image", "label", "key")})
        return ImageSource(spec, "parquet", keep_first_images([ParquetPart(file, file.rows) for file in files], count))
    dataset = open_remote_folder(place) if is_uri(place) else open_dataset(spec)
    if not len(dataset):
        raise DataError(f"dataset '{spec}' holds no image")
    places = range(len(dataset)) if count is None else subset(dataset, count, seed=0)
    return ImageSource(spec, dataset.name, (DatasetPart(dataset, places),), dataset.classes)


def find_kind_of_uri(uri: str) -> str:
    """Kind of the files at a URI: "wds", "parquet" or "folder"."""
    if uri.endswith((".tar", ".parquet")):
        return "wds" if uri.endswith(".tar") else "parquet"
    _, paths = list_remote_files(uri, (".tar", ".parquet", *SUFFIXES))
    return next((kind for end, kind in ((".tar", "wds"), (".parquet", "parquet")) if paths[0].endswith(end)), "folder")


def list_tar_parts(spec: str, place: str, ignore: int | None = None) -> list[TarPart]:
    """The shards at a path, folder, pattern or URI."""
    if is_uri(place):
        filesystem, paths = list_remote_files(place, (".tar",))
        stamps = [str(filesystem.size(path)) for path in paths]
    else:
        paths = [str(path) for path in expand_pattern(expand_path(place))]
        stamps = [f"{stat.st_size} {stat.st_mtime_ns}" for stat in (Path(path).stat() for path in paths)]
    uri = place if is_uri(place) else ""
    parts = [TarPart(path, uri, stamp, ignore) for path, stamp in zip(paths, stamps, strict=True)]
    if len({part.stem for part in parts}) < len(parts):
        raise DataError(f"'{spec}' names shards of the same name, so keys would not be unique")
    return parts


def keep_first_images(parts: Sequence[TarPart | ParquetPart], count: int | None) -> tuple[SourcePart, ...]:
    """The parts that hold the first `count` images, the last one cut short; all parts if `count` is None."""
    if count is None:
        return tuple(parts)
    kept: list[SourcePart] = []
    for part in parts:
        images = sum(1 for _ in islice(part.items(0), count)) if part.images is None else min(part.images, count)
        kept.append(replace(part, images=images))
        count -= images
        if not count:
            break
    return tuple(kept)


def open_remote_folder(uri: str) -> Album:
    """Images below a URI as a dataset; the folder of an image is its class if all images are in folders."""
    from vitreous.data.folder import read_folder_labels

    filesystem, paths = list_remote_files(uri, SUFFIXES)
    root = filesystem._strip_protocol(uri).rstrip("/") + "/"
    names = [path.removeprefix(root) for path in paths]
    labels, classes = read_folder_labels(names) if all("/" in name for name in names) else ({}, None)
    read = partial(read_remote_image, uri, paths, names, labels)
    return Album(root.rstrip("/").rsplit("/", 1)[-1], names, read, classes, {"uri": uri})


def read_remote_image(
    uri: str, paths: Sequence[str], names: Sequence[str], labels: dict[str, int], index: int
) -> Sample:
    name = names[index]
    return Sample(name, decode_image(read_remote(open_filesystem(uri), paths[index]), name), labels.get(name))
