"""Rows equal the results of `explain` and `evaluate`, are computed once, and failures become rows with an error message."""

from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from tests.bench.fixture import compute_cell, fill, small_plan, told
from vitreous.bench import worker
from vitreous.bench.keys import hash_identity, hash_tensor, hash_weights
from vitreous.bench.run_plan import execute
from vitreous.bench.store import Store
from vitreous.bench.work_cells import PlanJob, split_plan
from vitreous.data import batches, open_dataset
from vitreous.methods.method import METHODS
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import resolve_metric


def rows_of(folder, kind="scores") -> list[dict]:
    with Store(folder, create=False) as store:
        return store.table(kind=kind).to_pylist()


@contextmanager
def counting(monkeypatch):
    """Names of the methods and metrics that are run, with how many images each."""
    seen: list[tuple[str, int]] = []
    explain, judge = vitreous.methods.method.Method.__call__, worker.measure_columns

    def watched(self, probe):
        seen.append((self.name, len(probe.images)))
        return explain(self, probe)

    def watched_metric(metric, found, probe, *rest):
        seen.append((metric.name, len(probe.images)))
        return judge(metric, found, probe, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(vitreous.methods.method.Method, "__call__", watched)
        patched.setattr(worker, "measure_columns", watched_metric)
        yield seen


# ── content of a row ──────────────────────────────────────────────────────────────────────────────


def test_rows_equal_the_results_of_explain_and_evaluate(original):
    vit = vitreous.load("scenes")
    dataset = open_dataset("scenes:single?count=4")
    (batch,) = batches(dataset, vit.preprocess)
    rows = rows_of(original)

    assert len(rows) == 4 * 2 * 3
    for name in ("genatt", "random"):
        halves = [vitreous.explain(vit, batch.images[at : at + 2], method=name) for at in (0, 2)]
        for spec in {row["metric"] for row in rows}:
            found = [
                vitreous.evaluate(vit, batch.images[at : at + 2], half, spec, objects=batch.objects[at : at + 2])
                for at, half in zip((0, 2), halves, strict=True)
            ]
            expected = torch.cat([one.scores for one in found]).tolist()
            mine = [row for row in rows if row["method"] == name and row["metric"] == spec]
            assert [row["image"] for row in mine] == list(dataset.keys)
            # a map whose forward pass was shared differs by rounding: fused attention, not the matrices, made the last state
            assert [row["value"] for row in mine] == pytest.approx(expected, abs=1e-6)
            if found[0].curve is not None:
                curves = np.array([row["curve"] for row in mine])
                assert np.allclose(curves, torch.cat([one.curve for one in found]), atol=1e-6)
                assert mine[0]["levels"] == list(found[0].levels)


def test_a_row_records_its_provenance(original):
    row = rows_of(original)[0]
    vit = vitreous.load("scenes")
    (batch,) = batches(open_dataset("scenes:single?count=4"), vit.preprocess)

    assert (row["weights"], row["pixels"]) == (hash_weights(vit.module), hash_tensor(batch.images[0]))
    assert (row["vitreous"], row["precision"], row["question"]) == (vitreous.__version__, "float32", "logit")
    assert json.loads(row["protocol"])["metric"] == "deletion_aopc"
    assert json.loads(row["about"])["method"] == "genatt"
    assert row["label"] == row["predicted"] == row["target"] == int(batch.labels[0])
    assert row["target_name"] == vit.classes[row["target"]]
    assert 0 < row["probability"] <= 1
    assert row["map_seconds"] > 0
    assert row["seconds"] > 0
    assert row["peak_mib"] > 10


@pytest.mark.slow
def test_maps_come_back_from_half_precision(original):
    vit = vitreous.load("scenes")
    (batch,) = batches(open_dataset("scenes:single?count=4"), vit.preprocess)
    expected = vitreous.explain(vit, batch.images, method="genatt").maps().numpy()

    rows = [row for row in rows_of(original, "maps") if row["method"] == "genatt"]
    found = np.array([row["grid"] for row in rows], dtype=np.float32) * np.float32([[row["scale"]] for row in rows])

    assert found.shape == (4, 14 * 14)
    assert np.abs(found - expected.reshape(4, -1)).max() < 1e-3 * expected.max()
    assert [row["rows"] for row in rows] == [14] * 4


@pytest.mark.slow
def test_pairs_explain_both_classes_and_swap_object_and_rival(tmp_path):
    fill(
        tmp_path, datasets=["scenes:pair?count=2"], targets="pair", methods=["genatt"], metrics=["class_discrimination"]
    )

    rows = rows_of(tmp_path)

    assert [row["role"] for row in rows] == ["label", "rival"] * 2
    assert all(row["target"] == row["label"] for row in rows[::2])
    assert all(row["target"] != row["label"] for row in rows[1::2])
    vit = vitreous.load("scenes")
    (batch,) = batches(open_dataset("scenes:pair?count=2"), vit.preprocess)
    targets = torch.stack([batch.labels, batch.rival_labels], 1)
    maps = vitreous.explain(vit, batch.images, targets, method="genatt")
    for column, masks in ((0, (batch.objects, batch.rivals)), (1, (batch.rivals, batch.objects))):
        own = [maps[row] for row in (column, 2 + column)]
        for row, one in enumerate(own):
            metric = resolve_metric("class_discrimination")
            expected = metric(one, objects=masks[0][row : row + 1], rivals=masks[1][row : row + 1]).scores.item()
            assert rows[2 * row + column]["value"] == pytest.approx(expected, abs=1e-4)


def test_predicted_and_true_classes_have_separate_rows_computed_once_if_equal(tmp_path, monkeypatch):
    with counting(monkeypatch) as seen:
        fill(
            tmp_path,
            targets="predicted+label",
            datasets=["scenes:single?count=2"],
            methods=["genatt"],
            metrics=["sparseness"],
        )

    rows = rows_of(tmp_path)
    assert [row["role"] for row in rows] == ["predicted", "label"] * 2
    assert all(row["target"] == row["label"] == row["predicted"] for row in rows)
    assert rows[0]["key"] == rows[1]["key"]
    assert len(rows_of(tmp_path, "maps")) == 4
    assert seen == [("genatt", 2), ("sparseness", 2)]
    with Store(tmp_path) as store:
        assert len(store.known()) == 4


@pytest.mark.slow
def test_a_protocol_has_the_metrics_of_its_paper(tmp_path):
    plan = small_plan(protocol="tokentm", metrics=None, methods=["genatt"], datasets=["scenes:single?count=2"], slice=2)

    found = compute_cell(PlanJob(plan), split_plan(plan)[0])

    wanted = {
        (spec, role) for spec, roles in zip(plan.metrics, plan.evaluations[0].roles, strict=True) for role in roles
    }
    assert plan.targets == "predicted+label"
    assert plan.preprocess == "tokentm"
    assert ("positive_auc(preset='tokentm')", "label") in wanted
    assert ("miou", "label") not in wanted
    per_picture = sum(len(keys) for _, _, keys in found.listed["single/0/000000"])
    assert per_picture == len(wanted) + 2  # and a map of each class
    assert not found.failed


@pytest.mark.parametrize(("targets", "roles"), [("top 2", ["top 1", "top 2"]), ([3, "heart card"], ["class", "class"])])
def test_other_targets(targets, roles):
    plan = small_plan(datasets=["scenes:single?count=2"], targets=targets, metrics=["sparseness"], methods=["genatt"])

    found = compute_cell(PlanJob(plan), split_plan(plan)[0])

    rows = found.rows["scores"]
    assert [row["role"] for row in rows] == roles * 2
    assert len({row["key"] for row in rows}) == 4
    if targets == "top 2":
        assert all(row["target"] == row["predicted"] for row in rows[::2])


@pytest.mark.slow
def test_double_precision():
    small = {"datasets": ["scenes:single?count=2"], "methods": ["genatt"], "metrics": ["sparseness"]}
    found, usual = (
        compute_cell(PlanJob(plan), split_plan(plan)[0]).rows["scores"]
        for plan in (small_plan(precision="float64", **small), small_plan(**small))
    )

    assert [row["precision"] for row in found] == ["float64"] * 2
    assert found[0]["weights"] == usual[0]["weights"]  # hashed as they were stored
    assert 0 < max(abs(a["value"] - b["value"]) for a, b in zip(found, usual, strict=True)) < 1e-5


@pytest.mark.slow
def test_half_precision(original, tmp_path):
    done = fill(tmp_path, precision="bf16", methods=["genatt"], metrics=["sparseness"])

    assert not done.failed
    full = [row for row in rows_of(original) if row["metric"] == "sparseness" and row["method"] == "genatt"]
    for row, half_row in zip(full, rows_of(tmp_path), strict=True):
        assert row["key"] != half_row["key"]
        assert half_row["precision"] == "bf16"
        assert half_row["value"] == pytest.approx(row["value"], abs=0.05)


# ── incremental runs ──────────────────────────────────────────────────────────────────────────────


def test_finished_rows_are_not_computed_again(filled, monkeypatch):
    with counting(monkeypatch) as seen:
        again = fill(filled)

    assert (again.rows, seen) == (0, [])


@pytest.mark.slow
def test_a_new_method_alone_is_computed(filled, monkeypatch):
    before = told(filled)

    with counting(monkeypatch) as seen:
        fill(filled, methods=["genatt", "rollout", "random"])

    assert {name for name, _ in seen} == {"rollout", "deletion_aopc", "pointing_game", "sparseness"}
    assert [row for row in told(filled) if row["method"] != "'rollout'"] == before


@pytest.mark.slow
def test_a_new_metric_needs_its_maps_and_no_other_metric(filled, monkeypatch):
    with counting(monkeypatch) as seen:
        fill(filled, metrics=["sparseness", "entropy"])

    assert {name for name, _ in seen} == {"genatt", "random", "entropy"}
    assert len(rows_of(filled)) == 4 * 2 * 2  # the table contains this plan only, not other stored rows


@pytest.mark.slow
def test_only_new_images_are_computed(tmp_path, monkeypatch):
    many = {"datasets": ["scenes:single?count=20"], "slice": 4, "methods": ["genatt"], "metrics": ["sparseness"]}
    fill(tmp_path, images=3, **many)
    with counting(monkeypatch) as seen:
        fill(tmp_path, images=5, **many)

    assert sorted(seen) == [("genatt", 1), ("genatt", 1), ("sparseness", 1), ("sparseness", 1)]


@pytest.mark.slow
def test_only_new_images_and_metrics_are_computed(tmp_path, monkeypatch):
    many = {"datasets": ["scenes:single?count=20"], "slice": 4, "methods": ["genatt"]}
    fill(tmp_path, images=2, metrics=["sparseness"], **many)
    with counting(monkeypatch) as seen:
        fill(tmp_path, images=4, metrics=["sparseness", "entropy"], **many)

    assert sorted(seen) == [("entropy", 2), ("entropy", 2), ("genatt", 2), ("genatt", 2), ("sparseness", 2)]


@pytest.mark.slow
def test_a_folder_that_changed_is_listed_again(whole_folder, tmp_path, monkeypatch):
    plan = {"datasets": [f"folder:{whole_folder}"], "metrics": ["sparseness"], "methods": ["genatt"], "slice": 2}
    (whole_folder / "0.png").rename(tmp_path / "0.png")
    fill(tmp_path / "run", **plan)
    (tmp_path / "0.png").rename(whole_folder / "0.png")

    with counting(monkeypatch) as seen:
        fill(tmp_path / "run", **plan)

    assert seen == [("genatt", 1), ("sparseness", 1)]  # the rows of the other two are stored, though in other cells
    assert [row["image"] for row in rows_of(tmp_path / "run")] == ["0.png", "1.png", "2.png"]
    (whole_folder / "1.png").unlink()
    (whole_folder / "2.png").unlink()
    fill(tmp_path / "run", **plan)
    assert [row["image"] for row in rows_of(tmp_path / "run")] == ["0.png"]


@pytest.mark.slow
def test_a_replaced_image_is_detected_by_recheck(whole_folder, tmp_path):
    plan = {"datasets": [f"folder:{whole_folder}"], "metrics": ["sparseness"], "methods": ["genatt"], "slice": 2}
    fill(tmp_path / "run", **plan)
    before = rows_of(tmp_path / "run")
    Image.fromarray(vitreous.scenes.draw("single", 7, 7).image).save(whole_folder / "1.png")

    assert fill(tmp_path / "run", **plan).rows == 0
    with Store(tmp_path / "run") as store:
        assert execute(small_plan(**plan), store, recheck=True).rows == 2  # a score and a map
    after = rows_of(tmp_path / "run")
    assert [one["pixels"] == two["pixels"] for one, two in zip(before, after, strict=True)] == [True, False, True]


def test_a_checkpoint_that_was_trained_on_is_another_model(tmp_path):
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(0)
    small = {"img_size": 32, "patch_size": 16, "embed_dim": 12, "depth": 1, "num_heads": 1, "num_classes": 3}
    file = tmp_path / "w.safetensors"
    plan = {"models": [{"name": "timm:vit_tiny_patch16_224", "checkpoint": str(file), **small}]}
    plan |= {"metrics": ["sparseness"], "methods": ["genatt"], "datasets": ["scenes:single?count=1"]}
    for _ in range(2):
        save_file(timm.create_model("vit_tiny_patch16_224", **small).state_dict(), file)
        assert fill(tmp_path / "run", **plan).rows == 2

    with Store(tmp_path / "run") as store:
        assert len(store.table()) == 1


@pytest.mark.slow
def test_images_are_identified_by_content(filled, monkeypatch):
    with counting(monkeypatch) as seen:
        fill(filled, datasets=[{"spec": "scenes:single?count=4", "label": "renamed"}])

    assert seen == []
    assert {row["dataset"] for row in rows_of(filled)} == {"renamed"}


def test_the_key_contains_every_option():
    specs = ["genatt", "genatt(start=1)", "genatt+plus", "genatt@libra", "rollout", "tis(masks=8)", "tis(masks=9)"]

    assert len({hash_identity(resolve(spec)) for spec in specs}) == len(specs)
    assert hash_identity(resolve("GAE")) == hash_identity(resolve("genatt"))
    assert hash_identity(resolve("genatt(start=0)")) == hash_identity(
        resolve("genatt")
    )  # an option with its default value gives the same method
    assert hash_identity(resolve_metric("pointing_game")) != hash_identity(resolve_metric("pointing_game(tolerance=3)"))


@pytest.mark.slow
def test_other_masks_make_another_row():
    data = ["scenes:part?count=2", "scenes:part?count=2&mask=evidence"]
    plan = small_plan(datasets=data, methods=["genatt"], metrics=["pointing_game", "sparseness"])

    first, second = (compute_cell(PlanJob(plan), cell).rows["scores"] for cell in split_plan(plan))

    for one, other in zip(first, second, strict=True):
        assert (one["key"] == other["key"]) == (one["metric"] == "sparseness")


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def whole_folder(tmp_path):
    """Three images."""
    place = tmp_path / "pictures"
    place.mkdir()
    for number, scene in enumerate(vitreous.scenes.Scenes("single", 3, 0)):
        Image.fromarray(scene.image).save(place / f"{number}.png")
    return place


@pytest.fixture
def folder(whole_folder):
    """The same, one of them damaged, one without a label."""
    place = whole_folder
    (place / "1.png").write_bytes((place / "1.png").read_bytes()[:200])
    (place / "labels.csv").write_text("file,label\n0.png,16\n1.png,3\n")
    return place


@pytest.mark.slow
def test_a_damaged_image_is_a_row_with_a_reason_and_is_tried_again(folder, tmp_path):
    plan = {"datasets": [f"folder:{folder}"], "metrics": ["sparseness"], "slice": 3, "methods": ["genatt", "random"]}

    first = fill(tmp_path / "run", **plan)

    rows = rows_of(tmp_path / "run")
    assert [(row["image"], row["error"] is None) for row in rows] == [(f"{n}.png", n != 1) for n in (0, 0, 1, 1, 2, 2)]
    assert "1.png" in rows[2]["error"]
    assert np.isnan(rows[2]["value"])
    assert list(first.failed.values()) == [1]
    Image.fromarray(vitreous.scenes.draw("single", 0, 1).image).save(folder / "1.png")
    again = fill(tmp_path / "run", **plan)
    assert (again.rows, again.failed) == (4, {})  # two scores, two maps
    assert all(row["error"] is None for row in rows_of(tmp_path / "run"))


def test_an_image_without_the_required_label_fails_separately(folder, tmp_path):
    fill(
        tmp_path / "run",
        datasets=[f"folder:{folder}"],
        targets="label",
        metrics=["sparseness"],
        methods=["genatt"],
        slice=3,
    )

    said = {row["image"]: row["error"] for row in rows_of(tmp_path / "run")}

    assert said["0.png"] is None
    assert said["2.png"] == "'2.png' has no label"


@pytest.mark.slow
def test_a_metric_that_needs_no_label_works_where_there_is_none(folder, tmp_path):
    metrics = ["deletion_accuracy(ratios=(0.5,), judge='label')", "deletion_accuracy(ratios=(0.5,), judge='predicted')"]

    fill(tmp_path / "run", datasets=[f"folder:{folder}"], metrics=metrics, methods=["genatt"], slice=3)

    said = {(row["image"], "predicted" in row["metric"]): row["error"] for row in rows_of(tmp_path / "run")}
    assert said["0.png", False] is said["0.png", True] is said["2.png", True] is None
    assert "needs labels" in said["2.png", False]


def test_a_refused_method_does_not_affect_the_others(tmp_path):
    tiny = {"name": "timm:vit_tiny_patch16_224", "label": "tiny", "pretrained": False, "depth": 2, "embed_dim": 48}
    tiny |= {"num_heads": 3, "img_size": 32, "num_classes": 20, "class_token": False, "global_pool": "avg"}

    done = fill(tmp_path, models=[tiny], methods=["genatt(row='cls')", "random"], metrics=["sparseness"])

    rows = rows_of(tmp_path)
    assert [row["error"] is None for row in rows] == [False, True] * 4
    assert "has no class token" in rows[0]["error"]
    assert sum(done.failed.values()) == 8  # its scores and its maps


@pytest.mark.slow
def test_a_bad_image_does_not_affect_its_batch(tmp_path):
    def moody(probe):
        """A method that refuses dark images."""
        if (probe.images.mean((1, 2, 3)) < threshold).any():
            raise RuntimeError("too\ndark")
        return probe.images.new_ones(probe.rows, probe.layout.patches)

    vit = vitreous.load("scenes")
    (batch,) = batches(open_dataset("scenes:single?count=4"), vit.preprocess)
    means = batch.images.mean((1, 2, 3))
    threshold = means.sort().values[:2].mean()
    vitreous.method("moody", signed=False, class_specific=False)(moody)
    try:
        fill(tmp_path, methods=["moody"], metrics=["sparseness"], slice=4)
    finally:
        METHODS.discard("moody")

    said = [row["error"] for row in rows_of(tmp_path)]
    assert [one is None for one in said] == (means >= threshold).tolist()
    assert sorted(filter(None, said)) == ["RuntimeError: too dark"]


@pytest.mark.slow
def test_the_batch_size_does_not_matter_up_to_rounding(original, tmp_path):
    fill(tmp_path, batch_size=1)

    for one, other in zip(rows_of(original), rows_of(tmp_path), strict=True):
        assert one["key"] == other["key"]
        assert other["value"] == pytest.approx(one["value"], abs=1e-5)
