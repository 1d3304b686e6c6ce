"""Maps of damaged files are never read, the damage is named, and a repeated run mends it and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from tests.mapping.images import COUNT, encoded_images, job, rows_in, run, write_folder
from vitreous import maps
from vitreous.cli.main import main
from vitreous.core.errors import DataError
from vitreous.mapping.manifest import MANIFEST
from vitreous.mapping.run import check_job, run_map
from vitreous.mapping.shard_files import check_file, read_about, write_parquet


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[str, Path]:
    """A folder of images, and the maps of a run."""
    root = tmp_path_factory.mktemp("maps")
    spec = write_folder(root / "images", encoded_images())
    run(spec, root / "maps")
    return spec, root / "maps"


@pytest.fixture
def copied(finished, tmp_path) -> tuple[str, Path]:
    return finished[0], Path(shutil.copytree(finished[1], tmp_path / "maps"))


def read_all(folder: Path) -> list[Any]:
    stored = maps.read(folder)
    rows = [(row.key, row.target, row.attribution.patches.tolist(), row.probability) for row in stored.rows()]
    return [len(stored), list(stored.keys()), list(stored.failures()), rows, stored.about["provenance"]]


def test_changed_bits_are_refused_by_name(copied):
    """In every region of a file: pages, their headers, statistics, metadata and the hash itself."""
    folder = copied[1]
    expected, file = read_all(folder), folder / "maps-00001.parquet"
    data = file.read_bytes()
    for number, place in enumerate(range(0, len(data), max(1, len(data) // 150))):
        damaged = bytearray(data)
        damaged[place] ^= 1 << number % 8
        file.write_bytes(damaged)
        with pytest.raises(
            DataError, match=r"maps-00001\.parquet' (is damaged|is not the file that .* lists); repeat `vitreous map`"
        ):
            read_all(folder)
    file.write_bytes(data)
    assert read_all(folder) == expected


@pytest.mark.slow
def test_a_repeated_run_mends_the_damaged_file_only(copied):
    spec, folder = copied
    expected = read_all(folder)
    files = sorted(folder.glob("maps-*.parquet"))
    data, kept = files[1].read_bytes(), [files[0].stat().st_mtime_ns, files[2].stat().st_mtime_ns]
    zeroed = data[: len(data) // 2] + bytes(4096) + data[len(data) // 2 + 4096 :]
    for harm in (zeroed, data[:-40], b"", None):
        files[1].unlink() if harm is None else files[1].write_bytes(harm)
        with pytest.raises(
            DataError, match=r"maps-00001\.parquet' (is damaged|cannot be read|with 4 images is missing)"
        ):
            read_all(folder)
        done = run(spec, folder)
        assert done.rows == 4
        assert [note.split(" was ")[0] for note in done.mended] == ([] if harm is None else ["'maps-00001.parquet'"])
        assert read_all(folder) == expected
        assert run(spec, folder).rows == 0
    assert [files[0].stat().st_mtime_ns, files[2].stat().st_mtime_ns] == kept


def test_the_manifest_lists_the_files(copied):
    folder = copied[1]
    listed = json.loads((folder / MANIFEST).read_text())["files"]
    assert {name: (entry["images"], entry["failed"]) for name, entry in listed.items()} == {
        "maps-00000.parquet": (4, 0), "maps-00001.parquet": (4, 1), "maps-00002.parquet": (4, 0),
    }  # fmt: skip

    file = folder / "maps-00002.parquet"
    write_parquet(file, pq.read_table(file).slice(1), json.dumps(read_about(file)))  # intact, but another file
    with pytest.raises(DataError, match=r"is not the file that '_manifest\.json' lists"):
        list(maps.read(folder))
    (folder / MANIFEST).write_text((folder / MANIFEST).read_text().replace('"images": 4', '"images": 3', 1))
    with pytest.raises(DataError, match=r"_manifest\.json' is damaged; repeat `vitreous map`"):
        maps.read(folder)
    (folder / MANIFEST).unlink()
    assert len(maps.read(folder)) == COUNT - 1


def test_damaged_metadata_does_not_hide_files_from_a_search(copied):
    """Statistics decide which files are read for a key; the metadata that hold them are checked first."""
    folder = copied[1]
    file = folder / "maps-00002.parquet"
    data = bytearray(file.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    place = data.rindex(b"008.png", len(data) - length)
    data[place + 2] ^= 4
    file.write_bytes(data)

    with pytest.raises(DataError, match=r"maps-00002\.parquet' is damaged"):
        maps.read(folder)["008.png"]
    data[place + 2] ^= 4
    data[100] ^= 1  # in a page: files that do not have the key are not read
    file.write_bytes(data)
    check_file(file, whole=False)
    assert maps.read(folder)["000.png"]
    with pytest.raises(DataError, match="is damaged"):
        maps.read(folder)["008.png"]


def test_pages_have_checksums_that_other_tools_verify(copied):
    file = copied[1] / "maps-00000.parquet"
    metadata = pq.read_metadata(file).row_group(0)
    (grid,) = [
        metadata.column(n) for n in range(metadata.num_columns) if metadata.column(n).path_in_schema.startswith("grid")
    ]
    data = bytearray(file.read_bytes())
    data[grid.data_page_offset + grid.total_compressed_size - 20] ^= 1
    file.write_bytes(data)

    with pytest.raises(OSError, match=r"CRC|crc"):
        pq.read_table(file, page_checksum_verification=True)


def test_other_readers_see_the_maps_alone(finished, tmp_path, capsys):
    """Also beside a report, sorted rows, safetensors files and the rows of an unfinished file."""
    spec, folder = finished[0], tmp_path / "maps"
    line = [
        "map",
        spec,
        "--model",
        "scenes",
        "--method",
        "gradcam",
        "--shard-size",
        "4",
        "--out",
        str(folder),
        "--device",
        "cpu",
    ]
    assert main([*line, "--sort", "--format", "safetensors"]) == 1
    assert main(["report", str(folder), "--gallery", "1"]) == 0
    shutil.copy(folder / "maps-00000.parquet", folder / "_maps-00003.partial.parquet")
    capsys.readouterr()

    assert [path.name for path in folder.iterdir() if path.name[0] not in "_."] == [
        path.name for path in folder.iterdir() if path.suffix == ".parquet" and ".partial" not in path.name
    ]
    expected = [row["key"] for row in rows_in(folder)]
    assert len(expected) == COUNT
    assert pyarrow.dataset.dataset(folder).to_table()["key"].to_pylist() == expected
    assert pd.read_parquet(folder)["key"].tolist() == expected
    for name in ("_report/report.html", "_safetensors/maps-00000.safetensors"):
        assert (folder / name).is_file()
    assert (
        pyarrow.dataset.dataset(folder / "_sorted").count_rows()
        == pd.read_parquet(folder / "_sorted").shape[0]
        == COUNT
    )


def test_a_repeated_command_reports_the_rows_that_failed(finished, tmp_path, capsys):
    line = [
        "map",
        finished[0],
        "--model",
        "scenes",
        "--method",
        "gradcam",
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
        "--json",
    ]
    results = []
    for flags in ([], [], ["--retry"]):
        assert main([*line, *flags]) == 1
        results.append(json.loads(capsys.readouterr().out))

    assert [result["new_maps"] for result in results] == [COUNT, 0, COUNT]
    assert list(results[0]["failed"].values()) == [1]
    assert results[0]["failed"] == results[1]["failed"] == results[2]["failed"]
    assert main(line[:-1]) == 1
    err = capsys.readouterr().err
    assert "005.png" in err
    assert "--retry computes the files with such rows again" in err


def test_failed_rows_are_counted_once_and_by_the_share_that_they_belong_to(finished, copied):
    from vitreous.mapping.job import Share
    from vitreous.mapping.run import MapProgress, add_difference

    spec, folder = copied
    whole = check_job(job(spec), "cpu")[0]
    counts = [sum(run_map(whole, folder, share=Share(number, 2), device="cpu").failed.values()) for number in range(2)]
    assert counts == [0, 1]  # the broken image is in the second file

    total = MapProgress(None, failed={"a": 2}, known_failed={"a": 2})
    before = MapProgress(None, failed={"a": 2, "b": 1}, known_failed={"a": 2})
    add_difference(total, MapProgress(None), before)
    add_difference(total, before, MapProgress(None, failed={"a": 3, "b": 1}, known_failed={"a": 2}))
    assert total.failed == {"a": 3, "b": 1}


def test_maps_are_computed_again_on_request(copied, capsys):
    spec, folder = copied
    line = [
        "map",
        spec,
        "--model",
        "scenes",
        "--method",
        "gradcam",
        "--shard-size",
        "4",
        "--out",
        str(folder),
        "--device",
        "cpu",
    ]

    assert main([*line, "--recompute", "grad*", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["new_maps"] == COUNT
    assert main([*line, "--recompute", "genatt"]) == 2
    assert "--recompute 'genatt' is none of the methods and metrics of this run: gradcam" in capsys.readouterr().err
