"""The pages of methods agree with the registry, and their costs with counted passes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitreous
from tests.cases import each
from vitreous.methods.method import METHODS
from vitreous.testing import Counter, tiny_vits

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))

import methods_page  # noqa: E402 - scripts beside the pages that they write
import methods_page_text as words  # noqa: E402

BUILT_IN = [one for one in vitreous.list_methods() if one["origin"] == "vitreous"]
NAMES = [one["name"] for one in BUILT_IN]
COSTS = json.loads(methods_page.COSTS.read_text())
PLAIN = [one["name"] for one in BUILT_IN if isinstance(one["forwards"], int) and isinstance(one["backwards"], int)]
STATED = [name for name in NAMES if name not in PLAIN]
UNKNOWN = {
    "pami": "regions",
    "vitcx": "clusters",
    "caap": "patches",
}  # as many as the image has, or passes that start in the middle


def check(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["methods_page.py", *arguments])
    return methods_page.main()


def test_the_pages_agree_with_the_registry(monkeypatch, capsys):
    assert check(monkeypatch, "--check") == 0, capsys.readouterr().out


def test_a_page_that_is_not_is_named(monkeypatch, capsys, tmp_path):
    stale = tmp_path / "methods.md"
    stale.write_text((DOCS / "methods.md").read_text().replace("relu", "elu"))
    monkeypatch.setattr(methods_page, "PAGES", {stale: methods_page.methods_text})

    assert check(monkeypatch, "--check") == 1
    assert "methods.md" in capsys.readouterr().out
    assert "elu" in stale.read_text()  # nothing was written


@pytest.mark.slow
def test_a_new_method_gets_an_image_its_costs_and_an_entry(monkeypatch, tmp_path):
    def dummy(layer):
        """Attention of the last block, averaged over heads."""
        return layer.attention.mean(dim=1)

    dummy.__module__ = "vitreous.methods.dummy"  # as in a file of this package
    (tmp_path / "costs.json").write_text(json.dumps(COSTS))
    for name, value in {"IMAGES": tmp_path, "COSTS": tmp_path / "costs.json"}.items():
        monkeypatch.setattr(methods_page, name, value)
    monkeypatch.setattr(methods_page, "PAGES", {tmp_path / "methods.md": methods_page.methods_text})
    facts = {"family": "Attention", "formula": "sⱼ = mean A", "mixing": True, "attention": True, "signed": False}
    vitreous.method("dummy", fold=vitreous.last, class_specific=False, backwards=0, **facts)(dummy)
    try:
        assert check(monkeypatch, "--missing") == 0
    finally:
        METHODS.discard("dummy")

    assert {path.name for path in tmp_path.iterdir()} == {"costs.json", "methods.md", "images.png", "dummy.png"}
    assert (tmp_path / "dummy.png").stat().st_size <= methods_page.LARGEST
    assert json.loads((tmp_path / "costs.json").read_text()) == {**COSTS, "dummy": [1, 0]}
    assert "### dummy\n\nAttention of the last block, averaged over heads." in (tmp_path / "methods.md").read_text()


@each("one", BUILT_IN)
def test_every_method_has_a_formula_in_one_line(one):
    assert re.match(r"s\S* [=~] \S", one["formula"]) or one["formula"].startswith("s(u) = ")
    assert "\n" not in one["formula"]
    assert len(one["formula"]) <= 150


def test_every_method_is_in_one_family_and_has_its_image():
    assert sorted(name for names in words.families().values() for name in names) == sorted(NAMES)
    assert "Others" not in words.families()
    files = {path.stem: path.stat().st_size for path in methods_page.IMAGES.glob("*.png")}
    assert set(files) == {*NAMES, "images"}, "run make pages"
    assert max(files.values()) <= methods_page.LARGEST
    assert sum(files.values()) < 1_500_000
    assert set(COSTS) == set(NAMES)


def test_papers_are_readable():
    found = words.papers()

    assert {one["paper"] for one in BUILT_IN if one["paper"] and " " not in one["paper"]} <= set(found)
    assert not [text for text in found.values() if re.search(r"[{}\\]", text)]
    assert found["abnar2020quantifying"] == (
        "Abnar and Zuidema, *Quantifying Attention Flow in Transformers*, ACL, 2020"
    )


# ── costs ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def deep_vit():
    """A tiny model with as many blocks as the one with which the costs of the pages were counted."""
    tiny = tiny_vits()["class token"]
    return replace(tiny, blocks=tiny.blocks * (vitreous.load("scenes").depth // tiny.depth))


@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
@each("name", PLAIN)
def test_costs_are_as_counted(name, deep_vit):
    vit, counter = deep_vit, Counter()
    images = torch.randn(len(methods_page.TARGETS), 3, 32, 32, dtype=torch.float64)  # as many at once as were counted
    with counter.watching(vit) as watched:
        vitreous.explain(watched, images, method=methods_page.shown_method(name))
    whole = len(images) * vit.depth

    assert [round(counter.forwards / whole, 2), round(counter.backwards / whole, 2)] == COSTS.get(name)


def stated(name, kind, options, patches, channels):
    """A stated number of passes, such as "1 + masks", with its words filled in."""
    return eval(str(getattr(vitreous.resolve(name).facts, kind)), {"patches": patches, "channels": channels, **options})


@each("name", [name for name in STATED if name not in UNKNOWN])
def test_counted_costs_are_the_stated_formula(name):
    """Stored costs of the scenes model, and costs of a tiny one counted with other numbers of samples."""
    method = methods_page.shown_method(name)
    options = {**method.known_options, **method.options}
    assert COSTS[name][0] == stated(name, "forwards", options, 196, 144)
    assert COSTS[name][1] <= stated(name, "backwards", options, 196, 144)

    vit, counter = tiny_vits()["class token"], Counter()
    method = vitreous.resolve(name)
    method = method.with_options(**method.facts.trial)
    with counter.watching(vit) as watched:
        vitreous.explain(watched, torch.randn(2, 3, 32, 32, dtype=torch.float64), method=method)
    options = {**method.known_options, **method.options}
    assert counter.forwards == 2 * vit.depth * stated(name, "forwards", options, 16, 48)
    assert counter.backwards <= 2 * vit.depth * stated(name, "backwards", options, 16, 48)


def test_costs_that_depend_on_the_image_are_marked():
    for name, word in UNKNOWN.items():
        assert word in vitreous.resolve(name).facts.forwards
        assert COSTS[name][0] > 1


def test_every_option_of_every_method_has_a_meaning():
    unexplained = [
        f"{method['name']}({option}=)"
        for method in vitreous.list_methods()
        if method["origin"] == "vitreous"
        for option, meaning in method["meanings"].items()
        if not meaning
    ]

    assert unexplained == []


def test_the_command_line_explains_options(capsys, monkeypatch):
    from vitreous.cli.main import main

    monkeypatch.setenv("COLUMNS", "200")

    assert main(["methods", "rise"]) == 0
    assert "Cells per side of the random grid." in capsys.readouterr().out
