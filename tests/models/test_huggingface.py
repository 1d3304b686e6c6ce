"""Every Hugging Face family: the described parts reproduce the model's logits, and the model is not modified."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from PIL import Image
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.cases import each
from tests.lazy import LazyModule
from tests.models.families import described
from tests.models.runner import run_parts
from vitreous.core.errors import DataError, ModelError, ShapeError
from vitreous.models.eval_mode import evaluating
from vitreous.models.huggingface import from_huggingface
from vitreous.testing import check_model

transformers = LazyModule("transformers")

BODY = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 24,
    "patch_size": 8,
    "num_labels": 5,
}
DROPS = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
DINO = {"mlp_ratio": 2, "layerscale_value": 0.7, "drop_path_rate": 0.5}


def tower(config: str, vision: str, **changes):
    """CLIP and SigLIP have a separate config of the image tower."""
    settings = {**BODY, "intermediate_size": 40, "attention_dropout": 0.5, **changes}
    labels = settings.pop("num_labels")
    return getattr(transformers, config)(
        vision_config=getattr(transformers, vision)(**settings).to_dict(), num_labels=labels
    )


def plain(config: str, **changes):
    return getattr(transformers, config)(**{**BODY, **DROPS, "intermediate_size": 40, **changes})


def beit(**changes):
    return plain("BeitConfig", **{"layer_scale_init_value": 0.5, "drop_path_rate": 0.5, **changes})


def dino(config: str, **changes):
    return getattr(transformers, config)(**{**BODY, **DROPS, **DINO, **changes})


FAMILIES = {
    "vit": lambda: transformers.ViTForImageClassification(plain("ViTConfig")),
    "vit without qkv bias": lambda: transformers.ViTForImageClassification(plain("ViTConfig", qkv_bias=False)),
    "deit": lambda: transformers.DeiTForImageClassification(plain("DeiTConfig")),
    "deit with teacher": lambda: transformers.DeiTForImageClassificationWithTeacher(plain("DeiTConfig")),
    "beit, a table per block": lambda: transformers.BeitForImageClassification(beit(use_relative_position_bias=True)),
    "beit, one shared table": lambda: transformers.BeitForImageClassification(
        beit(use_shared_relative_position_bias=True)
    ),
    "beit, both and the class token": lambda: transformers.BeitForImageClassification(
        beit(use_relative_position_bias=True, use_shared_relative_position_bias=True, use_mean_pooling=False)
    ),
    "beit, absolute positions, no layer scale": lambda: transformers.BeitForImageClassification(
        beit(use_absolute_position_embeddings=True, layer_scale_init_value=0.0)
    ),
    "dinov2": lambda: transformers.Dinov2ForImageClassification(dino("Dinov2Config")),
    "dinov2 swiglu": lambda: transformers.Dinov2ForImageClassification(dino("Dinov2Config", use_swiglu_ffn=True)),
    "dinov2 with registers": lambda: transformers.Dinov2WithRegistersForImageClassification(
        dino("Dinov2WithRegistersConfig", num_register_tokens=2)
    ),
    "clip": lambda: transformers.CLIPForImageClassification(tower("CLIPConfig", "CLIPVisionConfig")),
    "siglip": lambda: transformers.SiglipForImageClassification(tower("SiglipConfig", "SiglipVisionConfig")),
}
PREFIX = {"siglip": 0, "deit": 2, "deit with teacher": 2, "dinov2 with registers": 3}


def tiny(family: str, **keywords) -> nn.Module:
    """Random weights everywhere, also where a model would begin with zeros or ones."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = FAMILIES[family]().double().train()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def pictures(height: int = 24, width: int = 24) -> torch.Tensor:
    return torch.randn(2, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@each("family", FAMILIES)
def test_the_adapter_passes_the_contract_tests(family):
    assert float(check_model(tiny(family), method=None)["handshake"]) < 1e-10


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(24, 24), (40, 40), (16, 32), (72, 8)])
def test_the_parts_reproduce_the_logits_of_the_model(family, size):
    model = tiny(family)
    vit = from_huggingface(model, family)

    ours, own = run_parts(vit, pictures(*size)), vit.forward(pictures(*size))

    assert own.shape == (2, 5)
    assert own.dtype == torch.float64
    torch.testing.assert_close(ours, own, atol=1e-10, rtol=1e-10)
    with torch.no_grad(), evaluating(model):
        known = {"interpolate_pos_encoding": True} if family[:4] not in ("beit", "dino") and size != (24, 24) else {}
        torch.testing.assert_close(model(pixel_values=pictures(*size), **known).logits, own, atol=1e-10, rtol=1e-10)
    layout = vit.layout(size)
    assert layout.grid == (size[0] // 8, size[1] // 8)
    assert layout.prefix == PREFIX.get(family, 1)
    assert vit.embed(pictures(*size)).shape == (2, layout.tokens, 24)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_not_modified(family):
    model = tiny(family)
    for part in list(model.modules())[::3]:
        part.training = False  # a mixture of flags, to be kept
    before = {name: part.training for name, part in model.named_modules()}
    state, members = copy.deepcopy(model.state_dict()), {n: set(vars(m)) for n, m in model.named_modules()}

    vit = from_huggingface(model, family)
    run_parts(vit, pictures())
    vit.forward(pictures())
    with pytest.raises((RuntimeError, ValueError)):
        vit.embed(pictures()[..., :2])

    assert {name: part.training for name, part in model.named_modules()} == before
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert {n: set(vars(m)) for n, m in model.named_modules()} == members
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.startswith("beit")] + ["vit", "dinov2 with registers"])
def test_removed_tokens_equal_masked_keys(family):
    vit = from_huggingface(tiny(family), family)
    layout = vit.layout((24, 32))
    kept = torch.cat([torch.arange(layout.prefix), layout.prefix + torch.tensor([0, 3, 4, 7, 11])])
    hidden = torch.ones(layout.tokens, dtype=torch.bool)
    hidden[kept] = False

    left = run_parts(vit, pictures(24, 32), index=kept.expand(2, -1))

    torch.testing.assert_close(left, run_parts(vit, pictures(24, 32), hidden_keys=hidden), atol=1e-10, rtol=1e-10)


