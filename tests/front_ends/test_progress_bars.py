"""Bars of long calls in Python: in terminals and notebooks, after a while, and never where nobody reads them."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
import timm
import torch

import vitreous
from vitreous.core import progress
from vitreous.core.progress import REPORT, ProgressBars, Tally, reporting, show_progress


class Passed:
    """A timer whose time has passed when it starts."""

    def __init__(self, seconds, call):
        self.call = call
        assert seconds == progress.PATIENCE

    def start(self):
        self.call()

    def cancel(self):
        pass


class NeverPassed(Passed):
    def start(self):
        pass


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A stderr that is a terminal, on which bars appear at once."""
    monkeypatch.setattr(progress.threading, "Timer", Passed)
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    screen = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=screen, modules={}))
    return screen


@pytest.fixture(scope="module")
def vit():
    return vitreous.load("scenes")


@pytest.fixture(scope="module")
def images():
    return vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None].expand(2, -1, -1, -1)


def test_long_calls_show_their_steps_in_a_terminal(vit, images, terminal, subtests):
    attribution = vitreous.explain(vit, images, method="ixg", progress=False)
    assert terminal.getvalue() == ""
    small = timm.create_model("resnet18", pretrained=False).eval()
    calls = {
        "explain": (lambda: vitreous.explain(vit, images, method="rise(masks=8)", batch_size=1), ["rise(masks=8), batches", "2/2"]),
        "evaluate": (
            lambda: vitreous.evaluate(vit, images, attribution, ["sparseness", "deletion_aopc(ratios=(0.5,))"]),
            ["deletion_aopc(ratios=(0.5,)) (about 1 forward passes for each of 2 maps)", "metrics"],
        ),
        "slow metric": (
            lambda: vitreous.evaluate(vit, images[:1], attribution[:1], "max_sensitivity(samples=1)"),
            ["max_sensitivity(samples=1) (samples explanations for each map)"],
        ),
        "see_through": (lambda: vitreous.see_through(small, size=(64, 64)), ["finding its blocks", "no share of a score is lost"]),
    }  # fmt: skip
    for name, (call, words) in calls.items():
        with subtests.test(name):
            terminal.truncate(0)
            call()
            assert all(word in terminal.getvalue() for word in words), terminal.getvalue()
            assert REPORT.get() is None


def test_pairs_show_their_inputs(terminal):
    torch.manual_seed(0)
    vit = vitreous.wrap(
        timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=0, img_size=32, depth=2)
    )
    image, other = torch.randn(2, 1, 3, 32, 32)
    vitreous.explain_pair(vit, image, vit, other, method="occlusion")

    assert "occlusion of" in terminal.getvalue()


def test_nothing_is_shown_where_it_would_not_be_read(vit, images, terminal, monkeypatch, subtests):
    def explain(**options):
        vitreous.explain(vit, images, method="rise(masks=8)", **options)
        return terminal.getvalue()

    with subtests.test("switched off"):
        assert explain(progress=False) == ""
    with subtests.test("switched off for what is called inside"), show_progress(False, "outer"):
        assert explain() == ""
    with subtests.test("reported to something else"), reporting(lambda done, total: None):
        assert explain() == ""
    with subtests.test("short"):
        monkeypatch.setattr(progress.threading, "Timer", NeverPassed)
        assert explain() == ""
    monkeypatch.setattr(progress.threading, "Timer", Passed)
    with subtests.test("no terminal"):
        monkeypatch.setattr(Terminal, "isatty", lambda self: False)
        assert explain() == ""
    with subtests.test("no stderr"):
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=None, modules={}))
        assert explain() == ""


def test_a_notebook_and_a_request_show_a_bar_without_a_terminal(monkeypatch):
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=io.StringIO(), modules={}))
    assert progress.open_console(always=False) is None
    assert progress.open_console(always=True) is not None
    progress.sys.modules["ipykernel"] = progress
    assert progress.open_console(always=False) is not None


def test_a_wrong_value_is_refused(vit, images):
    with pytest.raises(vitreous.SpecError, match="progress='yes'"):
        vitreous.explain(vit, images, progress="yes")  # pyright: ignore[reportArgumentType]


def test_a_bar_is_removed_after_an_error(terminal):
    displays = []

    def work():
        with show_progress(None, "work", 2) as display:
            assert isinstance(display, ProgressBars)
            displays.append(display)
            Tally(3).add(1)
            assert display.bar.live.is_started
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert not displays[0].bar.live.is_started
    assert REPORT.get() is None
