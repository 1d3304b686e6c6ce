"""The demo page: complete, self-contained, and with the correct evidence."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module

import pytest

from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.demo import CHAPTERS, page, run
from vitreous.demo import METHODS as DEMO_METHODS

pytestmark = pytest.mark.slow
METHODS = tuple("tis(masks=4)" if method == "tis(masks=128)" else method for method in DEMO_METHODS)


@pytest.fixture(scope="module", autouse=True)
def few_masks():
    """The demo's methods, with few masks of the one that samples."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("sections", "page"):
            patch.setattr(import_module(f"vitreous.demo.{name}"), "METHODS", METHODS)
        yield


@pytest.fixture(scope="module")
def results(few_masks):
    return run(count=2, shown=1)


@pytest.fixture(scope="module")
def written(results):
    return page(results)


def test_every_chapter_has_every_method(results):
    assert [result.chapter for result in results] == list(CHAPTERS)
    for result in results:
        assert [score.method for score in result.scores] == list(METHODS)
        assert all(0 <= score.pointing <= 1 and 0 < score.precision <= 1 for score in result.scores)


def test_the_page_loads_no_external_resources(results, written):
    assert not re.findall(r'<(?!a )[^>]*(?:src|href)="(?!data:)', written)
    assert re.findall(r'<a href="([^"]*)', written) == [
        "http://127.0.0.1:8420/"
    ]  # leads to `vitreous serve`, fetches nothing
    assert written.count("<figure>") == sum(len(result.explained) * (2 + len(METHODS)) for result in results)
    for method in METHODS:
        assert method in written


def test_the_page_escapes_names(results):
    chapter = replace(results[0].chapter, title="<script>alert(1)</script>", words="a & b")

    written = page([replace(results[0], chapter=chapter)])

    assert "<script>" not in written
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in written
    assert "a &amp; b" in written


def test_the_default_method_comes_first(written):
    from inspect import signature

    from vitreous import explain

    assert DEMO_METHODS[0] == DEFAULT_METHOD == signature(explain).parameters["method"].default
    assert written.index(f"<b>{DEFAULT_METHOD}</b>") < written.index("<b>genatt</b>")


def test_two_classes_of_one_image_have_two_maps_by_all_methods_but_rollout(results):
    pair = next(result for result in results if result.chapter.every_object)
    first, second = pair.explained

    assert first.scene is second.scene
    for method in METHODS:
        same = first.attributions[method].patches.equal(second.attributions[method].patches)
        assert same == (method == "rollout"), method


def test_the_shortcut_lights_up_under_the_default_method(results):
    shortcut = next(result for result in results if result.chapter.spurious)
    scores = {score.method: score for score in shortcut.scores}

    assert scores[DEFAULT_METHOD].precision > 0.6 > scores["ixg"].precision
    assert shortcut.accuracy < 0.5
