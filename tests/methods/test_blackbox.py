"""Any classifier as a black box; long computations in chunks, with progress, halved when memory runs out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import timm
import torch
from PIL import Image
from timm.models.resnet import BasicBlock, ResNet
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

import vitreous
from tests.models.families import pictures, seen, tiny
from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.pixels import ImageVariants
from vitreous.capture.probe import Probe
from vitreous.capture.progress import pieces
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.core.progress import reporting
from vitreous.methods.method import METHODS
from vitreous.models.black_box import describe_black_box
from vitreous.testing import fingerprint

ABLE = [name for name in METHODS if METHODS[name].black_box is not None]
SPECS = ["occlusion", "rise(masks=20)", "lime(samples=20)", "kernelshap(samples=20)", "hsic(masks=20)"]
SPECS += ["pami(regions='circles', radius=9, stride=9)"]


def swin() -> nn.Module:
    torch.manual_seed(0)
    return SwinTransformer(img_size=32, embed_dim=12, depths=(1,), num_heads=(1,), window_size=4, num_classes=6).eval()


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(8, 5))


def residual() -> nn.Module:
    torch.manual_seed(0)
    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes=5).eval()


class Recurrent(nn.Module):
    """Reads the rows of an image one after the other, by an operation that has no backward rule."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rows, self.head = nn.GRU(3 * width, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        states, _ = self.rows(images.transpose(1, 2).flatten(2))
        return self.head(states[:, -1])


