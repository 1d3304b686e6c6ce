"""The demo page: complete, self-contained, and truthful about the evidence."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.demo import CHAPTERS, METHODS, page, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told():
    return run(count=4, shown=1)


def test_every_chapter_is_told_with_every_method(told):
    assert [one.chapter for one in told] == list(CHAPTERS)
    for one in told:
        assert [score.method for score in one.scores] == list(METHODS)
        assert all(0 <= score.pointing <= 1 and 0 < score.precision <= 1 for score in one.scores)


def test_the_page_fetches_nothing(told):
    written = page(told)

    assert not re.findall(r'<(?!a )[^>]*(?:src|href)="(?!data:)', written)
    assert re.findall(r'<a href="([^"]*)', written) == [
        "http://127.0.0.1:8420/"
    ]  # leads to `vitreous serve`, fetches nothing
    assert written.count("<figure>") == sum(len(one.explained) * (2 + len(METHODS)) for one in told)
    for method in METHODS:
        assert method in written


def test_the_page_escapes_what_it_is_given(told):
    chapter = replace(told[0].chapter, title="<script>alert(1)</script>", words="a & b")

    written = page([replace(told[0], chapter=chapter)])

    assert "<script>" not in written
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in written
    assert "a &amp; b" in written


def test_the_default_method_comes_first(told):
    from inspect import signature

    from vitreous import explain

    assert METHODS[0] == DEFAULT_METHOD == signature(explain).parameters["method"].default
    assert page(told).index(f"<b>{DEFAULT_METHOD}</b>") < page(told).index("<b>genatt</b>")


def test_two_questions_about_one_picture_get_two_maps_from_all_but_rollout(told):
    pair = next(one for one in told if one.chapter.every_object)
    first, second = pair.explained

    assert first.scene is second.scene
    for method in METHODS:
        same = first.attributions[method].patches.equal(second.attributions[method].patches)
        assert same == (method == "rollout"), method


def test_the_shortcut_lights_up_under_the_default_method(told):
    shortcut = next(one for one in told if one.chapter.spurious)
    scores = {score.method: score for score in shortcut.scores}

    assert scores[DEFAULT_METHOD].precision > 0.6 > scores["ixg"].precision
    assert shortcut.accuracy < 0.5
