"""Bridges to other tools, with the real packages where they can be installed."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import timm
import torch
from torch import nn

import vitreous
from vitreous.bridges.pixel_maps import spread_evenly
from vitreous.core.errors import DataError, ModelError, ShapeError


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=2, num_classes=3
    ).eval()


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
def test_pixels_of_a_patch_add_up_to_its_score(model, images):
    attribution = vitreous.explain(model, images, 1, "ixg")
    pixels = spread_evenly(attribution)

    assert pixels.shape == (2, 32, 32)
    torch.testing.assert_close(pixels[:, :16, :16].sum((1, 2)), attribution.patches[:, 0])
    by_pixel = vitreous.explain(model, images, 1, "ig(steps=3)")
    torch.testing.assert_close(spread_evenly(by_pixel), by_pixel.native_pixels)


def test_a_method_is_a_captum_attribution(model, images):
    captum = pytest.importorskip("captum.attr")
    from vitreous.bridges.captum import attribution

    method = attribution("decompx+plus", question="logit")(model)
    values = method.attribute(images, target=torch.tensor([0, 2]))
    expected = vitreous.explain(model, images, [0, 2], "decompx+plus", "logit")

    assert isinstance(method, captum.Attribution)
    assert values.shape == images.shape
    torch.testing.assert_close(values.sum((1, 2, 3)), expected.patches.sum(1))
    assert isinstance(method.attribute((images,), target=1), tuple)
    with pytest.raises(ShapeError, match="pass the module itself"):
        attribution("temper")(lambda x: x)
    with pytest.raises(ShapeError, match="one class per image"):
        method.attribute(images, target=[(0, 1), (1, 2)])


def test_an_explain_func_of_quantus_follows_its_calling_convention(model, images):
    from vitreous.bridges.quantus import explain_func

    function = explain_func("decompx+plus", question="logit")
    maps = function(model=model, inputs=images.numpy(), targets=np.array([0, 2]), device="cpu", method="ignored")

    assert isinstance(maps, np.ndarray)
    assert maps.shape == (2, 1, 32, 32)
    expected = vitreous.explain(model, images, [0, 2], "decompx+plus", "logit")
    np.testing.assert_allclose(maps.sum((1, 2, 3)), expected.patches.sum(1).numpy(), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Quantus and what it imports
def test_metrics_of_quantus_call_an_explain_func(model, images):
    quantus = pytest.importorskip("quantus")
    from vitreous.bridges.quantus import explain_func

    metric = quantus.Sparseness(disable_warnings=True)
    function = explain_func("ixg", question="logit")
    arguments = {"model": model, "x_batch": images.numpy(), "y_batch": np.array([0, 2]), "device": "cpu"}
    values = metric(**arguments, a_batch=None, explain_func=function)
    scores = np.sort(vitreous.explain(model, images, [0, 2], "ixg", "logit").patches.abs().numpy(), axis=1)
    gini = (scores * (2 * np.arange(1, 5) - 5)).sum(1) / (4 * scores.sum(1))

    np.testing.assert_allclose(values, gini, rtol=2e-2)  # Quantus takes pixels one by one
    steady = quantus.MaxSensitivity(nr_samples=2, lower_bound=1e-6, disable_warnings=True)
    assert max(steady(**arguments, a_batch=None, explain_func=function)) < 1e-2


@pytest.mark.slow
def test_exact_shapley_values_of_a_game_of_patches(model, images):
    shapiq = pytest.importorskip("shapiq")
    from vitreous.bridges.shapiq import patch_game

    game = patch_game(model, images[:1], target=1)
    values = shapiq.ExactComputer(game=game, n_players=4)(index="SV", order=1)
    probe = vitreous.Probe(vitreous.wrap(model), images[:1], torch.tensor([[1]]), "probability")

    def score(players: tuple[int, ...]) -> float:
        keep = torch.zeros(1, 1, 4, dtype=torch.bool)
        keep[..., list(players)] = True
        return probe.score(keep).item()

    from itertools import combinations
    from math import factorial

    for player in range(4):
        others = [p for p in range(4) if p != player]
        expected = sum(
            factorial(size) * factorial(3 - size) / 24 * (score((*subset, player)) - score(subset))
            for size in range(4)
            for subset in combinations(others, size)
        )
        assert values[(player,)] == pytest.approx(expected, abs=1e-6)
    assert game(np.zeros((1, 4), bool))[0] == pytest.approx(0, abs=1e-7)
    halves = patch_game(model, images[:1], target=1, players=[0, 0, 1, 1])
    assert halves(np.array([[True, False]]))[0] == pytest.approx(score((0, 1)) - score(()), abs=1e-6)
    with pytest.raises(ShapeError, match="one player for each of 4"):
        patch_game(model, images[:1], players=[0, 1])
    with pytest.raises(ModelError, match="not a ViT"):
        patch_game(vitreous.wrap(model, black_box=True), images[:1])


def test_heat_maps_of_fiftyone_have_a_range(model, images, monkeypatch):
    """FiftyOne's class is replaced by its arguments, so that ranges are tested without it."""
    stand_in = ModuleType("fiftyone")
    stand_in.Heatmap = lambda **arguments: arguments
    monkeypatch.setitem(sys.modules, "fiftyone", stand_in)
    from vitreous.bridges.fiftyone import heatmaps

    signed, unsigned = (heatmaps(vitreous.explain(model, images, 1, spec)) for spec in ("ixg", "rollout"))

    assert [heatmap["map"].shape for heatmap in signed] == [(2, 2)] * 2
    assert signed[0]["map"].dtype == np.float32
    low, high = signed[0]["range"]
    assert (low, high) == (-high, np.abs(signed[0]["map"]).max())
    assert unsigned[0]["range"][0] == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of FiftyOne and what it imports