class Wordy(nn.Module):
    """Returns an object, as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = convolutional()

    def forward(self, images: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.inside(images))


def box(module: nn.Module) -> vitreous.BlackBox:
    return vitreous.wrap(module, black_box=True)


MODELS = {"swin": swin, "convolutions": convolutional, "resnet": residual, "wordy": Wordy}


def images(count: int = 2, size: int = 32) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("spec", SPECS)
def test_a_classifier_of_any_kind_is_explained_by_its_pixels(model, spec):
    found = vitreous.explain(box(MODELS[model]()), images(), 1, spec)

    assert found.patches is None
    assert found.pixels().shape == (2, 32, 32)
    assert found.pixels().isfinite().all()
    assert found.pixels().std() > 0
    assert found.maps() is found.native_pixels
    assert found.provenance["black_box"].startswith("treated as a black box: ")
    assert "32x32 pixels" in repr(found)
    assert len(found) == 2


@pytest.mark.parametrize("spec", SPECS)
def test_an_image_of_a_black_box_is_the_same_alone_and_for_each_target(spec):
    model = box(swin())
    both = vitreous.explain(model, images(), torch.tensor([[1, 2], [3, 0]]), spec).pixels()

    alone = vitreous.explain(model, images()[1:], torch.tensor([3]), spec).pixels()

    torch.testing.assert_close(both[2:3], alone, rtol=1e-3, atol=1e-5)


def test_pixel_methods_agree_between_vit_and_black_box():
    model, target = tiny("vit-even"), torch.tensor([1, 3])
    inside = vitreous.explain(model, pictures(), target, "rise(masks=12)")

    outside = vitreous.explain(vitreous.wrap(model, black_box=True), pictures(), target, "rise(masks=12)")

    torch.testing.assert_close(outside.pixels(), inside.pixels())
    torch.testing.assert_close(outside.score, inside.score)
    assert (outside.patches is None, inside.patches is None) == (True, False)


def test_the_model_is_left_as_it_was_also_in_training_mode():
    model = convolutional().train()
    before = fingerprint(model)

    first, second = (vitreous.explain(box(model), images(), method="rise(masks=9)").pixels() for _ in range(2))

    assert fingerprint(model) == before
    assert torch.equal(first, second)  # no dropout


def test_white_box_methods_are_refused_with_those_that_work():
    for spec in ("genatt", "tis", "vitcx"):
        with pytest.raises(
            SpecError, match=rf"'{spec}' needs the parts of a ViT.*\('SwinTransformer' is not .*of a network ask .*ixg"
        ):
            vitreous.explain(swin(), images(), method=spec)
    recurrent = Recurrent().eval()
    with pytest.raises(ModelError, match=r"'gru'.*'ixg' looks inside the model; as a black box .*occlusion.*rise"):
        vitreous.explain(recurrent, images(), method="ixg")
    assert (
        vitreous.explain(recurrent, images(), method="rise(masks=3)").provenance["black_box"].startswith("treated as")
    )
    opaque_swin = box(swin())
    with pytest.raises(SpecError, match=r"'genatt' looks inside the model; of a black box ask one of: .*rise"):
        vitreous.explain(opaque_swin, images(), method="genatt")
    with pytest.raises(
        SpecError,
        match=r"occlusion\(space='tokens'\) looks inside the model; of a black box ask occlusion\(space='pixels'\)",
    ):
        vitreous.explain(opaque_swin, images(), method="occlusion(space='tokens')")


def test_a_model_that_is_no_classifier_is_refused():
    with pytest.raises(ModelError, match=r"answers an image with shape \(1, 8, 30, 30\)"):
        vitreous.explain(nn.Sequential(nn.Conv2d(3, 8, 3)), images(), method="rise(masks=3)")
    with pytest.raises(ModelError, match="has no classifier"):
        describe_black_box(
            SwinTransformer(img_size=32, embed_dim=8, depths=(1,), num_heads=(1,), window_size=4, num_classes=0)
        )
    with pytest.raises(ShapeError, match="not a class: the model has classes 0 to 4"):
        vitreous.explain(convolutional(), images(), 7, "rise(masks=3)")


def test_the_error_for_tokens_of_a_black_box():
    probe = BlackBoxProbe(describe_black_box(swin()), images())

    for ask in (
        lambda: probe.tokens,
        lambda: probe.states,
        probe.layers,
        lambda: probe.score(torch.ones(2, 1, 1024, dtype=torch.bool)),
    ):
        with pytest.raises(ModelError, match="treated as a black box: it has no "):
            ask()


def test_images_are_preprocessed_as_for_timm_models():
    model = timm.create_model("resnet10t", pretrained=False).eval()

    found = vitreous.explain(box(model), Image.new("RGB", (300, 200), "red"), method="rise(masks=3)")

    assert found.pixels().shape == (1, 176, 176)
    assert found.names is not None
    with pytest.raises(ModelError, match=r"does not say how .*black_box=True, preprocess"):
        vitreous.explain(box(convolutional()), Image.new("RGB", (30, 20)), method="rise(masks=3)")


def test_a_map_without_patches_is_kept_and_drawn(tmp_path):
    found = vitreous.explain(box(swin()), images(), method="occlusion")

    again = vitreous.Attribution.load(found.save(tmp_path / "map.safetensors"))

    assert again.patches is None
    assert torch.equal(again.pixels(), found.pixels())
    assert again[1].pixels().shape == (1, 32, 32)
    assert found.cpu().patches is None
    assert found.shares.keys() == {"pixels"}
    assert found.plot() is not None


def test_batches_of_black_boxes_are_joined():
    whole = vitreous.explain(box(swin()), images(3), 1, "rise(masks=7)")
    parts = vitreous.explain(box(swin()), images(3), 1, "rise(masks=7)", batch_size=2)

    torch.testing.assert_close(whole.pixels(), parts.pixels())


@pytest.mark.parametrize("name", ABLE)
def test_every_black_box_method_runs_on_a_black_box(name):
    found = vitreous.explain(box(convolutional()), images(), method=name, **METHODS[name].facts.trial)

    assert found.pixels().isfinite().all()


# ── pixels of a probe ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", ["vit-even", "vit-mean", "vit-one-output"])
def test_pixel_logits_are_the_models_own(family):
    probe = Probe(seen(family), pictures(), torch.tensor([[0, 1], [1, 0]]), "probability")
    others = torch.randn(2, 3, 3, 24, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    found = probe.pixel_logits(others)

    own = tiny(family)(others.flatten(0, 1)).detach().unflatten(0, (2, 3))
    own = torch.cat([torch.zeros_like(own), own], -1) if family == "vit-one-output" else own
    torch.testing.assert_close(found, own)
    rows = own.softmax(-1).repeat_interleave(2, 0)
    chosen = torch.stack([rows[i, :, c] for i, c in enumerate((0, 1, 1, 0))])
    torch.testing.assert_close(probe.pixel_score(others), chosen)
    with pytest.raises(ShapeError, match="asked about for 2 images, not for 3"):
        probe.pixel_logits(torch.zeros(3, 1, 3, 24, 32))


def test_images_may_differ_between_the_targets_of_an_image():
    probe = Probe(seen("vit"), pictures(), torch.tensor([[0, 1], [1, 0]]))
    others = torch.randn(4, 2, 3, 24, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    found = probe.pixel_score(others)

    own = tiny("vit")(others.flatten(0, 1)).detach().unflatten(0, (4, 2))
    torch.testing.assert_close(found, torch.stack([own[i, :, c] for i, c in enumerate((0, 1, 1, 0))]))


def test_masked_images_are_created_in_chunks(monkeypatch):
    monkeypatch.setattr("vitreous.capture.probe.rows_that_fit", lambda *_: 5)
    probe, alive = Probe(seen("vit"), pictures()), []

    def make(row: Tensor, subset: Tensor) -> Tensor:
        alive.append(len(row))
        return probe.images[row] * (subset[:, None, None, None] / 10)

    probe.pixel_logits(ImageVariants(2, 11, make))

    assert max(alive) == 5
    assert sum(alive) == 22


# ── progress, interruption, memory ───────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_long_computations_report_progress(monkeypatch):
    monkeypatch.setattr("vitreous.capture.probe.rows_that_fit", lambda *_: 8)
    for spec, total in (("rise(masks=30)", 60), ("tis(masks=12)", 24), ("occlusion", 24)):
        told = []
        with reporting(lambda done, of, told=told: told.append((done, of))):
            vitreous.explain(seen("vit"), pictures(), 1, spec)

        assert told[-1] == (total, total)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert len(told) >= 3


def test_progress_is_not_reported_by_default():
    told = []
    with reporting(lambda *now: told.append(now)):
        pass
    vitreous.explain(seen("vit"), pictures(), 1, "rise(masks=5)")

    assert told == []


def test_a_report_that_raises_stops_the_work(monkeypatch):
    monkeypatch.setattr("vitreous.capture.probe.rows_that_fit", lambda *_: 4)
    done = []

    def stop(now: int, _: int) -> None:
        done.append(now)
        if now >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), reporting(stop):
        vitreous.explain(seen("vit"), pictures(), 1, "rise(masks=30)")

    assert done == [4, 8, 12]
    assert torch.is_grad_enabled()


class Small:
    """A model that runs out of memory beyond this number of rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
        self.tried: list[int] = []
        from vitreous.capture import forward, packed, probe

        whole = packed.run_packed

        def asked(count: int) -> None:
            self.tried.append(count)
            if count > rows:
                raise torch.OutOfMemoryError("CUDA out of memory (on purpose)")

        def run(vit, tokens, place):
            asked(len(tokens))
            return forward.run(vit, tokens, place)

        def run_packed(vit, tokens, layout, indices):
            asked(sum(len(index) for index in indices))
            return whole(vit, tokens, layout, indices)

        monkeypatch.setattr(probe, "run", run)
        monkeypatch.setattr(packed, "run_packed", run_packed)


