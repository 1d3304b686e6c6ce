"""Pages that the library writes to files, in a real browser: partners in the page of a pair, and tables that are sorted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import vitreous
from vitreous.testing import tiny_vits

pytestmark = pytest.mark.browser
SORT = Path(vitreous.__file__).parent / "report" / "templates" / "sort.js"
ROWS = {"b": "10", "a": "9", "d": None, "c": "-1"}  # by name; no value is sorted last


@pytest.fixture
def page(browser):
    context = browser.new_context()
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    yield page
    context.close()
    assert not problems


def test_the_page_of_a_pair_shows_the_partners_of_a_patch(page, tmp_path):
    vit = tiny_vits()["class token"]
    image = torch.randn(1, 3, *vit.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pair = vitreous.explain_pair(vit, image, vit, image.flip(-1))
    page.goto(pair.save(tmp_path / "pair.html").as_uri())
    data = json.loads(page.text_content("#data") or "")

    def colours(side: str) -> list[str]:
        return page.eval_on_selector_all(f"[data-side={side}] .cell", "all => all.map(e => e.style.background)")

    def signs(shares: list[float]) -> list[bool]:
        return [share > 0 for share in shares]

    def are_red(side: str) -> list[bool]:
        return [colour.startswith("rgba(200, 30, 40") for colour in colours(side)]

    assert (are_red("a"), are_red("b")) == (signs(data["a"]), signs(data["b"]))
    maps = colours("a"), colours("b")
    page.hover("[data-side=a] .cell >> nth=1")
    assert are_red("b") == signs(data["matrix"][1])
    assert set(colours("a")) == {"transparent"}
    page.click("[data-side=a] .cell >> nth=1")
    page.hover("[data-side=b] .cell >> nth=2")  # nothing changes while a patch is selected
    assert are_red("b") == signs(data["matrix"][1])
    page.keyboard.press("Escape")
    assert (colours("a"), colours("b")) == maps
    for index in (2, 3):
        page.focus(f"[data-side=b] .cell >> nth={index}")
        assert are_red("a") == signs([row[index] for row in data["matrix"]])
    assert page.locator(".chosen").count() == 1


def test_tables_of_a_report_are_sorted_by_a_click(page):
    rows = "".join(
        f"<tr><th data-v={name}>{name}</th><td{'' if value is None else f' data-v={value}'}>{value}</td></tr>"
        for name, value in ROWS.items()
    )
    page.set_content(f"<table class=sortable><thead><tr><th>name<th>score</thead><tbody>{rows}</tbody></table>")
    page.add_script_tag(content=SORT.read_text(encoding="utf-8"))

    def names_after(column: str) -> str:
        page.click(f"thead button >> text={column}")
        return "".join(page.locator("tbody th").all_inner_texts())

    assert [names_after("score"), names_after("score")] == ["cabd", "bacd"]
    assert page.locator("thead th[aria-sort=descending]").inner_text() == "score"
    assert [names_after("name"), names_after("name")] == ["abcd", "dcba"]
    assert page.locator("thead th[aria-sort]").count() == 1
