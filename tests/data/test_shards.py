"""WebDataset shards, with tar files written here."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.making import noise, turned
from vitreous.core.errors import DataError
from vitreous.data import batches, open_dataset
from vitreous.models.image_input import Preprocess


def encoded(picture: Image.Image, kind: str = "PNG", **options) -> bytes:
    held = io.BytesIO()
    picture.save(held, kind, **options)
    return held.getvalue()


def shard(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


IDS = np.arange(96, dtype=np.uint8).reshape(8, 12) % 2


def test_images_classes_masks_and_boxes_are_read(tmp_path):
    files = {
        "./sub/000.jpg": encoded(noise(), "JPEG"),
        "./sub/000.cls": b"7\n",
        "./sub/000.mask.png": encoded(Image.fromarray(IDS)),
        "001.png": encoded(noise(seed=1)),
        "001.json": json.dumps({"label": 3, "boxes": [[1, 2, 3, 4]]}).encode(),
        "002.png": encoded(noise(seed=2)),
        "readme.txt": b"no image",
    }
    dataset = open_dataset(shard(tmp_path / "s-000.tar", files))
    first, second, third = (dataset[index] for index in range(3))

    assert dataset.keys == ["s-000/sub/000", "s-000/001", "s-000/002"]
    assert [one.label for one in (first, second, third)] == [7, 3, None]
    assert np.array_equal(first.mask, IDS)
    assert second.image.tobytes() == noise(seed=1).tobytes()
    assert second.boxes.tolist() == [[1, 2, 3, 4]]


def test_ranges_patterns_and_folders_name_many_shards(tmp_path):
    for number in range(4):
        shard(tmp_path / f"s-{number:03d}.tar", {"a.png": encoded(noise(seed=number)), "a.cls": str(number).encode()})

    chosen = open_dataset(f"wds:{tmp_path}/s-{{001..002}}.tar")
    assert chosen.keys == ["s-001/a", "s-002/a"]
    assert chosen[1].label == 2
    assert open_dataset(f"wds:{tmp_path}/s-{{000,003}}.tar").keys == ["s-000/a", "s-003/a"]
    for spec in (f"wds:{tmp_path}/s-*.tar", tmp_path, f"wds:{tmp_path}"):
        assert len(open_dataset(spec)) == 4
    with pytest.raises(DataError, match=r"no shard at '.*s-004.tar'"):
        open_dataset(f"wds:{tmp_path}/s-{{002..004}}.tar")


def test_damaged_files_are_rows_of_failure(tmp_path):
    files = {
        "a.jpg": b"no image",
        "b.jpg": encoded(noise()),
        "b.cls": b"zebra",
        "c.jpg": encoded(noise()),
        "c.json": b"{",
        "d.jpg": encoded(noise()),
        "e.jpg": encoded(noise()),
        "e.json": b'{"boxes": [[1, 2, 3]]}',
        "f.jpg": encoded(noise()),
        "f.json": b'{"boxes": [1, 2, 3, 4]}',
        "g.jpg": encoded(noise()),
        "g.cls": b"-7",
    }
    path = shard(tmp_path / "s.tar", files)

    (batch,) = batches(open_dataset(path), Preprocess.plain(8))

    assert batch.keys == ("s/d",)
    for (_, sentence), word in zip(
        batch.failures, ("s/a.jpg", "s/b.cls", "s/c.json", "s/e.json", "s/f.json", "s/g.cls"), strict=True
    ):
        assert word in sentence
        assert str(path) in sentence


def test_annotations_are_rotated_with_their_image(tmp_path):
    picture = encoded(Image.fromarray(np.repeat(IDS[..., None] * 255, 3, 2)), exif=turned(6))

    sample = open_dataset(shard(tmp_path / "s.tar", {"a.png": picture, "a.mask.png": encoded(Image.fromarray(IDS))}))[0]

    assert sample.image.size == (8, 12)
    assert np.array_equal(np.asarray(sample.image)[..., 0] > 0, sample.mask == 1)


def test_a_shard_cut_short_or_packed_is_refused(tmp_path):
    path = shard(tmp_path / "s.tar", {"a.png": encoded(noise()), "b.png": encoded(noise(200, 200))})
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"s.tar' is damaged or not a plain tar file"):
        open_dataset(path)
    with tarfile.open(tmp_path / "z.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.png"))
    with pytest.raises(DataError, match=r"z.tar' is damaged or not a plain tar file"):
        open_dataset(tmp_path / "z.tar")


def test_keys_are_unique_and_images_exist(tmp_path):
    twice = shard(tmp_path / "t.tar", {"a.png": encoded(noise()), "b.png": encoded(noise()), "a.cls": b"1"})
    with pytest.raises(DataError, match="key 'a' more than once"):
        open_dataset(twice)
    with pytest.raises(DataError, match="no image in"):
        open_dataset(shard(tmp_path / "e.tar", {"a.txt": b"x"}))
    with tarfile.open(tmp_path / "names.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("folder.d/x"))
        for name in ("v1.0/a.png", "v1.0/b.png"):
            member, data = tarfile.TarInfo(name), encoded(noise())
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert open_dataset(tmp_path / "names.tar").keys == ["names/v1.0/a", "names/v1.0/b"]
