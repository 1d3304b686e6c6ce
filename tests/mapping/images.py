"""Twelve small images in every layout that `vitreous map` reads, and the rows of a run."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vitreous.bench.plan import ModelSpec
from vitreous.mapping.job import MapJob
from vitreous.mapping.run import MapProgress, run_map
from vitreous.scenes import draw

SCENES = ModelSpec("scenes", "scenes")
COUNT = 12


def encoded_images(count: int = COUNT) -> list[bytes]:
    """PNG files of scenes; the sixth is cut short."""
    files = []
    for index in range(count):
        stream = io.BytesIO()
        Image.fromarray(draw("single", seed=1, index=index).image).save(stream, "PNG")
        files.append(stream.getvalue() if index != 5 else stream.getvalue()[:100])
    return files


def write_folder(folder: Path, files: list[bytes]) -> str:
    folder.mkdir(parents=True)
    for number, data in enumerate(files):
        (folder / f"{number:03d}.png").write_bytes(data)
    return str(folder)


def write_tars(folder: Path, files: list[bytes], per_tar: int = 5) -> str:
    """Tar files with a label for every image."""
    folder.mkdir(parents=True)
    for first in range(0, len(files), per_tar):
        with tarfile.open(folder / f"t{first // per_tar}.tar", "w") as archive:
            for number in range(first, min(first + per_tar, len(files))):
                for name, data in ((f"{number:03d}.png", files[number]), (f"{number:03d}.cls", b"%d" % (number % 8))):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return str(folder)


def write_parquet(folder: Path, files: list[bytes], per_file: int = 5) -> str:
    folder.mkdir(parents=True)
    for first in range(0, len(files), per_file):
        rows = [{"image": {"bytes": data, "path": None}, "label": 3} for data in files[first : first + per_file]]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"p{first // per_file}.parquet", row_group_size=2)
    return str(folder)


def job(spec: str, **changes: Any) -> MapJob:
    return MapJob(**{"model": SCENES, "spec": spec, "methods": ("gradcam",), "shard_size": 4, **changes})


def run(spec: str, folder: Path, **changes: Any) -> MapProgress:
    options = {name: changes.pop(name) for name in ("decoding", "batch_size", "recheck", "retry") if name in changes}
    return run_map(job(spec, **changes), folder, device="cpu", **{"batch_size": 3, **options})


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """All rows of the complete files, in order."""
    files = [file for file in sorted(folder.glob("maps-*.parquet")) if ".partial." not in file.name]
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def assert_same_rows(rows: list[dict[str, Any]], expected: list[dict[str, Any]], *other: str) -> None:
    """The same rows up to the rounding of other batches; columns named in `other` may differ."""
    assert len(rows) == len(expected)
    for row, known in zip(rows, expected, strict=True):
        for name in known.keys() - set(other):
            if row[name] is None or known[name] is None or isinstance(row[name], str):
                assert row[name] == known[name], name
            else:
                assert np.allclose(row[name], known[name], rtol=2e-3, atol=2e-3, equal_nan=True), name
