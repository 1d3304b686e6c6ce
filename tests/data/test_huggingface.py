"""Hugging Face datasets, built here and read without a network."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tests.data.making import noise
from tests.lazy import LazyModule
from vitreous.core.errors import DataError, SpecError
from vitreous.data import batches, open_dataset
from vitreous.data.huggingface import from_hf
from vitreous.models.image_input import Preprocess

datasets = LazyModule("datasets")


def png(picture: Image.Image) -> bytes:
    held = io.BytesIO()
    picture.save(held, "PNG")
    return held.getvalue()


def mask(value: int) -> bytes:
    return png(Image.fromarray(np.full((8, 12), value, dtype=np.uint8)))


def table(split: str | None = "validation", **more):
    columns = {
        "image": [
            {"bytes": png(noise(seed=0)), "path": None},
            {"bytes": b"broken", "path": None},
            {"bytes": png(noise(seed=2)), "path": None},
        ],
        "label": [2, 0, -1],
        "seg": [{"bytes": mask(1), "path": None}, None, {"bytes": mask(255), "path": None}],
    } | {name: values for name, (values, _) in more.items()}
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"]), "seg": datasets.Image()}
    features |= {name: kind for name, (_, kind) in more.items()}
    return datasets.Dataset.from_dict(columns, datasets.Features(features), split=split)


def test_columns_are_found_by_their_types_and_broken_rows_are_failures():
    dataset = from_hf(table(), mask="seg", ignore=255)

    (batch,) = batches(dataset, Preprocess.plain(8))

    assert dataset.classes == ("a", "b", "c")
    assert dataset.keys[0] == "validation/00000000"
    assert batch.labels.tolist() == [2, -1]
    assert batch.originals[0].tobytes() == noise(seed=0).tobytes()
    assert (batch.objects[0] == 1).all()
    assert (batch.objects[1] == -1).all()
    assert batch.failures[0][0] == "validation/00000001"
    assert "row 1" in batch.failures[0][1]


def test_a_saved_dataset_is_opened_by_its_path(tmp_path):
    datasets.DatasetDict({"train": table("train"), "test": table("test")}).save_to_disk(tmp_path / "two")
    table().save_to_disk(tmp_path / "one")

    assert len(open_dataset(tmp_path / "one")) == 3
    assert open_dataset(f"hf:{tmp_path / 'two'}?split=test").keys[0] == "test/00000000"
    with pytest.raises(SpecError, match=r"has the splits train, test; choose one with split="):
        open_dataset(tmp_path / "two")


def test_columns_can_be_chosen():
    other = table(
        picture=([{"bytes": png(noise(seed=5)), "path": None}] * 3, datasets.Image()),
        n=([7, 8, 9], datasets.Value("int64")),
    )

    chosen = from_hf(other, image="picture", label="n")

    assert chosen[1].label == 8
    assert chosen.classes is None
    assert chosen[1].image.tobytes() == noise(seed=5).tobytes()
    with pytest.raises(SpecError, match=r"no column 'foto'; it has image, label"):
        from_hf(other, image="foto")
    with pytest.raises(SpecError, match="2 columns of images"):
        from_hf(other.rename_column("image", "scan").remove_columns("seg"))


def test_an_unavailable_dataset_gives_an_error_message(tmp_path):
    (tmp_path / "dataset_info.json").write_text("{}")

    with pytest.raises(DataError, match="Hugging Face cannot load") as caught:
        open_dataset(f"hf:{tmp_path}")
    assert "\n" not in str(caught.value)
