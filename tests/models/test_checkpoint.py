"""Checkpoints are read or refused; eval mode is set only temporarily."""

from __future__ import annotations

import pickle
from pathlib import PurePosixPath

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitreous
from tests.cases import each
from vitreous.core.errors import DataError, ModelError
from vitreous.models.checkpoint import load_into, read_checkpoint, stored_whole_numbers
from vitreous.models.eval_mode import evaluating

WEIGHTS = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.ones(2)}


class Object:
    pass


@pytest.mark.parametrize(
    "nest",
    [
        lambda w: w,
        lambda w: {"model": w, "epoch": 3},
        lambda w: {"state_dict": w, "optimizer": {"lr": 0.1}},
        lambda w: {"model": {k: v * 0 for k, v in w.items()}, "model_ema": w},
        lambda w: {"model": {"state_dict": {f"module._orig_mod.{k}": v for k, v in w.items()}}},
        lambda w: {"state_dict": {f"model.{k}": v for k, v in w.items()}},
    ],
)
def test_the_usual_nestings_are_opened(tmp_path, nest):
    torch.save(nest(WEIGHTS), tmp_path / "weights.pth")

    found = read_checkpoint(tmp_path / "weights.pth")

    assert found.keys() == WEIGHTS.keys()
    assert all(torch.equal(found[key], WEIGHTS[key]) for key in WEIGHTS)


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.bin"])
def test_safetensors_are_recognised_by_name_and_by_header(tmp_path, name):
    save_file(WEIGHTS, tmp_path / name)

    assert torch.equal(read_checkpoint(str(tmp_path / name))["fc.weight"], WEIGHTS["fc.weight"])


def test_old_torch_files_open(tmp_path):
    torch.save(WEIGHTS, tmp_path / "old.pth", _use_new_zipfile_serialization=False)

    assert torch.equal(read_checkpoint(tmp_path / "old.pth")["fc.bias"], WEIGHTS["fc.bias"])


def test_pickled_objects_are_refused_without_execution(tmp_path):
    torch.save({"model": WEIGHTS, "extra": Object()}, tmp_path / "object.pth")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pth")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"path": PurePosixPath("x")}))

    for name in ("object.pth", "module.pth"):
        with pytest.raises(DataError, match=f"{name}' holds pickled Python objects, which are never loaded"):
            read_checkpoint(tmp_path / name)
    with pytest.raises(DataError, match=r"plain\.pkl"):
        read_checkpoint(tmp_path / "plain.pkl")


def test_files_without_weights_are_refused(tmp_path):
    torch.save(WEIGHTS, tmp_path / "whole.pth")
    save_file(WEIGHTS, tmp_path / "whole.safetensors")
    for name in ("whole.pth", "whole.safetensors"):
        (tmp_path / name.replace("whole", "short")).write_bytes((tmp_path / name).read_bytes()[:-30])
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "text.pth").write_text("hello there, not weights")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    torch.save([1, 2], tmp_path / "list.pth")

    for name, words in {
        "short.pth": "damaged",
        "short.safetensors": "damaged",
        "empty.pth": "damaged",
        "empty.safetensors": "damaged",
        "text.pth": "damaged",
        "none.pth": "no weights",
        "list.pth": "no weights",
        "missing.pth": "no checkpoint at",
        "": "is a folder",
    }.items():
        with pytest.raises(DataError, match=words) as caught:
            read_checkpoint(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_weights_that_do_not_fit_are_refused_with_the_reason():
    model = nn.Sequential()
    model.fc = nn.Linear(3, 2)

    load_into(model, WEIGHTS, "mine")
    assert torch.equal(model.fc.weight, WEIGHTS["fc.weight"])

    odd = {"fc.weight": torch.ones(3, 3), **{f"more.{i}": torch.ones(1) for i in range(5)}}
    sentence = (
        r"the weights do not fit 'mine': 1 mis-shaped \(fc.weight \(3, 3\) for \(2, 3\)\), "
        r"1 missing \(fc.bias\), 5 unexpected \(more.0, more.1, more.2, …\)"
    )
    with pytest.raises(ModelError, match=sentence):
        load_into(model, odd, "mine")
    with pytest.raises(ModelError, match=r"'mine': 1 missing \(fc.bias\)$"):
        load_into(model, {"fc.weight": WEIGHTS["fc.weight"]}, "mine")


@each("dtype", [torch.int8, torch.uint8, torch.bool, torch.int64])
def test_whole_numbers_are_not_cast_to_weights(tmp_path, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = model[0].weight.detach().clone()
    state = model.state_dict() | {"0.weight": torch.ones(2, 3, dtype=dtype)}

    with pytest.raises(ModelError, match=rf"1 weights for 'mine' .*\(0.weight {str(dtype)[6:]}\)"):
        load_into(model, state, "mine")
    assert torch.equal(model[0].weight, before)

    load_into(model, model.state_dict(), "mine")  # of which `num_batches_tracked` is a whole number itself
    save_file(state, tmp_path / "whole.safetensors")
    assert stored_whole_numbers(tmp_path / "whole.safetensors").keys() == {"0.weight", "1.num_batches_tracked"}


@pytest.mark.slow
def test_a_quantised_hugging_face_checkpoint_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    module = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, image_size=16, patch_size=8))
    module.save_pretrained(tmp_path)
    state = {key: value.to(torch.int8) if value.ndim == 2 else value for key, value in module.state_dict().items()}
    save_file(state, tmp_path / "other.pth")

    with pytest.raises(ModelError, match=r"7 weights for .* are not floating-point numbers"):
        vitreous.load(f"hf:{tmp_path}", checkpoint=tmp_path / "other.pth")
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="are not floating-point numbers"):
        vitreous.load(f"hf:{tmp_path}")


def test_every_part_gets_its_own_flag_back():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    model.train()
    model[1].training = False  # its children still train
    flags = [part.training for part in model.modules()]

    with evaluating(model):
        assert not any(part.training for part in model.modules())
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError

    assert [part.training for part in model.modules()] == flags


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ModelError, match="device 'nowhere' is not available here"):
        vitreous.load("scenes", device="nowhere")
