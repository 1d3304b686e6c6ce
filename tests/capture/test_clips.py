"""Networks that take clips: token places in time, completeness, maps per time step, drawing and refusals."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import vitreous
from tests.lazy import LazyModule
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.draw import film_strip, overlay_image
from vitreous.draw.film import time_step
from vitreous.methods.attribution import Attribution
from vitreous.models.layout import ClipLayout
from vitreous.models.model import Network
from vitreous.testing import tiny_vits

transformers = LazyModule("transformers")

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "num_labels": 3}


def build(name: str) -> nn.Module:
    """6 frames in 3 time steps (TimeSformer: 6), 2 x 2 patches."""
    match name:
        case "videomae":
            config = transformers.VideoMAEConfig(image_size=32, num_frames=6, tubelet_size=2, **WIDTHS)
            return transformers.VideoMAEForVideoClassification(config)
        case "timesformer":
            config = transformers.TimesformerConfig(image_size=32, num_frames=6, **WIDTHS)
            return transformers.TimesformerForVideoClassification(config)
    config = transformers.VivitConfig(image_size=32, num_frames=6, tubelet_size=[2, 16, 16], **WIDTHS)
    return transformers.VivitForVideoClassification(config)


@cache
def network(name: str) -> Network:
    torch.manual_seed(0)
    module = build(name).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return vitreous.see_through(module)


def clips(count: int = 2, frames: int = 6) -> Tensor:
    return torch.randn(count, frames, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def first_layer(module: nn.Module) -> nn.Module:
    return next(part for name, part in module.named_modules() if name.endswith(("layer.0", "layers.0")))


def reference_map(name: str, module: nn.Module, x: Tensor, target: int) -> Tensor:
    """Input times gradient at the first layer, by a hook and autograd; the order of tokens is that of the source code."""
    states: list[Tensor] = []

    def cut(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states.append(args[0].detach().requires_grad_())
        return (states[0], *args[1:])

    with first_layer(module).register_forward_pre_hook(cut):
        logits = module(x).logits
    gradient = torch.autograd.grad(logits[:, target].sum(), states[0])[0]
    tokens = (states[0] * gradient).sum(-1).detach()
    if name == "videomae":
        return tokens.unflatten(1, (3, 2, 2))
    if name == "vivit":
        return tokens[:, 1:].unflatten(1, (3, 2, 2))
    return tokens[:, 1:].unflatten(1, (2, 2, 6)).permute(0, 3, 1, 2)  # patch by patch, each with its time steps


@pytest.mark.parametrize("name", ["videomae", "timesformer", "vivit"])
def test_maps_have_time_steps_and_equal_the_reference(name):
    model, x = network(name), clips()
    times = 6 if name == "timesformer" else 3
    attribution = vitreous.explain(model, x, target=1, method="ixg")

    assert model.missing < 1e-12
    assert attribution.layout == ClipLayout((2, 2), (16, 16), int(name != "videomae"), times, 6 // times)
    assert attribution.maps().shape == (2, times, 2, 2)
    torch.testing.assert_close(attribution.maps(), reference_map(name, model.module, x, 1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["videomae", "timesformer", "vivit"])
def test_shares_add_up_to_the_score(name):
    attribution = vitreous.explain(network(name), clips(), target=2, method="decompx")
    total = sum(part for part in attribution.shares.values())

    assert attribution.residual is not None
    assert attribution.residual.abs().max() < 1e-9
    torch.testing.assert_close(total, attribution.score, rtol=1e-9, atol=1e-9)


class SmallVolumeNet(nn.Module):
    """Channels-first volumes [b c t H W], two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv3d(1, 4, kernel_size=(1, 4, 4), stride=(1, 4, 4))
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv3d(a, b, 3, stride=s, padding=1), nn.ReLU(), nn.Conv3d(b, b, 1))
            for a, b, s in ((4, 8, 1), (8, 8, 2), (8, 8, 1))
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3, 4)))


def test_coarse_stages_of_volumes_are_resized_to_the_finest():
    torch.manual_seed(0)
    model = vitreous.see_through(SmallVolumeNet().double().eval(), size=(4, 16, 24))
    x = torch.randn(1, 1, 4, 16, 24, dtype=torch.float64)
    fine, summed = (vitreous.explain(model, x, target=0, method=spec) for spec in ("ixg", "ixg+plus"))

    assert [block.tokens.grid for block in model.blocks] == [(4, 4, 6), (4, 4, 6), (2, 2, 3)]
    assert fine.maps().shape == (1, 4, 4, 6)
    assert fine.images is not None
    assert fine.images.shape == (1, 4, 1, 16, 24)  # frames first
    last = vitreous.explain(model, x, target=0, method="ixg+last").maps()
    for axis in (1, 2, 3):
        last = last.unflatten(axis, (-1, 2))
        torch.testing.assert_close(*last.unbind(axis + 1))  # a coarse cell is divided evenly
        last = last.flatten(axis, axis + 1)
    layers = [vitreous.explain(model, x, target=0, method=f"ixg+at(layer={layer})").patches for layer in range(3)]
    torch.testing.assert_close(summed.patches, torch.stack(layers).sum(0))


