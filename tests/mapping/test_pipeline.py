"""`run_map`: the same rows from every layout, a broken image as a row, and runs that continue where they stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import vitreous
from tests.forked import forked_context, run_forked
from tests.mapping.images import (
    COUNT,
    assert_same_rows,
    encoded_images,
    job,
    rows_in,
    run,
    write_folder,
    write_parquet,
    write_tars,
)
from vitreous.core.errors import DataError, SpecError
from vitreous.mapping import shard_files
from vitreous.mapping.export import export_safetensors, sort_shards
from vitreous.mapping.run import check_job, run_map
from vitreous.mapping.shard_files import ShardWriter, inspect_folder
from vitreous.mapping.source import open_source
from vitreous.models.image_input import Preprocess


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return encoded_images()


@pytest.fixture(scope="module")
def finished(tmp_path_factory, files) -> tuple[str, Path]:
    """A folder of images, and the maps of an unbroken run."""
    root = tmp_path_factory.mktemp("maps")
    spec = write_folder(root / "images", files)
    run(spec, root / "maps")
    return spec, root / "maps"


def test_maps_are_those_of_explain_and_a_broken_image_is_a_row(finished, files):
    rows = rows_in(finished[1])
    vit = vitreous.load("scenes")
    good = [row for row in rows if row["error"] is None]
    expected = vitreous.explain(vit, [files[row["index"]] for row in good], method="gradcam")

    assert [row["key"] for row in rows] == [f"{number:03d}.png" for number in range(COUNT)]
    assert "005.png' is damaged or cut short" in rows[5]["error"]
    assert (rows[5]["grid"], rows[5]["target"]) == (None, -1)
    assert [row["target"] for row in good] == expected.targets.tolist()
    for row, map_, logits in zip(good, expected.maps().numpy(), expected.logits, strict=True):
        stored = np.array(row["grid"], np.float32).reshape(14, 14) * float(row["scale"])
        assert np.abs(stored - map_).max() <= 2**-11 * np.abs(map_).max()  # half a unit of float16 below 1
        assert float(row["probability"]) == pytest.approx(float(logits.double().softmax(-1)[row["target"]]), rel=1e-5)


@pytest.mark.slow
def test_every_layout_gives_the_same_rows(finished, files, tmp_path):
    import datasets
    import fsspec

    expected = rows_in(finished[1])
    table = datasets.Dataset.from_dict({"image": [{"bytes": data, "path": None} for data in files]})
    table.cast_column("image", datasets.Image()).save_to_disk(str(tmp_path / "hf"))
    specs = [
        write_tars(tmp_path / "tars", files),
        write_parquet(tmp_path / "parquet", files),
        f"hf:{tmp_path / 'hf'}",
    ]
    memory = fsspec.filesystem("memory")
    for kind, local in (("tars", specs[0]), ("parquet", specs[1]), ("images", finished[0])):
        memory.put(local, f"/{tmp_path.name}/{kind}", recursive=True)
        specs.append(f"memory://{tmp_path.name}/{kind}")
    for number, spec in enumerate(specs):
        done = run(spec, tmp_path / f"maps-{number}")
        rows = rows_in(tmp_path / f"maps-{number}")
        assert (done.done_images, len(rows), sum(done.failed.values())) == (COUNT, COUNT, 1), spec
        assert len({row["key"] for row in rows}) == COUNT
        assert_same_rows(rows, expected, "key", "index", "label", "error")
    labels = [row["label"] for row in rows_in(tmp_path / "maps-0")]
    assert labels == [-1 if number == 5 else number % 8 for number in range(COUNT)]


@pytest.mark.slow
def test_a_second_run_computes_nothing_and_changed_images_are_computed_again(finished, files, tmp_path):
    spec, maps = write_folder(tmp_path / "images", files), tmp_path / "maps"
    shutil.copytree(finished[1], maps)
    moved = shutil.copytree(finished[0], tmp_path / "elsewhere")  # maps belong to a spec
    with pytest.raises(DataError, match=r"holds maps of another job .* give another --out"):
        run(str(moved), maps)

    shutil.rmtree(maps)
    assert run(spec, maps).rows == COUNT
    assert run(spec, maps).rows == 0
    (Path(spec) / "0015.png").write_bytes(files[0])  # between 001 and 002: all images after it move
    assert run(spec, maps).rows == COUNT + 1
    (Path(spec) / "999.png").write_bytes(files[0])  # into the last file
    assert run(spec, maps).rows == 2
    assert run(spec, maps, retry=True).rows == 4  # the file with the broken image
    assert run(spec, maps, recheck=True).rows == COUNT + 2
    with pytest.raises(DataError, match="another job"):
        run(spec, maps, methods=("random",))


MOMENTS = [("after a slice", 1), ("before a file", 1), ("after a file", 2), ("after a file", 1), ("before a file", 2)]


def kill_at_every_moment(spec: str, folder: Path, report: Path) -> None:
    """Fork a process for every moment; each kills itself, without a chance to clean up. Report the signals that ended them."""
    torch.set_num_threads(1)
    run_map(
        job(spec), folder.with_name("warm-up"), device="cpu", batch_size=2
    )  # loads and imports before the first fork
    signals = []
    for moment, number in MOMENTS:
        if (process := os.fork()) == 0:
            try:
                run_until(moment, number, spec, folder)
            finally:
                os._exit(0)
        _, status = os.waitpid(process, 0)
        signals.append(os.WIFSIGNALED(status) and os.WTERMSIG(status))
    report.write_text(json.dumps(signals))


def run_until(moment: str, number: int, spec: str, folder: Path) -> None:
    counts = {"add": 0, "put": 0}
    add, put = ShardWriter.add, shard_files.put_whole

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def added(writer, rows):
        writer.checkpoint = 0  # save after every slice
        add(writer, rows)
        counts["add"] += 1
        if (moment, number) == ("after a slice", counts["add"]):
            die()

    def written(path, data):
        counts["put"] += 1
        if (moment, number) == ("before a file", counts["put"]):
            path.with_name(".half").write_bytes(data[:100])
            die()
        put(path, data)
        if (moment, number) == ("after a file", counts["put"]):  # a complete file beside its partial one
            die()

    ShardWriter.add, shard_files.put_whole = added, written
    run_map(job(spec), folder, device="cpu", batch_size=2)


@pytest.mark.slow
def test_a_killed_run_continues_without_lost_or_duplicated_rows(finished, tmp_path):
    spec, maps = finished[0], tmp_path / "maps"
    assert run_forked(kill_at_every_moment, spec, maps, tmp_path / "signals") == 0
    states = list(maps.glob("maps-*.parquet"))
    finished_before = sum(
        state.images for state in inspect_folder(maps, known_job(spec), open_source(spec)).partials.values()
    )

    assert json.loads((tmp_path / "signals").read_text()) == [signal.SIGKILL] * 5
    assert states
    done = run(spec, maps)
    assert 0 < done.rows < COUNT
    assert finished_before < COUNT
    assert_same_rows(rows_in(maps), rows_in(finished[1]))
    assert not list(maps.glob("*.partial.parquet"))


def known_job(spec: str):
    return check_job(job(spec), "cpu")[0]


def report_variable(*_) -> NoReturn:
    raise DataError(f"the example is {os.getenv('VITREOUS_EXAMPLE')}")


class ReportingJob:
    """Reports an environment variable of the process that reads an attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        report_variable()