def test_each_image_may_keep_other_tokens():
    vit = from_huggingface(tiny("beit, both and the class token"))
    index = torch.tensor([[0, 1, 2, 5], [0, 3, 8, 9]])

    together = run_parts(vit, pictures(), index)

    for i in range(2):
        torch.testing.assert_close(together[i : i + 1], run_parts(vit, pictures()[i : i + 1], index[i : i + 1]))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_bias_of_blocks_and_head_passes_through_linear_layers_or_norms(family):
    """What the library counts as biases is all there is: with them at zero the parts are without constant."""
    model = tiny(family)
    vit = from_huggingface(model, family)
    seen = set()

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is nn.functional.linear and args[2] is not None:
                seen.add(id(args[2]))
            return func(*args, **(kwargs or {}))

    with Watch():
        run_parts(vit, pictures())

    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and m.bias is not None}
    unused = [name for name, m in linear.items() if id(m.bias) not in seen and ".head." not in name]
    assert not unused


def test_weights_are_read_when_they_are_used():
    model = tiny("vit")
    vit = from_huggingface(model)
    before = run_parts(vit, pictures())

    with torch.no_grad():
        model.vit.layers[0].attention.v_proj.weight.mul_(2)

    assert not torch.allclose(before, run_parts(vit, pictures()))
    torch.testing.assert_close(run_parts(vit, pictures()), vit.forward(pictures()))


def test_sizes_that_do_not_fit_are_refused():
    vit = from_huggingface(tiny("vit"))

    with pytest.raises(ShapeError, match="25x24 does not divide into patches of 8x8"):
        vit.layout((25, 24))
    oblong = from_huggingface(transformers.ViTForImageClassification(plain("ViTConfig", image_size=(16, 32))))
    assert oblong.layout((16, 32)).grid == (2, 4)
    with pytest.raises(ShapeError, match="16x32 are not interpolated to 24x24"):
        oblong.layout((24, 24))


def test_unknown_models_are_refused_by_name():
    swin = transformers.SwinConfig(embed_dim=8, depths=[1], num_heads=[1], image_size=16, patch_size=4, window_size=2)

    with pytest.raises(ModelError, match=r"'SwinForImageClassification'.*known in transformers: ViTFor"):
        from_huggingface(transformers.SwinForImageClassification(swin))
    with pytest.raises(ModelError, match="no classifier"):
        from_huggingface(transformers.ViTForImageClassification(plain("ViTConfig", num_labels=0)))
    assert from_huggingface(transformers.ViTForImageClassification(plain("ViTConfig", num_channels=1))).channels == 1
    model = tiny("vit")
    del model.vit.layers[1].layernorm_after
    with pytest.raises(ModelError, match="layernorm_after"):
        from_huggingface(model, "mine")


