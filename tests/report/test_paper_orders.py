"""Orders of methods that a paper states, checked on the rows of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.stores import put, rows_of
from vitreous.bench.reproduce import list_reproductions
from vitreous.methods.spec import resolve
from vitreous.metrics.protocols import protocol
from vitreous.metrics.published import published_orders
from vitreous.report import write_report
from vitreous.report.paper_comparison import PairedDifference

PLUS, SKIPPLUS, GENATT = (
    "genatt(row='cls')+plus",
    "genatt(row='cls')+skipplus",
    "genatt(row='cls')+rollout(form='half')",
)
AXES = ("deletion_aopc", "insertion_accuracy", "ap")


def write(tmp_path: Path, figure: str, values: dict[str, list[float]], model: str = "ViT-B/8"):
    rows = rows_of(dict.fromkeys(AXES, values), model=model, dataset="val")
    return write_report(put(tmp_path / "run", rows, f'reproduces = "{figure}"\n'), tmp_path / "report.html", gallery=0)


@pytest.mark.parametrize("name", published_orders())
def test_every_order_is_about_models_rows_and_columns_of_its_plan(name):
    plan = list_reproductions()[name]
    rows = {resolve(spec).spec for spec in plan.methods}
    labels = {entry["label"] for entry in plan.models.values()}
    columns = {title for dataset in plan.datasets for title in dataset["columns"]}

    for order in published_orders()[name]:
        assert order.first
        assert {resolve(spec).spec for spec in (*order.first, *order.second)} <= rows
        assert set(order.models) <= labels
        assert set(order.columns) <= columns
        assert order.expected in ("better", "not worse", "equal", "one not worse")


def test_all_radars_and_curves_of_skipplus_have_an_order():
    figures = {
        name for name, plan in list_reproductions().items() if name.startswith("skipplus") and not plan.shows_images
    }

    assert figures == {name for name in published_orders() if name.startswith("skipplus")}


@pytest.mark.parametrize(
    ("low", "high", "agreeing"),
    [
        (0.1, 0.3, ["better", "not worse", "one not worse"]),
        (-0.1, 0.3, ["not worse", "equal", "one not worse"]),
        (-0.3, -0.1, []),
        (float("nan"), float("nan"), []),
    ],
)
def test_an_interval_agrees_with_the_expected_order(low, high, agreeing):
    difference = PairedDifference(0.1, low, high)

    expectations = ("better", "not worse", "equal", "one not worse")
    assert [expected for expected in expectations if difference.agrees(expected)] == agreeing


def test_comparisons_are_counted_over_methods_and_columns(tmp_path):
    values = {GENATT: [0.5, 0.6, 0.7], PLUS: [0.4, 0.5, 0.6], SKIPPLUS: [0.6, 0.5, 0.7]}
    written = write(tmp_path, "skipplus:figure9", values)

    (table,) = written.orders
    ((statement, cells),) = table.rows  # the run has no TransAtt
    assert statement == "PLUS and SkipPLUS neither enhance nor harm GenAtt"
    assert [cell.text for cell in cells[:4]] == ["caption of figure 9", "equal", "6", "3"]
    assert [cell.text for cell in cells[5:]] == ["0", "3"]  # PLUS is behind by 0.1 on every image and axis
    assert "Orders that the paper states" in (tmp_path / "report.html").read_text()


def test_an_order_of_one_model_is_left_out_for_others(tmp_path):
    rows = protocol("skipplus").rows
    names = ("AttCAT", "DecompX∘SkipPLUS", "GradCAM", "GenAtt")
    values = {rows[name]: [0.9 - 0.1 * place, 0.8 - 0.15 * place] for place, name in enumerate(names)}
    on_eva = write(tmp_path / "eva", "skipplus:figure4", values, "EVA-L").orders[0]
    on_vit = write(tmp_path / "vit", "skipplus:figure4", values).orders[0]

    assert [name for name, _ in on_vit.rows] == ["DecompX∘SkipPLUS is ahead of every other row"]
    counts = {name: [cell.text for cell in cells] for name, cells in on_eva.rows}
    assert counts["AttIxG∘PLUS (AttCAT) is the best in insertion on EVA-L"][1:4] == ["better", "3", "3"]
    assert len(counts) == 3


def test_one_of_several_has_to_be_near_the_best(tmp_path):
    starts = {f"decompx+skipplus(start={start})": [0.1, 0.2] for start in (0, 3, 6)}
    starts["decompx+skipplus(start=6)"] = [0.5, 0.6]
    starts["decompx+skipplus(start=3)"] = [0.4, 0.5]
    (table,) = write(tmp_path, "skipplus:figure7", starts).orders

    assert [cell.text for cell in table.rows[0][1][1:]] == ["one not worse", "3", "3", "3", "3", "0"]


def test_where_less_is_better_the_smaller_value_is_ahead(tmp_path):
    masks = {"tis(preset='paper')": [0.4, 0.5], "tis(preset='paper', masks=2048)": [0.3, 0.4]}
    metrics = ("insertion(preset='tis', baseline='black')", "deletion(preset='tis', baseline='black')")
    rows = rows_of(dict.fromkeys(metrics, masks), model="ViT-B", dataset="val")
    folder = put(tmp_path / "run", rows, 'reproduces = "tis:masks"\n')
    (table,) = write_report(folder, tmp_path / "report.html", gallery=0).orders

    ((_, cells),) = table.rows
    assert [cell.text for cell in cells[5:]] == ["1", "1"]  # better in deletion, worse in insertion


def test_rows_are_named_as_in_the_paper_whichever_way_their_spec_is_written(tmp_path):
    """The canonical spec leaves default options out: "attin(…)+rollout(form='half')" is "attin(…)"."""
    rows = protocol("skipplus").rows
    names = ("AttIN", "GlobEnc, no residual", "GlobEnc")
    values = {resolve(rows[name]).spec: [0.5, 0.6] for name in names}
    (table,) = write(tmp_path, "skipplus:figure3", values).papers

    assert [name.partition(": ")[0] for name, _ in table.rows] == list(names)