@pytest.mark.slow
def test_processes_and_replicas_have_the_environment_variables_of_their_run(tmp_path, monkeypatch):
    from vitreous.mapping import decode, run

    forked_context()
    monkeypatch.setattr(run.MapRun, "begin", lambda *_: SimpleNamespace(progress=None))
    for value in ("set", "changed"):
        monkeypatch.setenv("VITREOUS_EXAMPLE", value)
        with pytest.raises(DataError, match=f"the example is {value}"):
            next(decode.decode_in_processes(None, Preprocess.plain(8), report_variable, 1, 1))
        with pytest.raises(DataError, match=f"the example is {value}"):
            run.run_replicas(ReportingJob(), tmp_path, 1, device="cpu")


@pytest.mark.slow
def test_processes_and_replicas_give_the_same_rows(finished, tmp_path):
    from vitreous.mapping.run import run_replicas

    forked_context()
    done = run_replicas(known_job(finished[0]), tmp_path / "replicas", 2, device="cpu", batch_size=3)
    run(finished[0], tmp_path / "decoded", decoding=2, batch_size=1)  # more batches than slots of shared memory

    assert (done.done_images, done.rows) == (COUNT, COUNT)
    assert_same_rows(rows_in(tmp_path / "decoded"), rows_in(finished[1]))
    assert_same_rows(rows_in(tmp_path / "replicas"), rows_in(finished[1]))