def test_heat_maps_are_labels_of_fiftyone(model, images):
    fiftyone = pytest.importorskip("fiftyone")
    from vitreous.bridges.fiftyone import heatmaps

    attribution = vitreous.explain(model, images, 1, "ixg")
    label = heatmaps(attribution)[1]
    sample = fiftyone.Sample(filepath="image.png", map=label)

    assert isinstance(sample["map"], fiftyone.Heatmap)
    np.testing.assert_array_equal(sample["map"].map, attribution.maps()[1].numpy())
    assert sample["map"].range[1] == pytest.approx(attribution.patches[1].abs().max().item())


def test_maps_are_columns_of_a_dataset(model):
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    from vitreous.bridges.datasets import add_maps

    seen = vitreous.wrap(model)
    pictures = [Image.fromarray(np.full((40, 40, 3), shade, np.uint8)) for shade in (20, 200)]
    dataset = datasets.Dataset.from_dict({"photo": pictures}, features=datasets.Features({"photo": datasets.Image()}))
    explained = add_maps(dataset, seen, "decompx+plus", image="photo")
    expected = vitreous.explain(seen, pictures, method="decompx+plus")

    np.testing.assert_allclose(np.array(explained["map"][:]), expected.maps().numpy(), rtol=1e-4)
    assert explained["target"][:] == expected.targets.tolist()
    again = add_maps(dataset, seen, "decompx+plus", image="photo")
    other = add_maps(dataset, seen, "ixg+plus", image="photo")
    assert again._fingerprint == explained._fingerprint != other._fingerprint  # what names the cache
    with pytest.raises(DataError, match="no column 'image' among photo"):
        add_maps(dataset, seen)


def test_maps_are_logged_while_a_model_is_trained(model, images, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    from vitreous.bridges.training import MapLogger, to_tensorboard

    model.train()
    with tensorboard.SummaryWriter(tmp_path) as writer:
        MapLogger(images, to_tensorboard(writer), target=1, method="decompx+plus").log(model, 7)
    assert model.training
    model.eval()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0})
    events.Reload()
    assert events.Tags()["images"] == ["maps/0", "maps/1"]
    assert events.Images("maps/0")[0].step == 7


def test_maps_are_logged_to_an_offline_run_of_wandb(model, images, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from vitreous.bridges.training import MapLogger, to_wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path, project="maps") as run:
        MapLogger(images, to_wandb(run), target=1, method="ixg").log(model, 7)
        assert run.step == 7
    files = sorted(path.name for path in tmp_path.rglob("media/images/maps/*.png"))
    assert [name.split("_")[0] for name in files] == ["0", "1"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Lightning, about loaders and loggers
def test_the_lightning_callback_logs_while_a_trainer_trains(images, tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from vitreous.bridges.training import MapLogger, lightning_callback

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = timm.create_model(
                "vit_tiny_patch16_224", img_size=32, depth=1, embed_dim=24, num_heads=2, num_classes=3
            )

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    written = []
    logger = MapLogger(
        images, lambda name, image, step: written.append((name, step, image)), target=1, method="decompx"
    )
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, torch.tensor([0, 2])), batch_size=1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        callbacks=[lightning_callback(logger, every_n_epochs=2)],
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        **quiet,
    )
    classifier = Classifier()
    trainer.fit(classifier, loader)

    assert [(name, step) for name, step, _ in written] == [(f"maps/{row}", step) for step in (4, 8) for row in range(2)]
    assert classifier.model.training
    assert not np.array_equal(written[0][2], written[2][2])  # the model as it is now


def test_the_lightning_callback_logs_once_among_several_processes(monkeypatch, model, images):
    lightning, pytorch = ModuleType("lightning"), ModuleType("lightning.pytorch")
    pytorch.Callback = object  # the base class has no behaviour of its own
    monkeypatch.setitem(sys.modules, "lightning", lightning)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", pytorch)
    from vitreous.bridges.training import MapLogger, lightning_callback

    written = []
    logger = MapLogger(images, lambda name, image, step: written.append((name, image.shape[-1], step)), method="ixg")
    callback = lightning_callback(logger, every_n_epochs=2)
    for epoch in range(4):
        for first in (True, False):
            about = {"current_epoch": epoch, "global_step": 10 * epoch, "is_global_zero": first}
            callback.on_train_epoch_end(type("Trainer", (), about)(), type("Module", (), {"model": model})())

    assert written == [(f"maps/{row}", 3, step) for step in (10, 30) for row in range(2)]


def test_the_package_of_lightning_may_have_its_older_name(monkeypatch, model, images):
    older = ModuleType("pytorch_lightning")
    older.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", older)
    from vitreous.bridges.training import MapLogger, lightning_callback

    assert isinstance(lightning_callback(MapLogger(images, print)), older.Callback)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ImportError, match="pip install lightning"):
        lightning_callback(MapLogger(images, print))