def test_informative_class_names_are_kept():
    assert from_huggingface(tiny("vit")).classes is None

    named = plain("ViTConfig", id2label={0: "cat", 1: "dog"}, label2id={"cat": 0, "dog": 1}, num_labels=2)
    assert from_huggingface(transformers.ViTForImageClassification(named)).classes == ("cat", "dog")


# ── loading ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path):
    model = tiny("deit with teacher").float()
    model.save_pretrained(tmp_path / "model")
    size = {"height": 24, "width": 24}
    transformers.DeiTImageProcessor(size=size, crop_size=size).save_pretrained(tmp_path / "model")
    return tmp_path / "model", model


def test_a_local_folder_loads_with_its_preprocessing(folder):
    path, model = folder

    vit = described(f"hf:{path}", device="cpu")

    assert not vit.module.training
    assert vit.preprocess(Image.new("RGB", (50, 40))).shape == (3, 24, 24)
    torch.testing.assert_close(vit.forward(pictures().float()), from_huggingface(model).forward(pictures().float()))
    assert vit.origin.weights == "pretrained"


@pytest.mark.parametrize("file", ["model.safetensors", "weights.pth"])
def test_a_checkpoint_loads_into_a_local_config(folder, file):
    path, model = folder
    torch.save({"model": {f"module.{key}": value for key, value in model.state_dict().items()}}, path / "weights.pth")
    (path / "preprocessor_config.json").unlink()

    vit = described(f"hf:{path}", checkpoint=path / file)

    torch.testing.assert_close(vit.forward(pictures().float()), from_huggingface(model).forward(pictures().float()))
    assert vit.preprocess is None


def test_random_weights_need_a_config_alone(folder):
    path, _ = folder
    (path / "model.safetensors").unlink()

    vit = described(f"hf:{path}", pretrained=False, num_labels=7)

    assert vit.forward(pictures().float()).shape == (2, 7)
    assert vit.origin.weights == "random"
    assert not vit.module.training
    with pytest.raises(ModelError, match=r"could not be loaded: .*model.safetensors.*local folder"):
        described(f"hf:{path}")


def test_weights_that_do_not_fit_are_refused(folder):
    path, model = folder
    state = model.state_dict()
    state["cls_classifier.bias"] = torch.zeros(9)
    del state["distillation_classifier.weight"]
    torch.save(state, path / "odd.pth")

    with pytest.raises(
        ModelError, match=r"1 mis-shaped \(.*cls_classifier.bias.*1 missing \(distillation_classifier.weight"
    ):
        described(f"hf:{path}", checkpoint=path / "odd.pth")
    with pytest.raises(DataError, match="no checkpoint at"):
        described(f"hf:{path}", checkpoint=path / "none.pth")
    with pytest.raises(ModelError, match="never run"):
        described(f"hf:{path}", trust_remote_code=True)
    with pytest.raises(ModelError, match="img_size is no setting of DeiTConfig"):
        described(f"hf:{path}", img_size=32)
    with pytest.raises(ModelError, match="device 'nowhere'"):
        described(f"hf:{path}", device="nowhere")


def test_code_in_a_folder_is_not_run(folder):
    path, _ = folder
    config = json.loads((path / "config.json").read_text())
    config |= {
        "model_type": "unheard-of",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForImageClassification": "evil.M"},
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "evil.py").write_text("raise SystemExit('code from the folder was run')")

    with pytest.raises(ModelError, match="could not be loaded"):
        described(f"hf:{path}")


def test_a_missing_hub_connection_gives_an_error_message(monkeypatch):
    def unreachable(*_, **__):
        raise OSError("We couldn't connect to 'https://huggingface.co' to load the files.\nCheck your connection.")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", unreachable)
    with pytest.raises(
        ModelError, match=r"'google/vit' could not be loaded: We couldn't connect .*local folder"
    ) as caught:
        described("hf:google/vit")

    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


@each(
    "change, words",
    [
        ({"hidden_size": -1}, "negative dimension"),
        ({"hidden_act": "nonsense"}, "KeyError: 'nonsense'"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers"),
    ],
)
def test_configurations_that_cannot_be_built_are_refused_in_one_line(change, words, tmp_path):
    settings = {"model_type": "vit", "architectures": ["ViTForImageClassification"], **BODY, **change}
    (tmp_path / "config.json").write_text(json.dumps(settings))

    with pytest.raises(
        ModelError, match=f"cannot be built as its configuration says .*{words}.*config.json has"
    ) as refusal:
        described(f"hf:{tmp_path}", pretrained=False)
    assert "\n" not in str(refusal.value)
