"""Conclusions follow from the results, and no number of ours is typed by hand."""

from __future__ import annotations

import re

import pytest

from study import make
from study.effects import Effect, Figure, write_rows
from study.pages import SLOT, Results, list_pages
from study.quotes import CONCLUSIONS, Quotes, find_contradictions, format_list
from study.special import Order

INTERVAL = re.compile(r"\[\s*[−-]?\d[\d.]*,\s*[−-]?\d[\d.]*\s*\]|±\s*\d")


@pytest.fixture
def quotes(tmp_path):
    rows = [
        Effect(model, "val", "", "faithfulness", "a", "b", 50, value, value - 0.1, value + 0.1, 0.01)
        for model, value in (("ViT-Tiny", 0.2), ("DeiT-Tiny", 0.05))
    ]
    write_rows(tmp_path / "some-pairs.csv", rows)
    write_rows(tmp_path / "some.csv", [Figure("ViT-Tiny", "val", "", "ap", "more", "a", 9, 0, 0.712, 0.7, 0.72)])
    order = Order("ViT-Tiny", "val", "x", "y", "all", 9, 9, 0.5, 0.4, 0.6, 0.7, 0.6, 0.8)
    write_rows(tmp_path / "some-orders.csv", [order])
    return Quotes(Results(tmp_path))


def test_conclusions_follow_from_the_committed_results():
    tables_only = {"error-bars", "reproduction"}  # they show figures and draw no conclusion
    assert set(CONCLUSIONS) == {page.stem for page in list_pages()} - {"index"} - tables_only
    assert find_contradictions(Results()) == []


def test_no_interval_is_typed_by_hand():
    for page in list_pages():
        by_hand = SLOT.sub("", page.read_text(encoding="utf-8"))
        assert not INTERVAL.search(by_hand), page.name


def test_numbers_are_looked_up(quotes):
    said = quotes.format_effects("better/open", "a", "b", "some-pairs", "faithfulness")

    assert said == "+0.200 [0.100, 0.300] / +0.050 [−0.050, 0.150]"
    assert quotes.format_mean("a", "some", "ap", "ViT-Tiny") == "0.71"
    assert quotes.format_order("together", "some-orders", "x", "y") == "0.50 [0.40, 0.60]"
    assert quotes.count_verdicts([("a", "b"), ("b", "a")], "some-pairs", "faithfulness", "better") == "1 / 0"
    assert quotes.errors == []


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (
            lambda quotes: quotes.format_effects("better", "a", "b", "some-pairs", "faithfulness"),
            "on DeiT-Tiny is better",
        ),
        (
            lambda quotes: quotes.format_effect("worse|open", "a", "b", "some-pairs", "faithfulness", "ViT-Tiny"),
            "is worse|open",
        ),
        (
            lambda quotes: quotes.format_effect("better", "b", "a", "some-pairs", "faithfulness", "ViT-Tiny"),
            "has 0 rows of b − a",
        ),
        (lambda quotes: quotes.format_order("apart", "some-orders", "x", "y"), "go apart"),
        (lambda quotes: quotes.format_order("apart", "some-orders", "x", "z"), "no unique order of x and z"),
        (lambda quotes: quotes.format_means("a", "some", "ap"), "has 0 rows of a by ap on DeiT-Tiny"),
        (lambda quotes: quotes.require(False, "the sky is green"), "the sky is green"),
    ],
)
def test_claims_that_the_results_contradict_are_reported(quotes, ask, words):
    ask(quotes)

    assert len(quotes.errors) == 1
    assert words in quotes.errors[0]


@pytest.mark.slow
def test_a_contradiction_is_reported_with_its_page_and_fails_the_check(monkeypatch, capsys):
    monkeypatch.setitem(CONCLUSIONS, "tis", lambda quotes: quotes.require(False, "TIS is last") or format_list())

    assert make.main(["--check"]) == 1
    assert "tis: the page states that TIS is last, and the results contradict this" in capsys.readouterr().out


def test_a_name_that_is_no_plan_is_refused(capsys):
    with pytest.raises(SystemExit):
        make.main(["scene"])
    assert "'scene' is no plan of the study" in capsys.readouterr().err
