"""How `wrap`, `load` and `explain` describe a module: as a ViT, else a network, else a black box."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

import vitreous
from tests.forked import run_forked
from tests.models.families import SMALL, build, pictures, shaken
from vitreous.cli.main import main
from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.vit import ViT
from vitreous.testing import fingerprint


def swin(**changes) -> nn.Module:
    torch.manual_seed(0)
    arguments = {"img_size": 32, "embed_dim": 12, "depths": (1, 1), "num_heads": (1, 1), "window_size": 4, **changes}
    return SwinTransformer(**{"num_classes": 5, **arguments}).double().eval()


def images(count: int = 2, channels: int = 3, size: int = 32) -> Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(1)).double()


# ── fall back ────────────────────────────────────────────────────────────────────────────────────


def test_a_swin_is_a_network_for_every_entry_point():
    module = swin()
    before = fingerprint(module)

    network = vitreous.wrap(module, "mine", classes=["a", "b", "c", "d", "e"])
    by_module = vitreous.explain(module, images(), 1, "decompx+plus")
    by_network = vitreous.explain(network, images(), "b", "decompx+plus")
    loaded = vitreous.load("timm:swin_tiny_patch4_window7_224", pretrained=False, **SWIN)

    assert (type(network), network.size, network.depth) == (vitreous.Network, (32, 32), 2)
    assert "'SwinTransformer' is not a family" in network.reason
    assert torch.equal(by_module.patches, by_network.patches)
    assert by_network.names == ("b", "b")
    assert (type(loaded), loaded.name) == (vitreous.Network, "timm:swin_tiny_patch4_window7_224")
    assert loaded.preprocess.size == loaded.size == (32, 32)
    assert fingerprint(module) == before


SWIN = {"img_size": 32, "embed_dim": 12, "depths": (1, 1), "num_heads": (1, 1), "window_size": 4, "num_classes": 5}


def test_an_examination_is_reused_until_the_module_changes():
    module, calls = swin(), []
    vitreous.explain(module, images(), method="ixg")
    module.patch_embed.register_forward_hook(lambda *_: calls.append(1))
    vitreous.explain(module, images(), method="ixg")
    after_change = len(calls)
    calls.clear()

    vitreous.explain(module, images(), method="ixg")

    assert after_change > 10 > len(calls) > 0


def test_a_network_takes_images_of_another_size():
    network = vitreous.wrap(timm.create_model("resnet10t", pretrained=False, num_classes=4).double(), size=(32, 32))

    attribution = vitreous.explain(network, images(size=64), method="ixg")

    assert network.size == (32, 32)
    assert attribution.layout.size == (64, 64)


@pytest.mark.parametrize("kind", ["doubled", "hooked"])
def test_a_vit_with_an_overridden_forward_is_a_network(kind):
    if kind == "hooked":
        module = build("vit")
        module.blocks[1].register_forward_hook(lambda module, args, output: output * 1.01)
    else:
        module = shaken(Doubled(**SMALL))

    network = vitreous.wrap(module)
    attribution = vitreous.explain(network, pictures(), 1, "decompx")

    assert not isinstance(network, ViT)
    assert "disagree" in network.reason
    torch.testing.assert_close(attribution.logits, module(pictures()).detach())
    torch.testing.assert_close(
        attribution.patches.sum(-1) + attribution.prefix.sum(-1) + attribution.bias, attribution.score
    )


class Doubled(timm.models.VisionTransformer):
    def forward(self, x: Tensor, *args, **kwargs) -> Tensor:
        return 2 * super().forward(x)


def test_a_missing_image_size_is_requested():
    module = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 3)).double()

    with pytest.raises(
        ModelError, match=r"cannot be run on a random image \[3, 224, 224\].*pass size=\(height, width\)"
    ):
        vitreous.wrap(module)
    with pytest.raises(ModelError, match=r"size is the height and width of an image in pixels"):
        vitreous.wrap(module, size=32)


def test_class_names_fit_the_outputs_of_a_network():
    with pytest.raises(ModelError, match="classes has 2 names for the 5 outputs"):
        vitreous.wrap(swin(), classes=["a", "b"])
    assert vitreous.wrap(swin(num_classes=1), outputs="binary").outputs == 2


def test_a_network_without_a_classifier_needs_a_score():
    module = swin(num_classes=0)

    with pytest.raises(ModelError, match=r"has no classifier \(num_classes=0\)"):
        vitreous.explain(module, images(), method="ixg")
    attribution = vitreous.explain(module, images(), method="ixg", score=lambda output: output.square().sum(-1).sqrt())

    assert attribution.patches.isfinite().all()


def test_a_score_of_a_vit_is_explained_by_its_network():
    vit = vitreous.wrap(build("vit"))

    by_score = vitreous.explain(vit, pictures(), method="ixg", score=vitreous.scores.value(2))
    by_class = vitreous.explain(vit, pictures(), 2, "ixg")

    assert isinstance(vit, ViT)
    torch.testing.assert_close(by_score.patches, by_class.patches, rtol=1e-9, atol=1e-12)


# ── channels ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("channels", [1, 4])
def test_images_of_other_channels_are_explained(channels):
    vit = vitreous.wrap(build("vit", in_chans=channels))
    network = vitreous.wrap(swin(in_chans=channels))
    inputs = torch.randn(2, channels, *vit.size, generator=torch.Generator().manual_seed(0)).double()

    assert (type(vit), vit.channels, network.channels) == (ViT, channels, channels)
    for spec in ("decompx+plus", "tis(masks=4)", "rise(masks=4)", "ig(steps=2)"):
        assert vitreous.explain(vit, inputs, 1, spec).pixels().isfinite().all()
    for spec in ("temper", "occlusion"):
        assert vitreous.explain(network, images(channels=channels), 1, spec).pixels().isfinite().all()
    with pytest.raises(ShapeError, match=rf"images must be \[b {channels} H W\]"):
        vitreous.explain(vit, pictures())


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_channels_are_those_of_the_convolution_that_takes_the_image(channels):
    class StemLast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)) for _ in range(2)])
            self.stem, self.head = nn.Conv2d(channels, 8, 4, 4), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for block in self.blocks:
                x = x + block(x)
            return self.head(x.mean((2, 3)))

    assert vitreous.wrap(StemLast(), size=(32, 32)).channels == channels
    assert vitreous.wrap(nn.Sequential(nn.Conv2d(1, 3, 1), swin().float())).channels == 1


# ── wrappers ──────────────────────────────────────────────────────────────────────────────────────


def test_shells_of_torch_are_removed_and_others_are_not():
    module = build("vit")
    expected = vitreous.explain(module, pictures(), 1, "decompx+plus").patches

    shells = (nn.DataParallel(module), torch.compile(module), nn.DataParallel(torch.compile(module)))
    for shell in shells:
        described = vitreous.wrap(shell)
        assert isinstance(described, ViT)
        assert described.module is module
        assert torch.equal(vitreous.explain(shell, pictures(), 1, "decompx+plus").patches, expected)

    tripled = vitreous.wrap(Tripled(module))
    torch.testing.assert_close(tripled.forward(pictures()), 3 * module(pictures()))


UNAVAILABLE = 77  # exit status if this machine cannot start a process group: gloo needs a loopback interface that is up


def explain_distributed(folder: Path, interface: str) -> None:
    """Explain models inside a real `DistributedDataParallel`, in a process group of one whose store is a file."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    os.environ["GLOO_SOCKET_IFNAME"] = interface
    try:
        dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1)
    except RuntimeError as problem:
        (folder / "problem").write_text(str(problem).splitlines()[0])
        sys.exit(UNAVAILABLE)
    try:
        for module, inputs, kind in ((build("vit"), pictures(), ViT), (swin(), images(), vitreous.Network)):
            expected = vitreous.explain(module, inputs, 1, "decompx+plus").patches
            distributed = DistributedDataParallel(module)
            before = fingerprint(distributed)

            described = vitreous.wrap(distributed)
            attribution = vitreous.explain(distributed, inputs, 1, "decompx+plus")

            assert type(described) is kind
            assert described.module is module
            assert torch.equal(attribution.patches, expected)
            assert fingerprint(distributed) == before
            distributed.train()(inputs).sum().backward()  # training can continue afterwards
            assert all(p.grad is not None for p in module.parameters() if p.requires_grad)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_a_distributed_model_is_explained_as_the_model_inside(tmp_path):
    """In a process of its own, since a process group is global; its interface is loopback."""
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if not torch.distributed.is_available() or not loopback:
        pytest.skip("torch.distributed or a loopback interface is missing")
    status = run_forked(explain_distributed, tmp_path, loopback[0])

    if status == UNAVAILABLE:
        pytest.skip(f"no process group: {(tmp_path / 'problem').read_text()}")
    assert status == 0


