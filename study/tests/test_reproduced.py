"""The script that runs shipped plans on stand-ins and compares their tables with the papers'."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import isnan

import pytest

from study import fill_reproduction, reproduced
from study.effects import compute_effect, load_rows
from study.tests.made_up import sheet
from tests.report.stores import put, rows_of
from tests.toy_data import MAKERS
from vitreous.bench.reproduce import find_reproduction, keep_models, list_reproductions, plan_reproduction
from vitreous.metrics.published import published_tables

VARIANTS = ("tokentm(preset='baseline')", "tokentm(preset='af')", "tokentm(preset='af+l')", "tokentm(preset='full')")


@pytest.mark.parametrize("name", reproduced.PLANS)
def test_every_plan_has_stand_ins(name, tmp_path):
    for _, file in reproduced.WEIGHTS.values():
        (tmp_path / "weights").mkdir(exist_ok=True)
        (tmp_path / "weights" / file).touch()
    plan = reproduced.make_plan(name, tmp_path, 3, "cpu")

    assert {str(model.checkpoint).rpartition("/")[2] for model in plan.models} <= {
        file for _, file in reproduced.WEIGHTS.values()
    }
    assert all(str(tmp_path) in dataset.spec for dataset in plan.datasets)
    assert all(evaluation.images == 3 for evaluation in plan.evaluations)


def test_all_tables_with_published_numbers_are_reproduced_if_stand_ins_allow():
    """Table 1 of TokenTM needs fine-tuned models."""
    assert {name for name in published_tables() if name not in reproduced.PLANS} == {"tokentm:table1"}
    assert set(reproduced.PLANS) <= set(list_reproductions())


def test_the_order_is_that_of_the_better_side():
    scores = [[0.9, 0.8], [0.5, 0.6], [0.1, 0.2]]
    methods = ("genatt", "ixg", "random")
    printed = {reproduced.hash_spec(spec): value for spec, value in zip(methods, (3.0, 2.0, 1.0), strict=True)}

    assert reproduced.compare_order(sheet(scores, methods=methods), printed).tau == 1
    assert reproduced.compare_order(sheet(scores[::-1], methods=methods), printed).tau == -1
    less = reproduced.compare_order(sheet(scores, higher=False, methods=methods), printed)
    assert less.tau == 1  # both prefer the method with the smallest number
    assert (less.methods, less.n) == (3, 2)


def test_tables_are_written_and_only_the_plan_that_was_run_is_replaced(tmp_path):
    values = {spec: [0.1 * (place + 1), 0.12 * (place + 1)] for place, spec in enumerate(VARIANTS)}
    rows = rows_of(dict.fromkeys(("negative_auc", "positive_auc"), values), model="ViT-B", dataset="ImageNet val")
    store = put(tmp_path / "store", rows)
    out = tmp_path / "tables"
    other = reproduced.TableFigure("ViT-Tiny", "d", "", "c", "more", "genatt", 1, 0, 0.5, 0.4, 0.6, "tis:table1")
    reproduced.write_rows(out / "reproduced.csv", [other])

    for _ in range(2):
        reproduced.write_tables("tokentm:table4", list(reproduced.read_columns("tokentm:table4", store)), out)

    figures = load_rows(out / "reproduced.csv", reproduced.TableFigure)
    assert [row.plan for row in figures] == ["tokentm:table4"] * 8 + ["tis:table1"]
    assert {row.model for row in figures} == {"ViT-Tiny"}
    assert figures[0].mean == pytest.approx(11)  # in percent, as in the paper
    negative, positive = load_rows(out / "reproduced-orders.csv", reproduced.TableOrder)
    assert negative.tau == pytest.approx(2 / 3)  # the paper has + AF before + AF + L
    assert positive.tau == -1
    assert not isnan(negative.tau_low)
    assert reproduced.main(["--take", str(out), "--out", str(tmp_path / "copy")]) == 0
    assert (tmp_path / "copy" / "reproduced.csv").read_text() == (out / "reproduced.csv").read_text()


def test_one_model_of_a_plan_is_replaced_alone(tmp_path):
    values = {"tis(preset='paper')": [0.1, 0.2], "genatt": [0.3, 0.5]}
    rows = [
        row
        for model in ("DeiT-B", "ViT-B")
        for row in rows_of({"max_sensitivity": values}, model=model, dataset="ImageNet val")
    ]
    columns = list(reproduced.read_columns("tis:table4", put(tmp_path / "store", rows)))
    out = tmp_path / "tables"
    reproduced.write_tables("tis:table4", columns, out)
    before = load_rows(out / "reproduced.csv", reproduced.TableFigure)
    reproduced.write_rows(out / "reproduced.csv", [replace(row, mean=9.0) for row in before])

    reproduced.write_tables("tis:table4", columns, out, ["ViT-Tiny"])

    after = load_rows(out / "reproduced.csv", reproduced.TableFigure)
    assert [(row.model, row.mean == 9.0) for row in after] == [("DeiT-Tiny", True)] * 2 + [("ViT-Tiny", False)] * 2
    assert len(load_rows(out / "reproduced-orders.csv", reproduced.TableOrder)) == 2


def test_pairs_that_the_text_orders_are_compared():
    methods = ("genatt(row='cls')+rollout(form='half')", "decompx", "decompx+plus", "decompx+skipplus", "random")
    methods = (*methods, "attcat")
    own = sheet([[0.1, 0.2]] * 6, methods=methods, model="ViT-Tiny", metric="ImageNet val: Insertion AOPC")
    other = sheet([[0.1, 0.2]] * 6, methods=methods, model="DeiT-Tiny", metric="ImageNet val: Insertion AOPC")

    assert ("decompx+plus", "decompx") in reproduced.list_claimed_pairs("skipplus:figure3", own)
    assert ("decompx+skipplus", "random") in reproduced.list_claimed_pairs("skipplus:figure4", own)
    # the paper leaves insertion on EVA-L, which DeiT-Tiny stands in for, to AttCAT
    assert ("decompx+skipplus", "random") not in reproduced.list_claimed_pairs("skipplus:figure4", other)
    assert ("attcat", "decompx+skipplus") in reproduced.list_claimed_pairs("skipplus:figure4", other)
    assert reproduced.list_claimed_pairs("tis:table1", own) == []


def test_the_first_layers_of_both_models_are_compared_with_all_layers_and_the_second_half():
    starts = tuple(f"decompx+skipplus(start={start})" for start in (0, 3, 6))
    own = sheet([[0.1, 0.2]] * 3, methods=starts, model="DeiT-Tiny", metric="ImageNet val: Insertion AOPC")

    pairs = reproduced.list_claimed_pairs("skipplus:figure7-eva", own)
    assert pairs == [(starts[0], starts[1]), (starts[2], starts[1])]
    rows = [reproduced.TableEffect(**asdict(compute_effect(own, *pair)), plan="skipplus:figure7-eva") for pair in pairs]
    (order,) = reproduced.list_stated_orders("skipplus:figure7-eva")
    assert all(fill_reproduction.is_comparison_of(row, order) for row in rows)
    assert not fill_reproduction.is_comparison_of(replace(rows[0], against=starts[2]), order)


def test_processes_share_the_stores_of_a_plan_and_tables_are_made_of_them_later(tmp_path, monkeypatch):
    for key in ("imagenet-val", "imagenet-s"):
        MAKERS[key](tmp_path / key)
    tiny = {"name": "timm:vit_tiny_patch16_224", "img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 4}
    data = {key: str(tmp_path / key) for key in ("imagenet-val", "imagenet-s")}
    figure = keep_models(find_reproduction("skipplus:figure9"), ["vit-b8"])
    models = {"vit-b8": {**tiny, "pretrained": False}}
    small = plan_reproduction(figure, data, models=models, images=3, device="cpu", slice=2)
    monkeypatch.setattr(reproduced, "make_plan", lambda *arguments: small)
    folders = ["--stores", str(tmp_path / "stores"), "--out", str(tmp_path / "tables")]

    for shard in ("1/2", "2/2"):
        assert reproduced.main(["skipplus:figure9", "--shard", shard, "--assets", str(tmp_path), *folders]) == 0
    assert not (tmp_path / "tables").exists()
    assert reproduced.main(["skipplus:figure9", "--tables", *folders]) == 0

    rows = load_rows(tmp_path / "tables" / "reproduced.csv", reproduced.TableFigure)
    assert {(row.model, row.n) for row in rows} == {("ViT-Tiny", 3)}
