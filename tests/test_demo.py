"""The demo page: complete, self-contained, and truthful about the evidence."""

from __future__ import annotations

import re

import pytest

from vitreous.demo import CHAPTERS, METHODS, page, run


@pytest.fixture(scope="module")
def told():
    return run(pictures=4, shown=1)


@pytest.mark.slow
def test_every_chapter_is_told_with_every_method(told):
    assert [one.chapter for one in told] == list(CHAPTERS)
    for one in told:
        assert [score.method for score in one.scores] == list(METHODS)
        assert all(0 <= score.pointing <= 1 and 0 < score.precision <= 1 for score in one.scores)


@pytest.mark.slow
def test_the_page_fetches_nothing(told):
    written = page(told)

    assert not re.findall(r'<(?!a )[^>]*(?:src|href)="(?!data:)', written)
    assert re.findall(r'<a href="([^"]*)', written) == [
        "http://127.0.0.1:8420/"
    ]  # leads to `vitreous serve`, fetches nothing
    assert written.count("<figure>") == sum(len(one.lines) * (2 + len(METHODS)) for one in told)
    for method in METHODS:
        assert method in written


def test_two_questions_about_one_picture_get_two_maps_from_all_but_rollout(told):
    pair = next(one for one in told if one.chapter.every_object)
    first, second = pair.lines

    assert first.scene is second.scene
    for method in METHODS:
        same = first.answers[method].patches.equal(second.answers[method].patches)
        assert same == (method == "rollout"), method


def test_the_shortcut_lights_up_under_the_default_method(told):
    shortcut = next(one for one in told if one.chapter.spurious)
    scores = {score.method: score for score in shortcut.scores}

    assert scores["decompx+skipplus"].precision > 0.6 > scores["ixg"].precision
    assert shortcut.accuracy < 0.5
