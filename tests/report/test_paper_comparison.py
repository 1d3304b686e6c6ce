"""Published numbers compared with those of a run, and tables that join datasets."""

from __future__ import annotations

from math import nan
from pathlib import Path

import pytest

from tests.report.stores import put, rows_of
from vitreous.metrics.published import published_tables
from vitreous.report import write_report
from vitreous.report.formatting import format_number
from vitreous.report.paper_comparison import describe_order

PLAN = """\
reproduces = "tokentm:table4"
reduced = "2 images of all"

[[models]]
name = "a"
label = "one"
family = "both"

[[models]]
name = "a"
label = "two"
family = "both"
"""
VARIANTS = ("tokentm(preset='baseline')", "tokentm(preset='af')", "tokentm(preset='af+l')", "tokentm(preset='full')")


@pytest.mark.parametrize(
    ("ours", "higher", "said"),
    [
        ([0.2, 0.4, 0.9], True, "the order of methods is the paper's."),
        ([0.2, 0.9, 0.4], True, "2 of 3 pairs agree; another method is best."),
        ([0.4, 0.2, 0.9], True, "2 of 3 pairs agree; the paper's best method is best."),
        ([0.2, 0.9, 0.4], False, "2 of 3 pairs agree; the paper's best method is best."),
        ([0.5, 0.5, 0.5], True, "our values do not distinguish the methods."),
        ([nan, nan, nan], True, "the order of methods cannot be compared."),
    ],
)
def test_the_order_is_compared_with_the_papers(ours, higher, said):
    assert describe_order([1.0, 2.0, 3.0], ours, higher).endswith(said)


def test_halves_of_a_family_are_joined_and_compared_with_the_paper(tmp_path: Path) -> None:
    segmentation = {
        metric: {spec: [0.1 * (place + 1), 0.1 * (place + 1)] for place, spec in enumerate(VARIANTS)}
        for metric in ("map_two_channel",)  # the other two pool counts of pixels
    }
    removal = {
        metric: {spec: [0.1 * (place + 1), 0.3 * (place + 1)] for place, spec in enumerate(VARIANTS)}
        for metric in ("negative_auc", "positive_auc")
    }
    rows = [*rows_of(segmentation, model="one", dataset="seg"), *rows_of(removal, model="two", dataset="val")]
    written = write_report(put(tmp_path / "run", rows, PLAN), tmp_path / "report.html", gallery=0)

    (table,) = written.papers
    assert table.title == "one, two on seg and val"
    assert [name for name, _ in table.rows] == ["Baseline", "+ AF", "+ AF + L", "+ AF + L + NECC"]
    assert [cell.text for cell in table.rows[0][1]] == ["10.00", "20.00", "20.00", "logit"]
    left, right = written.comparisons
    assert [group for group, _ in left.groups] == ["mAP", ""]
    assert left.rows[0][0] == "Baseline: tokentm(preset='baseline')"
    paper, ours, difference = right.rows[3][1][:3]
    assert (paper.sort, ours.text, ours.span) == (55.42, "80.00", "[40.00, 120.00]")
    assert difference.text == "+24.58"
    assert "mAP: the order of methods is the paper's." in left.notes
    page = (tmp_path / "report.html").read_text()
    assert "<b>Reduced</b>: 2 images of all" in page
    assert page.index('id="papers"') < page.index("one on seg</h2>")  # the table that is reproduced comes first


def test_axes_of_several_datasets_are_on_one_radar(tmp_path: Path) -> None:
    faithful = {name: {"genatt": [0.5, 0.6], "ixg": [0.4, 0.2]} for name in ("deletion_aopc", "insertion_accuracy")}
    rows = [*rows_of(faithful, dataset="val"), *rows_of({"ap": {"genatt": [0.5, 0.6], "ixg": [0.4, 0.2]}}, dataset="s")]
    written = write_report(put(tmp_path / "run", rows), tmp_path / "report.html", gallery=0)

    page = (tmp_path / "report.html").read_text()
    assert "Strengths over datasets" in page
    assert "by deletion_aopc on val, insertion_accuracy on val, ap on s; outward is better" in page
    radar = next(table for table in written.papers if table.slug.startswith("skipplus"))
    assert radar.groups == [("val", 2), ("s", 1), ("", 1)]


@pytest.mark.parametrize("name", published_tables())
def test_every_published_row_is_a_method_of_its_paper(name):
    from vitreous.methods.spec import resolve
    from vitreous.metrics.protocols import protocol

    table = published_tables()[name]
    known = {resolve(spec).spec for spec in protocol(name.split(":")[0]).methods}

    assert set(table.rows) <= known
    assert all(set(values) == set(table.columns) for values in table.rows.values())


@pytest.mark.parametrize(("value", "digits", "text"), [(-0.001, 2, "0.00"), (-0.0001, 3, "−1e-04"), (-1.25, 1, "−1.2")])
def test_a_number_that_rounds_to_zero_has_no_sign(value, digits, text):
    assert format_number(value, digits).replace("−04", "-04") == text