class FrameByFrame(nn.Module):
    """An image model on every frame, averaged over time: the class token of each frame belongs to no patch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, clips: Tensor) -> Tensor:
        return self.model(clips.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(clips), -1)).mean(1)


def test_an_image_model_on_every_frame_gives_the_maps_of_the_frames():
    vit = tiny_vits(torch.float64)["class token"]
    height, width = vit.size
    frames = torch.randn(2, 3, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    model = vitreous.see_through(FrameByFrame(vit.module), size=(3, height, width))

    clip_maps = vitreous.explain(model, frames.transpose(1, 2), target=1, method="decompx+plus").maps()
    image_maps = vitreous.explain(vit, frames.flatten(0, 1), target=1, method="decompx+plus").maps()

    assert model.blocks[0].tokens.form == "framed"
    torch.testing.assert_close(clip_maps, image_maps.unflatten(0, (2, 3)) / 3, rtol=1e-9, atol=1e-12)


def test_another_number_of_frames_is_examined_again():
    torch.manual_seed(0)
    model = vitreous.see_through(SmallVolumeNet().double().eval(), size=(4, 16, 24))

    assert vitreous.explain(model, torch.randn(1, 1, 8, 16, 24).double(), target=0, method="ixg").layout.cells == (
        8,
        4,
        6,
    )


def test_a_saved_attribution_keeps_its_time_steps(tmp_path):
    attribution = vitreous.explain(network("videomae"), clips(1), target=0, method="ixg+plus")
    for suffix in ("safetensors", "npz"):
        restored = Attribution.load(attribution.save(tmp_path / f"clip.{suffix}"))

        assert restored.layout == attribution.layout
        torch.testing.assert_close(restored.maps(), attribution.maps(), rtol=0, atol=0)
    table = attribution.to_pandas()

    assert table["time"].tolist() == [time for time in range(3) for _ in range(4)]
    assert attribution.pixels().shape == (1, 6, 32, 32)
    assert "3x2x2" in repr(attribution)


def test_a_time_step_is_a_map_of_an_image():
    attribution = vitreous.explain(network("videomae"), clips(1), target=0, method="ixg+plus")
    step = time_step(attribution, 2)

    torch.testing.assert_close(step.maps(), attribution.maps()[:, 2])
    assert step.images is not None
    torch.testing.assert_close(step.images, clips(1)[:, 4])


@pytest.mark.slow
def test_film_strip_and_animation(tmp_path):
    attribution = vitreous.explain(network("videomae"), clips(1), target=[[0, 1]], method="ixg+plus")
    figure = attribution.plot(columns=2)
    texts = [text.get_text() for text in figure.texts]

    assert {"frames 1–2", "frames 3–4", "frames 5–6"} <= set(texts)
    assert any("all classes of a clip" in text for text in texts)
    assert len([axes for axes in figure.axes if axes.images]) == 2 * 3 * 2  # rows, time steps, frame and map
    for suffix in ("gif", "webp"):
        with Image.open(attribution[0].save(tmp_path / f"clip.{suffix}")) as animation:
            assert animation.n_frames == 6  # pyright: ignore[reportAttributeAccessIssue]
            assert animation.width > 2 * 300
    assert "<img" in attribution._repr_html_()


def test_functions_that_do_not_support_clips_refuse_them(tmp_path):
    model, x = network("videomae"), clips(2)
    attribution = vitreous.explain(model, x, target=0, method="ixg+plus")
    image = vitreous.explain("scenes", torch.zeros(1, 3, 112, 112), target=0, method="ixg")

    with pytest.raises(ShapeError, match=r"attribution\[0\]\.save"):
        attribution.save(tmp_path / "clip.gif")
    with pytest.raises(ShapeError, match="maps of images"):
        image.save(tmp_path / "map.gif")
    with pytest.raises(ShapeError, match="maps of images"):
        film_strip(image)
    with pytest.raises(ShapeError, match=r"\.plot\(\)"):
        overlay_image(attribution)
    for overlay in (True, False):
        with pytest.raises(ShapeError, match=r"one map per time step; \.plot\(\)"):
            vitreous.draw.figure(attribution, overlay=overlay)
    with pytest.raises(SpecError, match="takes clips"):
        vitreous.explain(model, x, target=0, method="occlusion")
    with pytest.raises(SpecError, match="takes clips"):
        vitreous.explain(model, x, target=0, method="ixg(space='pixels')")
    with pytest.raises(ModelError, match="takes clips"):
        vitreous.evaluate(model, x, attribution, "deletion_aopc")
    with pytest.raises(ShapeError, match=r"\[b t c H W\]"):
        vitreous.explain(model, x[0, 0], target=0, method="ixg")
    with pytest.raises(ShapeError, match=r"\[b t c H W\]"):
        vitreous.explain(model, ["clip.mp4"], target=0, method="ixg")
    with pytest.raises(ModelError, match="frames, height, width"):
        vitreous.see_through(build("videomae"), size=(32, 32))
