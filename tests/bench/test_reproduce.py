"""Shipped plans of the papers' tables and figures, run on toy copies of their datasets with tiny models."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.toy_data import MAKERS
from vitreous.bench.check import check
from vitreous.bench.drive import execute
from vitreous.bench.reproduce import plan_reproduction, reproduction
from vitreous.bench.store import Store
from vitreous.metrics.published import published_tables
from vitreous.report.page import name_sections
from vitreous.report.paper_tables import make_paper_tables
from vitreous.report.stored_run import read_run

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}


@pytest.fixture(scope="module")
def toys(tmp_path_factory) -> Path:
    """All toy datasets."""
    folder = tmp_path_factory.mktemp("toys")
    for key, make in MAKERS.items():
        make(folder / key)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Function that returns the entry of a tiny model with its own random weights."""
    import timm
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("weights")

    def entry(key: str, classes: int, depth: int) -> dict[str, Any]:
        arguments = {**TINY, "depth": depth, "num_classes": classes}
        path = folder / f"{key}-{classes}-{depth}.safetensors"
        if not path.exists():
            model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **arguments)
            draw = torch.Generator().manual_seed(len(key))
            state = {
                name: value + 0.3 * torch.randn(value.shape, generator=draw)
                for name, value in model.state_dict().items()
            }
            save_file(state, path)
        return {"name": "timm:vit_tiny_patch16_224", "checkpoint": str(path), **arguments}

    return entry


def run(name: str, toys: Path, weights: Any, folder: Path, images: int = 2, depth: int = 2) -> Path:
    """Run a shipped plan on toy data with tiny models."""
    wanted = reproduction(name)
    data = {key: str(toys / key) for key in wanted.data if key in MAKERS}
    data |= {"imagenet-seg": str(toys / "imagenet-seg" / "gtsegs_ijcv.mat")} if "imagenet-seg" in data else {}
    models = {key: weights(key, entry.get("num_classes", 1000), depth) for key, entry in wanted.models.items()}
    plan = plan_reproduction(wanted, data, models=models, pictures=images, device="cpu")
    check(plan)
    with Store(folder) as store:
        progress = execute(plan, store)
    assert not progress.failed
    return folder


def filled_tables(folder: Path, name: str) -> list:
    stored = read_run(folder)
    return make_paper_tables(name_sections(stored.whole_sections), stored.families, name)


TABLES = ("tokentm:table1", "tokentm:table2", "tokentm:table3", "tokentm:table4")


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_of_the_published_table_is_filled(name, toys, weights, tmp_path):
    (table,) = filled_tables(run(name, toys, weights, tmp_path), name)

    assert not table.missing
    assert tuple(table.columns) == published_tables()[name].columns
    assert set(table.methods) == set(published_tables()[name].rows)
    assert not [title for title, column in table.columns.items() if any(map(isnan, column.values))]
