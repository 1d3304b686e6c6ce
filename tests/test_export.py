"""Export of maps and of models with their maps."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import timm
import torch

import vitreous
from vitreous import export
from vitreous.core.errors import ModelError, ShapeError, SpecError


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=2, num_classes=3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


@pytest.fixture(scope="module")
def attribution(model):
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return vitreous.explain(model, images, 1, "ixg")


def test_masks_are_the_highest_patches(attribution):
    masks = export.masks(attribution, top=0.25)
    highest = attribution.patches.argmax(1)

    assert masks.shape == (2, 32, 32)
    assert masks.flatten(1).sum(1).tolist() == [256, 256]
    for row, index in enumerate(highest.tolist()):
        assert masks[row, 16 * (index // 2) + 5, 16 * (index % 2) + 5]
    thresholded = export.masks(attribution, threshold=0.5, size=(4, 4))
    expected = attribution.maps() > 0.5 * attribution.patches.amax(1)[:, None, None]
    assert torch.equal(thresholded[:, ::2, ::2], expected)
    for arguments in ({}, {"top": 0.1, "threshold": 0.1}, {"top": 0}, {"threshold": 2}):
        with pytest.raises(SpecError):
            export.masks(attribution, **arguments)


def test_run_lengths_decode_to_the_mask():
    generator = np.random.default_rng(0)
    for mask in (generator.random((5, 7)) > 0.5, np.ones((2, 3), bool), np.zeros((2, 3), bool)):
        encoded = export.coco_rle(mask)
        values = np.concatenate([np.full(count, index % 2) for index, count in enumerate(encoded["counts"])])
        np.testing.assert_array_equal(values.reshape(encoded["size"], order="F"), mask)
    with pytest.raises(ShapeError, match="height, width"):
        export.coco_rle(np.ones(3, bool))


def test_an_alpha_image_is_opaque_where_scores_are_strong(attribution):
    image = np.asarray(export.alpha_image(attribution, 1))
    strength = attribution.pixels()[1].abs()

    assert image.shape == (32, 32, 4)
    strongest = np.unravel_index(int(strength.argmax()), (32, 32))
    assert image[strongest][3] == image[..., 3].max()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["decompx+skipplus", "temper"])
def test_an_exported_model_computes_its_map_in_onnxruntime(model, method, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own
        path = export.onnx(model, tmp_path / "model.onnx", method)
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    session = onnxruntime.InferenceSession(str(path))
    logits, scores = session.run(None, {"images": images.numpy(), "target": np.array([2])})
    attribution = vitreous.explain(model, images, 2, method)

    np.testing.assert_allclose(logits, model(images).detach().numpy(), atol=1e-4)
    np.testing.assert_allclose(scores, attribution.patches.numpy(), atol=1e-4 * attribution.patches.abs().max().item())


class Bessel(torch.nn.Module):
    """An activation that ONNX does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.special.i0e(x)


@pytest.mark.slow
def test_an_operation_that_onnx_does_not_have_is_named(tmp_path):
    import timm

    pytest.importorskip("onnxscript")
    odd = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=1, embed_dim=24, num_heads=2, num_classes=3, act_layer=Bessel
    ).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ModelError, match="operation 'bessel_i0e' has no translation to ONNX"):
            export.onnx(odd, tmp_path / "odd.onnx", "ixg")


def test_methods_that_cannot_be_exported_are_refused(model, tmp_path):
    with pytest.raises(SpecError, match=r"\.onnx"):
        export.onnx(model, tmp_path / "model.pt")
    with pytest.raises(SpecError, match="more than one forward"):
        export.onnx(model, tmp_path / "model.onnx", "rise")
    with pytest.raises(ModelError, match="not a ViT"):
        export.onnx(vitreous.wrap(model, black_box=True), tmp_path / "model.onnx")