def die_once(pipe, job, folder, share, options, mark):
    """Body of a replica: the first one with the second share is killed after its first report."""

    def send_and_die(progress):
        pipe.send(progress)
        if share.number == 1 and progress.rows and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    run_map(job, folder, share=share, **{**options, "report": send_and_die})


@pytest.mark.slow
def test_a_replica_that_dies_is_started_again(finished, tmp_path, monkeypatch):
    from vitreous.mapping import run as pipeline

    forked_context()
    monkeypatch.setattr(pipeline, "run_replica", partial(die_once, mark=tmp_path / "mark"))
    options = {"device": "cpu", "batch_size": 1}
    done = pipeline.run_replicas(known_job(finished[0]), tmp_path / "maps", 2, **options)

    assert (tmp_path / "mark").exists()
    assert done.rows >= COUNT
    assert_same_rows(rows_in(tmp_path / "maps"), rows_in(finished[1]))

    (tmp_path / "mark").unlink()
    monkeypatch.setattr(pipeline, "LOSSES", 1)
    with pytest.raises(DataError, match=r"replica 1 died 1 times .* fewer --workers"):
        pipeline.run_replicas(known_job(finished[0]), tmp_path / "other", 2, **options)


@pytest.mark.slow
def test_errors_of_decoding_processes_are_reported(finished, files, tmp_path, monkeypatch):
    """A process that dies ends the run, which can go on; a damaged tar file is named."""
    from vitreous.mapping import decode

    forked_context()

    pids: list[int] = []
    take = decode.take_from_slot

    def kill_decoders(batch, slot):
        for child in multiprocessing.active_children():
            pids.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)
        take(batch, slot)

    spec = write_tars(tmp_path / "tars", files * 4, per_tar=48)
    with monkeypatch.context() as patch:
        patch.setattr(decode, "take_from_slot", kill_decoders)
        with pytest.raises(DataError, match=r"a decoding process died .* run the same command again"):
            run(spec, tmp_path / "maps", decoding=2, batch_size=1, shard_size=48)
    assert len(pids) == 3
    assert run(spec, tmp_path / "maps", shard_size=48).done_images == 48

    (Path(spec) / "t1.tar").write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match=r"t1\.tar' is damaged or not a plain tar file"):
        run(spec, tmp_path / "other", decoding=1, shard_size=48)