@pytest.mark.parametrize("spec", ["rise(masks=20)", "tis(masks=20)", "kernelshap(samples=30)", "occlusion"])
def test_when_memory_runs_out_the_chunk_is_halved(spec, monkeypatch):
    whole = vitreous.explain(seen("vit"), pictures(), 1, spec)
    small = Small(monkeypatch, 3)

    found = vitreous.explain(seen("vit"), pictures(), 1, spec)

    assert max(small.tried) > 3
    maps = [one.patches if one.native_pixels is None else one.native_pixels for one in (found, whole)]
    torch.testing.assert_close(*maps)


def test_a_single_row_that_does_not_fit_is_an_error(monkeypatch):
    Small(monkeypatch, 0)

    with pytest.raises(torch.OutOfMemoryError):
        vitreous.explain(seen("vit"), pictures(), 1, "rise(masks=4)")


def test_finished_chunks_are_not_repeated_when_memory_runs_out():
    did = []

    def work(piece: slice) -> Tensor:
        if piece.stop - piece.start > 2 and piece.start >= 4:
            raise torch.OutOfMemoryError
        did.append((piece.start, piece.stop))
        return torch.arange(piece.start, piece.stop)

    found = torch.cat([part for _, part in pieces(work, 9, 4)])

    assert found.tolist() == list(range(9))
    assert did == [(0, 4), (4, 6), (6, 8), (8, 9)]
