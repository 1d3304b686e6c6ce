"""Pages agree with the results, every slot can be filled, and tables agree with the stores."""

from __future__ import annotations

import csv
import os
import re
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest

from study import error_results, make, measure, pages, plots, reproduced, zebras
from study.effects import compute_effect, compute_figures
from study.published import compare_with_tables
from study.run import ORDER, SCRIPTS
from study.sheets import pick_sheet, read_store, read_table
from study.special import compare_orders, compute_ceiling
from study.tests.made_up import STUDY, sheet, sheets_of, write_error_bars
from tests.bench.fixture import fill as fill_store
from vitreous.bench.plan_parser import read_plan
from vitreous.bench.reproduce import find_reproduction
from vitreous.bench.store import Store
from vitreous.bench.summary import summarise
from vitreous.methods.spec import resolve
from vitreous.metrics.published import published_tables

DRAWN = ("scenes", "scenes-pair", "beyond-scenes")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Made-up results of all plans that can be read here."""
    monkeypatch = pytest.MonkeyPatch()  # a few resamples are enough to see that all is in its place
    monkeypatch.setattr(measure, "compute_figures", partial(compute_figures, draws=5))
    monkeypatch.setattr(measure, "compute_effect", partial(compute_effect, draws=5))
    monkeypatch.setattr(measure, "compare_orders", partial(compare_orders, draws=5))
    monkeypatch.setattr(measure, "compute_ceiling", partial(compute_ceiling, draws=5))
    monkeypatch.setattr(measure, "compare_with_tables", partial(compare_with_tables, draws=5))
    folder = tmp_path_factory.mktemp("results")
    for name in [one for one in ORDER if one not in SCRIPTS]:
        if name in DRAWN or os.environ.get("VITREOUS_ASSETS"):
            plan = read_plan(STUDY / "plans" / f"{name}.toml")
            measure.tabulate(name, sheets_of(plan, images=60 if name == "tis-disagreement" else 4), folder)
    rows = [
        (model, f"el{k}", method, metric, k / 10 + place / 100)
        for model in ("ViT-Tiny", "DeiT-Tiny")
        for metric in measure.SCRIPTS["zebras"]
        for place, method in enumerate(zebras.METHODS)
        for k in range(3)
    ]
    table(folder / "rows.csv", rows)
    measure.tabulate("zebras", read_table(folder / "rows.csv", measure.SCRIPTS["zebras"]), folder)
    rows = [
        (model, f"p{k}", method, metric, k / 10 + (model == "scenes-biased"))
        for model in ("scenes-biased", "scenes")
        for metric in measure.SCRIPTS["shortcut"]
        for method in ("genatt", "random")
        for k in range(3)
    ]
    table(folder / "rows.csv", rows)
    measure.tabulate("shortcut", read_table(folder / "rows.csv", measure.SCRIPTS["shortcut"]), folder)
    made_up_reproductions(folder)
    monkeypatch.setattr(error_results, "compute_figures", partial(compute_figures, draws=5))
    monkeypatch.setattr(error_results, "compute_effect", partial(compute_effect, draws=5))
    (folder / "rows").mkdir()
    write_error_bars(folder / "rows")
    error_results.measure_errors(folder / "rows", folder)
    monkeypatch.undo()
    return pages.Results(folder)


def made_up_reproductions(folder):
    """Tables of all plans that stand-ins are run on, with one column each."""
    rows = {table: [] for table in reproduced.TABLES}
    for name in reproduced.PLANS:
        table, methods = published_tables().get(name), list(find_reproduction(name).methods)
        made = sheet(
            np.arange(8 * len(methods)).reshape(len(methods), 8),
            metric=table.columns[0] if table else "ImageNet val: Deletion AOPC",
            methods=tuple(resolve(spec).spec for spec in methods),
            model="ViT-Tiny",
            dataset="ImageNet val",
        )
        rows["reproduced"] += [
            reproduced.TableFigure(**asdict(row), plan=name) for row in compute_figures(made, draws=5)
        ]
        if table:
            printed = {reproduced.hash_spec(spec): value for spec, value in table.column(made.metric).items()}
            order = reproduced.compare_order(made, printed, draws=5)
            rows["reproduced-orders"].append(reproduced.TableOrder(**asdict(order), plan=name))
        rows["reproduced-pairs"] += [
            reproduced.TableEffect(**asdict(compute_effect(made, *pair, draws=5)), plan=name)
            for pair in reproduced.list_claimed_pairs(name, made)
        ]
    for table, own in rows.items():
        reproduced.write_rows(folder / f"{table}.csv", own)


def table(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([zebras.COLUMNS, *rows])


def test_a_page_that_differs_from_the_results_is_reported(monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- table: index-counts -->\n\nall is well\n\n<!-- end -->\n")
    monkeypatch.setattr(make, "list_pages", lambda: [page])

    assert make.main(["--check"]) == 1
    assert "page.md differs from the results" in capsys.readouterr().out


def test_a_slot_without_a_value_is_refused():
    with pytest.raises(LookupError, match="asks for table 'nothing'"):
        pages.fill_page("<!-- table: nothing -->\n<!-- end -->", pages.Results(), "page.md")


@pytest.fixture(scope="module")
def filled_pages(results):
    return {page: pages.fill_page(page.read_text(), results, page.name) for page in pages.list_pages()}


@pytest.mark.slow
def test_filling_a_page_twice_gives_the_same_text(results, filled_pages):
    for page, once in filled_pages.items():
        assert pages.fill_page(once, results, page.name) == once
        assert once.count("<!-- end -->") == page.read_text().count("<!-- end -->")


@pytest.mark.slow
def test_made_up_results_fill_every_slot(results, assets):
    unfilled = [name for name, fill in pages.FILLS.items() if "Not measured yet" in fill(results)]

    assert unfilled == []


@pytest.mark.slow
def test_no_page_contains_nan_none_or_inf(filled_pages, assets):
    for page, words in filled_pages.items():
        assert not re.search(r"\bnan\b|\bNone\b|\binf\b", words), page.name


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(pages.PLOTS))
def test_every_plot_can_be_drawn(name, results, tmp_path, monkeypatch, assets):
    monkeypatch.setattr(plots, "IMAGES", tmp_path)
    path = pages.PLOTS[name](results)

    assert path is not None
    assert path.read_text().count("<path") > 10
    assert len(pages.get_caption(name)) > 20


@pytest.mark.slow
def test_a_store_is_read_as_the_library_reads_it(tmp_path):
    metrics = ["deletion_aopc(ratios=(0.25, 0.5, 0.75))", "pixel_accuracy", "pointing_game"]
    fill_store(tmp_path / "run", metrics=metrics)
    with Store(tmp_path / "run") as store:
        theirs = {
            (column.metric, entry.method): entry for column in summarise(store.table()) for entry in column.entries
        }

    ours = {(one.metric, one.method): one for sheet in read_store(tmp_path / "run") for one in compute_figures(sheet)}

    assert ours.keys() == theirs.keys()
    for key, entry in theirs.items():
        found = ours[key]
        assert [found.mean, found.low, found.high] == pytest.approx([entry.value, entry.low, entry.high], abs=1e-12)


@pytest.mark.slow
def test_an_empty_store_is_reported_and_the_others_are_read(tmp_path, capsys):
    fill_store(tmp_path / "scenes", metrics=["pointing_game", "deletion_aopc"], methods=["genatt", "random"])
    with Store(tmp_path / "tis") as store:
        store.begin("0123456789abcdef", "", {})

    done = measure.measure(tmp_path, ("tis", "scenes", "newer"), tmp_path / "results")

    assert done == ["scenes"]
    assert "tis: run '0123456789abcdef'" in capsys.readouterr().out
    assert (tmp_path / "results" / "scenes.csv").is_file()
    assert not (tmp_path / "results" / "tis.csv").exists()


@pytest.mark.slow
def test_faithfulness_is_deletion_and_insertion(tmp_path):
    fill_store(tmp_path / "run", metrics=["deletion_aopc", "insertion_aopc"], methods=["genatt"], targets="label")
    with Store(tmp_path / "run") as store:
        rows = store.table().to_pylist()

    found = pick_sheet(read_store(tmp_path / "run"), "faithfulness", "scenes").scores[0]

    for value, deleted, inserted in zip(found, rows[::2], rows[1::2], strict=True):
        entering = np.trapezoid(inserted["curve"], inserted["levels"]) / (
            inserted["levels"][-1] - inserted["levels"][0]
        )
        shown = deleted["probability"] - inserted["value"]
        assert value == pytest.approx(deleted["value"] + shown)
        assert inserted["value"] == pytest.approx(entering, abs=1e-6) or shown == pytest.approx(entering, abs=1e-6)


def test_a_method_that_the_script_no_longer_measures_is_dropped_when_read(tmp_path):
    rows = [("scenes", "p0", method, "stamp_ap", "0.5") for method in ("genatt", "one of earlier days")]
    lines = ["model,picture,method,metric,value", *(",".join(row) for row in rows)]
    (tmp_path / "shortcut.csv").write_text("\n".join(lines) + "\n")
    found = read_table(tmp_path / "shortcut.csv", measure.SCRIPTS["shortcut"], measure.list_methods("shortcut"))
    assert [sheet.methods for sheet in found] == [("genatt",)]