def test_images_that_do_not_fit_into_shared_memory_are_sent():
    from vitreous.mapping.decode import ImageBatch, ImagesInSlot, put_in_slot, take_from_slot
    from vitreous.mapping.job import SliceRange

    groups = [torch.arange(6, dtype=torch.uint8).view(1, 3, 1, 2), torch.rand(2, 3, 2, 2), torch.rand(1, 3, 9, 9)]
    batch = ImageBatch(SliceRange("s", 0, 0, 4, False, False), groups=[([n], group) for n, group in enumerate(groups)])
    slot = torch.zeros(200, dtype=torch.uint8)

    put_in_slot(batch, slot)
    assert [isinstance(images, ImagesInSlot) for _, images in batch.groups] == [True, True, False]
    received = pickle.loads(pickle.dumps(batch))
    take_from_slot(received, slot)
    assert all(torch.equal(images, group) for (_, images), group in zip(received.groups, groups, strict=True))
    assert received.groups[0][1].data_ptr() == slot.data_ptr()


def test_rows_of_several_methods_and_targets_are_ordered_by_image(files, tmp_path):
    spec = write_tars(tmp_path / "tars", files)
    changes = {"methods": ("gradcam", "random"), "targets": "predicted+label", "images": 7}
    run(spec, tmp_path / "maps", **changes)

    rows = rows_in(tmp_path / "maps")
    assert [row["key"] for row in rows] == [f"t0/{n:03d}" for n in range(5) for _ in range(4)] + ["t1/005"] * 2 + [
        "t1/006"
    ] * 4
    assert [(row["role"], row["method"]) for row in rows[:4]] == [
        ("predicted", "gradcam"), ("predicted", "random"), ("label", "gradcam"), ("label", "random"),
    ]  # fmt: skip
    assert [row["target"] for row in rows[2:4]] == [0, 0]


@pytest.mark.parametrize(
    ("targets", "roles"),
    [("label", ["label"]), ("top 2", ["top 1", "top 2"]), ((3, 5), ["class", "class"])],
)
def test_targets(targets, roles, files, tmp_path):
    spec = write_tars(tmp_path / "tars", files[:3])
    run(spec, tmp_path / "maps", targets=targets)

    rows = rows_in(tmp_path / "maps")
    assert [row["role"] for row in rows] == roles * 3
    expected = {"label": [0, 1, 2], (3, 5): [3, 5] * 3}.get(targets)
    if expected is None:
        logits = vitreous.explain(vitreous.load("scenes"), files[:3], method="gradcam").logits
        expected = logits.topk(2).indices.flatten().tolist()
    assert [row["target"] for row in rows] == expected


