"""The page about a folder of maps: counts, images, and messages about missing ones."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.mapping.images import encoded_images, run, write_folder, write_tars
from tests.report.test_page import Reader
from vitreous import maps
from vitreous.cli.main import main
from vitreous.core.errors import DataError
from vitreous.mapping.export import sort_shards
from vitreous.mapping.shard_files import read_about, write_parquet
from vitreous.report import map_summary, write_map_report
from vitreous.report.map_summary import Mean, MethodStatistics, summarise_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Maps of nine images with labels in three files; the sixth image is broken."""
    root = tmp_path_factory.mktemp("labelled")
    run(write_tars(root / "tars", encoded_images(9), per_tar=4), root / "maps", methods=("gradcam", "random"))
    return root / "maps"


def test_rows_are_counted_by_method_class_and_error(folder):
    stored = maps.read(folder)
    summary, rows = summarise_folder(stored, 2), list(stored.rows())
    assert (summary.images, summary.failed, summary.maps) == (8, 1, 16)
    assert {name: method.maps for name, method in summary.methods.items()} == {"gradcam": 8, "random": 8}
    images = {row.key: row for row in rows}
    assert sum(counted.images for counted in summary.classes.values()) == 8
    for number, counted in summary.classes.items():
        own = [row for row in images.values() if row.predicted == number]
        assert (counted.images, counted.name) == (len(own), own[0].target_name)
        assert counted.right == sum(row.label == number for row in own)
    role = summary.roles["predicted"]
    assert role.histogram.sum() == role.labelled == 8
    assert role.probability.mean == pytest.approx(np.mean([row.probability for row in images.values()]))
    (message,) = summary.errors
    assert summary.errors[message] == 2
    assert summary.examples[message] == "t1/005"
    assert "005" not in message
    wrong = sorted((row for row in images.values() if row.label != row.predicted), key=lambda row: -row.probability)
    assert [image.key for image in summary.mistakes] == [row.key for row in wrong[:2]]
    assert len(summary.sample) == 2


def test_numbers_do_not_depend_on_the_size_of_batches(folder, monkeypatch):
    whole = summarise_folder(maps.read(folder), 3)
    monkeypatch.setattr(map_summary, "BATCH", 3)
    parts = summarise_folder(maps.read(folder), 3)
    assert parts.sample == whole.sample
    assert parts.mistakes == whole.mistakes
    assert parts.images == whole.images
    assert parts.roles["predicted"].histogram.tolist() == whole.roles["predicted"].histogram.tolist()
    for name, method in whole.methods.items():
        assert parts.methods[name].strongest.mean == pytest.approx(method.strongest.mean)
        assert parts.methods[name].strongest.stderr == pytest.approx(method.strongest.stderr)


def test_means_of_parts_are_those_of_the_whole():
    values = np.random.default_rng(0).normal(5, 2, 100)
    mean = Mean()
    for part in np.split(np.append(values, [np.nan, np.nan]), [1, 2, 40]):
        mean.add(part)
    assert (mean.count, mean.undefined) == (100, 2)
    assert mean.mean == pytest.approx(values.mean())
    assert mean.stderr == pytest.approx(values.std(ddof=1) / 10)
    assert np.isnan(Mean().mean)


def test_shares_of_maps():
    statistics = MethodStatistics()
    statistics.add(np.array([[9.0, *[0.0] * 18, -1.0], [1.0] * 20, [0.0] * 20, [np.nan] * 20]))
    assert (statistics.maps, statistics.flat) == (4, 2)
    assert statistics.negative.mean == pytest.approx((0.1 + 0) / 2)
    assert statistics.strongest.mean == pytest.approx((1.0 + 0.1) / 2)


def test_the_page_shows_images_maps_and_errors(folder, tmp_path):
    written = write_map_report(folder, tmp_path / "page.html", gallery=2)
    reader = Reader(written.page.read_text())
    assert not reader.crossed
    assert not reader.open
    assert written.unreached == ()
    assert "8 images, 2 methods, 16 maps; 1 image without a map" in reader.words
    assert "Most certain mistakes" in reader.words
    pictures = [attributes["src"] for tag, attributes in reader.tags if tag == "img"]
    assert len(pictures) == 12  # of four images: the image and two maps
    assert all(source.startswith("data:image/webp;base64,") for source in pictures)
    with (tmp_path / "tables" / "maps-methods.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["maps"]) for row in rows] == [("gradcam", "8"), ("random", "8")]


def test_without_images_maps_are_shown_alone(folder, tmp_path):
    copy = tmp_path / "maps"
    shutil.copytree(folder, copy)
    sort_shards(copy)
    written = write_map_report(copy / "_sorted", tmp_path / "page.html", gallery=2)
    assert "does not say where its images are" in written.unreached[0]
    reader = Reader(written.page.read_text())
    assert len([tag for tag, _ in reader.tags if tag == "img"]) == 8
    assert "Images are left out" in " ".join(reader.words.split())


def test_metrics_are_those_of_evaluate(folder, tmp_path):
    written = write_map_report(
        folder, tmp_path / "page.html", gallery=0, metrics=["sparseness"], images=5, device="cpu"
    )
    scored = [pair for pair in maps.read(folder).evaluate("scenes", "sparseness") if pair[0].key <= "t1/004"]
    with (tmp_path / "tables" / "maps-methods.csv").open() as file:
        for row in csv.DictReader(file):
            own = [score for stored, score in scored if stored.attribution.method == row["method"]]
            assert len(own) == 5
            assert float(next(value for name, value in row.items() if "sparseness" in name)) == pytest.approx(
                np.mean(own), abs=1e-3
            )
    assert "the first 5 images" in written.page.read_text()


def test_another_model_is_refused(folder, tmp_path):
    file = next(iter(maps.read(folder).files))
    table = pq.read_table(file)
    about = {**(read_about(file) or {}), "weights": "0" * 16}
    write_parquet(tmp_path / file.name, table, json.dumps(about))
    with pytest.raises(DataError, match="has other weights than the one that was explained"):
        write_map_report(tmp_path, tmp_path / "page.html", metrics=["sparseness"])


def vitreous_weights(file: Path) -> bytes:
    return maps.MapFolder((file,)).about["weights"].encode()


def test_names_from_files_are_escaped(tmp_path):
    images = tmp_path / "images"
    write_folder(images, encoded_images(2))
    (images / "000.png").rename(images / "<b>x&amp;.png")
    run(str(images), tmp_path / "maps")
    written = write_map_report(tmp_path / "maps", tmp_path / "page.html", gallery=2)
    reader = Reader(written.page.read_text())
    assert "<b>x&amp;.png" in reader.words
    assert not reader.crossed


def test_command_line(folder, tmp_path, capsys):
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html"), "--gallery", "0"]) == 0
    assert (tmp_path / "page.html").exists()
    assert "12 tables" in capsys.readouterr().out
    assert main(["report", str(folder), "--run", "first"]) != 0
    assert "no runs to choose from" in capsys.readouterr().err
    for option in (["--metric", "sparseness"], ["--images", "3"], ["--device", "cpu"]):
        assert main(["report", str(tmp_path), *option]) != 0
        assert f"{option[0]} are for stored maps" in capsys.readouterr().err