class Tripled(nn.Module):
    """A module with the attribute name of torch's wrappers, which computes more than the inner module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return 3 * self.module(x)


# ── command line ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_check_lists_methods_that_a_network_does_not_support(capsys):
    arguments = [f"--model-arg={key}={value}" for key, value in SWIN.items() if not isinstance(value, tuple)]

    assert main(["check", "--model", "timm:swin_tiny_patch4_window7_224", "--no-pretrained", "--json", *arguments]) == 0
    printed = capsys.readouterr().out

    assert '"seen as": "network"' in printed
    assert "needs a ViT, and this model is seen as a network" in printed
    assert '"works": "yes"' in printed


@pytest.mark.slow
def test_check_lists_methods_that_a_black_box_does_not_support(capsys):
    arguments = ["--model", "timm:resnet10t", "--no-pretrained", "--black-box", "--size", "32", "--json"]

    assert main(["check", *arguments]) == 0
    printed = capsys.readouterr().out

    assert '"seen as": "black box"' in printed
    assert "needs a network, and this model is seen as a black box" in printed
    assert "needs a ViT, and this model is seen as a black box" in printed
    assert '"works": "yes"' in printed


@pytest.mark.slow
def test_a_network_is_benchmarked_and_explained_from_the_command_line(tmp_path, capsys):
    torch.manual_seed(0)
    module = timm.create_model("resnet10t", pretrained=False, num_classes=20)
    save_file(module.state_dict(), tmp_path / "mine.safetensors")
    model = ["--model", "timm:resnet10t", "--checkpoint", str(tmp_path / "mine.safetensors"), "--size", "32"]
    model += ["--model-arg", "num_classes=20"]
    work = ["--data", "scenes:single?count=2", "--method", "ixg", "--metric", "deletion(steps=2)", "--json"]

    assert main(["bench", *model, *work, "--out", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert "deletion" in capsys.readouterr().out