def test_labels_that_are_no_classes_are_failed_rows(files, tmp_path):
    spec = write_tars(tmp_path / "tars", files[:1])
    with pytest.raises(SpecError, match=r'--targets: targets = "label" needs labels'):
        check_job(job(write_folder(tmp_path / "images", files[:2]), targets="label"), "cpu")
    done = run(spec, tmp_path / "maps", targets=(0,))
    assert not done.failed
    import io
    import tarfile

    with tarfile.open(Path(spec) / "t0.tar", "a") as archive:
        for name, data in (("900.png", files[0]), ("900.cls", b"900")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    done = run(spec, tmp_path / "other", targets="label")
    assert list(done.failed) == ["'t0/900' has the label 900, and the model knows 20 classes"]


def test_a_batch_that_fails_is_halved_until_the_image_is_found(finished, tmp_path, monkeypatch):
    from vitreous.mapping.explain import MapExplainer

    explain = MapExplainer.explain_targets

    def fails_on_002(self, batch, positions, images, *rest):
        if any(batch.keys[position] == "002.png" for position in positions):
            raise RuntimeError("no luck")
        return explain(self, batch, positions, images, *rest)

    monkeypatch.setattr(MapExplainer, "explain_targets", fails_on_002)
    run(finished[0], tmp_path / "maps", batch_size=4)

    errors = {row["key"]: row["error"] for row in rows_in(tmp_path / "maps") if row["error"]}
    assert errors.pop("002.png") == "RuntimeError: no luck"
    assert list(errors) == ["005.png"]


def test_batches_of_the_usual_size_are_replayed(finished, files, tmp_path, monkeypatch):
    """CUDA graphs are used for whole batches of one method whose targets do not depend on the logits."""
    from vitreous import explanation
    from vitreous.capture.cuda_graphs import GraphCache
    from vitreous.mapping import explain

    sizes = []

    def replay(cache, key, function, inputs, tolerance):
        sizes.append(len(inputs[0]))
        return function(*inputs)

    for module in (explain, explanation):
        monkeypatch.setattr(module, "can_be_recorded", lambda method, vit, hold=None: True)
    monkeypatch.setattr(GraphCache, "run", replay)
    run(finished[0], tmp_path / "maps")
    assert sizes == [3, 3]  # files of 3 + 1 images, of which one of the second file is broken
    assert_same_rows(rows_in(tmp_path / "maps"), rows_in(finished[1]))

    spec = write_tars(tmp_path / "tars", files[:4])
    run(spec, tmp_path / "labels", targets=(3, 5))
    assert len(sizes) == 3
    run(spec, tmp_path / "tops", targets="top 2")
    run(spec, tmp_path / "methods", methods=("gradcam", "random"))
    assert len(sizes) == 3
    monkeypatch.undo()
    run(spec, tmp_path / "plain", targets=(3, 5))
    assert_same_rows(rows_in(tmp_path / "labels"), rows_in(tmp_path / "plain"))


def test_colours_are_normalised_as_on_the_cpu(files):
    vit = vitreous.load("scenes")
    colours = torch.stack([vit.preprocess.colours(data) for data in files[:2]])
    assert torch.equal(vit.preprocess.normalise(colours), vit.preprocess.batch(files[:2]))


def test_metadata_describes_how_the_maps_were_computed(finished):
    (about,) = {pq.read_schema(file).metadata[b"vitreous"] for file in sorted(finished[1].glob("*.parquet"))[:1]}
    about = json.loads(about)
    assert about["format"] == "vitreous.maps/2"
    assert (about["model"], about["dataset"]) == ("scenes", finished[0])
    assert about["provenance"]["gradcam"]["method"] == "gradcam"
    assert about["shard"] | {"stamp": ""} == {
        "part": 0, "start": 0, "stop": 4, "ends_part": False, "stamp": "", "failed": 0,
    }  # fmt: skip


def test_sorted_rows_and_safetensors(finished, tmp_path):
    from safetensors.numpy import load_file

    maps = Path(shutil.copytree(finished[1], tmp_path / "maps"))
    shuffled = pq.read_table(maps / "maps-00000.parquet")
    pq.write_table(shuffled.take([2, 0, 3, 1]), maps / "maps-00000.parquet")
    sort_shards(maps)
    exported = export_safetensors(maps, sorted(maps.glob("maps-*.parquet")))

    assert_same_rows(rows_in(maps / "sorted"), rows_in(finished[1]))
    assert [len(load_file(file)["grids"]) for file in exported] == [4, 3, 4]


def test_an_empty_input_gives_an_error_message(tmp_path):
    for spec, message in [
        ("nowhere.parquet", "there is no Parquet file at"),
        (f"memory://{tmp_path.name}/none", "there is no file at"),
        (f"s3+nonsense://{tmp_path.name}", "cannot be opened: Protocol not known"),
    ]:
        with pytest.raises(SpecError, match=f"--data: .*{message}"):
            check_job(job(spec), "cpu")


def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    """Rows in memory are those of unfinished shards, also when slices arrive out of order."""
    from vitreous.mapping.shard_files import ShardWriter

    spec = write_tars(tmp_path / "tars", encoded_images(1) * 12, per_tar=12)
    row_counts = []

    add = ShardWriter.add

    def counting(writer, rows):
        add(writer, rows)
        row_counts.append(sum(len(table) for buffer in writer.buffers.values() for table in buffer.tables))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardWriter, "add", counting)
        run_map(job(spec, shard_size=3), tmp_path / "maps", device="cpu", batch_size=2)
    assert max(row_counts) < 3
    assert len(rows_in(tmp_path / "maps")) == 12
